//! From a plan to its schedule: which step waits for which.
//!
//! Three passes over the list. The first two follow the hazards of every piece, once to
//! learn how an iteration ends and once to see the next one begin. The third follows the
//! queues of free objects. What remains is a transitive reduction by vector clocks, since
//! a wait that other waits imply costs the device a semaphore and the reader a thought.
//!
//! A point in time is a step of a stream relative to the current iteration: step `i` of
//! the iteration `l` laps back, on a stream of `n` steps, is the number `i - l * n`.

use crate::graph::{Graph, OpId};
use crate::machine::Machine;
use crate::pieces::Pieces;
use crate::plan::{Place, Plan, PlanError, Step};
use crate::residency::Residency;
use crate::schedule::{Schedule, Scheduled, Stream, Wait};
use crate::scratch::{Limits, OutOfScratch, Scratch, words};

/// A point on each stream, relative to the current iteration.
type Points = [i64; 3];

/// Before everything.
const NEVER: i64 = i64::MIN;

/// Words of scratch that [`lower`] asks for: per step 7.7, per tensor 5, per piece 3.2, per
/// pool 12.
#[must_use]
pub const fn scratch_words(limits: &Limits) -> usize {
    Pieces::scratch_words(limits)
        + Residency::scratch_words(limits)
        + 3 * words::<i64>(limits.tensors)
        + 2 * words::<i64>(limits.pieces)
        + words::<Points>(limits.steps)
        + Queues::scratch_words(limits)
        + Clocks::scratch_words(limits)
}

/// Lowers a plan into `out`, which needs room for one entry a step. O(steps + operands),
/// times the few sweeps that the vector clocks take.
///
/// # Errors
/// A plan whose structure or residency is broken: what cannot be lowered. Whether the plan
/// is safe is for [`verify`](crate::verify()) to say.
pub fn lower<'o>(
    graph: &Graph<'_>,
    machine: &Machine,
    plan: &Plan<'_>,
    out: &'o mut [Scheduled],
    scratch: &mut Scratch<'_>,
) -> Result<Schedule<'o>, PlanError> {
    let mut scratch = scratch.reborrow();
    let pieces = Pieces::new(graph, machine, plan, &mut scratch)?;
    lower_pieces(graph, plan, &pieces, out, &mut scratch)
}

/// [`lower`] with the table of pieces at hand.
pub(crate) fn lower_pieces<'o>(
    graph: &Graph<'_>,
    plan: &Plan<'_>,
    pieces: &Pieces<'_>,
    out: &'o mut [Scheduled],
    scratch: &mut Scratch<'_>,
) -> Result<Schedule<'o>, PlanError> {
    let mut scratch = scratch.reborrow();
    let steps = plan.steps.len();
    let needed_words = words::<Scheduled>(steps);
    let out = out.get_mut(..steps).ok_or(OutOfScratch { needed_words, free_words: 0 })?;
    let stream_steps = number_steps(plan, out);

    let needs = scratch.take(steps, [NEVER; 3])?;
    let mut hazards = Hazards::new(graph, pieces, &mut scratch)?;
    for _lap in 0..2 {
        hazards.start_lap(stream_steps);
        for ((step, entry), needs) in plan.steps.iter().zip(&*out).zip(&mut *needs) {
            *needs = hazards.walk(graph, pieces, step, i64::from(entry.index));
        }
    }
    memory_needs(graph, plan, pieces, out, stream_steps, needs, &mut scratch)?;
    Clocks::new(out, stream_steps, needs, &mut scratch)?.reduce(out, needs);
    Ok(Schedule { steps: out, stream_steps })
}

/// Fills in each step's place on its stream; returns how many steps each stream has.
fn number_steps(plan: &Plan<'_>, out: &mut [Scheduled]) -> [u32; 3] {
    let mut counts = [0; 3];
    for (entry, step) in out.iter_mut().zip(plan.steps) {
        *entry = Scheduled { stream: Stream::of(step), ..Scheduled::EMPTY };
        if let Some(stream) = entry.stream {
            entry.index = counts[stream as usize];
            counts[stream as usize] += 1;
        }
    }
    counts
}

