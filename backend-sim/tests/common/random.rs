//! Random graphs, and random plans for them: on demand, with random victims, parts and
//! moments, so that every kind of step occurs in every kind of memory.

use super::{OwnedPlan, Work};
use planner_core::plan::{ArenaPlacement, Pool, Resident};
use planner_core::{Graph, Kind, OpId, Part, Step, TensorId};
use std::ops::Range;

/// A linear congruential generator's high bits.
pub(crate) struct Random(pub(crate) u64);

impl Random {
    pub(crate) fn below(&mut self, bound: u64) -> u64 {
        self.0 =
            self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % bound
    }

    pub(crate) fn one_in(&mut self, n: u64) -> bool {
        self.below(n) == 0
    }
}

/// A graph of some ten ops.
pub(crate) fn graph(random: &mut Random) -> Work {
    let mut work = Work::default();
    for _ in 0..4 + random.below(6) {
        let kind = [Kind::State, Kind::State, Kind::Input, Kind::Temporary, Kind::Temporary]
            [random.below(5) as usize];
        let bytes = if random.one_in(3) { 1 + random.below(8) } else { 1 + random.below(60) };
        work.tensor(kind, bytes);
    }
    let mut written = vec![false; work.tensors.len()];
    for _ in 0..3 + random.below(10) {
        let mut reads = Vec::new();
        let mut writes = Vec::new();
        for (id, tensor) in work.tensors.iter().enumerate() {
            let readable = tensor.kind != Kind::Temporary || written[id];
            if readable && random.one_in(4) {
                reads.push(id as u32);
            }
            if random.one_in(if tensor.kind == Kind::Input { 12 } else { 4 }) {
                writes.push(id as u32);
            }
        }
        for &id in &writes {
            written[id as usize] = true;
        }
        let workspace_bytes = if random.one_in(3) { 1 + random.below(20) } else { 0 };
        work.op(1 + random.below(100), workspace_bytes, &reads, &writes);
    }
    work
}

/// What is known of one tensor as the list grows.
struct Data {
    pool: Option<usize>,
    resident: Vec<bool>,
    host: Vec<bool>,
    /// The objects that are resident at start.
    start: Range<usize>,
    first_touch: Option<usize>,
    last_touch: Option<usize>,
    last_read: Option<usize>,
}

pub(crate) struct Builder<'r, 'w> {
    random: &'r mut Random,
    graph: Graph<'w>,
    plan: OwnedPlan,
    data: Vec<Data>,
    held: Vec<u64>,
    position: usize,
}

/// A plan for `work`: an arena for some small tensors, a slab, and a pool of objects with
/// little to spare.
pub(crate) fn plan(random: &mut Random, work: &Work, chunk_bytes: u64) -> OwnedPlan {
    let graph = work.graph();
    let mut plan = OwnedPlan::default();
    let object_bytes = chunk_bytes * (1 + random.below(3));
    let slab_bytes = 8;
    let data: Vec<_> = graph
        .tensor_ids()
        .map(|id| place(random, &graph, &mut plan, id, [object_bytes, slab_bytes], chunk_bytes))
        .collect();
    for op in graph.ops() {
        let fits = op.workspace_bytes <= slab_bytes;
        plan.workspace_pool.push(u32::from(fits && random.one_in(2)));
    }
    plan.pools = vec![Pool { object_bytes, count: 0 }, Pool { object_bytes: slab_bytes, count: 0 }];
    let mut builder = Builder { random, graph, plan, data, held: vec![0; 2], position: 0 };
    builder.size_pools();
    builder.build();
    builder.plan
}

