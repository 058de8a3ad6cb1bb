//! Where work comes from: file formats, importers, and generators of model graphs.

pub mod certificate;
pub mod chain;
pub mod format;
pub mod graph;
pub mod layers;
pub mod machines;
pub mod models;
pub mod plan;
pub mod pytorch;
pub mod renaming;
pub mod shown;

pub use certificate::OwnedCertificate;
pub use chain::OwnedChain;
pub use graph::OwnedGraph;
pub use machines::OwnedMachine;
pub use plan::{OwnedPlacements, OwnedPlan};
pub use shown::Shown;
