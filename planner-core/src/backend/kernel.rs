//! The kernels that an embedder provides: they compute the ops of a graph.

use super::{
    DeviceRange, DeviceRanges, ErrorType, FillError, HostRanges, InputWriter, StateWriter,
};
use crate::graph::{Launched, OpId};
use crate::schedule::Stream;

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
    /// The iteration, counted from 1 over all plans that an executor has switched to. If a backend
    /// captures launches and replays them, this is the number of the captured iteration; such a
    /// backend provides the current number in device memory.
    pub iteration: u64,
    /// The stream that runs it: [`Stream::Network`] for a collective, else [`Stream::Compute`].
    pub stream: Stream,
    /// The ranges of the tensors that the op reads, in the op's order. Each is a whole tensor.
    pub reads: DeviceRanges<'a>,
    /// The ranges of the tensors that the op writes, in the op's order. Each is a whole tensor.
    pub writes: DeviceRanges<'a>,
    /// The workspace of the op, if the op has one.
    pub workspace: Option<DeviceRange>,
}

impl<'a> Launch<'a> {
    /// The first launch of an op in the first iteration, without a workspace.
    #[must_use]
    pub const fn new(op: OpId, reads: DeviceRanges<'a>, writes: DeviceRanges<'a>) -> Self {
        let (is_repeat, iteration, stream) = (false, 1, Stream::Compute);
        Self { op, is_repeat, iteration, stream, reads, writes, workspace: None }
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
    /// Enqueues an op on [`Stream::Host`](crate::Stream::Host), by methods of the device. The op
    /// may access only the bytes of the host block that the launch names, and none of them after
    /// the next signal of that stream.
    ///
    /// # Errors
    /// Errors of the backend.
    fn launch_on_host(&mut self, device: &mut B, launch: &HostLaunch<'_>) -> Result<(), B::Error>;
}

/// The embedder's kernels for one backend: they compute ops, and write the values of states and
/// inputs. Only kernels know the meaning of a tensor.
pub trait Kernels<B: ErrorType> {
    /// Enqueues an op on the launch's stream. The op may access only the memory that the launch
    /// names, and none of it after the next signal of that stream. An op is
    /// repeated only if the graph says that it is repeatable.
    ///
    /// # Errors
    /// Errors of the backend.
    fn launch(&mut self, device: &mut B, launch: &Launch<'_>) -> Result<(), B::Error>;

    /// The kernels of ops that run on the host. By default there are no kernels for the host: the
    /// executor refuses plans that run ops on the host.
    fn on_host(&mut self) -> Option<&mut dyn HostKernels<B>> {
        None
    }

    /// Writes the initial value of every state into the host block. The executor calls it once, after
    /// it has created the block and before any copy; it does not call it after a switch.
    ///
    /// # Errors
    /// Errors of the backend, and values that do not fit.
    fn fill_states(&mut self, states: &mut StateWriter<'_, B>) -> Result<(), FillError<B::Error>>;

    /// Writes the value of every input in an iteration into the host block. The executor calls it
    /// during the iteration before, once nothing uses these bytes any more and before the first copy of
    /// the new values. After a [switch](crate::Executor::switch) it calls it for the next iteration
    /// again.
    ///
    /// # Errors
    /// Errors of the backend, and values that do not fit.
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