fn place(
    random: &mut Random,
    graph: &Graph<'_>,
    plan: &mut OwnedPlan,
    id: TensorId,
    [object_bytes, slab_bytes]: [u64; 2],
    chunk_bytes: u64,
) -> Data {
    let tensor = graph.tensor(id);
    let last = |touches: &dyn Fn(OpId) -> bool| graph.op_ids().filter(|&op| touches(op)).last();
    let index = |op: OpId| op.index();
    let last_read = last(&|op| graph.reads(op).contains(&id)).map(index);
    let last_touch = last(&|op| graph.touches(op).any(|t| t == id)).map(index);
    let first_touch = graph.op_ids().find(|&op| graph.touches(op).any(|t| t == id)).map(index);
    let allowed = tensor.kind != Kind::Input || (last_read.is_some() && last_read == last_touch);
    let in_arena = allowed && tensor.bytes <= slab_bytes && random.one_in(2);
    let in_slab = tensor.bytes <= slab_bytes && random.one_in(2);
    if in_arena {
        let alignment = chunk_bytes.clamp(1, 256);
        let offset_bytes = plan.arena_bytes.next_multiple_of(alignment);
        plan.arena.push(ArenaPlacement { tensor: id, offset_bytes });
        plan.arena_bytes = offset_bytes + tensor.bytes;
    }
    plan.tensor_pool.push(u32::from(in_slab));
    let objects = if in_slab || in_arena { 1 } else { tensor.bytes.div_ceil(object_bytes) };
    let starts = match tensor.kind {
        Kind::State => in_arena || random.one_in(2),
        Kind::Input => last_read.is_some() && allowed && random.one_in(2),
        Kind::Temporary => false,
    };
    let start = match (starts, tensor.kind) {
        (false, _) => 0..0,
        (true, Kind::State) if random.one_in(2) => {
            let first = random.below(objects);
            first as usize..(first + 1 + random.below(objects - first)) as usize
        }
        (true, _) => 0..objects as usize,
    };
    Data {
        pool: (!in_arena).then_some(usize::from(in_slab)),
        resident: vec![false; objects as usize],
        host: vec![tensor.kind != Kind::Temporary; objects as usize],
        start,
        first_touch,
        last_touch,
        last_read,
    }
}

impl Builder<'_, '_> {
    fn workspace(&self, op: OpId) -> (usize, u64) {
        let pool = self.plan.workspace_pool[op.index()] as usize;
        let bytes = self.graph.op(op).workspace_bytes;
        (pool, bytes.div_ceil(self.plan.pools[pool].object_bytes))
    }

    fn objects(&self, id: TensorId) -> u64 {
        self.data[id.index()].resident.len() as u64
    }

    /// As many objects as the largest op or the start needs, and some more.
    fn size_pools(&mut self) {
        let mut needed = [1; 2];
        for op in self.graph.op_ids() {
            let mut sums = [0; 2];
            let (pool, objects) = self.workspace(op);
            sums[pool] += objects;
            for id in self.graph.touches(op) {
                if let Some(pool) = self.data[id.index()].pool {
                    sums[pool] += self.objects(id);
                }
            }
            needed = [needed[0].max(sums[0]), needed[1].max(sums[1])];
        }
        let mut start = [0; 2];
        for data in &self.data {
            if let Some(pool) = data.pool {
                start[pool] += data.start.len() as u64;
            }
        }
        for pool in 0..2 {
            let spare = self.random.below(1 + needed[pool]);
            self.plan.pools[pool].count = needed[pool].max(start[pool]) + spare;
        }
    }

    fn build(&mut self) {
        for id in self.graph.tensor_ids() {
            let run = self.data[id.index()].start.clone();
            if run.is_empty() {
                continue;
            }
            let is_input = self.graph.tensor(id).kind == Kind::Input;
            let host_copy = is_input || self.random.one_in(2);
            let part = self.part(id, &run);
            self.plan.resident_at_start.push(Resident { part, host_copy });
            self.data[id.index()].host[run.clone()].fill(host_copy);
            self.allocate(id, run);
        }
        for op in self.graph.op_ids() {
            self.position = op.index();
            self.launch(op);
            self.clean_up(op);
        }
        self.position = self.graph.ops().len();
        self.close();
    }

