//! A thread that does the device's work: the thread of a stream, or one of a graph.

use crate::clock::Clock;
use crate::device::Device;
use crate::faults::{Faults, Random};
use crate::task::Task;
use crate::variables::Variable;
use cudarc::driver::sys::CUresult::CUDA_ERROR_LAUNCH_FAILED;
use std::time::{Duration, Instant};

/// The device, its time on this thread, and the faults of the thread's work.
#[derive(Debug)]
pub(crate) struct Worker<'d> {
    device: &'d Device,
    pub(crate) clock: Clock,
    faults: Faults,
    delays: Option<Random>,
    failures: Random,
    /// The device's time to launch a kernel, and to wait for an event or a value.
    launch: Duration,
    wait: Duration,
}

impl<'d> Worker<'d> {
    /// Creates a worker whose faults depend on the seed and on its number.
    pub(crate) fn new(device: &'d Device, clock: Clock, faults: Faults, number: u64) -> Self {
        let mixed = number.wrapping_mul(0x2545_f491_4f6c_dd1d);
        let delays = faults.seed.map(|seed| Random::new(seed ^ mixed));
        let failures = Random::new(!faults.seed.unwrap_or(0) ^ mixed);
        let [launch, wait] = [Variable::LaunchNs, Variable::WaitNs]
            .map(|variable| Duration::from_nanos(device.variables.get(variable)));
        Self { device, clock, faults, delays, failures, launch, wait }
    }

    /// Creates a worker for a thread of a graph that this worker runs.
    pub(crate) fn fork(&self, number: u64) -> Self {
        Self::new(self.device, self.clock, self.faults, number)
    }

    /// Waits for work of another stream that ends at a time.
    pub(crate) fn wait_until(&mut self, end: Instant) {
        self.clock.advance_to(end);
        self.clock.spend(self.wait);
    }

    /// Does a task, perhaps late. Does nothing once any task of the device has failed.
    pub(crate) fn run(&mut self, task: &Task) {
        if let Some(delays) = &mut self.delays {
            delays.delay();
        }
        if self.device.check().is_err() {
            return;
        }
        match task {
            Task::Launch(_) => self.clock.spend(self.launch),
            Task::WaitValue { .. } => self.clock.spend(self.wait),
            _ => {}
        }
        let done = if self.failures.one_in(self.faults.failed_one_in) {
            Err(CUDA_ERROR_LAUNCH_FAILED)
        } else {
            self.clock.time(|clock| task.run(self.device, clock))
        };
        if let Err(error) = done {
            self.device.fail(error);
        }
    }
}
