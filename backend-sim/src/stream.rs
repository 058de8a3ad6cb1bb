//! The streams: queues whose heads take effect in one of the orders that the waits allow.
//!
//! Without a seed, everything takes effect when it is enqueued, which is one legal order. With a
//! seed, effects are held back and applied in an order that is drawn at random. A stream is picked
//! and runs for a burst of random length, so that one stream may get far ahead of the others. Work
//! takes effect in two events, its begin and its end, and other streams may run between them.

use crate::SimDevice;
use crate::error::SimError;
use crate::work::{Running, Work};
use backend_checks::Refused;
use planner_core::Stream;
use planner_core::backend::{Point, Streams};
use std::collections::{BTreeSet, VecDeque};

/// The next item of a stream.
#[derive(Debug)]
pub(crate) enum Item {
    Wait(Point),
    Work(Point, Work),
    Signal,
}

/// One stream.
#[derive(Debug, Default)]
pub(crate) struct Queue {
    pub(crate) items: VecDeque<Item>,
    pub(crate) running: Option<Running>,
    /// The number of signals enqueued.
    signalled: u64,
    /// The number of signals reached.
    reached: u64,
    /// The signals of `signal_unawaited` that are not reached, and maybe some that are.
    unawaited: BTreeSet<u64>,
}

impl Queue {
    /// All enqueued work that has not ended.
    pub(crate) fn pending(&self) -> impl Iterator<Item = (Point, &Work)> {
        let running = self.running.iter().map(|running| (running.point, &running.work));
        running.chain(self.items.iter().filter_map(|item| match item {
            Item::Work(point, work) => Some((*point, work)),
            Item::Wait(_) | Item::Signal => None,
        }))
    }
}

/// A source of random numbers.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Chance(u64);

impl Chance {
    pub(crate) const fn new(seed: u64) -> Self {
        Self(scramble(seed))
    }

    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(1);
        scramble(self.0)
    }

    /// A number below `bound`.
    pub(crate) fn below(&mut self, bound: u64) -> u64 {
        self.next() % bound
    }
}

