//! Where work comes from: file formats, importers, and generators of model graphs.

pub mod graph;
pub mod pytorch;

pub use graph::OwnedGraph;
