//! Work to plan: graphs of well-known models, imports of PyTorch's traces, and training steps as chains of
//! layers.

pub mod layers;
pub mod models;
pub mod pytorch;
