//! The streams: each a timeline semaphore, and a queue that it may share with the others.

use crate::VulkanDevice;
use crate::driver::{Commands, Device, Queue, Semaphore, Submit};
use crate::error::VulkanError;
use backend_checks::Refused;
use planner_core::Stream;
use planner_core::backend::{Point, Streams};
use std::collections::VecDeque;
use std::sync::Arc;

/// Submissions of one stream under way before the host blocks for the oldest.
const MOST_IN_FLIGHT: usize = 64;

/// One stream. Work is recorded, and submitted with the next signal.
#[derive(Debug)]
pub(crate) struct Queued {
    queue: Queue,
    semaphore: Semaphore,
    /// Signals submitted.
    signalled: u64,
    /// The last signal that is known to be reached.
    reached: u64,
    /// What the next submission waits for, by stream; 0 for nothing.
    waits: [u64; 3],
    recording: Option<Commands>,
    /// Commands that have been submitted, each with the signal after it.
    in_flight: VecDeque<(u64, Commands)>,
}

impl Queued {
    pub(crate) fn new(device: &Arc<Device>, queue: Queue) -> Result<Self, VulkanError> {
        Ok(Self {
            queue,
            semaphore: Semaphore::new(device)?,
            signalled: 0,
            reached: 0,
            waits: [0; 3],
            recording: None,
            in_flight: VecDeque::new(),
        })
    }

    /// The commands being recorded, which [`VulkanDevice::record`] has begun.
    pub(crate) fn recording(&mut self) -> &mut Commands {
        self.recording.as_mut().expect("it has been begun")
    }

    /// Whether a signal has been reached.
    fn has_reached(&mut self, value: u64) -> Result<bool, VulkanError> {
        if value > self.reached {
            self.reached = self.semaphore.value()?;
        }
        Ok(value <= self.reached)
    }

    fn block_until(&mut self, value: u64) -> Result<(), VulkanError> {
        if value > self.reached {
            self.semaphore.block_until(value)?;
            self.reached = value;
        }
        Ok(())
    }

    /// Commands that have run, if there are any. Blocks where too many have not.
    fn used_commands(&mut self) -> Result<Option<Commands>, VulkanError> {
        let Some(&(oldest, _)) = self.in_flight.front() else { return Ok(None) };
        if self.in_flight.len() >= MOST_IN_FLIGHT && oldest <= self.signalled {
            self.block_until(oldest)?;
        }
        if !self.has_reached(oldest)? {
            return Ok(None);
        }
        Ok(self.in_flight.pop_front().map(|(_, commands)| commands))
    }
}

impl VulkanDevice {
    /// Starts work on a stream, after all that is enqueued there.
    pub(crate) fn record(&mut self, stream: Stream) -> Result<&mut Commands, VulkanError> {
        let queued = &mut self.queued[stream as usize];
        if queued.recording.is_none() {
            let mut commands = match queued.used_commands()? {
                Some(commands) => commands,
                None => {
                    self.counters.command_lists += 1;
                    Commands::new(&self.device, queued.queue.family)?
                }
            };
            commands.begin()?;
            queued.recording = Some(commands);
        }
        let commands = queued.recording();
        commands.barrier();
        Ok(commands)
    }

    /// Submits what is recorded, with a signal if there is to be one.
    pub(crate) fn submit(&mut self, stream: Stream, signal: bool) -> Result<(), VulkanError> {
        self.flush_binds()?;
        let commands = self.queued[stream as usize].recording.take();
        let commands = commands.map(|mut commands| {
            if stream == Stream::Download {
                commands.barrier_to_host();
            }
            commands.end().map(|()| commands)
        });
        let commands = commands.transpose()?;
        let waits = self.waits(stream);
        let Queued { queue, ref semaphore, signalled, .. } = self.queued[stream as usize];
        let next = signalled + 1;
        let signal = signal.then_some((semaphore, next));
        let submit = Submit { waits: &waits, commands: commands.as_ref(), signal };
        let submitted = self.device.submit(queue, submit);
        self.counters.submits += 1;
        let queued = &mut self.queued[stream as usize];
        queued.in_flight.extend(commands.map(|commands| (next, commands)));
        queued.waits = [0; 3];
        submitted
    }

    /// What the next submission of a stream waits for, all pages that are mapped included.
    pub(crate) fn waits(&self, stream: Stream) -> Vec<(&Semaphore, u64)> {
        let waits = self.queued[stream as usize].waits;
        let streams = self.queued.iter().zip(waits).filter(|&(_, value)| value > 0);
        let waits = streams.map(|(queued, value)| (&queued.semaphore, value));
        waits.chain(self.space.binds()).collect()
    }

    /// Whether a stream has work that is recorded and not submitted.
    #[cfg(feature = "wgpu")]
    pub(crate) const fn is_recording(&self, stream: Stream) -> bool {
        self.queued[stream as usize].recording.is_some()
    }

    /// Someone else's submission on a stream's queue has waited for all that it had to.
    #[cfg(feature = "wgpu")]
    pub(crate) const fn has_waited(&mut self, stream: Stream) {
        self.queued[stream as usize].waits = [0; 3];
        self.counters.submits += 1;
    }

    fn check_signalled(&self, point: Point) -> Result<(), VulkanError> {
        if point.value > self.queued[point.stream as usize].signalled {
            return Err(Refused::Unsignalled(point).into());
        }
        Ok(())
    }
}

impl Streams for VulkanDevice {
    fn wait(&mut self, stream: Stream, point: Point) -> Result<(), VulkanError> {
        self.check_signalled(point)?;
        // A stream runs in its own order.
        if point.stream == stream || point.value == 0 {
            return Ok(());
        }
        if self.queued[stream as usize].recording.is_some() {
            self.submit(stream, false)?;
        }
        let wait = &mut self.queued[stream as usize].waits[point.stream as usize];
        *wait = point.value.max(*wait);
        Ok(())
    }

    fn signal(&mut self, stream: Stream) -> Result<Point, VulkanError> {
        self.submit(stream, true)?;
        let queued = &mut self.queued[stream as usize];
        queued.signalled += 1;
        Ok(Point { stream, value: queued.signalled })
    }

    fn reached(&mut self, point: Point) -> Result<bool, VulkanError> {
        self.check_signalled(point)?;
        self.queued[point.stream as usize].has_reached(point.value)
    }

    fn block_until(&mut self, point: Point) -> Result<(), VulkanError> {
        self.check_signalled(point)?;
        self.queued[point.stream as usize].block_until(point.value)
    }
}
