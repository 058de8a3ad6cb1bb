//! Virtual time: when each piece of work ends on a machine with given speeds.

use planner_core::machine::Direction;
use planner_core::{Machine, PerStream, Stream};

/// The time of one stream.
#[derive(Clone, Debug, Default)]
struct Lane {
    /// When the next work may start.
    free_ns: u64,
    /// Bytes submitted since the last signal. They count as one step, whatever the number of
    /// copies.
    step_bytes: u64,
    /// Time spent in work so far.
    busy_ns: u64,
    /// When the first work since the last signal starts. `None` if there is no such work.
    work_start_ns: Option<u64>,
    /// When the work before each signal starts, and when the signal is reached.
    steps_ns: Vec<[u64; 2]>,
}

/// The time of the calling thread on the host and of the streams. All sums saturate.
#[derive(Clone, Debug)]
pub(crate) struct Clock {
    machine: Machine,
    host_ns: u64,
    lanes: PerStream<Lane>,
    /// The end of the last op of each iteration.
    pub(crate) iteration_ends_ns: Vec<u64>,
}

impl Clock {
    pub(crate) fn new(machine: Machine) -> Self {
        let lanes = Default::default();
        Self { machine, host_ns: 0, lanes, iteration_ends_ns: Vec::new() }
    }

    pub(crate) fn host_ns(&self) -> u64 {
        self.host_ns
    }

    pub(crate) fn busy_ns(&self, stream: Stream) -> u64 {
        self.lanes[stream].busy_ns
    }

    /// Lets the host be busy for a while.
    pub(crate) fn spend_ns(&mut self, ns: u64) {
        self.host_ns = self.host_ns.saturating_add(ns);
    }

    /// Blocks the host until a time.
    pub(crate) fn block_until_ns(&mut self, ns: u64) {
        self.host_ns = self.host_ns.max(ns);
    }

    /// When a signal is reached, counted from 1.
    pub(crate) fn signal_ns(&self, stream: Stream, value: u64) -> Option<u64> {
        let [_, end_ns] = self.lanes[stream].steps_ns.get(value.checked_sub(1)? as usize)?;
        Some(*end_ns)
    }

    /// When the work before each signal of a stream starts, and when the signal is reached.
    pub(crate) fn steps_ns(&self, stream: Stream) -> &[[u64; 2]] {
        &self.lanes[stream].steps_ns
    }

    /// Lets work that is submitted later start no earlier than a time.
    pub(crate) fn wait_until_ns(&mut self, stream: Stream, ns: u64) {
        let lane = &mut self.lanes[stream];
        lane.free_ns = lane.free_ns.max(ns);
    }

    /// Submits a copy. Its time passes at the next signal.
    pub(crate) fn copy(&mut self, stream: Stream, bytes: u64) {
        self.wait_until_ns(stream, self.host_ns);
        let lane = &mut self.lanes[stream];
        lane.step_bytes = lane.step_bytes.saturating_add(bytes);
    }

    /// Submits an op of an iteration, counted from 1.
    pub(crate) fn op(&mut self, stream: Stream, time_ns: u64, iteration: u64) {
        self.wait_until_ns(stream, self.host_ns);
        self.work(stream, time_ns);
        let ends_ns = &mut self.iteration_ends_ns;
        let index = iteration.saturating_sub(1) as usize;
        if ends_ns.len() <= index {
            ends_ns.resize(index + 1, 0);
        }
        ends_ns[index] = ends_ns[index].max(self.lanes[stream].free_ns);
    }

    /// Submits a signal.
    pub(crate) fn signal(&mut self, stream: Stream) {
        self.wait_until_ns(stream, self.host_ns);
        let bytes = core::mem::take(&mut self.lanes[stream].step_bytes);
        if bytes > 0 {
            let direction = match stream {
                Stream::Download => Direction::DeviceToHost,
                _ => Direction::HostToDevice,
            };
            self.work(stream, self.machine.transfer_ns(direction, bytes).unwrap_or(u64::MAX));
        }
        let lane = &mut self.lanes[stream];
        let start_ns = lane.work_start_ns.take().unwrap_or(lane.free_ns);
        lane.steps_ns.push([start_ns, lane.free_ns]);
    }

    fn work(&mut self, stream: Stream, ns: u64) {
        let lane = &mut self.lanes[stream];
        lane.work_start_ns.get_or_insert(lane.free_ns);
        lane.free_ns = lane.free_ns.saturating_add(ns);
        lane.busy_ns = lane.busy_ns.saturating_add(ns);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use planner_core::MachineParameters;

    #[test]
    fn a_step_pays_the_latency_once_and_starts_when_all_is_ready() {
        let machine = Machine::new(
            MachineParameters::new()
                .with_device_bytes(100)
                .with_host_bytes(100)
                .with_chunk_bytes(1)
                .with_h2d_bytes_per_s(1_000_000_000)
                .with_d2h_bytes_per_s(500_000_000)
                .with_transfer_latency_ns(3),
        )
        .unwrap();
        let mut clock = Clock::new(machine);
        clock.copy(Stream::Upload, 4);
        clock.copy(Stream::Upload, 6);
        clock.signal(Stream::Upload);
        assert_eq!(clock.signal_ns(Stream::Upload, 1), Some(13));
        clock.wait_until_ns(Stream::Compute, 13);
        clock.op(Stream::Compute, 100, 1);
        clock.spend_ns(200);
        clock.op(Stream::Compute, 10, 2);
        assert_eq!(clock.iteration_ends_ns, [113, 210]);
        clock.copy(Stream::Download, 10);
        clock.signal(Stream::Download);
        assert_eq!(clock.signal_ns(Stream::Download, 1), Some(223));
        assert_eq!(clock.signal_ns(Stream::Download, 2), None);
        assert_eq!(clock.busy_ns(Stream::Compute), 110);
        clock.signal(Stream::Compute);
        clock.signal(Stream::Compute);
        assert_eq!(clock.steps_ns(Stream::Compute), [[13, 210], [210, 210]]);
        assert_eq!(clock.steps_ns(Stream::Download), [[200, 223]]);
    }
}