fn later(one: Points, other: Points) -> Points {
    core::array::from_fn(|s| one[s].max(other[s]))
}

/// The same points, seen from `laps` iterations later.
fn seen_later(points: Points, laps: i64, stream_steps: [u32; 3]) -> Points {
    core::array::from_fn(|s| {
        points[s].saturating_sub(laps.saturating_mul(i64::from(stream_steps[s])))
    })
}

/// The last step of each sort that touched a tensor or a piece.
struct Hazards<'a> {
    touched: &'a mut [i64],
    written: &'a mut [i64],
    /// The last launch that touched the tensor before its last prefetch.
    touched_before_prefetch: &'a mut [i64],
    prefetched: &'a mut [i64],
    offloaded: &'a mut [i64],
}

impl<'a> Hazards<'a> {
    fn new(
        graph: &Graph<'_>,
        pieces: &Pieces<'_>,
        scratch: &mut Scratch<'a>,
    ) -> Result<Self, OutOfScratch> {
        let tensors = graph.tensors().len();
        Ok(Self {
            touched: scratch.take(tensors, NEVER)?,
            written: scratch.take(tensors, NEVER)?,
            touched_before_prefetch: scratch.take(tensors, NEVER)?,
            prefetched: scratch.take(pieces.len(), NEVER)?,
            offloaded: scratch.take(pieces.len(), NEVER)?,
        })
    }

    fn start_lap(&mut self, stream_steps: [u32; 3]) {
        let [launches, prefetches, offloads] = stream_steps.map(i64::from);
        for (points, steps) in [
            (&mut *self.touched, launches),
            (&mut *self.written, launches),
            (&mut *self.touched_before_prefetch, launches),
            (&mut *self.prefetched, prefetches),
            (&mut *self.offloaded, offloads),
        ] {
            for point in points {
                *point = point.saturating_sub(steps);
            }
        }
    }

    /// What a step must wait for (for an evict: what must have ended before its memory is
    /// free), memory apart. Then the step counts as done.
    fn walk(&mut self, graph: &Graph<'_>, pieces: &Pieces<'_>, step: &Step, now: i64) -> Points {
        match *step {
            Step::Launch(op) => {
                let (mut upload, mut download) = (NEVER, NEVER);
                for &tensor in graph.operands_of(op) {
                    upload = upload.max(last(self.prefetched, pieces.of(tensor)));
                    self.touched[tensor.index()] = now;
                }
                for &tensor in graph.writes(op) {
                    download = download.max(last(self.offloaded, pieces.of(tensor)));
                    self.written[tensor.index()] = now;
                }
                [NEVER, upload, download]
            }
            Step::Prefetch(part) => {
                let tensor = part.tensor.index();
                let range = pieces.of_part(part);
                let launch = if pieces.arrives_beside(graph, part) {
                    self.touched_before_prefetch[tensor]
                } else {
                    self.touched[tensor]
                };
                self.touched_before_prefetch[tensor] = self.touched[tensor];
                let download = last(self.offloaded, range.clone());
                self.prefetched[range].fill(now);
                [launch, NEVER, download]
            }
            Step::Offload(part) => {
                let range = pieces.of_part(part);
                let upload = last(self.prefetched, range.clone());
                self.offloaded[range].fill(now);
                [self.written[part.tensor.index()], upload, NEVER]
            }
            Step::Evict(part) => {
                let range = pieces.of_part(part);
                let upload = last(self.prefetched, range.clone());
                [self.touched[part.tensor.index()], upload, last(self.offloaded, range)]
            }
        }
    }
}

fn last(points: &[i64], range: core::ops::Range<usize>) -> i64 {
    points[range].iter().copied().max().unwrap_or(NEVER)
}

/// No step, in a chain of releases.
const END: u32 = u32::MAX;

