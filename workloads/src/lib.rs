//! Graphs, chains, plans and machines that own their data, and their file formats.

pub mod certificate;
pub mod chain;
pub mod format;
pub mod graph;
pub mod machines;
pub mod plan;
pub mod renaming;
pub mod shown;

pub use certificate::OwnedCertificate;
pub use chain::OwnedChain;
pub use graph::OwnedGraph;
pub use machines::OwnedMachine;
pub use plan::{OwnedPlacements, OwnedPlan};
pub use shown::Shown;
