//! Graphs: work that is recorded while streams are captured, and run as often as wanted.

use crate::chance::Settings;
use crate::stream::Hazard;
use crate::task::Task;
use crate::{Outcome, clock};
use cudarc::driver::sys::CUresult::CUDA_ERROR_STREAM_CAPTURE_UNJOINED;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::ThreadId;

#[derive(Clone, Debug)]
struct Node {
    task: Task,
    /// The stream that it was captured on.
    stream: usize,
    /// What it follows.
    follows: Vec<usize>,
}

/// A capture under way.
#[derive(Debug)]
pub(crate) struct Capture {
    /// The stream that it began on.
    pub(crate) origin: usize,
    by: ThreadId,
    is_open: AtomicBool,
    nodes: Mutex<Vec<Node>>,
}

impl Capture {
    pub(crate) fn new(origin: usize) -> Self {
        let by = std::thread::current().id();
        Self { origin, by, is_open: AtomicBool::new(true), nodes: Mutex::default() }
    }

    pub(crate) fn is_by_this_thread(&self) -> bool {
        self.by == std::thread::current().id()
    }

    pub(crate) fn is_open(&self) -> bool {
        self.is_open.load(Ordering::SeqCst)
    }

    pub(crate) fn close(&self) {
        self.is_open.store(false, Ordering::SeqCst);
    }

    fn nodes(&self) -> MutexGuard<'_, Vec<Node>> {
        self.nodes.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds work; returns its number.
    pub(crate) fn add(&self, task: Task, stream: usize, follows: &[usize]) -> usize {
        let mut nodes = self.nodes();
        nodes.push(Node { task, stream, follows: follows.to_vec() });
        nodes.len() - 1
    }

    /// What was captured, if everything is followed by the end of the stream that it began on.
    pub(crate) fn graph(&self, ends: &[usize]) -> Outcome<CapturedGraph> {
        let nodes = self.nodes().clone();
        let mut joined = vec![false; nodes.len()];
        let mut next = ends.to_vec();
        while let Some(node) = next.pop() {
            if !std::mem::replace(&mut joined[node], true) {
                next.extend(&nodes[node].follows);
            }
        }
        let all = joined.into_iter().all(|joined| joined);
        if all { Ok(CapturedGraph(nodes)) } else { Err(CUDA_ERROR_STREAM_CAPTURE_UNJOINED) }
    }
}

/// A graph.
#[derive(Clone, Debug)]
pub(crate) struct CapturedGraph(Vec<Node>);

impl CapturedGraph {
    pub(crate) fn executable(&self) -> Executable {
        Executable { nodes: self.0.clone(), launches: Mutex::default() }
    }
}

/// A graph that can run.
#[derive(Debug)]
pub(crate) struct Executable {
    nodes: Vec<Node>,
    /// How often it ran. It runs once at a time.
    launches: Mutex<u64>,
}

impl Executable {
    /// Runs it, with a thread for each stream that was captured. Work is ordered by what was
    /// captured, and by nothing else.
    pub(crate) fn run(&self, settings: Settings) {
        let mut launches = self.launches.lock().unwrap_or_else(PoisonError::into_inner);
        *launches += 1;
        let launch = *launches;
        let mut streams: Vec<_> = self.nodes.iter().map(|node| node.stream).collect();
        streams.sort_unstable();
        streams.dedup();
        let start = clock::now();
        // When each node has ended.
        let ends = Mutex::new(vec![None; self.nodes.len()]);
        let changed = Condvar::new();
        let run = |stream| {
            let mut hazard = Hazard::new(settings, stream as u64 ^ launch << 32);
            clock::reach(start);
            for (number, node) in self.nodes.iter().enumerate() {
                if node.stream != stream {
                    continue;
                }
                let before = ends.lock().unwrap_or_else(PoisonError::into_inner);
                let is_early =
                    |ends: &mut Vec<Option<_>>| node.follows.iter().any(|&n| ends[n].is_none());
                let before = changed.wait_while(before, is_early);
                let before = before.unwrap_or_else(PoisonError::into_inner);
                node.follows.iter().filter_map(|&n| before[n]).for_each(clock::reach);
                drop(before);
                hazard.meet(&node.task);
                let end = Some(clock::now());
                ends.lock().unwrap_or_else(PoisonError::into_inner)[number] = end;
                changed.notify_all();
            }
        };
        std::thread::scope(|scope| {
            let run = &run;
            for stream in streams {
                scope.spawn(move || run(stream));
            }
        });
        let ends = ends.into_inner().unwrap_or_else(PoisonError::into_inner);
        ends.into_iter().flatten().for_each(clock::reach);
    }
}
