//! Graphs: recorded work that runs as often as it is launched.

use crate::task::Task;
use crate::worker::Worker;
use std::sync::{Condvar, Mutex, PoisonError};
use std::time::Instant;

/// A task in a graph.
#[derive(Clone, Debug)]
pub(crate) struct Node {
    pub(crate) task: Task,
    /// The stream on which it was captured.
    pub(crate) stream: usize,
    /// The nodes that end before it begins.
    pub(crate) dependencies: Vec<usize>,
}

/// A graph.
#[derive(Clone, Debug)]
pub(crate) struct Graph(pub(crate) Vec<Node>);

impl Graph {
    pub(crate) fn executable(&self) -> ExecutableGraph {
        ExecutableGraph { nodes: self.0.clone(), launches: Mutex::default() }
    }
}

/// A graph that can run.
#[derive(Debug)]
pub(crate) struct ExecutableGraph {
    nodes: Vec<Node>,
    /// How often it ran. The lock lets one launch run at a time.
    launches: Mutex<u64>,
}

impl ExecutableGraph {
    /// Runs it, with a thread for each stream that was captured. Dependencies alone order the
    /// work of different streams.
    pub(crate) fn run(&self, on: &mut Worker<'_>) {
        let mut launches = self.launches.lock().unwrap_or_else(PoisonError::into_inner);
        *launches += 1;
        let mut streams: Vec<_> = self.nodes.iter().map(|node| node.stream).collect();
        streams.sort_unstable();
        streams.dedup();
        let ends = Ends::new(self.nodes.len());
        std::thread::scope(|scope| {
            for stream in streams {
                let mut worker = on.fork(stream as u64 ^ *launches << 32);
                let ends = &ends;
                scope.spawn(move || self.run_stream(stream, &mut worker, ends));
            }
        });
        ends.all().into_iter().for_each(|end| on.clock.advance_to(end));
    }

    /// Runs the nodes of one stream.
    fn run_stream(&self, stream: usize, worker: &mut Worker<'_>, ends: &Ends) {
        for (number, node) in self.nodes.iter().enumerate() {
            if node.stream == stream {
                for (dependency, end) in ends.wait(&node.dependencies) {
                    if self.nodes[dependency].stream == stream {
                        worker.clock.advance_to(end);
                    } else {
                        worker.wait_until(end);
                    }
                }
                worker.run(&node.task);
                ends.set(number, worker.clock.now());
            }
        }
    }
}

/// When each node has ended, in one launch.
struct Ends {
    times: Mutex<Vec<Option<Instant>>>,
    changed: Condvar,
}

impl Ends {
    fn new(nodes: usize) -> Self {
        Self { times: Mutex::new(vec![None; nodes]), changed: Condvar::new() }
    }

    /// Blocks until some nodes have ended. Returns them with their ends.
    fn wait(&self, nodes: &[usize]) -> Vec<(usize, Instant)> {
        let times = self.times.lock().unwrap_or_else(PoisonError::into_inner);
        let is_early = |times: &mut Vec<Option<_>>| nodes.iter().any(|&node| times[node].is_none());
        let times = self.changed.wait_while(times, is_early);
        let times = times.unwrap_or_else(PoisonError::into_inner);
        nodes.iter().filter_map(|&node| Some((node, times[node]?))).collect()
    }

    fn set(&self, node: usize, end: Instant) {
        self.times.lock().unwrap_or_else(PoisonError::into_inner)[node] = Some(end);
        self.changed.notify_all();
    }

    fn all(self) -> Vec<Instant> {
        let times = self.times.into_inner().unwrap_or_else(PoisonError::into_inner);
        times.into_iter().flatten().collect()
    }
}
