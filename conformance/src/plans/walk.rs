//! A walk of random legal steps that ends in the state in which it began.

use super::homes::Homes;
use super::sequence::{Sequence, Value};
use crate::choices::Choices;
use planner_core::plan::Resident;
use planner_core::{Graph, Kind, Launched, OpId, Part, Step, TensorId};
use std::ops::Range;

/// The result of a walk.
pub(super) struct Walked {
    pub(super) resident_at_start: Vec<Resident>,
    pub(super) steps: Vec<Step>,
    pub(super) use_of_pools: Vec<Use>,
}

/// The objects that one iteration takes from a pool.
#[derive(Clone, Default)]
pub(super) struct Use {
    held: u64,
    /// The most objects held at once.
    pub(super) peak: u64,
    /// Objects allocated in one iteration.
    pub(super) allocated: u64,
}

impl Use {
    fn take(&mut self, objects: u64) {
        self.held += objects;
        self.allocated += objects;
        self.peak = self.peak.max(self.held);
    }
}

/// One object of a tensor.
#[derive(Clone, Copy, Default)]
struct Cell {
    /// The value on the device. `None` if the object is not resident.
    device: Option<Value>,
    /// The value on the host.
    host: Option<Value>,
    /// The promise for the start: `None`, or residency and whether a host copy exists.
    promise: Option<bool>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Move {
    Prefetch,
    Offload,
    Evict,
}

/// Some neighbouring objects of a tensor.
type Run = (TensorId, Range<usize>);

struct Walk<'a> {
    graph: &'a Graph<'a>,
    sequence: &'a Sequence<'a>,
    homes: &'a Homes,
    /// Decisions about the current tensor or launch.
    choices: Choices,
    /// Launches so far.
    launched: usize,
    cells: Vec<Vec<Cell>>,
    walked: Walked,
}

/// Walks once through the list. Without decisions, everything that a launch reads is brought in
/// before it, nothing is evicted, and the end restores the start.
pub(super) fn walk(
    graph: &Graph<'_>,
    sequence: &Sequence<'_>,
    homes: &Homes,
    choices: &mut Choices,
) -> Walked {
    let cells =
        graph.tensor_ids().map(|tensor| vec![Cell::default(); homes.objects(graph, tensor)]);
    let walked = Walked {
        resident_at_start: Vec::new(),
        steps: Vec::new(),
        use_of_pools: vec![Use::default(); homes.pools_object_bytes.len()],
    };
    let moves_per_op = 1 + choices.below(4);
    let clears_out = choices.one_in(3);
    let cells = cells.collect();
    let mut walk =
        Walk { graph, sequence, homes, choices: choices.fork(0), launched: 0, cells, walked };
    let mut starts = choices.fork(150);
    for tensor in graph.tensor_ids() {
        walk.choices = starts.fork(6);
        walk.start(tensor);
    }
    for used in &mut walk.walked.use_of_pools {
        used.allocated = 0;
    }
    for &launched in sequence.launches() {
        walk.choices = choices.fork(40);
        walk.move_at_random(moves_per_op);
        if sequence.is_on_host(launched.op) {
            walk.repeat_until_done(|walk| walk.needed_on_host(launched));
            walk.run_on_host(launched.op);
        } else {
            walk.repeat_until_done(|walk| walk.needed_by(launched));
            walk.repeat_until_done(|walk| walk.lost_by(launched));
            walk.launch(launched);
        }
        if clears_out && walk.choices.one_in(2) {
            walk.repeat_until_done(Walk::evictions);
        }
    }
    walk.choices = choices.fork(40);
    walk.move_at_random(moves_per_op);
    walk.repeat_until_done(Walk::closing);
    walk.walked
}

