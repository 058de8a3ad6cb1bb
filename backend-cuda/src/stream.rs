//! The streams. A signal has an event as long as somebody may wait for its point.

use crate::CudaDevice;
use crate::driver::{self, Context, Event};
use crate::error::CudaError;
use backend_checks::Refused;
use planner_core::Stream;
use planner_core::backend::{Point, Streams};
use std::collections::VecDeque;
use std::time::Instant;

/// The most signals of one stream that are kept before the host blocks for the oldest.
const MOST_MARKS: usize = 4096;

/// A signal and its event.
#[derive(Debug)]
struct Mark {
    value: u64,
    event: Event,
}

/// One stream.
#[derive(Debug)]
pub(crate) struct Queued {
    stream: driver::Stream,
    /// The number of signals that are enqueued.
    signalled: u64,
    /// The last of these signals that has or had an event.
    marked: u64,
    /// The number of signals before the current capture, if a capture is under way.
    captured_from: Option<u64>,
    /// The last signal that is known to be reached.
    reached: u64,
    /// Signals that may not be reached yet, the oldest first.
    marks: VecDeque<Mark>,
    /// Signals of the current capture.
    captured: VecDeque<Mark>,
    spare: Vec<Event>,
}

impl Queued {
    pub(crate) fn new(context: Context) -> Result<Self, CudaError> {
        Ok(Self {
            stream: driver::Stream::new(context)?,
            signalled: 0,
            marked: 0,
            captured_from: None,
            reached: 0,
            marks: VecDeque::new(),
            captured: VecDeque::new(),
            spare: Vec::new(),
        })
    }

    pub(crate) const fn stream(&self) -> &driver::Stream {
        &self.stream
    }

    pub(crate) const fn stream_mut(&mut self) -> &mut driver::Stream {
        &mut self.stream
    }

    pub(crate) const fn signalled(&self) -> u64 {
        self.signalled
    }

    /// The last signal that is known to be reached.
    pub(crate) const fn reached(&self) -> u64 {
        self.reached
    }

    pub(crate) fn synchronize(&self) -> Result<(), CudaError> {
        self.stream.synchronize()
    }

    /// An event after all enqueued work.
    pub(crate) fn record(&mut self) -> Result<Event, CudaError> {
        let event = match self.spare.pop() {
            Some(event) => event,
            None => Event::new(self.stream.context())?,
        };
        event.record(&self.stream)?;
        Ok(event)
    }

    /// Makes later work wait for an event.
    pub(crate) fn wait(&self, event: &Event) -> Result<(), CudaError> {
        event.hold(&self.stream)
    }

    /// Takes back an event that is no longer needed. Work that waits for it waits for the point
    /// that it had when the wait was enqueued (CUDA Driver API, `cuStreamWaitEvent`).
    pub(crate) fn give_back(&mut self, event: Event) {
        self.spare.push(event);
    }

    /// Moves the last signal after all work that is enqueued now.
    pub(crate) fn mark_again(&mut self) -> Result<(), CudaError> {
        if self.signalled == 0 {
            return Ok(());
        }
        let event = self.record()?;
        self.reached = self.reached.min(self.signalled - 1);
        while self.marks.back().is_some_and(|mark| mark.value == self.signalled) {
            self.spare.extend(self.marks.pop_back().map(|mark| mark.event));
        }
        self.marks.push_back(Mark { value: self.signalled, event });
        self.marked = self.signalled;
        Ok(())
    }

    /// Begins a capture.
    pub(crate) const fn capture(&mut self) {
        self.captured_from = Some(self.signalled);
    }

    pub(crate) const fn is_capturing(&self) -> bool {
        self.captured_from.is_some()
    }

    /// Ends a capture: its events are no longer needed.
    pub(crate) fn forget_captured(&mut self) {
        self.captured_from = None;
        self.spare.extend(self.captured.drain(..).map(|mark| mark.event));
    }

    fn signal(&mut self) -> Result<u64, CudaError> {
        if !self.is_capturing() {
            self.recycle()?;
        }
        let event = self.record()?;
        self.signalled += 1;
        self.marked = self.signalled;
        let mark = Mark { value: self.signalled, event };
        if self.is_capturing() { &mut self.captured } else { &mut self.marks }.push_back(mark);
        Ok(self.signalled)
    }

    /// Frees the events of signals that are reached. Blocks if too many are not reached.
    fn recycle(&mut self) -> Result<(), CudaError> {
        if self.marks.len() >= MOST_MARKS
            && let Some(oldest) = self.marks.front()
        {
            oldest.event.synchronize()?;
        }
        while let Some(oldest) = self.marks.front() {
            if !oldest.event.is_reached()? {
                break;
            }
            self.reach(oldest.value);
        }
        Ok(())
    }