/// The queue of free objects of each pool, in list order.
struct Queues<'a> {
    /// The next step that releases objects of the same pool.
    next: &'a mut [u32],
    /// Objects that each step releases.
    released: &'a mut [u64],
    /// The first and the last release of each pool.
    ends: &'a mut [[u32; 2]],
    /// Objects allocated so far, by pool, those resident at start included.
    allocated: &'a mut [u64],
    /// Objects released in one iteration, by pool.
    per_lap: &'a mut [u64],
    /// The step that last allocated and has not been granted yet, by pool.
    asked_by: &'a mut [u32],
    cursors: Cursors<'a>,
}

/// How far the longest prefix of releases that some allocation needed reaches, by pool.
/// Needed prefixes only grow, so a cursor only moves forward.
struct Cursors<'a> {
    /// The last release of the prefix, [`END`] before the first allocation.
    at: &'a mut [u32],
    /// The iteration of that release, 0 or negative.
    lap: &'a mut [i64],
    /// Objects released in that iteration up to there.
    released: &'a mut [u64],
    /// What must have ended for the whole prefix to be free.
    done: &'a mut [Points],
    /// What must have ended for all releases of an iteration to be free.
    lap_done: &'a mut [Points],
}

impl<'a> Queues<'a> {
    const fn scratch_words(limits: &Limits) -> usize {
        words::<u32>(limits.steps)
            + words::<u64>(limits.steps)
            + words::<[u32; 2]>(limits.pools)
            + 2 * words::<u64>(limits.pools)
            + 2 * words::<u32>(limits.pools)
            + 2 * words::<u64>(limits.pools)
            + 2 * words::<Points>(limits.pools)
    }

    fn new(steps: usize, pools: usize, scratch: &mut Scratch<'a>) -> Result<Self, OutOfScratch> {
        Ok(Self {
            next: scratch.take(steps, END)?,
            released: scratch.take(steps, 0)?,
            ends: scratch.take(pools, [END; 2])?,
            allocated: scratch.take(pools, 0)?,
            per_lap: scratch.take(pools, 0)?,
            asked_by: scratch.take(pools, END)?,
            cursors: Cursors {
                at: scratch.take(pools, END)?,
                lap: scratch.take(pools, 0)?,
                released: scratch.take(pools, 0)?,
                done: scratch.take(pools, [NEVER; 3])?,
                lap_done: scratch.take(pools, [NEVER; 3])?,
            },
        })
    }

    fn release(&mut self, step: u32, pool: usize, objects: u64, done: Points) -> Option<()> {
        self.released[step as usize] = objects;
        let [first, last] = &mut self.ends[pool];
        match *last {
            END => *first = step,
            before => self.next[before as usize] = step,
        }
        *last = step;
        self.per_lap[pool] = self.per_lap[pool].checked_add(objects)?;
        self.cursors.lap_done[pool] = later(self.cursors.lap_done[pool], done);
        Some(())
    }

    /// What must have ended before everything allocated so far in a pool of `count` objects
    /// is granted; `None` where the releases before `step` in the list do not suffice.
    fn grant(
        &mut self,
        step: u32,
        pool: usize,
        count: u64,
        stream_steps: [u32; 3],
        release_done: impl Fn(u32) -> Points,
    ) -> Option<Points> {
        let per_lap = i128::from(self.per_lap[pool]);
        let shortage = i128::from(self.allocated[pool]) - i128::from(count);
        let cursors = &mut self.cursors;
        if cursors.at[pool] == END {
            // The first allocation: in which iteration the prefix that it needs ends.
            let lap = shortage.checked_sub(1)?.checked_div_euclid(per_lap)?;
            let lap = i64::try_from(lap.max(-i128::from(u32::MAX))).ok()?;
            if lap > 0 {
                return None;
            }
            cursors.lap[pool] = lap;
            cursors.done[pool] = seen_later(cursors.lap_done[pool], 1 - lap, stream_steps);
            self.advance(pool, stream_steps, &release_done);
        }
        while i128::from(self.cursors.lap[pool]) * per_lap + i128::from(self.cursors.released[pool])
            < shortage
        {
            if self.cursors.lap[pool] == 0 && self.next[self.cursors.at[pool] as usize] >= step {
                return None;
            }
            self.advance(pool, stream_steps, &release_done);
        }
        let cursors = &self.cursors;
        let granted = cursors.lap[pool] < 0 || cursors.at[pool] < step;
        granted.then_some(cursors.done[pool])
    }

