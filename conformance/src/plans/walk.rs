//! A walk of random legal steps that ends where it began.

use super::homes::Homes;
use crate::choices::Choices;
use planner_core::plan::Resident;
use planner_core::{Graph, Kind, OpId, Part, Step, TensorId};
use std::ops::Range;

/// What a walk leaves behind.
pub(super) struct Walked {
    pub(super) resident_at_start: Vec<Resident>,
    pub(super) steps: Vec<Step>,
    pub(super) use_of_pools: Vec<Use>,
}

/// What one iteration asks of a pool.
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
    resident: bool,
    /// The device holds the current value.
    on_device: bool,
    /// The host holds the current value.
    on_host: bool,
    /// What is promised for the start: nothing, or residency and perhaps a host copy.
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
    order: &'a [OpId],
    homes: &'a Homes,
    /// Decisions about the current tensor or launch.
    choices: Choices,
    /// Launches so far.
    launched: usize,
    cells: Vec<Vec<Cell>>,
    walked: Walked,
}

/// Walks once through the list. Where nothing is decided, everything an op reads is brought
/// in before it, nothing is given back, and the end is put right.
pub(super) fn walk(
    graph: &Graph<'_>,
    order: &[OpId],
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
        Walk { graph, order, homes, choices: choices.fork(0), launched: 0, cells, walked };
    let mut starts = choices.fork(150);
    for tensor in graph.tensor_ids() {
        walk.choices = starts.fork(6);
        walk.start(tensor);
    }
    for used in &mut walk.walked.use_of_pools {
        used.allocated = 0;
    }
    for &op in order {
        walk.choices = choices.fork(40);
        walk.move_at_random(moves_per_op);
        walk.repeat_until_done(|walk| walk.needed_by(op));
        walk.launch(op);
        if clears_out && walk.choices.one_in(2) {
            walk.repeat_until_done(Walk::clearing_out);
        }
    }
    walk.choices = choices.fork(40);
    walk.move_at_random(moves_per_op);
    walk.repeat_until_done(Walk::closing);
    walk.walked
}

