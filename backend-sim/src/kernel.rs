//! Kernels for every op of a graph, and the inputs that they read.

use crate::SimDevice;
use crate::error::SimError;
use crate::stream::Queue;
use crate::work::Work;
use backend_checks::{Operands, Refused};
use integrity::value;
use planner_core::backend::{HostRange, Kernels, Launch};
use planner_core::{Graph, Kind, Stream, TensorId};

/// Kernels for every op of a graph: an op reads all bytes of what it reads, and the values
/// that it writes follow from what it read and from nothing else.
#[derive(Clone, Copy, Debug)]
pub struct SimKernels<'g> {
    graph: Graph<'g>,
}

impl<'g> SimKernels<'g> {
    /// The kernels of a graph.
    #[must_use]
    pub const fn new(graph: Graph<'g>) -> Self {
        Self { graph }
    }
}

impl<'g> Kernels<SimDevice<'g>> for SimKernels<'g> {
    fn launch(&mut self, device: &mut SimDevice<'g>, launch: &Launch<'_>) -> Result<(), SimError> {
        device.launch(launch)
    }

    fn fill_inputs(&mut self, device: &mut SimDevice<'g>, iteration: u64) -> Result<(), SimError> {
        let inputs = self.graph.tensor_ids();
        inputs
            .filter(|&id| self.graph.tensor(id).kind == Kind::Input)
            .try_for_each(|tensor| device.fill_input(tensor, iteration))
    }
}

impl SimDevice<'_> {
    /// Enqueues an op on the compute stream. Its reads must hold the right bytes of the
    /// right tensors, each of one version, when it begins; its workspace holds garbage
    /// after it.
    ///
    /// # Errors
    /// Addresses that are not mapped or do not fit the op, and failures of earlier work.
    pub fn launch(&mut self, launch: &Launch<'_>) -> Result<(), SimError> {
        self.check_failure()?;
        let op = launch.op;
        Operands::check(&self.graph, launch)?;
        if !self.updates_in_place(launch) {
            return Err(Refused::Operands(op).into());
        }
        self.clock.launch(self.graph.op(op).time_ns, launch.iteration);
        let work = Work::Launch {
            op,
            reads: launch.reads.iter().collect(),
            writes: launch.writes.iter().collect(),
            workspace: launch.workspace,
        };
        self.submit(Stream::Compute, work)
    }

    /// Whether a launch has the same address for both ends of an update in place.
    fn updates_in_place(&self, launch: &Launch<'_>) -> bool {
        let (reads, writes) = (self.graph.reads(launch.op), self.graph.writes(launch.op));
        let in_place = |(position, tensor): (usize, &TensorId)| {
            let read = reads.iter().position(|read| read == tensor);
            read.is_none_or(|read| launch.reads.get(read) == launch.writes.get(position))
        };
        writes.iter().enumerate().all(in_place)
    }

    /// Puts an input's value for an iteration, counted from 1, into its room on the host.
    ///
    /// # Errors
    /// [`SimError::RoomInUse`] when enqueued work still uses the room.
    pub fn fill_input(&mut self, tensor: TensorId, iteration: u64) -> Result<(), SimError> {
        self.check_failure()?;
        let room = (iteration % 2) as u32;
        let host = self.host.as_ref().ok_or(SimError::NoHost)?;
        let range = host.range(&self.graph, tensor, room);
        self.check_unused(range)?;
        self.contents.fill_host(range, value::input(tensor, iteration, range.bytes));
        Ok(())
    }

    /// Whether the host may write here now.
    pub(crate) fn check_unused(&self, range: HostRange) -> Result<(), SimError> {
        let used = |host: HostRange| {
            let (start, end) = (host.offset_bytes, host.offset_bytes + host.bytes);
            start < range.offset_bytes + range.bytes && range.offset_bytes < end
        };
        for (work, pending) in self.queues.iter().flat_map(Queue::pending) {
            if !self.is_forgiving && pending.host().is_some_and(|(host, _)| used(host)) {
                return Err(SimError::RoomInUse { range, work });
            }
        }
        Ok(())
    }
}
