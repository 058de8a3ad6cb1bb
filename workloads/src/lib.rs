//! Where work comes from: file formats, importers, and generators of model graphs.

pub mod graph;

pub use graph::OwnedGraph;