/// The finalizer of `SplitMix64`: a permutation in which every bit depends on every other.
const fn scramble(word: u64) -> u64 {
    let word = word.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let word = (word ^ (word >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let word = (word ^ (word >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    word ^ (word >> 31)
}

impl SimDevice {
    /// Enqueues work. Without a seed, the work takes effect at once.
    pub(crate) fn submit(&mut self, stream: Stream, work: Work) -> Result<(), SimError> {
        let queue = &mut self.queues[stream];
        let point = Point { stream, value: queue.signalled + 1 };
        for span in work.spans() {
            if !self.space.is_mapped(span.at, span.bytes) {
                return Err(SimError::Unmapped { work: point, at: span.at });
            }
        }
        queue.items.push_back(Item::Work(point, work));
        self.settle(stream)
    }

    /// Runs a stream until it has nothing left to do, unless a seed holds it back.
    fn settle(&mut self, stream: Stream) -> Result<(), SimError> {
        if self.chance.is_none() {
            while self.step(stream)? {}
        }
        Ok(())
    }

    /// Checks that a point has been signalled, so that work may wait for it.
    fn check_signalled(&self, point: Point) -> Result<(), SimError> {
        match self.failure {
            Some(failure) => Err(failure),
            None if point.value > self.queues[point.stream].signalled => {
                Err(Refused::Unsignalled(point).into())
            }
            None if self.is_unawaited(point) => Err(Refused::Unawaited(point).into()),
            None => Ok(()),
        }
    }

    /// Whether a point is not reached yet, and its signal was enqueued by `signal_unawaited`.
    fn is_unawaited(&self, point: Point) -> bool {
        let queue = &self.queues[point.stream];
        point.value > queue.reached && queue.unawaited.contains(&point.value)
    }

    fn is_reached(&self, point: Point) -> bool {
        self.queues[point.stream].reached >= point.value
    }

    /// Runs one event of a stream. Returns false if the stream has no work or waits.
    fn step(&mut self, stream: Stream) -> Result<bool, SimError> {
        let stepped = self.try_step(stream);
        if let Err(failure) = stepped {
            self.failure = Some(failure);
        }
        stepped
    }

    fn try_step(&mut self, stream: Stream) -> Result<bool, SimError> {
        if let Some(mut running) = self.queues[stream].running.take() {
            if self.is_lost() {
                return Err(SimError::Lost);
            }
            if running.delay > 0 {
                running.delay -= 1;
                self.queues[stream].running = Some(running);
                return Ok(true);
            }
            self.end(running)?;
            return Ok(true);
        }
        if let Some(Item::Wait(point)) = self.queues[stream].items.front()
            && !self.is_reached(*point)
        {
            return Ok(false);
        }
        match self.queues[stream].items.pop_front() {
            None => return Ok(false),
            Some(Item::Wait(_)) => {}
            Some(Item::Signal) => self.queues[stream].reached += 1,
            Some(Item::Work(point, work)) => {
                let running = self.begin(point, work)?;
                self.queues[stream].running = Some(running);
            }
        }
        Ok(true)
    }

    /// Runs a stream for a while.
    fn run_some(&mut self, stream: Stream, chance: &mut Chance) -> Result<bool, SimError> {
        let most = 1 << chance.below(8);
        let mut stepped = false;
        for _ in 0..most {
            if !self.step(stream)? {
                break;
            }
            stepped = true;
        }
        Ok(stepped)
    }

    /// The stream whose head blocks the way to a point.
    fn blocker(&self, point: Point) -> Stream {
        let mut stream = point.stream;
        while let Queue { items, running: None, .. } = &self.queues[stream]
            && let Some(Item::Wait(point)) = items.front()
            && !self.is_reached(*point)
        {
            stream = point.stream;
        }
        stream
    }

    /// Runs the streams until a point is reached. Sometimes runs little more than the point needs,
    /// and sometimes any stream.
    fn run_until(&mut self, point: Point, chance: &mut Chance) -> Result<(), SimError> {
        while !self.is_reached(point) {
            let stream = match Stream::ALL.get(chance.below(10) as usize) {
                Some(&any) => any,
                None => self.blocker(point),
            };
            self.run_some(stream, chance)?;
        }
        Ok(())
    }

    /// With a seed, sometimes lets the device get ahead of the host.
    fn drift(&mut self) -> Result<(), SimError> {
        let Some(mut chance) = self.chance else { return Ok(()) };
        if chance.below(4) == 0 {
            let stream = Stream::ALL[chance.below(Stream::ALL.len() as u64) as usize];
            self.run_some(stream, &mut chance)?;
        }
        self.chance = Some(chance);
        Ok(())
    }
}

impl Streams for SimDevice {
    fn has_host_stream(&self) -> bool {
        true
    }

    fn has_network_stream(&self) -> bool {
        true
    }

    fn wait(&mut self, stream: Stream, point: Point) -> Result<(), SimError> {
        self.check_signalled(point)?;
        if let Some(ns) = self.clock.signal_ns(point.stream, point.value) {
            self.clock.wait_until_ns(stream, ns);
        }
        self.queues[stream].items.push_back(Item::Wait(point));
        self.settle(stream)
    }

    fn signal(&mut self, stream: Stream) -> Result<Point, SimError> {
        self.check_failure()?;
        self.clock.signal(stream);
        let queue = &mut self.queues[stream];
        queue.signalled += 1;
        let point = Point { stream, value: queue.signalled };
        queue.items.push_back(Item::Signal);
        self.settle(stream)?;
        self.drift()?;
        Ok(point)
    }

    fn signal_unawaited(&mut self, stream: Stream) -> Result<Point, SimError> {
        let point = self.signal(stream)?;
        let queue = &mut self.queues[stream];
        queue.unawaited = queue.unawaited.split_off(&queue.reached);
        queue.unawaited.insert(point.value);
        Ok(point)
    }

    fn reached(&mut self, point: Point) -> Result<bool, SimError> {
        self.check_signalled(point)?;
        self.drift()?;
        let ns = self.clock.signal_ns(point.stream, point.value);
        let in_time = self.chance.is_some() || ns.is_none_or(|ns| ns <= self.clock.host_ns());
        Ok(in_time && self.is_reached(point))
    }

    fn block_until(&mut self, point: Point) -> Result<(), SimError> {
        self.check_signalled(point)?;
        if let Some(mut chance) = self.chance {
            self.run_until(point, &mut chance)?;
            self.chance = Some(chance);
        }
        if let Some(ns) = self.clock.signal_ns(point.stream, point.value) {
            self.clock.block_until_ns(ns);
        }
        Ok(())
    }
}