impl Walk<'_> {
    /// Decides which objects of a tensor are resident at start. States in the arena always are.
    /// Inputs that are written after their last read never are.
    fn start(&mut self, tensor: TensorId) {
        let kind = self.graph.tensor(tensor).kind;
        let objects = self.cells[tensor.index()].len();
        let runs = if kind.is_made() || self.is_spoiled(tensor) {
            [0..0, 0..0]
        } else if self.homes.in_arena(tensor) && kind == Kind::State {
            [0..objects, 0..0]
        } else {
            self.runs_at_start(objects)
        };
        for cell in &mut self.cells[tensor.index()] {
            cell.host = (!kind.is_made()).then_some(Value::Start);
        }
        for run in runs.into_iter().filter(|run| !run.is_empty()) {
            let host_copy = !self.choices.one_in(2);
            let part = self.part(tensor, &run);
            self.walked.resident_at_start.push(Resident { part, host_copy });
            if let Some(pool) = self.homes.pool_of(tensor) {
                self.walked.use_of_pools[pool].take(run.len() as u64);
            }
            self.cells[tensor.index()][run].fill(Cell {
                device: Some(Value::Start),
                // The host has an input's value, whatever the plan claims.
                host: (host_copy || kind == Kind::Input).then_some(Value::Start),
                promise: Some(host_copy),
            });
        }
    }

    /// No objects, all objects, the first objects, or the first and the last objects: two runs,
    /// each of which may be empty.
    fn runs_at_start(&mut self, objects: usize) -> [Range<usize>; 2] {
        let split = 1 + self.choices.below(objects);
        match self.choices.below(4) {
            0 => [0..0, 0..0],
            1 => [0..objects, 0..0],
            2 => [0..split, 0..0],
            _ => [0..split - 1, split..objects],
        }
    }

    /// Whether an input is written after its last read.
    fn is_spoiled(&self, tensor: TensorId) -> bool {
        let is_input = self.graph.tensor(tensor).kind == Kind::Input;
        is_input && self.sequence.last_write(tensor) > self.sequence.last_read(tensor)
    }

    fn current(&self, tensor: TensorId) -> Value {
        self.sequence.current(self.launched, tensor)
    }

    /// Whether the move is legal for the object and loses no value that is needed.
    fn can(&self, action: Move, tensor: TensorId, object: usize) -> bool {
        let Cell { device, host, promise } = self.cells[tensor.index()][object];
        let (sequence, position) = (self.sequence, self.launched);
        let kind = self.graph.tensor(tensor).kind;
        let in_arena = self.homes.in_arena(tensor);
        let is_needed = |value| sequence.is_needed(position, tensor, value);
        let is_valid = |value| sequence.is_valid(position, tensor, value);
        match (action, device) {
            (Move::Evict, Some(value)) => !in_arena && (host == device || !is_needed(value)),
            _ if in_arena && kind == Kind::Temporary => false,
            (Move::Offload, Some(value)) => {
                let is_read_later = sequence.last_read(tensor) >= Some(position);
                let is_kept = host == device || !host.is_some_and(is_needed);
                (kind != Kind::Input || is_read_later) && is_kept && is_valid(value)
            }
            (Move::Prefetch, None) => {
                let is_next = sequence.is_next(position, tensor);
                let is_clobbered = is_next && self.is_spoiled(tensor);
                let is_once = !in_arena || !is_next || promise.is_some();
                host.is_some_and(is_valid) && !is_clobbered && is_once
            }
            (Move::Evict | Move::Offload, None) | (Move::Prefetch, Some(_)) => false,
        }
    }

    /// All longest runs of objects that need the same move.
    fn runs(&self, wanted: impl Fn(TensorId, usize) -> Option<Move>) -> Vec<(Move, Run)> {
        let mut runs: Vec<(Move, Run)> = Vec::new();
        for tensor in self.graph.tensor_ids() {
            for object in 0..self.cells[tensor.index()].len() {
                let Some(action) = wanted(tensor, object) else { continue };
                match runs.last_mut() {
                    Some((same, (of, run)))
                        if *same == action && *of == tensor && run.end == object =>
                    {
                        run.end += 1;
                    }
                    _ => runs.push((action, (tensor, object..object + 1))),
                }
            }
        }
        runs
    }

    /// Makes fewer than `bound` random legal moves, useful or not.
    fn move_at_random(&mut self, bound: usize) {
        let moves = [Move::Prefetch, Move::Evict, Move::Offload];
        for _ in 0..self.choices.below(bound) {
            let action = moves[self.choices.below(3)];
            let runs =
                self.runs(|tensor, object| self.can(action, tensor, object).then_some(action));
            self.take_one_of(&runs);
        }
    }

    /// Makes one of the moves, or a part of it.
    fn take_one_of(&mut self, runs: &[(Move, Run)]) {
        if runs.is_empty() {
            return;
        }
        let (action, (tensor, run)) = &runs[self.choices.below(runs.len())];
        let mut run = run.clone();
        if self.choices.one_in(4) {
            run.start += self.choices.below(run.len());
            run.end -= self.choices.below(run.len());
        }
        self.make(*action, *tensor, &run);
    }

    fn repeat_until_done(&mut self, moves: impl Fn(&Self) -> Vec<(Move, Run)>) {
        loop {
            let runs = moves(self);
            if runs.is_empty() {
                return;
            }
            self.take_one_of(&runs);
        }
    }

    /// The objects that a launch reads and that are absent or hold another value. Also the one
    /// prefetch of an input in the arena, even if the op overwrites the input.
    fn needed_by(&self, launched: Launched) -> Vec<(Move, Run)> {
        self.runs(|tensor, object| {
            let Cell { device, host, .. } = self.cells[tensor.index()][object];
            let value = self.sequence.value_read(launched, tensor);
            let is_input = self.graph.tensor(tensor).kind == Kind::Input;
            let is_overwritten = self.sequence.writes(launched, tensor);
            let is_brought = is_overwritten && is_input && self.homes.in_arena(tensor);
            let action = match (value, device) {
                (Some(_), None) if host == value => Move::Prefetch,
                (None, None) if is_brought => Move::Prefetch,
                (Some(_), Some(_)) if host == value && device != value => Move::Evict,
                _ => return None,
            };
            self.can(action, tensor, object).then_some(action)
        })
    }

    /// The objects that an op on the host reads and only the device holds.
    fn needed_on_host(&self, launched: Launched) -> Vec<(Move, Run)> {
        self.runs(|tensor, object| {
            let Cell { device, host, .. } = self.cells[tensor.index()][object];
            let value = self.sequence.value_read(launched, tensor)?;
            let is_missing = host != Some(value) && device == Some(value);
            (is_missing && self.can(Move::Offload, tensor, object)).then_some(Move::Offload)
        })
    }

    /// The objects that a launch overwrites and the host has to keep.
    fn lost_by(&self, launched: Launched) -> Vec<(Move, Run)> {
        self.runs(|tensor, object| {
            let Cell { device, host, .. } = self.cells[tensor.index()][object];
            let held = device.filter(|_| self.sequence.writes(launched, tensor))?;
            let is_lost = held != Value::Of(launched.op)
                && host != device
                && self.sequence.is_needed(self.launched + 1, tensor, held);
            (is_lost && self.can(Move::Offload, tensor, object)).then_some(Move::Offload)
        })
    }

    /// Evicts everything, with an offload first if the value is needed.
    fn evictions(&self) -> Vec<(Move, Run)> {
        self.runs(|tensor, object| self.leaving(tensor, object))
    }

    fn leaving(&self, tensor: TensorId, object: usize) -> Option<Move> {
        let actions = [Move::Evict, Move::Offload].into_iter();
        let mut legal = actions.filter(|&action| self.can(action, tensor, object));
        legal.next().filter(|_| !self.homes.in_arena(tensor))
    }

    /// The moves that still have to restore the promises of the start.
    fn closing(&self) -> Vec<(Move, Run)> {
        self.runs(|tensor, object| {
            let Cell { device, host, promise } = self.cells[tensor.index()][object];
            let current = Some(self.current(tensor));
            let is_output = self.graph.tensor(tensor).kind == Kind::Output;
            match promise {
                // A tensor in the arena stays there.
                None if is_output && self.homes.in_arena(tensor) => {
                    (device == current && host != current).then_some(Move::Offload)
                }
                None => self.leaving(tensor, object),
                Some(_) if device.is_none() => (host == current).then_some(Move::Prefetch),
                Some(_) if device != current => (host == current).then_some(Move::Evict),
                Some(true) if host != current => Some(Move::Offload),
                Some(_) => None,
            }
        })
    }

    /// The part for a run. A run of all objects is the whole tensor, and sometimes a range.
    fn part(&mut self, tensor: TensorId, run: &Range<usize>) -> Part {
        let whole = run.len() == self.cells[tensor.index()].len();
        if whole && (self.homes.in_arena(tensor) || !self.choices.one_in(4)) {
            return Part::whole(tensor);
        }
        Part { tensor, first: run.start as u64, count: run.len() as u64 }
    }

    fn make(&mut self, action: Move, tensor: TensorId, run: &Range<usize>) {
        let part = self.part(tensor, run);
        for cell in &mut self.cells[tensor.index()][run.clone()] {
            match action {
                Move::Prefetch => cell.device = cell.host,
                Move::Offload => cell.host = cell.device,
                Move::Evict => cell.device = None,
            }
        }
        if let Some(pool) = self.homes.pool_of(tensor) {
            let used = &mut self.walked.use_of_pools[pool];
            match action {
                Move::Prefetch => used.take(run.len() as u64),
                Move::Evict => used.held -= run.len() as u64,
                Move::Offload => {}
            }
        }
        self.walked.steps.push(match action {
            Move::Prefetch => Step::Prefetch(part),
            Move::Offload => Step::Offload(part),
            Move::Evict => Step::Evict(part),
        });
    }

    fn launch(&mut self, launched: Launched) {
        let op = launched.op;
        for &tensor in self.graph.writes(op) {
            if !self.sequence.writes(launched, tensor) {
                continue;
            }
            let cells = &mut self.cells[tensor.index()];
            let absent = cells.iter().filter(|cell| cell.device.is_none()).count();
            cells.iter_mut().for_each(|cell| cell.device = Some(Value::Of(op)));
            if let Some(pool) = self.homes.pool_of(tensor) {
                self.walked.use_of_pools[pool].take(absent as u64);
            }
        }
        let (pool, objects) = self.homes.workspace(self.graph, op);
        self.walked.use_of_pools[pool].take(objects);
        self.walked.use_of_pools[pool].held -= objects;
        self.walked.steps.push(Step::Launch(launched));
        for tensor in self.graph.touches(op) {
            self.forget(tensor);
        }
        self.launched += 1;
    }

    fn run_on_host(&mut self, op: OpId) {
        for &tensor in self.graph.writes(op) {
            let cells = &mut self.cells[tensor.index()];
            cells.iter_mut().for_each(|cell| cell.host = Some(Value::Of(op)));
        }
        self.walked.steps.push(Step::Host(op));
        for tensor in self.graph.touches(op) {
            self.forget(tensor);
        }
        self.launched += 1;
    }

    /// Ends the value of an input at its last read, and the value of a temporary in the arena at
    /// the end of a span.
    fn forget(&mut self, tensor: TensorId) {
        let in_arena = self.homes.in_arena(tensor);
        let position = self.launched;
        let is_read_last = self.sequence.last_read(tensor) == Some(position);
        let cells = &mut self.cells[tensor.index()];
        match self.graph.tensor(tensor).kind {
            Kind::Input if is_read_last => {
                for cell in cells {
                    cell.host = Some(Value::Next);
                    cell.device = cell.device.filter(|_| !in_arena);
                }
            }
            Kind::Temporary if in_arena => {
                if self.sequence.spans(tensor).iter().any(|&(_, last)| last == position) {
                    cells[0].device = None;
                }
            }
            Kind::Input | Kind::State | Kind::Temporary | Kind::Output => {}
        }
    }
}
