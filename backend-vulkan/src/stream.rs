//! The streams. Each is a timeline semaphore on a queue, which streams may share.
//!
//! A call of the driver costs the host about as much for many steps as for one. The steps of a
//! queue are therefore gathered, each with its own waits and its own signal, and submitted
//! together: at the end of an iteration, when the host is about to wait or asks for one of them,
//! when a stream on another queue has to wait for one of them, or when there are many. Work that a
//! queue gets therefore waits only for work that some queue has got before. Steps that nobody awaits
//! share the command list of the step after them.
//!
//! The host stream has a thread instead of a queue. A queue may get work that waits for this
//! thread, but the thread waits only for work that queues have already got.

use crate::VulkanDevice;
use crate::driver::{Commands, Device, Queue, Semaphore, Submit};
use crate::error::VulkanError;
use backend_checks::Refused;
use planner_core::Stream;
use planner_core::backend::{Point, Streams};
use std::collections::VecDeque;
use std::mem;
use std::sync::Arc;

/// The most command lists of one stream in flight before the host blocks for the oldest.
const MOST_IN_FLIGHT: usize = 64;

/// The most steps that are gathered before they are submitted.
const MOST_GATHERED: usize = 16;

/// One stream. Work is recorded, and gathered with the next signal.
#[derive(Debug)]
pub(crate) struct Queued {
    /// The position of its queue among the device's.
    queue: usize,
    /// The family of its queue.
    family: u32,
    semaphore: Arc<Semaphore>,
    /// The number of signals that are enqueued.
    signalled: u64,
    /// The last of these signals that sets the semaphore.
    marked: u64,
    /// The last signal that is submitted.
    submitted: u64,
    /// The last signal that is known to be reached.
    reached: u64,
    /// The signals for which the next work waits, by stream. 0 for none.
    waits: [u64; 4],
    recording: Option<Commands>,
    /// Commands that have been submitted, each with the signal after it.
    in_flight: VecDeque<(u64, Commands)>,
    /// Commands that have run.
    spare: Vec<Commands>,
}

/// A queue of one or more streams.
#[derive(Debug)]
pub(crate) struct Shared {
    queue: Queue,
    /// The work for the next submission, in order.
    gathered: Vec<Work>,
    /// The last bind of pages for which the queue has waited.
    bound: u64,
}

/// Work of a stream that is to be submitted.
#[derive(Debug)]
struct Work {
    stream: Stream,
    /// The signals for which it waits, by stream. 0 for none.
    waits: [u64; 4],
    commands: Option<Commands>,
    /// The first signal after it. It follows at once if `signals`.
    next: u64,
    signals: bool,
}

#[cfg(test)]
impl Shared {
    pub(crate) const fn is_submitted(&self) -> bool {
        self.gathered.is_empty()
    }
}

impl Queued {
    fn new(device: &Arc<Device>, queue: usize, family: u32) -> Result<Self, VulkanError> {
        Ok(Self {
            queue,
            family,
            semaphore: Arc::new(Semaphore::new(device)?),
            signalled: 0,
            marked: 0,
            submitted: 0,
            reached: 0,
            waits: [0; 4],
            recording: None,
            in_flight: VecDeque::new(),
            spare: Vec::new(),
        })
    }

    /// The commands that [`VulkanDevice::record`] has begun to record.
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

    /// Blocks until a submitted signal is reached.
    fn block_until(&mut self, value: u64) -> Result<(), VulkanError> {
        if value > self.reached {
            self.semaphore.block_until(value)?;
            self.reached = value;
        }
        Ok(())
    }

    /// The signal for which the host blocks before it records more work, if too much is in flight.
    /// Afterwards there is room for as many steps as are submitted at once.
    fn awaited(&self) -> Option<u64> {
        let is_full = self.spare.is_empty() && self.in_flight.len() >= MOST_IN_FLIGHT;
        let (awaited, _) = self.in_flight.get(MOST_GATHERED - 1).filter(|_| is_full)?;
        Some(*awaited.min(&self.submitted))
    }

    /// Commands that have run. `None` if there are none.
    fn used_commands(&mut self) -> Result<Option<Commands>, VulkanError> {
        if self.spare.is_empty()
            && let Some(&(oldest, _)) = self.in_flight.front()
            && self.has_reached(oldest)?
        {
            let used = self.in_flight.partition_point(|&(value, _)| value <= self.reached);
            self.spare.extend(self.in_flight.drain(..used).map(|(_, commands)| commands));
        }
        Ok(self.spare.pop())
    }
}

/// Stands for the host's thread among queues.
const NO_QUEUE: usize = usize::MAX;

