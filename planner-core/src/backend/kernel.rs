//! What computes: the ops of a graph on a device.

use super::{
    DeviceRange, DeviceRanges, ErrorType, FillError, HostRanges, InputWriter, StateWriter,
};
use crate::graph::{Launched, OpId};

/// One launch of an op.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub struct Launch<'a> {
    /// The op.
    pub op: OpId,
    /// Whether the op has been launched before in this iteration. A repeat must write the same
    /// bytes into its temporaries as the first launch, so it draws the same random numbers. The
    /// states, inputs and outputs that the op writes are `None`; the kernel neither reads nor writes
    /// them.
    pub is_repeat: bool,
    /// The iteration, counted from 1 over all plans that an executor has switched to. Where a backend
    /// captures launches and runs them again, this is the captured one; such a backend offers the
    /// number in device memory.
    pub iteration: u64,
    /// The ranges of the tensors that the op reads, in the op's order. Each is a whole tensor.
    pub reads: DeviceRanges<'a>,
    /// The ranges of the tensors that the op writes, in the op's order. Each is a whole tensor.
    pub writes: DeviceRanges<'a>,
    /// Its workspace, if it has one.
    pub workspace: Option<DeviceRange>,
}

impl<'a> Launch<'a> {
    /// The first launch of an op in the first iteration, without a workspace.
    #[must_use]
    pub const fn new(op: OpId, reads: DeviceRanges<'a>, writes: DeviceRanges<'a>) -> Self {
        Self { op, is_repeat: false, iteration: 1, reads, writes, workspace: None }
    }

    /// Which launch of the op this is.
    #[must_use]
    pub const fn launched(&self) -> Launched {
        Launched { op: self.op, is_repeat: self.is_repeat }
    }
}

/// One run of an op on the host.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub struct HostLaunch<'a> {
    /// The op.
    pub op: OpId,
    /// The iteration, counted as in [`Launch::iteration`].
    pub iteration: u64,
    /// The ranges of the host block that the op reads, in the op's order. Each is a whole tensor.
    pub reads: HostRanges<'a>,
    /// The ranges that the op writes, in the op's order. A tensor that it updates in place has one
    /// range in both lists.
    pub writes: HostRanges<'a>,
}

impl<'a> HostLaunch<'a> {
    /// A run of an op in the first iteration.
    #[must_use]
    pub const fn new(op: OpId, reads: HostRanges<'a>, writes: HostRanges<'a>) -> Self {
        Self { op, iteration: 1, reads, writes }
    }
}

/// The embedder's kernels for ops that run on the host.
pub trait HostKernels<B: ErrorType> {
    /// Enqueues an op on [`Stream::Host`](crate::Stream::Host), by the means of the device. It may
    /// touch exactly the bytes of the host block that the launch names, and nothing after the next
    /// signal of that stream.
    ///
    /// # Errors
    /// Those of the backend.
    fn launch_on_host(&mut self, device: &mut B, launch: &HostLaunch<'_>) -> Result<(), B::Error>;
}

/// The embedder's kernels, for one backend: what ops compute, and the values of states and
/// inputs. Only kernels know what a tensor means.
pub trait Kernels<B: ErrorType> {
    /// Enqueues an op on [`Stream::Compute`](crate::Stream::Compute). It may touch exactly
    /// what the launch names, and nothing after the next signal of that stream. A repeat comes
    /// only where the graph says that the op is repeatable.
    ///
    /// # Errors
    /// Those of the backend.
    fn launch(&mut self, device: &mut B, launch: &Launch<'_>) -> Result<(), B::Error>;

    /// The kernels of ops that run on the host. None unless the embedder says otherwise: then plans
    /// with such ops are refused.
    fn on_host(&mut self) -> Option<&mut dyn HostKernels<B>> {
        None
    }

    /// Writes the initial value of every state into the host block. Called once, after the block is
    /// created and before any copy; not after a switch.
    ///
    /// # Errors
    /// Those of the backend, and values that do not fit.
    fn fill_states(&mut self, states: &mut StateWriter<'_, B>) -> Result<(), FillError<B::Error>>;

    /// Writes the value of every input in an iteration into the host block. Called when nothing uses
    /// these bytes any more, during the iteration before: no later than the first copy of the values.
    /// After a [switch](crate::Executor::switch) it is called for the next iteration once more.
    ///
    /// # Errors
    /// Those of the backend, and values that do not fit.
    fn fill_inputs(&mut self, inputs: &mut InputWriter<'_, B>) -> Result<(), FillError<B::Error>>;
}

impl<B: ErrorType, K: Kernels<B> + ?Sized> Kernels<B> for &mut K {
    fn launch(&mut self, device: &mut B, launch: &Launch<'_>) -> Result<(), B::Error> {
        K::launch(self, device, launch)
    }

    fn on_host(&mut self) -> Option<&mut dyn HostKernels<B>> {
        K::on_host(self)
    }

    fn fill_states(&mut self, states: &mut StateWriter<'_, B>) -> Result<(), FillError<B::Error>> {
        K::fill_states(self, states)
    }

    fn fill_inputs(&mut self, inputs: &mut InputWriter<'_, B>) -> Result<(), FillError<B::Error>> {
        K::fill_inputs(self, inputs)
    }
}
