//! The contents of device memory over time.

use super::Clock;
use planner_core::pieces::Pieces;
use planner_core::timeline::PREDICTED_ITERATIONS;
use planner_core::{Kind, Part, Step, TensorId, Verified};
use std::ops::{Index, IndexMut, Range};

/// The use of a part of device memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Content {
    /// The whole arena, with its unused bytes.
    Arena,
    /// States in pools.
    State,
    /// Inputs in pools.
    Input,
    /// Temporaries and outputs in pools.
    Temporary,
    /// Workspaces in pools.
    Workspace,
    /// Unused bytes of objects.
    Waste,
}

impl Content {
    /// All contents, in the order in which a chart stacks them.
    pub(crate) const ALL: [Self; 6] =
        [Self::Arena, Self::State, Self::Input, Self::Temporary, Self::Workspace, Self::Waste];

    const fn of(kind: Kind) -> Self {
        match kind {
            Kind::State => Self::State,
            Kind::Input => Self::Input,
            Kind::Temporary | Kind::Output => Self::Temporary,
        }
    }
}

/// Bytes of device memory by content.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Held([u64; Content::ALL.len()]);

impl Held {
    /// Objects that hold `filled_bytes` of one content; the rest is waste.
    fn objects(content: Content, filled_bytes: u64, object_bytes: u64) -> Self {
        let mut held = Self::default();
        held[content] = filled_bytes;
        held[Content::Waste] = object_bytes.saturating_sub(filled_bytes);
        held
    }

    /// The sum of all contents. It never overflows, since the plan is proved.
    pub(crate) fn sum_bytes(&self) -> u64 {
        self.0.iter().sum()
    }

    fn add(&mut self, other: Self) {
        for (sum, bytes) in self.0.iter_mut().zip(other.0) {
            *sum += bytes;
        }
    }
}

impl Index<Content> for Held {
    type Output = u64;

    fn index(&self, content: Content) -> &u64 {
        &self.0[content as usize]
    }
}

impl IndexMut<Content> for Held {
    fn index_mut(&mut self, content: Content) -> &mut u64 {
        &mut self.0[content as usize]
    }
}

/// Device memory that a step takes and gives back.
#[derive(Clone, Copy, Debug, Default)]
struct Demand {
    takes: Held,
    workspace: Held,
    frees: Held,
}

/// Follows the list to find the memory that each step takes. The list is proved, so the walk checks nothing,
/// and no sum can overflow.
struct Walk<'w> {
    verified: &'w Verified<'w>,
    pieces: &'w Pieces<'w>,
    resident: Vec<bool>,
}

impl<'w> Walk<'w> {
    fn new(verified: &'w Verified<'w>, pieces: &'w Pieces<'w>) -> Self {
        Self { verified, pieces, resident: vec![false; pieces.len()] }
    }

    /// Takes the memory that is resident at the start.
    fn start(&mut self) -> Held {
        let mut held = Held::default();
        for entry in self.verified.plan().resident_at_start {
            held.add(self.take(entry.part.tensor, self.pieces.of_part(entry.part)));
        }
        held
    }

    fn piece(&self, tensor: TensorId, piece: usize) -> Held {
        let objects = self.pieces.pool_objects(tensor, piece);
        if objects == 0 {
            return Held::default();
        }
        let graph = self.verified.graph();
        let (first, count) = self.pieces.range(tensor, piece);
        let filled_bytes = self.pieces.part_bytes(graph, Part { tensor, first, count });
        let object_bytes = self.verified.plan().pools[self.pieces.pool(tensor)].object_bytes;
        let content = Content::of(graph.tensor(tensor).kind);
        Held::objects(content, filled_bytes, objects * object_bytes)
    }

    /// Makes pieces resident. Returns the memory of the pieces that were not resident before.
    fn take(&mut self, tensor: TensorId, pieces: Range<usize>) -> Held {
        let mut taken = Held::default();
        for piece in pieces {
            if !std::mem::replace(&mut self.resident[piece], true) {
                taken.add(self.piece(tensor, piece));
            }
        }
        taken
    }

    fn free(&mut self, part: Part) -> Held {
        let mut freed = Held::default();
        for piece in self.pieces.of_part(part) {
            self.resident[piece] = false;
            freed.add(self.piece(part.tensor, piece));
        }
        freed
    }

    fn step(&mut self, step: &Step) -> Demand {
        let mut demand = Demand::default();
        match *step {
            Step::Prefetch(part) => {
                demand.takes = self.take(part.tensor, self.pieces.of_part(part));
            }
            Step::Evict(part) => demand.frees = self.free(part),
            Step::Launch(launched) => {
                let graph = self.verified.graph();
                for tensor in graph.written_by(launched) {
                    demand.takes.add(self.take(tensor, self.pieces.of(tensor)));
                }
                if let Some((pool, objects)) = self.pieces.workspace(graph, launched.op) {
                    let object_bytes = objects * self.verified.plan().pools[pool].object_bytes;
                    let filled_bytes = graph.op(launched.op).workspace_bytes;
                    demand.workspace =
                        Held::objects(Content::Workspace, filled_bytes, object_bytes);
                }
            }
            Step::Offload(_) | Step::Host(_) => {}
        }
        demand
    }
}

/// Memory over time. A step takes memory when it starts. Evicted memory is free when the steps that the evict
/// waits for have ended.
pub(super) fn held(
    verified: &Verified<'_>,
    pieces: &Pieces<'_>,
    clock: &Clock<'_>,
) -> Vec<(u64, Held)> {
    let plan = verified.plan();
    let mut walk = Walk::new(verified, pieces);
    let mut start = walk.start();
    start[Content::Arena] = plan.arena_bytes;
    let demands: Vec<_> = plan.steps.iter().map(|step| walk.step(step)).collect();
    // The time, the sign and the memory of each change.
    let mut changes: Vec<(u64, i128, Held)> = Vec::new();
    for iteration in 0..PREDICTED_ITERATIONS as usize {
        let entries = verified.schedule().of_iteration(iteration as u64);
        for (entry, demand) in entries.iter().zip(&demands) {
            let ends = clock.awaited(iteration, entry.waits()).map(|(_, end_ns)| end_ns);
            changes.push((ends.max().unwrap_or(0), -1, demand.frees));
        }
        for span in clock.spans(iteration) {
            let Demand { takes, workspace, .. } = demands[span.step];
            changes.push((span.start_ns, 1, takes));
            changes.push((span.start_ns, 1, workspace));
            changes.push((span.end_ns, -1, workspace));
        }
    }
    changes.retain(|(_, _, held)| *held != Held::default());
    changes.sort_unstable_by_key(|&(ns, ..)| ns);
    levels(start, &changes)
}

/// The memory held from each time to the next, after all changes at that time.
fn levels(start: Held, changes: &[(u64, i128, Held)]) -> Vec<(u64, Held)> {
    let mut sums = start.0.map(i128::from);
    let mut levels = vec![(0, start)];
    for &(ns, sign, held) in changes {
        for (sum, bytes) in sums.iter_mut().zip(held.0) {
            *sum += sign * i128::from(bytes);
        }
        let level = Held(sums.map(|bytes| u64::try_from(bytes).unwrap_or(0)));
        match levels.last_mut() {
            Some(last) if last.0 == ns => last.1 = level,
            _ => levels.push((ns, level)),
        }
    }
    levels
}