/// The streams, each on its queue except the host's, and these queues, each once.
pub(crate) fn streams(
    device: &Arc<Device>,
    queues: [Queue; 3],
) -> Result<([Queued; 4], Vec<Shared>), VulkanError> {
    let mut shared: Vec<Shared> = Vec::new();
    let mut queued = |queue: Queue| {
        let known = shared.iter().position(|shared| shared.queue == queue);
        let index = known.unwrap_or(shared.len());
        if known.is_none() {
            shared.push(Shared { queue, gathered: Vec::new(), bound: 0 });
        }
        Queued::new(device, index, queue.family)
    };
    let [compute, upload, download] = queues;
    let host = Queued::new(device, NO_QUEUE, compute.family)?;
    Ok(([queued(compute)?, queued(upload)?, queued(download)?, host], shared))
}

impl VulkanDevice {
    /// Starts work on a stream, after all work that is enqueued there.
    pub(crate) fn record(&mut self, stream: Stream) -> Result<&mut Commands, VulkanError> {
        if self.queued[stream as usize].recording.is_none() {
            if let Some(value) = self.queued[stream as usize].awaited() {
                self.block_until(Point { stream, value })?;
            }
            let queued = &mut self.queued[stream as usize];
            let mut commands = match queued.used_commands()? {
                Some(commands) => commands,
                None => {
                    self.counters.command_lists += 1;
                    Commands::new(&self.device, queued.family)?
                }
            };
            commands.begin()?;
            if stream == Stream::Upload {
                commands.barrier_from_host();
            }
            queued.recording = Some(commands);
        }
        let commands = self.queued[stream as usize].recording();
        commands.barrier();
        Ok(commands)
    }

    /// Gathers the recorded work of a stream, with a signal if `signals`.
    fn gather(&mut self, stream: Stream, signals: bool) -> Result<(), VulkanError> {
        let queue = self.queued[stream as usize].queue;
        // If this fails, nothing has been gathered.
        if self.shared[queue].gathered.len() >= MOST_GATHERED {
            self.submit_queue(queue)?;
        }
        let queued = &mut self.queued[stream as usize];
        let mut commands = queued.recording.take();
        if let Some(commands) = &mut commands {
            if stream == Stream::Download {
                commands.barrier_to_host();
            }
            commands.end()?;
        }
        let (waits, next) = (mem::take(&mut queued.waits), queued.signalled + 1);
        if signals {
            (queued.signalled, queued.marked) = (next, next);
        }
        self.shared[queue].gathered.push(Work { stream, waits, commands, next, signals });
        Ok(())
    }

    /// Submits the gathered work of a queue, after all pending binds. If that fails, the work stays
    /// gathered.
    fn submit_queue(&mut self, queue: usize) -> Result<(), VulkanError> {
        if self.shared[queue].gathered.is_empty() {
            return Ok(());
        }
        self.flush_binds()?;
        self.device.submit(self.shared[queue].queue, &self.gathered(queue))?;
        self.has_submitted(queue);
        for work in mem::take(&mut self.shared[queue].gathered) {
            self.counters.submitted_parts += 1;
            let queued = &mut self.queued[work.stream as usize];
            if work.signals {
                queued.submitted = work.next;
            }
            queued.in_flight.extend(work.commands.map(|commands| (work.next, commands)));
        }
        Ok(())
    }

    /// The next submission of a queue. Its first work waits for all binds.
    pub(crate) fn gathered(&self, queue: usize) -> Vec<Submit<'_>> {
        let mut binds = self.binds(queue);
        let work = self.shared[queue].gathered.iter();
        let submits = work.map(|work| Submit {
            waits: self.points(work.waits).chain(binds.take()).collect(),
            commands: work.commands.as_ref(),
            signal: work
                .signals
                .then_some((&*self.queued[work.stream as usize].semaphore, work.next)),
        });
        submits.collect()
    }

    /// Submits all gathered work, on each queue even if another one fails.
    ///
    /// # Errors
    /// The first error of the driver.
    pub(crate) fn submit_all(&mut self) -> Result<(), VulkanError> {
        let queues = 0..self.shared.len();
        queues.map(|queue| self.submit_queue(queue)).fold(Ok(()), Result::and)
    }

    /// The signals of the streams as points of semaphores.
    fn points(&self, values: [u64; 4]) -> impl Iterator<Item = (&Semaphore, u64)> {
        let streams = self.queued.iter().zip(values).filter(|&(_, value)| value > 0);
        streams.map(|(queued, value)| (&*queued.semaphore, value))
    }

    /// The last bind of pages, if the queue has not waited for it.
    fn binds(&self, queue: usize) -> Option<(&Semaphore, u64)> {
        let waited = self.shared[queue].bound;
        self.space.binds().filter(|&(_, bound)| bound > waited)
    }

    /// Records a submission that has waited for all binds.
    fn has_submitted(&mut self, queue: usize) {
        self.counters.submits += 1;
        self.shared[queue].bound = self.space.bound();
    }

    fn check_signalled(&self, point: Point) -> Result<(), VulkanError> {
        let of = &self.queued[point.stream as usize];
        if point.value > of.signalled {
            return Err(Refused::Unsignalled(point).into());
        }
        if point.value > of.marked {
            return Err(Refused::Unawaited(point).into());
        }
        Ok(())
    }
}

