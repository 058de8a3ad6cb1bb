//! The timeline of a plan, as predicted or as measured: the start and end of each step, the step that it
//! waits for, and the device memory held over time.

mod measured;
mod memory;

pub(crate) use measured::check as check_measured;
pub(crate) use memory::{Content, Held};

use planner_core::pieces::Pieces;
use planner_core::timeline::{self, PREDICTED_ITERATIONS, Timeline};
use planner_core::{Limits, PerStream, Scratch, Stream, Verified, Wait};
use std::ops::Range;

/// One step of one iteration.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Span {
    /// The iteration, from 0.
    pub(crate) iteration: usize,
    /// The position in the plan's list.
    pub(crate) step: usize,
    /// The stream that runs the step.
    pub(crate) stream: Stream,
    /// The start.
    pub(crate) start_ns: u64,
    /// The end.
    pub(crate) end_ns: u64,
    /// The time that the stream was idle before the step.
    pub(crate) idle_ns: u64,
    /// The step of another stream that this stream waited for: its iteration and list position.
    pub(crate) awaited: Option<(usize, usize)>,
}

impl Span {
    /// Returns whether compute stalls before the step.
    pub(crate) fn is_stalled(&self) -> bool {
        self.stream == Stream::Compute && self.idle_ns > 0
    }
}

/// The timeline of some iterations: eight predicted iterations, or the measured iterations.
#[derive(Clone, Debug)]
pub(crate) struct Course {
    /// All steps that take time, iteration by iteration in list order.
    pub(crate) spans: Vec<Span>,
    /// The device memory held from each time to the next, with the arena.
    pub(crate) held: Vec<(u64, Held)>,
    /// The end of each iteration's last launch.
    pub(crate) iteration_ends_ns: Vec<u64>,
}

impl Course {
    /// Computes the timeline of a plan.
    pub(crate) fn of(verified: &Verified<'_>) -> Self {
        let (graph, plan) = (verified.graph(), verified.plan());
        let mut memory = vec![0; timeline::scratch_words(&Limits::of_plan(graph, plan))];
        let scratch = &mut Scratch::new(&mut memory);
        let proved = "the proof took the same steps";
        let pieces = Pieces::new(graph, verified.machine(), plan, scratch).expect(proved);
        let mut durations_ns = vec![0; plan.steps.len()];
        timeline::durations(verified.machine(), &pieces, &mut durations_ns).expect(proved);
        let timeline = Timeline::new(verified.schedule(), &durations_ns, scratch).expect(proved);
        let clock = Clock::new(verified, durations_ns, &timeline);
        let iterations = 0..PREDICTED_ITERATIONS as usize;
        Self {
            spans: iterations.clone().flat_map(|iteration| clock.spans(iteration)).collect(),
            held: memory::held(verified, &pieces, &clock),
            iteration_ends_ns: iterations
                .map(|iteration| clock.iteration_end_ns(iteration))
                .collect(),
        }
    }

    /// The times of one iteration in the steady state. The timeline also has the iteration after it, so the
    /// window shows the prefetches for that one.
    pub(crate) fn steady_iteration(&self) -> Range<u64> {
        self.last_iterations(1)
    }

    /// The times of four iterations in the steady state, or of fewer if the timeline has fewer.
    pub(crate) fn steady_iterations(&self) -> Range<u64> {
        self.last_iterations(4)
    }

    /// The times of the last `count` iterations before the very last one, or of fewer if the timeline has
    /// fewer.
    fn last_iterations(&self, count: usize) -> Range<u64> {
        let ends_ns = &self.iteration_ends_ns;
        let last = ends_ns.len().saturating_sub(2);
        let end_ns = |at: usize| ends_ns.get(at).copied().unwrap_or(0);
        // The idle time of streams before the first iteration is not known.
        let start_ns = match last {
            0 => self.start_ns(),
            _ => end_ns(last.saturating_sub(count)),
        };
        start_ns..end_ns(last)
    }

    /// The start of the first launch.
    fn start_ns(&self) -> u64 {
        let mut launches = self.spans.iter().filter(|span| span.stream == Stream::Compute);
        launches.next().map_or(0, |span| span.start_ns)
    }

    /// The steps that run within a window, at least in part.
    pub(crate) fn within(&self, window: &Range<u64>) -> impl Iterator<Item = &Span> {
        let (from, to) = (window.start, window.end);
        self.spans.iter().filter(move |span| span.end_ns > from && span.start_ns < to)
    }

    /// The launches that start within a window after a stall of compute. In a window of one iteration, each
    /// such launch occurs once, so their idle times add up to
    /// [`Figures::stall_ns`](crate::Figures::stall_ns).
    pub(crate) fn stalled_within(&self, window: &Range<u64>) -> impl Iterator<Item = &Span> {
        let (from, to) = (window.start, window.end);
        self.stalled().filter(move |span| from <= span.start_ns && span.start_ns < to)
    }

