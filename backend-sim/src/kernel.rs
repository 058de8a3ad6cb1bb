//! Kernels for every op of a graph, and the states and inputs that they read.

use crate::SimDevice;
use crate::error::SimError;
use crate::work::Work;
use backend_checks::{Refused, check_launch};
use integrity::{Passes, slots, value};
use planner_core::backend::{
    FillError, HostKernels, HostLaunch, HostRange, InputWriter, Kernels, Launch, StateWriter,
};
use planner_core::{Graph, HostLayout, Kind, OpId, Stream, TensorId};

/// Kernels for every op of a graph. An op reads all bytes of its operands, and the values that it
/// writes follow only from the bytes that it read.
#[derive(Clone, Debug)]
pub struct SimKernels<'g> {
    graph: Graph<'g>,
    /// The host copy of each state, once the states are filled.
    states: Vec<(TensorId, HostRange)>,
    /// The op that fails on the host, and the iteration in which it fails.
    failing: Option<(OpId, u64)>,
}

impl<'g> SimKernels<'g> {
    /// The kernels of a graph.
    #[must_use]
    pub const fn new(graph: Graph<'g>) -> Self {
        Self { graph, states: Vec::new(), failing: None }
    }

    /// Makes an op fail when it runs on the host in an iteration.
    pub const fn fail_on_host(&mut self, op: OpId, iteration: u64) {
        self.failing = Some((op, iteration));
    }

    /// The graph.
    #[must_use]
    pub const fn graph(&self) -> &Graph<'g> {
        &self.graph
    }

    /// One number for the values of all states, read from their host copies on the device on which
    /// they were filled. Two runs that computed the same values have the same digest.
    ///
    /// # Errors
    /// [`SimError::HostCopy`] if a host copy is not one complete version of its state, and failures
    /// of earlier work.
    pub fn digest(&self, device: &SimDevice) -> Result<u64, SimError> {
        let values = self.states.iter().map(|&(state, slot)| device.read_value(slot, state));
        Ok(integrity::digest(values.collect::<Result<Vec<_>, _>>()?.into_iter()))
    }
}

impl Kernels<SimDevice> for SimKernels<'_> {
    fn launch(&mut self, device: &mut SimDevice, launch: &Launch<'_>) -> Result<(), SimError> {
        device.launch(&self.graph, launch)
    }

    fn on_host(&mut self) -> Option<&mut dyn HostKernels<SimDevice>> {
        Some(self)
    }

    fn fill_states(
        &mut self,
        states: &mut StateWriter<'_, SimDevice>,
    ) -> Result<(), FillError<SimError>> {
        self.states = slots(&self.graph, states.layout(), Kind::State, 0).collect();
        let device = states.device();
        let fill = |&(state, slot): &(TensorId, HostRange)| {
            device.write_value(slot, state, value::initial_state(state, slot.bytes))
        };
        Ok(self.states.iter().try_for_each(fill)?)
    }

    fn fill_inputs(
        &mut self,
        inputs: &mut InputWriter<'_, SimDevice>,
    ) -> Result<(), FillError<SimError>> {
        let (iteration, layout) = (inputs.iteration(), inputs.layout());
        let mut slots = slots(&self.graph, layout, Kind::Input, HostLayout::slot(iteration));
        let device = inputs.device();
        Ok(slots.try_for_each(|(input, slot)| {
            device.write_value(slot, input, value::input(input, iteration, slot.bytes))
        })?)
    }
}

impl HostKernels<SimDevice> for SimKernels<'_> {
    fn launch_on_host(
        &mut self,
        device: &mut SimDevice,
        launch: &HostLaunch<'_>,
    ) -> Result<(), SimError> {
        let fails = self.failing == Some((launch.op, launch.iteration));
        device.enqueue_on_host(&self.graph, launch, fails)
    }
}

impl SimDevice {
    /// Enqueues an op of a graph on the host stream. When it begins, the ranges that it reads must
    /// hold the right bytes of the right tensors, each of one version.
    ///
    /// # Errors
    /// A range is not in the block or does not fit the op, the op has no time on the host, or
    /// earlier work has failed.
    pub fn launch_on_host(
        &mut self,
        graph: &Graph<'_>,
        launch: &HostLaunch<'_>,
    ) -> Result<(), SimError> {
        self.enqueue_on_host(graph, launch, false)
    }

    fn enqueue_on_host(
        &mut self,
        graph: &Graph<'_>,
        launch: &HostLaunch<'_>,
        fails: bool,
    ) -> Result<(), SimError> {
        self.check_failure()?;
        let op = launch.op;
        let time_ns = backend_checks::check_host_launch(graph, launch)?;
        launch
            .reads
            .iter()
            .chain(launch.writes.iter())
            .try_for_each(|range| self.check_copy(range))?;
        let fails_in = fails.then_some(launch.iteration);
        let work = Work::Host { op, passes: Passes::on_host(graph, launch), fails_in };
        self.clock.op(Stream::Host, time_ns, launch.iteration);
        self.submit(Stream::Host, work)
    }

    /// Enqueues an op of a graph on the launch's stream. When it begins, the ranges that it reads
    /// must hold the right bytes of the right tensors, each of one version. Its workspace holds
    /// garbage after it.
    ///
    /// # Errors
    /// An address is not mapped, a range does not fit the op, or earlier work has failed.
    pub fn launch(&mut self, graph: &Graph<'_>, launch: &Launch<'_>) -> Result<(), SimError> {
        self.check_failure()?;
        let op = launch.op;
        check_launch(graph, launch)?;
        if !updates_in_place(graph, launch) {
            return Err(Refused::Operands(op).into());
        }
        let work = Work::Launch { op, passes: Passes::new(graph, launch) };
        self.clock.op(launch.stream, graph.op(op).time_ns, launch.iteration);
        self.submit(launch.stream, work)
    }
}

/// Whether a launch has the same address for both ends of an update in place.
fn updates_in_place(graph: &Graph<'_>, launch: &Launch<'_>) -> bool {
    let (reads, writes) = (graph.reads(launch.op), graph.writes(launch.op));
    let in_place = |(position, tensor): (usize, &TensorId)| {
        let read = reads.iter().position(|read| read == tensor);
        read.is_none_or(|read| launch.reads.get(read) == launch.writes.get(position))
    };
    writes.iter().enumerate().all(in_place)
}