/// Submissions by other users on the queue of the compute stream.
#[cfg(feature = "wgpu")]
impl VulkanDevice {
    /// Submits all earlier work.
    pub(crate) fn submit_compute(&mut self) -> Result<(), VulkanError> {
        let stream = Stream::Compute;
        if self.queued[stream as usize].recording.is_some() {
            // The list holds a barrier between the recorded work and later work on the queue.
            self.record(stream)?;
            self.gather(stream, false)?;
        }
        self.submit_queue(self.queued[stream as usize].queue)?;
        self.flush_binds()
    }

    /// The points for which the next submission must wait. They include the steps before it, since
    /// its submitter does not know them.
    pub(crate) fn compute_waits(&self) -> impl Iterator<Item = (&Semaphore, u64)> {
        let Queued { queue, mut waits, submitted, .. } = self.queued[Stream::Compute as usize];
        waits[Stream::Compute as usize] = submitted;
        self.points(waits).chain(self.binds(queue))
    }

    /// Records that another user has submitted.
    pub(crate) fn compute_has_waited(&mut self) {
        let queued = &mut self.queued[Stream::Compute as usize];
        queued.waits = [0; 4];
        let queue = queued.queue;
        self.has_submitted(queue);
    }
}

impl Streams for VulkanDevice {
    fn has_host_stream(&self) -> bool {
        true
    }

    fn wait(&mut self, stream: Stream, point: Point) -> Result<(), VulkanError> {
        self.check_signalled(point)?;
        self.host_stream.check()?;
        // A stream runs in its own order.
        if point.stream == stream || point.value == 0 {
            return Ok(());
        }
        if self.queued[stream as usize].recording.is_some() {
            self.gather(stream, false)?;
        }
        let [waiting, of] = [stream, point.stream].map(|stream| &self.queued[stream as usize]);
        if of.queue != waiting.queue && point.value > of.submitted {
            self.submit_queue(of.queue)?;
        }
        if stream == Stream::Host {
            let semaphore = &self.queued[point.stream as usize].semaphore;
            self.host_stream.wait(semaphore, point.value);
            return Ok(());
        }
        let wait = &mut self.queued[stream as usize].waits[point.stream as usize];
        *wait = point.value.max(*wait);
        Ok(())
    }

    fn signal(&mut self, stream: Stream) -> Result<Point, VulkanError> {
        self.host_stream.check()?;
        if stream == Stream::Host {
            let queued = &mut self.queued[stream as usize];
            queued.signalled += 1;
            (queued.marked, queued.submitted) = (queued.signalled, queued.signalled);
            self.host_stream.signal(&queued.semaphore, queued.signalled);
        } else {
            self.gather(stream, true)?;
        }
        Ok(Point { stream, value: self.queued[stream as usize].signalled })
    }

    fn signal_unawaited(&mut self, stream: Stream) -> Result<Point, VulkanError> {
        let queued = &mut self.queued[stream as usize];
        if queued.recording.is_none() {
            return self.signal(stream);
        }
        if queued.signalled - queued.marked + 1 == MOST_GATHERED as u64 {
            let (point, queue) = (self.signal(stream)?, self.queued[stream as usize].queue);
            return self.submit_queue(queue).map(|()| point);
        }
        queued.signalled += 1;
        let value = queued.signalled;
        self.host_stream.check().map(|()| Point { stream, value })
    }

    fn reached(&mut self, point: Point) -> Result<bool, VulkanError> {
        self.check_signalled(point)?;
        let Queued { queue, submitted, .. } = self.queued[point.stream as usize];
        if point.value > submitted {
            self.submit_queue(queue)?;
        }
        let is_reached = match point.stream {
            Stream::Host => self.host_stream.reached() >= point.value,
            stream => self.queued[stream as usize].has_reached(point.value)?,
        };
        self.host_stream.check().map(|()| is_reached)
    }

    fn block_until(&mut self, point: Point) -> Result<(), VulkanError> {
        self.check_signalled(point)?;
        // The device is not to wait for the host.
        self.submit_all()?;
        match point.stream {
            Stream::Host => self.host_stream.block_until(point.value),
            stream => self.queued[stream as usize].block_until(point.value)?,
        }
        self.host_stream.check()
    }

    fn submit(&mut self) -> Result<(), VulkanError> {
        self.submit_all()
    }
}