    /// Objects held in a pool at a step, with what it allocates.
    fn held(&self, pool: usize, step: u32) -> u64 {
        let mut held = self.allocated[pool];
        let mut release = self.ends[pool][0];
        while release < step {
            held = held.saturating_sub(self.released[release as usize]);
            release = self.next[release as usize];
        }
        held
    }

    /// Moves a cursor on by one release.
    fn advance(
        &mut self,
        pool: usize,
        stream_steps: [u32; 3],
        release_done: &impl Fn(u32) -> Points,
    ) {
        let cursors = &mut self.cursors;
        let next = match cursors.at[pool] {
            END => END,
            at => self.next[at as usize],
        };
        let next = if next == END {
            if cursors.at[pool] != END {
                cursors.lap[pool] += 1;
            }
            cursors.released[pool] = 0;
            self.ends[pool][0]
        } else {
            next
        };
        cursors.at[pool] = next;
        cursors.released[pool] =
            cursors.released[pool].saturating_add(self.released[next as usize]);
        let done = seen_later(release_done(next), -cursors.lap[pool], stream_steps);
        cursors.done[pool] = later(cursors.done[pool], done);
    }
}

/// Adds to `needs` what each allocation waits for: the shortest list-order prefix of its
/// pool's releases that covers the shortage (format, "Memory returns in list order").
fn memory_needs(
    graph: &Graph<'_>,
    plan: &Plan<'_>,
    pieces: &Pieces<'_>,
    out: &[Scheduled],
    stream_steps: [u32; 3],
    needs: &mut [Points],
    scratch: &mut Scratch<'_>,
) -> Result<(), PlanError> {
    let mut residency = Residency::at_start(plan, pieces, scratch)?;
    let mut queues = Queues::new(out.len(), plan.pools.len(), scratch)?;
    let walk = MemoryWalk { graph, plan, pieces, out, stream_steps };
    walk.releases(&mut queues, needs)?;
    walk.allocate_start(&mut queues)?;
    walk.grants(&mut residency, &mut queues, needs)?;
    residency.check_end(pieces, graph.tensor_ids())
}

struct MemoryWalk<'w, 'a> {
    graph: &'w Graph<'a>,
    plan: &'w Plan<'a>,
    pieces: &'w Pieces<'a>,
    out: &'w [Scheduled],
    stream_steps: [u32; 3],
}

impl MemoryWalk<'_, '_> {
    fn place(at: usize) -> Place {
        Place::Step(at as u32)
    }

    /// Lists every release of an iteration in its pool's queue.
    fn releases(&self, queues: &mut Queues<'_>, needs: &[Points]) -> Result<(), PlanError> {
        for (at, (step, entry)) in self.plan.steps.iter().zip(self.out).enumerate() {
            let overflow = PlanError::Overflow(Self::place(at));
            match *step {
                Step::Launch(op) => {
                    if let Some((pool, objects)) = self.pieces.workspace(self.graph, op) {
                        let done = [i64::from(entry.index), NEVER, NEVER];
                        queues.release(at as u32, pool, objects, done).ok_or(overflow)?;
                    }
                }
                Step::Evict(part) if !self.pieces.in_arena(part.tensor) => {
                    let objects = self.pieces.part_objects(part);
                    let pool = self.pieces.pool(part.tensor);
                    queues.release(at as u32, pool, objects, needs[at]).ok_or(overflow)?;
                }
                _ => {}
            }
        }
        Ok(())
    }

    /// Counts what is resident at start as allocated.
    fn allocate_start(&self, queues: &mut Queues<'_>) -> Result<(), PlanError> {
        for (at, entry) in self.plan.resident_at_start.iter().enumerate() {
            let tensor = entry.part.tensor;
            if self.pieces.in_arena(tensor) {
                continue;
            }
            let pool = self.pieces.pool(tensor);
            for piece in self.pieces.of_part(entry.part) {
                // Cannot overflow: no object of a tensor is resident twice.
                queues.allocated[pool] += self.pieces.range(tensor, piece).1;
            }
            let (held, count) = (queues.allocated[pool], self.plan.pools[pool].count);
            if held > count {
                let (place, pool) = (Place::Start(at as u32), pool as u32);
                return Err(PlanError::PoolFull { place, pool, held, count });
            }
        }
        Ok(())
    }