    fn stalled(&self) -> impl Iterator<Item = &Span> {
        self.spans.iter().filter(|span| span.is_stalled())
    }

    /// The parts of stalls that lie within a window, each with the launch that ends the stall.
    pub(crate) fn stalls_within(
        &self,
        window: &Range<u64>,
    ) -> impl Iterator<Item = (Range<u64>, &Span)> {
        let (from, to) = (window.start, window.end);
        self.stalled().filter_map(move |span| {
            let begin_ns = span.start_ns.saturating_sub(span.idle_ns).max(from);
            let end_ns = span.start_ns.min(to);
            (begin_ns < end_ns).then_some((begin_ns..end_ns, span))
        })
    }

    /// The step that the stream of a span waited for. O(log spans).
    pub(crate) fn awaited(&self, span: &Span) -> Option<&Span> {
        let key = |span: &Span| (span.iteration, span.step);
        let at = self.spans.binary_search_by_key(&span.awaited?, key).ok()?;
        self.spans.get(at)
    }

    /// The memory held within a window, with the level at its start.
    pub(crate) fn held_within(&self, window: &Range<u64>) -> Vec<(u64, Held)> {
        let before = self.held.partition_point(|&(ns, _)| ns <= window.start);
        let level = before.checked_sub(1).map_or(Held::default(), |at| self.held[at].1);
        let rest = self.held[before..].iter().copied().take_while(|&(ns, _)| ns < window.end);
        std::iter::once((window.start, level)).chain(rest).collect()
    }
}

/// The list positions of each stream's steps.
fn positions(verified: &Verified<'_>) -> PerStream<Vec<usize>> {
    let mut positions: PerStream<Vec<usize>> = Default::default();
    for (at, step) in verified.plan().steps.iter().enumerate() {
        if let Some(stream) = Stream::of(verified.graph(), step) {
            positions[stream].push(at);
        }
    }
    positions
}

/// The times of all steps.
struct Clock<'c> {
    verified: &'c Verified<'c>,
    timeline: &'c Timeline<'c>,
    durations_ns: Vec<u64>,
    /// The list positions of each stream's steps.
    positions: PerStream<Vec<usize>>,
}

impl<'c> Clock<'c> {
    fn new(verified: &'c Verified<'c>, durations_ns: Vec<u64>, timeline: &'c Timeline<'c>) -> Self {
        Self { verified, timeline, durations_ns, positions: positions(verified) }
    }

    fn iteration_end_ns(&self, iteration: usize) -> u64 {
        self.timeline.ops_end_ns(iteration)
    }

    /// The awaited steps: the iteration, the list position and the end of each.
    fn awaited(
        &self,
        iteration: usize,
        waits: PerStream<Option<Wait>>,
    ) -> impl Iterator<Item = ((usize, usize), u64)> {
        waits.into_iter().filter_map(move |(stream, wait)| {
            let wait = wait?;
            let awaited_iteration = iteration.checked_sub(wait.iterations_back as usize)?;
            let &position = self.positions[stream].get(wait.index as usize)?;
            let end_ns = self.timeline.end_ns(awaited_iteration, stream, wait.index);
            Some(((awaited_iteration, position), end_ns))
        })
    }

