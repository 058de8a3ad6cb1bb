//! A stream: a thread with a queue. An event: a place in a queue.

use crate::capture::{Capture, Executable};
use crate::chance::{Chance, Settings};
use crate::driver::DRIVER;
use crate::task::Task;
use crate::{Outcome, clock};
use cudarc::driver::sys::CUresult::{self, CUDA_ERROR_LAUNCH_FAILED};
use std::collections::VecDeque;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::Instant;

/// When a place is reached, once it is.
pub(crate) type Stamp = Arc<Mutex<Option<Instant>>>;

/// What a stream does next.
#[derive(Debug)]
enum Work {
    Task(Task),
    Graph(Arc<Executable>),
    Wait(Place, Stamp),
    Stamp(Stamp),
    End,
}

#[derive(Debug, Default)]
struct Queue {
    /// With the time at which it was enqueued.
    work: VecDeque<(Instant, Work)>,
    enqueued: u64,
    done: u64,
    /// When the last of it ended.
    end: Option<Instant>,
}

/// A queue that others may wait for.
#[derive(Debug, Default)]
pub(crate) struct Lane {
    queue: Mutex<Queue>,
    changed: Condvar,
}

impl Lane {
    fn lock(&self) -> MutexGuard<'_, Queue> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn push(&self, work: Work) {
        let mut queue = self.lock();
        queue.work.push_back((clock::caller_now(), work));
        queue.enqueued += 1;
        self.changed.notify_all();
    }

    fn wait_while<'q>(
        &self,
        queue: MutexGuard<'q, Queue>,
        holds: impl FnMut(&mut Queue) -> bool,
    ) -> MutexGuard<'q, Queue> {
        self.changed.wait_while(queue, holds).unwrap_or_else(PoisonError::into_inner)
    }
}

/// A place in a queue: behind so much of its work.
#[derive(Clone, Debug)]
pub(crate) struct Place {
    lane: Arc<Lane>,
    behind: u64,
}

impl Place {
    fn is_reached(&self) -> bool {
        self.lane.lock().done >= self.behind
    }

    /// Blocks until it is reached; when the last work that has ended did so.
    fn block(&self) -> Option<Instant> {
        self.lane.wait_while(self.lane.lock(), |queue| queue.done < self.behind).end
    }
}

/// Fills in a stamp.
fn set(stamp: &Stamp, time: Instant) {
    *stamp.lock().unwrap_or_else(PoisonError::into_inner) = Some(time);
}

/// When a place was reached; none if it is not.
fn time_of(stamp: &Stamp) -> Option<Instant> {
    *stamp.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A stream of the driver.
#[derive(Debug)]
pub(crate) struct Stream {
    pub(crate) handle: usize,
    lane: Arc<Lane>,
    thread: Mutex<Option<JoinHandle<()>>>,
    /// What it is captured into, and the nodes that its next work follows.
    pub(crate) capture: Mutex<Option<(Arc<Capture>, Vec<usize>)>>,
}

impl Stream {
    pub(crate) fn new(handle: usize) -> Self {
        let lane = Arc::new(Lane::default());
        let of_thread = Arc::clone(&lane);
        let settings = Settings::now();
        let thread = std::thread::spawn(move || run(&of_thread, settings, handle));
        Self { handle, lane, thread: Mutex::new(Some(thread)), capture: Mutex::default() }
    }

    pub(crate) fn capture(&self) -> MutexGuard<'_, Option<(Arc<Capture>, Vec<usize>)>> {
        self.capture.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Does a task, now or whenever the graph that is captured runs.
    pub(crate) fn push(&self, task: Task) {
        match &mut *self.capture() {
            Some((capture, follows)) => *follows = vec![capture.add(task, self.handle, follows)],
            None => self.lane.push(Work::Task(task)),
        }
    }

    pub(crate) fn push_graph(&self, graph: Arc<Executable>) {
        self.lane.push(Work::Graph(graph));
    }

    pub(crate) fn push_wait(&self, place: Place, stamp: Stamp) {
        self.lane.push(Work::Wait(place, stamp));
    }

    /// The place behind all that is enqueued, which is stamped with the time at which it is
    /// reached.
    pub(crate) fn stamp(&self) -> (Place, Stamp) {
        let time = Arc::default();
        self.lane.push(Work::Stamp(Arc::clone(&time)));
        (self.place(), time)
    }

    /// Blocks the caller until all that is enqueued has ended.
    pub(crate) fn block(&self) {
        clock::caller_waits(|| self.place().block());
    }

    /// The place behind all that is enqueued.
    fn place(&self) -> Place {
        let behind = self.lane.lock().enqueued;
        Place { lane: Arc::clone(&self.lane), behind }
    }

    /// Waits for all work and ends the thread.
    pub(crate) fn end(&self) {
        self.lane.push(Work::End);
        let thread = self.thread.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(thread) = thread {
            // A thread that has panicked has ended as well.
            let _ = thread.join();
        }
    }
}

/// The thread of a stream.
fn run(lane: &Lane, settings: Settings, handle: usize) {
    let mut hazard = Hazard::new(settings, handle as u64);
    loop {
        let mut queue = lane.wait_while(lane.lock(), |queue| queue.work.is_empty());
        let work = queue.work.pop_front();
        drop(queue);
        let Some((enqueued, work)) = work else { continue };
        clock::reach(enqueued);
        let is_end = matches!(work, Work::End);
        match work {
            Work::Task(task) => hazard.meet(&task),
            Work::Graph(graph) => graph.run(settings),
            Work::Wait(place, stamp) => {
                place.block();
                time_of(&stamp).into_iter().for_each(clock::reach);
            }
            Work::Stamp(stamp) => set(&stamp, clock::now()),
            Work::End => {}
        }
        let mut queue = lane.lock();
        queue.done += 1;
        queue.end = Some(clock::now());
        drop(queue);
        lane.changed.notify_all();
        if is_end {
            return;
        }
    }
}

/// Delays and losses of one thread of work.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Hazard {
    delays: Option<Chance>,
    losses: Chance,
    lost: u64,
}