    fn launch(&mut self, op: OpId) {
        let touched: Vec<_> = self.graph.touches(op).collect();
        for &id in self.graph.reads(op) {
            self.fetch(id, &touched);
        }
        for &id in self.graph.writes(op) {
            if let Some(pool) = self.data[id.index()].pool {
                let missing = self.missing(id).iter().map(|run| run.len() as u64).sum();
                self.make_room(pool, missing, &touched);
                self.held[pool] += missing;
            }
            self.data[id.index()].resident.fill(true);
            self.data[id.index()].host.fill(false);
        }
        let (pool, objects) = self.workspace(op);
        self.make_room(pool, objects, &touched);
        self.plan.steps.push(Step::Launch(op));
    }

    /// Evicts what has no value any more, fetches ahead, and moves things at random.
    fn clean_up(&mut self, op: OpId) {
        for id in self.graph.tensor_ids() {
            let index = id.index();
            let kind = self.graph.tensor(id).kind;
            if kind == Kind::Input && self.data[index].last_read == Some(op.index()) {
                // From here on the host has the next value.
                self.data[index].host.fill(true);
                if self.data[index].pool.is_none() {
                    self.data[index].resident.fill(false);
                }
            }
            let over = self.data[index].last_touch == Some(op.index());
            if over && kind != Kind::State {
                self.drop_all(id);
            }
            if over
                && kind == Kind::Input
                && !self.data[index].start.is_empty()
                && self.random.one_in(2)
            {
                self.fetch(id, &[id]);
            }
        }
        for _ in 0..self.random.below(3) {
            let id = TensorId(self.random.below(self.data.len() as u64) as u32);
            match self.random.below(3) {
                0 => self.evict_some(id),
                1 if self.has_current(id) && self.data[id.index()].resident.contains(&true) => {
                    let run = self.runs(id, true).swap_remove(0);
                    self.offload(id, run);
                }
                _ if self.is_needed(id) && self.data[id.index()].host.iter().all(|&host| host) => {
                    let missing: usize = self.missing(id).iter().map(ExactSizeIterator::len).sum();
                    let pool = self.data[id.index()].pool;
                    if pool.is_some_and(|pool| missing as u64 <= self.free(pool)) {
                        self.fetch(id, &[id]);
                    }
                }
                _ => {}
            }
        }
    }

    /// Whether a fetch now would be of use, and its value is this iteration's.
    fn is_needed(&self, id: TensorId) -> bool {
        let data = &self.data[id.index()];
        let later = data.last_read.is_some_and(|last| last > self.position);
        match self.graph.tensor(id).kind {
            Kind::State => later,
            Kind::Input => later,
            Kind::Temporary => false,
        }
    }

    /// Whether the device copy of a tensor has a value.
    fn has_current(&self, id: TensorId) -> bool {
        let data = &self.data[id.index()];
        match self.graph.tensor(id).kind {
            Kind::State => true,
            Kind::Input => data.last_read.is_some_and(|last| last > self.position),
            Kind::Temporary => {
                data.pool.is_some() && data.first_touch.is_some_and(|op| op <= self.position)
            }
        }
    }

    /// Back to what is resident at start.
    fn close(&mut self) {
        for id in self.graph.tensor_ids() {
            if self.data[id.index()].pool.is_some() {
                let start = self.data[id.index()].start.clone();
                self.release(id, 0..start.start);
                self.release(id, start.end..usize::MAX);
            }
        }
        for id in self.graph.tensor_ids() {
            self.fetch_within(id, self.data[id.index()].start.clone(), &[id]);
        }
        for at in 0..self.plan.resident_at_start.len() {
            let Resident { part, host_copy } = self.plan.resident_at_start[at];
            let run = self.data[part.tensor.index()].start.clone();
            if host_copy && self.data[part.tensor.index()].host[run.clone()].contains(&false) {
                self.offload(part.tensor, run);
            }
        }
    }