    fn spans(&self, iteration: usize) -> impl Iterator<Item = Span> {
        let steps = self.verified.schedule().of_iteration(iteration as u64).iter().enumerate();
        steps.filter_map(move |(step, entry)| {
            let stream = entry.stream()?;
            let end_ns = self.timeline.end_ns(iteration, stream, entry.index());
            let start_ns = end_ns.saturating_sub(self.durations_ns[step]);
            let previous_end_ns = match (entry.index().checked_sub(1), iteration.checked_sub(1)) {
                (Some(index), _) => self.timeline.end_ns(iteration, stream, index),
                (None, Some(iteration)) => {
                    let steps = self.positions[stream].len() as u32;
                    self.timeline.end_ns(iteration, stream, steps - 1)
                }
                (None, None) => 0,
            };
            let idle_ns = start_ns.saturating_sub(previous_end_ns);
            let last =
                self.awaited(iteration, entry.waits()).find(|&(_, end_ns)| end_ns == start_ns);
            let awaited = last.filter(|_| idle_ns > 0).map(|(awaited, _)| awaited);
            Some(Span { iteration, step, stream, start_ns, end_ns, idle_ns, awaited })
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Graph;
    use crate::planning;
    use crate::proof::Proof;
    use planner_core::Kind;
    use planner_core::planner::{Request, Strategy};
    use workloads::{OwnedGraph, OwnedMachine, OwnedPlan, machines};
    use zoo::models;

    /// A plan within twice the least budget, and its course.
    fn course(work: &OwnedGraph, machine: &OwnedMachine) -> (OwnedPlan, Course) {
        let (graph, machine_only) = (work.graph().unwrap(), &machine.machine);
        let budget_bytes = machine_only.device_bytes;
        let request = Request { graph: &graph, machine: machine_only, budget_bytes };
        let (least_bytes, _) = planning::min_feasible(&request, Strategy::OnDemand).unwrap();
        let request = Request { budget_bytes: 2 * least_bytes, ..request };
        let plan = planning::plan(&request, Strategy::OnDemand).unwrap();
        let graph = Graph::new(work.clone()).unwrap();
        let proof = Proof::of(graph, machine.clone(), plan.clone()).unwrap();
        let course = Course::of(&proof.borrow_dependent().verified);
        let pools = plan.pools.iter().map(|pool| pool.object_bytes * pool.count);
        let most_bytes = plan.arena_bytes + pools.sum::<u64>();
        let held_bytes = course.held.iter().map(|(_, held)| held.sum_bytes());
        assert!(held_bytes.max().is_some_and(|bytes| bytes > 0 && bytes <= most_bytes));
        (plan, course)
    }

    /// Each op's workspace is as large as the tensor that it writes.
    fn with_workspaces() -> OwnedGraph {
        let mut graph = OwnedGraph::new("g");
        let mut last = graph.push_tensor("x", 8 << 20, Kind::Input);
        for name in ["a", "b", "c", "d"] {
            let next = graph.push_tensor(name, 8 << 20, Kind::Temporary);
            graph.push_op(name, 1_000_000, 8 << 20, &[last], &[next]);
            last = next;
        }
        graph
    }

    #[test]
    fn what_is_taken_is_given_back() {
        let machine = machines::builtin("v100-pcie3").unwrap();
        let resnet = models::generate("resnet50:batch=2,image=64").unwrap();
        for work in [with_workspaces(), resnet] {
            let (plan, course) = course(&work, &machine);
            let starts = plan.resident_at_start.iter().map(|entry| entry.part.tensor);
            let pooled =
                starts.filter(|id| plan.arena.iter().all(|placement| placement.tensor != *id));
            let object_bytes = plan.pools[0].object_bytes;
            let start_bytes = pooled
                .map(|id| work.tensors[id.index()].bytes.div_ceil(object_bytes) * object_bytes)
                .sum::<u64>();
            let last = course.held.last().map(|(_, held)| held.sum_bytes());
            assert_eq!(last, Some(plan.arena_bytes + start_bytes));
        }
    }

    #[test]
    fn memory_is_told_apart_by_what_it_holds() {
        let mut graph = OwnedGraph::new("g");
        let x = graph.push_tensor("x", 7 << 20, Kind::Input);
        let w = graph.push_tensor("w", 9 << 20, Kind::State);
        let y = graph.push_tensor("y", 11 << 20, Kind::Temporary);
        graph.push_op("a", 1_000_000, 0, &[x, w], &[y]);
        graph.push_op("b", 1_000_000, 13 << 20, &[y], &[]);
        let machine = machines::builtin("v100-pcie3").unwrap();
        let (_, course) = course(&graph, &machine);
        let contents = [
            (Content::State, 9 << 20),
            (Content::Input, 7 << 20),
            (Content::Temporary, 11 << 20),
            (Content::Workspace, 13 << 20),
        ];
        // Each tensor leaves half a chunk of 2 MiB empty. The next input may arrive while the last one is
        // still held.
        for (_, held) in &course.held {
            let of_content = contents.map(|(content, bytes)| held[content] / bytes);
            assert_eq!(held[Content::Waste], of_content.iter().sum::<u64>() << 20, "{held:?}");
            assert_eq!(held[Content::Arena], 0);
        }
        for (content, bytes) in contents {
            let held_bytes = course.held.iter().map(|(_, held)| held[content]);
            assert!(held_bytes.clone().all(|held_bytes| held_bytes % bytes == 0), "{content:?}");
            assert!(held_bytes.clone().any(|bytes| bytes > 0), "{content:?}");
        }
    }

    #[test]
    fn idle_times_add_up_to_the_stall() {
        let machine = machines::builtin("v100-pcie3").unwrap();
        let work = models::generate("resnet50:batch=2,image=64").unwrap();
        let (plan, course) = course(&work, &machine);
        let stall_ns = plan.predicted.period_ns - plan.predicted.compute_ns;
        let window = course.steady_iteration();
        let stalled: Vec<_> = course.stalled_within(&window).collect();
        assert_eq!(stalled.iter().map(|span| span.idle_ns).sum::<u64>(), stall_ns);
        let ends_in_time = |span: &&Span| {
            course.awaited(span).is_some_and(|awaited| awaited.end_ns == span.start_ns)
        };
        assert!(stalled.len() > 10 && stalled.iter().all(ends_in_time));
    }
}