    /// Records that a signal is reached.
    fn reach(&mut self, value: u64) {
        self.reached = self.reached.max(value);
        while self.marks.front().is_some_and(|mark| mark.value <= value) {
            self.spare.extend(self.marks.pop_front().map(|mark| mark.event));
        }
    }

    /// The event of a signal, or of the next later signal that has an event. `None` if the signal is
    /// reached. O(log signals).
    fn event(&self, value: u64) -> Option<&Event> {
        if value <= self.reached {
            return None;
        }
        let marks = if self.is_captured(value) { &self.captured } else { &self.marks };
        let first = marks.partition_point(|mark| mark.value < value);
        marks.get(first).map(|mark| &mark.event)
    }

    /// Whether a signal belongs to the current capture.
    fn is_captured(&self, value: u64) -> bool {
        self.captured_from.is_some_and(|from| value > from)
    }

    /// Whether a signal comes before the current capture.
    fn is_before_capture(&self, value: u64) -> bool {
        self.captured_from.is_some_and(|from| value <= from)
    }

    fn has_reached(&mut self, value: u64) -> Result<bool, CudaError> {
        let Some(event) = self.event(value) else { return Ok(true) };
        let is_reached = event.is_reached()?;
        if is_reached {
            self.reach(value);
        }
        Ok(is_reached)
    }

    fn block_until(&mut self, value: u64) -> Result<(), CudaError> {
        if let Some(event) = self.event(value) {
            event.synchronize()?;
            self.reach(value);
        }
        Ok(())
    }
}

impl CudaDevice {
    /// Makes later work of a stream wait for all work of another stream.
    pub(crate) fn follow(&mut self, stream: Stream, other: Stream) -> Result<(), CudaError> {
        let event = self.queued[other as usize].record()?;
        let waits = self.queued[stream as usize].wait(&event);
        self.queued[other as usize].give_back(event);
        waits
    }

    /// Blocks until an event is reached.
    pub(crate) fn block_for(&mut self, event: &Event) -> Result<(), CudaError> {
        let start = Instant::now();
        let reached = event.synchronize();
        self.counters.blocked_ns += start.elapsed().as_nanos() as u64;
        reached
    }

    /// Fails for a point that has not been signalled, and for a point that has no event yet.
    fn check_signalled(&self, point: Point) -> Result<(), CudaError> {
        let of = &self.queued[point.stream as usize];
        if point.value > of.signalled {
            return Err(Refused::Unsignalled(point).into());
        }
        if point.value > of.marked {
            return Err(Refused::Unawaited(point).into());
        }
        Ok(())
    }

    /// Whether a capture is under way.
    pub(crate) fn is_capturing(&self) -> bool {
        self.queued.iter().any(Queued::is_capturing)
    }

    /// Fails for a point for which the host cannot ask.
    fn check_asked(&self, point: Point) -> Result<(), CudaError> {
        self.check_signalled(point)?;
        if self.queued[point.stream as usize].is_captured(point.value) {
            return Err(CudaError::Captured(point));
        }
        Ok(())
    }
}

impl Streams for CudaDevice {
    fn has_host_stream(&self) -> bool {
        true
    }

    fn has_network_stream(&self) -> bool {
        true
    }

    fn wait(&mut self, stream: Stream, point: Point) -> Result<(), CudaError> {
        self.check_signalled(point)?;
        self.check_host_ops()?;
        let of = &self.queued[point.stream as usize];
        // A stream runs in its own order, and a graph runs after all work before it.
        if point.stream == stream || of.is_before_capture(point.value) {
            return Ok(());
        }
        match of.event(point.value) {
            Some(event) => {
                self.queued[stream as usize].wait(event)?;
                self.counters.waits += 1;
                Ok(())
            }
            None => Ok(()),
        }
    }

    fn signal(&mut self, stream: Stream) -> Result<Point, CudaError> {
        self.check_host_ops()?;
        let value = self.queued[stream as usize].signal()?;
        self.counters.events += 1;
        Ok(Point { stream, value })
    }

    fn signal_unawaited(&mut self, stream: Stream) -> Result<Point, CudaError> {
        self.check_host_ops()?;
        let queued = &mut self.queued[stream as usize];
        queued.signalled += 1;
        Ok(Point { stream, value: queued.signalled })
    }

    fn reached(&mut self, point: Point) -> Result<bool, CudaError> {
        self.check_asked(point)?;
        let is_reached = self.queued[point.stream as usize].has_reached(point.value)?;
        self.check_host_ops().map(|()| is_reached)
    }

    fn block_until(&mut self, point: Point) -> Result<(), CudaError> {
        self.check_asked(point)?;
        let start = Instant::now();
        let reached = self.queued[point.stream as usize].block_until(point.value);
        self.counters.blocked_ns += start.elapsed().as_nanos() as u64;
        reached.and_then(|()| self.check_host_ops())
    }
}
