//! Traces of PyTorch that are written by hand.

mod kinds;
mod kineto;
mod malformed;
mod rules;
mod warnings;