    /// Adds to `needs` what each allocation waits for.
    fn grants(
        &self,
        residency: &mut Residency<'_>,
        queues: &mut Queues<'_>,
        needs: &mut [Points],
    ) -> Result<(), PlanError> {
        for (at, step) in self.plan.steps.iter().enumerate() {
            match *step {
                Step::Prefetch(part) => {
                    let objects = residency.allocate(self.pieces, part, Self::place(at))?;
                    if objects == 0 {
                        continue;
                    }
                    let pool = self.pieces.pool(part.tensor);
                    self.allocate(queues, at, pool, objects)?;
                    self.grant(queues, at, pool, needs)?;
                }
                Step::Launch(op) => self.launch(residency, queues, at, op, needs)?,
                Step::Evict(part) => {
                    residency.release(self.pieces, part, Self::place(at))?;
                }
                Step::Offload(_) => {}
            }
        }
        Ok(())
    }

    /// A launch's allocations in one pool are one grant, at the last of them.
    fn launch(
        &self,
        residency: &mut Residency<'_>,
        queues: &mut Queues<'_>,
        at: usize,
        op: OpId,
        needs: &mut [Points],
    ) -> Result<(), PlanError> {
        for &tensor in self.graph.writes(op) {
            let objects = residency.write(self.pieces, tensor);
            self.allocate(queues, at, self.pieces.pool(tensor), objects)?;
        }
        let workspace = self.pieces.workspace(self.graph, op);
        if let Some((pool, objects)) = workspace {
            self.allocate(queues, at, pool, objects)?;
        }
        for &tensor in self.graph.writes(op) {
            if !self.pieces.in_arena(tensor) {
                self.grant(queues, at, self.pieces.pool(tensor), needs)?;
            }
        }
        workspace.map_or(Ok(()), |(pool, _)| self.grant(queues, at, pool, needs))
    }

    fn allocate(
        &self,
        queues: &mut Queues<'_>,
        at: usize,
        pool: usize,
        objects: u64,
    ) -> Result<(), PlanError> {
        if objects > 0 {
            let allocated = &mut queues.allocated[pool];
            *allocated =
                allocated.checked_add(objects).ok_or(PlanError::Overflow(Self::place(at)))?;
            queues.asked_by[pool] = at as u32;
        }
        Ok(())
    }

    /// Adds the grant of a pool to what a step needs, if the step allocated there.
    fn grant(
        &self,
        queues: &mut Queues<'_>,
        at: usize,
        pool: usize,
        needs: &mut [Points],
    ) -> Result<(), PlanError> {
        if core::mem::replace(&mut queues.asked_by[pool], END) != at as u32 {
            return Ok(());
        }
        let count = self.plan.pools[pool].count;
        let release_done = |step: u32| match self.out[step as usize] {
            Scheduled { stream: Some(_), index, .. } => [i64::from(index), NEVER, NEVER],
            _ => needs[step as usize],
        };
        let granted = queues.grant(at as u32, pool, count, self.stream_steps, release_done);
        let full = || {
            let held = queues.held(pool, at as u32);
            PlanError::PoolFull { place: Self::place(at), pool: pool as u32, held, count }
        };
        needs[at] = later(needs[at], granted.ok_or_else(full)?);
        Ok(())
    }
}

/// For each step, the last step of every stream that is known to have ended when it has.
struct Clocks<'a> {
    ///
    /// One stream behind the other.
    ended: &'a mut [Points],
    /// Whether a later iteration looks at a step's clock.
    outlives: &'a mut [u8],
    stream_steps: [u32; 3],
}

impl<'a> Clocks<'a> {
    const fn scratch_words(limits: &Limits) -> usize {
        words::<Points>(limits.steps) + words::<u8>(limits.steps)
    }

