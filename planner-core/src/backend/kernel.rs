//! What computes: the ops of a graph on a device.

use super::{Addresses, DeviceAddress, ErrorType};
use crate::graph::OpId;

/// One launch of an op.
#[derive(Clone, Copy, Debug)]
pub struct Launch<'a> {
    /// The op.
    pub op: OpId,
    /// The iteration, counted from 1.
    pub iteration: u64,
    /// Addresses of what it reads, in the op's order, each a whole tensor.
    pub reads: Addresses<'a>,
    /// Addresses of what it writes, in the op's order, each a whole tensor.
    pub writes: Addresses<'a>,
    /// Address of its workspace, where it has one.
    pub workspace: Option<DeviceAddress>,
}

/// The embedder's kernels, for one backend.
pub trait Kernels<B: ErrorType> {
    /// Enqueues an op on [`Stream::Compute`](crate::Stream::Compute). It may touch exactly
    /// what the launch names, and nothing after the next signal of that stream.
    ///
    /// # Errors
    /// Those of the backend.
    fn launch(&mut self, device: &mut B, launch: &Launch<'_>) -> Result<(), B::Error>;

    /// Puts the inputs of an iteration (counted from 1) into their rooms on the host, room
    /// `iteration % 2`. Called when nothing reads those rooms any more, during the iteration
    /// before: no later than the first copy of its values.
    ///
    /// # Errors
    /// Those of the backend.
    fn fill_inputs(&mut self, device: &mut B, iteration: u64) -> Result<(), B::Error>;
}