    fn runs(&self, id: TensorId, resident: bool) -> Vec<Range<usize>> {
        let held = &self.data[id.index()].resident;
        let mut runs: Vec<Range<usize>> = Vec::new();
        for (object, _) in held.iter().enumerate().filter(|&(_, &is)| is == resident) {
            match runs.last_mut() {
                Some(run) if run.end == object => run.end += 1,
                _ => runs.push(object..object + 1),
            }
        }
        runs
    }

    fn missing(&self, id: TensorId) -> Vec<Range<usize>> {
        self.runs(id, false)
    }

    fn free(&self, pool: usize) -> u64 {
        self.plan.pools[pool].count - self.held[pool]
    }

    fn part(&self, id: TensorId, run: &Range<usize>) -> Part {
        if run.len() as u64 == self.objects(id) {
            return Part::whole(id);
        }
        Part { tensor: id, first: run.start as u64, count: run.len() as u64 }
    }

    fn allocate(&mut self, id: TensorId, run: Range<usize>) {
        if let Some(pool) = self.data[id.index()].pool {
            self.held[pool] += run.len() as u64;
        }
        self.data[id.index()].resident[run].fill(true);
    }

    fn fetch(&mut self, id: TensorId, keep: &[TensorId]) {
        self.fetch_within(id, 0..usize::MAX, keep);
    }

    fn fetch_within(&mut self, id: TensorId, within: Range<usize>, keep: &[TensorId]) {
        for run in self.missing(id) {
            let run = run.start.max(within.start)..run.end.min(within.end);
            if run.is_empty() {
                continue;
            }
            if let Some(pool) = self.data[id.index()].pool {
                self.make_room(pool, run.len() as u64, keep);
            }
            self.plan.steps.push(Step::Prefetch(self.part(id, &run)));
            self.allocate(id, run);
        }
    }

    fn offload(&mut self, id: TensorId, run: Range<usize>) {
        self.plan.steps.push(Step::Offload(self.part(id, &run)));
        self.data[id.index()].host[run].fill(true);
    }

    /// Evicts, after saving what would be lost.
    fn release(&mut self, id: TensorId, within: Range<usize>) {
        for run in self.runs(id, true) {
            let run = run.start.max(within.start)..run.end.min(within.end);
            if run.is_empty() {
                continue;
            }
            let stale = self.data[id.index()].host[run.clone()].contains(&false);
            if stale && self.has_current(id) {
                self.offload(id, run.clone());
            }
            self.plan.steps.push(Step::Evict(self.part(id, &run)));
            if let Some(pool) = self.data[id.index()].pool {
                self.held[pool] -= run.len() as u64;
            }
            self.data[id.index()].resident[run].fill(false);
        }
    }

    fn drop_all(&mut self, id: TensorId) {
        if self.data[id.index()].pool.is_some() {
            for run in self.runs(id, true) {
                self.plan.steps.push(Step::Evict(self.part(id, &run)));
                self.held[self.data[id.index()].pool.unwrap()] -= run.len() as u64;
                self.data[id.index()].resident[run].fill(false);
            }
        }
    }

    /// Evicts a random part of a tensor.
    fn evict_some(&mut self, id: TensorId) {
        if self.data[id.index()].pool.is_none() {
            return;
        }
        let objects = self.objects(id);
        let (first, count) = match self.random.below(2) {
            0 => (0, objects),
            _ => (self.random.below(objects), 1 + self.random.below(objects)),
        };
        self.release(id, first as usize..objects.min(first + count) as usize);
    }

    fn make_room(&mut self, pool: usize, objects: u64, keep: &[TensorId]) {
        while self.free(pool) < objects {
            let victim = TensorId(self.random.below(self.data.len() as u64) as u32);
            let mut in_use = keep.contains(&victim);
            // At the end, what stays for the next iteration stays.
            in_use |= self.position == self.graph.ops().len();
            if !in_use && self.data[victim.index()].pool == Some(pool) {
                self.evict_some(victim);
            }
        }
    }
}