impl Walk<'_> {
    /// Decides what of a tensor is resident at start. States in the arena always are; inputs
    /// that are written after their last read never are.
    fn start(&mut self, tensor: TensorId) {
        let kind = self.graph.tensor(tensor).kind;
        let objects = self.cells[tensor.index()].len();
        let runs = if kind == Kind::Temporary || self.is_spoiled(tensor) {
            [0..0, 0..0]
        } else if self.homes.in_arena(tensor) && kind == Kind::State {
            [0..objects, 0..0]
        } else {
            self.runs_at_start(objects)
        };
        for cell in &mut self.cells[tensor.index()] {
            cell.on_host = kind != Kind::Temporary;
        }
        for run in runs.into_iter().filter(|run| !run.is_empty()) {
            let host_copy = !self.choices.one_in(2);
            let part = self.part(tensor, &run);
            self.walked.resident_at_start.push(Resident { part, host_copy });
            if let Some(pool) = self.homes.pool_of(tensor) {
                self.walked.use_of_pools[pool].take(run.len() as u64);
            }
            self.cells[tensor.index()][run].fill(Cell {
                resident: true,
                on_device: true,
                on_host: host_copy,
                promise: Some(host_copy),
            });
        }
    }

    /// None, all, the first of the objects, or the first and the last of them: two runs, each
    /// of which may be empty.
    fn runs_at_start(&mut self, objects: usize) -> [Range<usize>; 2] {
        let split = 1 + self.choices.below(objects);
        match self.choices.below(4) {
            0 => [0..0, 0..0],
            1 => [0..objects, 0..0],
            2 => [0..split, 0..0],
            _ => [0..split - 1, split..objects],
        }
    }

    fn last_read(&self, tensor: TensorId) -> Option<usize> {
        self.order.iter().rposition(|&op| self.graph.reads(op).contains(&tensor))
    }

    /// Whether an input is written after its last read.
    fn is_spoiled(&self, tensor: TensorId) -> bool {
        let last_write = self.order.iter().rposition(|&op| self.graph.writes(op).contains(&tensor));
        self.graph.tensor(tensor).kind == Kind::Input && last_write > self.last_read(tensor)
    }

    /// Whether an input's value is the next iteration's already.
    fn is_next(&self, tensor: TensorId) -> bool {
        let read = self.last_read(tensor).is_some_and(|last_read| last_read < self.launched);
        self.graph.tensor(tensor).kind == Kind::Input && read
    }

    /// Whether no op reads the value that the tensor has now.
    fn is_dead(&self, tensor: TensorId) -> bool {
        let mut later = self.order[self.launched..].iter();
        match later.find(|&&op| self.graph.touches(op).any(|touched| touched == tensor)) {
            Some(&op) => !self.graph.reads(op).contains(&tensor),
            None => self.graph.tensor(tensor).kind != Kind::State,
        }
    }

    /// Whether the move is legal for the object.
    fn can(&self, action: Move, tensor: TensorId, object: usize) -> bool {
        let cell = self.cells[tensor.index()][object];
        let kind = self.graph.tensor(tensor).kind;
        let in_arena = self.homes.in_arena(tensor);
        match action {
            Move::Evict => cell.resident && !in_arena && (cell.on_host || self.is_dead(tensor)),
            _ if in_arena && kind == Kind::Temporary => false,
            Move::Offload => {
                let read_later = self.last_read(tensor) >= Some(self.launched);
                cell.resident && cell.on_device && (kind != Kind::Input || read_later)
            }
            Move::Prefetch => {
                let clobbered = self.is_next(tensor) && self.is_spoiled(tensor);
                let once = !in_arena || !self.is_next(tensor) || cell.promise.is_some();
                !cell.resident && cell.on_host && !clobbered && once
            }
        }
    }

    /// All longest runs of objects that want the same move.
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

    /// Fewer than this many moves that are legal, whether they serve a purpose or not.
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

    /// What an op reads and is absent, and the one prefetch of an input in the arena, even
    /// where the op overwrites it.
    fn needed_by(&self, op: OpId) -> Vec<(Move, Run)> {
        self.runs(|tensor, object| {
            let read = self.graph.reads(op).contains(&tensor);
            let written = self.graph.writes(op).contains(&tensor);
            let input = self.graph.tensor(tensor).kind == Kind::Input;
            let wanted = read || (written && input && self.homes.in_arena(tensor));
            (wanted && self.can(Move::Prefetch, tensor, object)).then_some(Move::Prefetch)
        })
    }

    /// Gives everything back, with an offload first where that is needed.
    fn clearing_out(&self) -> Vec<(Move, Run)> {
        self.runs(|tensor, object| self.leaving(tensor, object))
    }

    fn leaving(&self, tensor: TensorId, object: usize) -> Option<Move> {
        let resident = self.cells[tensor.index()][object].resident && !self.homes.in_arena(tensor);
        let action =
            if self.can(Move::Evict, tensor, object) { Move::Evict } else { Move::Offload };
        resident.then_some(action)
    }

    /// What is still to be done for the promises of the start.
    fn closing(&self) -> Vec<(Move, Run)> {
        self.runs(|tensor, object| {
            let cell = self.cells[tensor.index()][object];
            match cell.promise {
                None => self.leaving(tensor, object),
                Some(_) if !cell.resident => Some(Move::Prefetch),
                Some(_) if !cell.on_device => Some(Move::Evict),
                Some(true) if !cell.on_host => Some(Move::Offload),
                Some(_) => None,
            }
        })
    }

    /// The part's name: all of it as the whole tensor, now and then as a range.
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
                Move::Prefetch => (cell.resident, cell.on_device) = (true, true),
                Move::Offload => cell.on_host = true,
                Move::Evict => (cell.resident, cell.on_device) = (false, false),
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

    fn launch(&mut self, op: OpId) {
        for &tensor in self.graph.writes(op) {
            let is_next = self.is_next(tensor);
            let cells = &mut self.cells[tensor.index()];
            let absent = cells.iter().filter(|cell| !cell.resident).count();
            for cell in cells {
                cell.resident = true;
                cell.on_device = !is_next;
                cell.on_host &= is_next;
            }
            if let Some(pool) = self.homes.pool_of(tensor) {
                self.walked.use_of_pools[pool].take(absent as u64);
            }
        }
        let (pool, objects) = self.homes.workspace(self.graph, op);
        self.walked.use_of_pools[pool].take(objects);
        self.walked.use_of_pools[pool].held -= objects;
        self.walked.steps.push(Step::launch(op));
        self.launched += 1;
        for tensor in self.graph.touches(op) {
            self.forget(tensor);
        }
    }

    /// Ends the life of an input's value at its last read, and of a temporary in the arena at
    /// its last touch.
    fn forget(&mut self, tensor: TensorId) {
        let in_arena = self.homes.in_arena(tensor);
        let later = &self.order[self.launched..];
        let touched_later = later.iter().any(|&op| self.graph.touches(op).any(|t| t == tensor));
        let read_last = self.last_read(tensor) == Some(self.launched - 1);
        match self.graph.tensor(tensor).kind {
            Kind::Input if read_last => {
                for cell in &mut self.cells[tensor.index()] {
                    cell.resident &= !in_arena;
                    (cell.on_device, cell.on_host) = (false, true);
                }
            }
            Kind::Temporary if in_arena && !touched_later => {
                self.cells[tensor.index()][0].resident = false;
            }
            Kind::Input | Kind::State | Kind::Temporary => {}
        }
    }
}