    /// The least fixed point over the cyclic list: sweeps until nothing changes that a later
    /// iteration looks at, one more than the iteration borders that the longest chain of
    /// waits crosses.
    fn new(
        out: &[Scheduled],
        stream_steps: [u32; 3],
        needs: &[Points],
        scratch: &mut Scratch<'a>,
    ) -> Result<Self, OutOfScratch> {
        let ended = scratch.take(out.len(), [NEVER; 3])?;
        let outlives = scratch.take(out.len(), 0u8)?;
        let mut clocks = Self { ended, outlives, stream_steps };
        clocks.sweep(out, needs);
        while clocks.sweep(out, needs) {}
        Ok(clocks)
    }

    fn slot(&self, stream: usize, index: u32) -> usize {
        let [launches, prefetches, _] = self.stream_steps;
        let first = [0, launches, launches + prefetches][stream];
        first as usize + index as usize
    }

    fn sweep(&mut self, out: &[Scheduled], needs: &[Points]) -> bool {
        let mut changed = false;
        for (entry, needs) in out.iter().zip(needs) {
            let Some(stream) = entry.stream else { continue };
            let mut clock = self.before(stream, entry.index);
            self.mark(stream as usize, i64::from(entry.index) - 1);
            for (s, &need) in needs.iter().enumerate() {
                if s != stream as usize && clock[s] < need {
                    clock = later(clock, self.at_point(s, need));
                    self.mark(s, need);
                }
            }
            clock[stream as usize] = i64::from(entry.index);
            let slot = self.slot(stream as usize, entry.index);
            changed |= self.outlives[slot] == 1 && self.ended[slot] != clock;
            self.ended[slot] = clock;
        }
        changed
    }

    /// Notes that this iteration looks at a point of an earlier one.
    fn mark(&mut self, stream: usize, point: i64) {
        if point < 0 {
            let slot = self.slot(stream, self.wait(stream, point).index);
            self.outlives[slot] = 1;
        }
    }

    /// What has ended when the previous step of a stream has.
    fn before(&self, stream: Stream, index: u32) -> Points {
        self.at_point(stream as usize, i64::from(index) - 1)
    }

    /// What has ended when a point is reached.
    fn at_point(&self, stream: usize, point: i64) -> Points {
        if point == NEVER {
            return [NEVER; 3];
        }
        let wait = self.wait(stream, point);
        let ended = self.ended[self.slot(stream, wait.index)];
        let mut clock = match wait.laps {
            0 => ended,
            laps => seen_later(ended, i64::from(laps), self.stream_steps),
        };
        clock[stream] = clock[stream].max(point);
        clock
    }

    #[inline]
    fn wait(&self, stream: usize, point: i64) -> Wait {
        let steps = i64::from(self.stream_steps[stream]);
        // Nearly all points lie in this iteration or the last, and division is slow.
        if point >= -steps {
            let laps = u32::from(point < 0);
            return Wait { index: (point + i64::from(laps) * steps) as u32, laps };
        }
        match u32::try_from(-point.div_euclid(steps)) {
            Ok(laps) => Wait { index: point.rem_euclid(steps) as u32, laps },
            // Later than asked for, so safe, and still further back than anyone can see.
            Err(_) => Wait { index: 0, laps: u32::MAX },
        }
    }

    /// Writes down the waits that no other wait implies.
    fn reduce(&self, out: &mut [Scheduled], needs: &[Points]) {
        for (entry, needs) in out.iter_mut().zip(needs) {
            let stream = entry.stream;
            let own = stream.map(|stream| stream as usize);
            let before = stream.map_or([NEVER; 3], |stream| self.before(stream, entry.index));
            for (s, &need) in needs.iter().enumerate() {
                let implied = Some(s) == own
                    || need <= before[s]
                    || needs.iter().enumerate().any(|(other, &point)| {
                        other != s && Some(other) != own && self.at_point(other, point)[s] >= need
                    });
                entry.waits[s] = (!implied).then(|| self.wait(s, need));
            }
        }
    }
}