impl Hazard {
    pub(crate) fn new(settings: Settings, of: u64) -> Self {
        let of = of.wrapping_mul(0x2545_f491_4f6c_dd1d);
        let delays = settings.seed.map(|seed| Chance::new(seed ^ of));
        let losses = Chance::new(!settings.seed.unwrap_or(0) ^ of);
        Self { delays, losses, lost: settings.lost }
    }

    /// Does a task late, or not at all. After the first failure nothing is done any more.
    pub(crate) fn meet(&mut self, task: &Task) {
        if let Some(delays) = &mut self.delays {
            delays.delay();
        }
        if DRIVER.lost().is_err() {
            return;
        }
        let done: Outcome = if self.losses.strikes(self.lost) {
            Err(CUDA_ERROR_LAUNCH_FAILED)
        } else {
            clock::work(|| task.run())
        };
        if let Err(error) = done {
            DRIVER.lose(error);
        }
    }
}

/// An event of the driver.
#[derive(Debug, Default)]
pub(crate) enum Recorded {
    /// Nothing yet; it counts as reached.
    #[default]
    Never,
    On(Place, Stamp),
    /// In a capture, behind these nodes.
    Captured(Arc<Capture>, Vec<usize>),
}

/// An event of the driver.
#[derive(Debug, Default)]
pub(crate) struct Event(Mutex<Recorded>);

impl Event {
    pub(crate) fn lock(&self) -> MutexGuard<'_, Recorded> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether it is reached, for a caller.
    pub(crate) fn is_reached(&self) -> Outcome<bool> {
        match &*self.lock() {
            Recorded::Never => Ok(true),
            Recorded::On(place, stamp) => {
                Ok(place.is_reached()
                    && time_of(stamp).is_none_or(|time| time <= clock::caller_now()))
            }
            Recorded::Captured(..) => Err(CUresult::CUDA_ERROR_CAPTURED_EVENT),
        }
    }

    /// Blocks the caller until it is reached.
    pub(crate) fn block(&self) -> Outcome {
        let (place, stamp) = match &*self.lock() {
            Recorded::Never => return Ok(()),
            Recorded::On(place, stamp) => (place.clone(), Arc::clone(stamp)),
            Recorded::Captured(..) => return Err(CUresult::CUDA_ERROR_CAPTURED_EVENT),
        };
        clock::caller_waits(|| {
            place.block();
            time_of(&stamp)
        });
        Ok(())
    }

    /// When it was reached.
    pub(crate) fn time(&self) -> Outcome<Instant> {
        match &*self.lock() {
            Recorded::On(_, stamp) => time_of(stamp).ok_or(CUresult::CUDA_ERROR_NOT_READY),
            _ => Err(CUresult::CUDA_ERROR_INVALID_HANDLE),
        }
    }
}
