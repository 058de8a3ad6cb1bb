//! The value that each tensor holds along the given order, and the launches that may read it if
//! ops repeat.
//!
//! Some ops are *marks*. Interval `k` lasts from the start of mark `k` to the start of the next
//! mark. For states, the count of intervals continues into the next iteration: with `m` marks,
//! interval `m + k` is interval `k` of the next iteration.

use planner_core::{Graph, Kind, Launched, OpId, TensorId};
use std::collections::HashSet;

/// The content of a tensor from one write, or from the start, to the next write.
#[derive(Clone, Debug)]
pub(crate) struct Value {
    pub(crate) tensor: TensorId,
    pub(crate) bytes: u64,
    pub(crate) source: Source,
    /// The intervals of the ops that read the value, each once.
    pub(crate) reads: Vec<usize>,
    /// The intervals whose mark reads the value.
    pub(crate) read_by_marks: Vec<usize>,
    /// The interval of the op that writes the tensor next.
    pub(crate) overwritten: Option<usize>,
    /// The last interval in which a launch or a repeat may read the value.
    pub(crate) last: usize,
}

/// The origin of a value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Source {
    /// An op writes the value in this interval.
    Written(usize),
    /// The value arrives once per iteration.
    Arrives,
    /// The value never changes: it is a state that no op writes.
    Constant,
}

impl Value {
    /// The first interval that has the value.
    pub(crate) fn first(&self) -> usize {
        match self.source {
            Source::Written(interval) => interval,
            Source::Arrives | Source::Constant => 0,
        }
    }
}

/// A value that a repeat reads. To get the value's interval, add `later` to the repeat's interval.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Read {
    pub(crate) value: usize,
    pub(crate) later: usize,
}

/// An op that may run again.
#[derive(Clone, Debug)]
pub(crate) struct Repeat {
    pub(crate) time_ns: u64,
    pub(crate) reads: Vec<Read>,
    pub(crate) writes: Vec<usize>,
    /// The interval of the op's first launch.
    pub(crate) first: usize,
    /// The last interval in which a launch or a repeat may read the op's results.
    pub(crate) last: usize,
}

/// The values of one iteration.
#[derive(Clone, Debug)]
pub(crate) struct Values {
    /// The marks in order. The first mark is the first op.
    pub(crate) marks: Vec<OpId>,
    pub(crate) values: Vec<Value>,
    pub(crate) repeats: Vec<Repeat>,
    /// The tensors that each mark touches.
    operands: HashSet<(usize, TensorId)>,
}

/// The state of the walk over the ops.
struct Walk<'g> {
    graph: &'g Graph<'g>,
    /// Tensors of fewer bytes take no memory and no transfers in the program.
    least_bytes: u64,
    current: Vec<Option<usize>>,
    initial: Vec<Option<usize>>,
    values: Vec<Value>,
    repeats: Vec<Repeat>,
}

impl Values {
    pub(crate) fn new(graph: &Graph<'_>, marks: Vec<OpId>, least_bytes: u64) -> Self {
        let tensors = graph.tensors().len();
        let mut walk = Walk {
            graph,
            least_bytes,
            current: vec![None; tensors],
            initial: vec![None; tensors],
            values: Vec::new(),
            repeats: Vec::new(),
        };
        let mut interval = 0;
        for op in graph.op_ids() {
            if marks.get(interval + 1) == Some(&op) {
                interval += 1;
            }
            walk.launch(op, interval, marks[interval] == op);
        }
        walk.close(marks.len());
        walk.extend_lives();
        let Walk { values, mut repeats, .. } = walk;
        // The program does not charge for results in the interval of the first launch.
        repeats.retain(|repeat| repeat.last > repeat.first);
        let touches = |(at, &mark)| graph.touches(mark).map(move |tensor| (at, tensor));
        let operands = marks.iter().enumerate().flat_map(touches).collect();
        Self { marks, values, repeats, operands }
    }

    /// Whether the mark that begins an interval touches the tensor of a value.
    pub(crate) fn is_operand(&self, value: &Value, interval: usize) -> bool {
        self.operands.contains(&(interval % self.marks.len(), value.tensor))
    }
}

impl Walk<'_> {
    fn value(&mut self, tensor: TensorId, source: Source) -> usize {
        let bytes = self.graph.tensor(tensor).bytes;
        let mut value = Value { bytes, source, ..unused(tensor) };
        value.last = value.first();
        self.values.push(value);
        self.current[tensor.index()] = Some(self.values.len() - 1);
        self.values.len() - 1
    }

    fn launch(&mut self, op: OpId, interval: usize, is_mark: bool) {
        let (graph, least_bytes) = (self.graph, self.least_bytes);
        let counts = |tensor: &&TensorId| graph.tensor(**tensor).bytes >= least_bytes;
        for &tensor in graph.reads(op).iter().filter(counts) {
            let value = self.current[tensor.index()].unwrap_or_else(|| {
                let value = self.value(tensor, Source::Arrives);
                self.initial[tensor.index()] = Some(value);
                value
            });
            let value = &mut self.values[value];
            value.last = interval;
            if value.reads.last() != Some(&interval) {
                value.reads.push(interval);
            }
            if is_mark {
                value.read_by_marks.push(interval);
            }
        }
        let again = Launched::repeat(op);
        let repeat_reads: Vec<Read> = graph
            .read_by(again)
            .filter_map(|tensor| self.current[tensor.index()])
            .map(|value| Read { value, later: 0 })
            .collect();
        for &tensor in graph.writes(op).iter().filter(counts) {
            if let Some(value) = self.current[tensor.index()] {
                self.values[value].overwritten = Some(interval);
            }
            self.value(tensor, Source::Written(interval));
        }
        let op = graph.op(op);
        let writes: Vec<usize> =
            graph.written_by(again).filter_map(|tensor| self.current[tensor.index()]).collect();
        if op.repeatable && !writes.is_empty() {
            self.repeats.push(Repeat {
                time_ns: op.time_ns,
                reads: repeat_reads,
                writes,
                first: interval,
                last: interval,
            });
        }
    }

    /// Joins the last value of each state with its first value in the next iteration.
    fn close(&mut self, intervals: usize) {
        let mut moved = vec![None; self.values.len()];
        for tensor in self.graph.tensor_ids() {
            let (Some(initial), Some(last)) =
                (self.initial[tensor.index()], self.current[tensor.index()])
            else {
                continue;
            };
            if self.graph.tensor(tensor).kind != Kind::State {
                continue;
            }
            if initial == last {
                self.values[initial].source = Source::Constant;
                continue;
            }
            let Value { reads, read_by_marks, overwritten, last: until, .. } =
                core::mem::replace(&mut self.values[initial], unused(tensor));
            let value = &mut self.values[last];
            value.reads.extend(reads.into_iter().map(|read| read + intervals));
            value.read_by_marks.extend(read_by_marks.into_iter().map(|read| read + intervals));
            value.overwritten = overwritten.map(|interval| interval + intervals);
            value.last = until + intervals;
            moved[initial] = Some(last);
        }
        for read in self.repeats.iter_mut().flat_map(|repeat| &mut repeat.reads) {
            if let Some(value) = moved[read.value] {
                *read = Read { value, later: intervals };
            }
        }
    }

    /// Extends the use of each value to the last use of all results that repeats make from it.
    fn extend_lives(&mut self) {
        for repeat in self.repeats.iter_mut().rev() {
            let until = repeat.writes.iter().map(|&value| self.values[value].last);
            repeat.last = until.max().unwrap_or(repeat.first);
            for &Read { value, later } in &repeat.reads {
                let last = &mut self.values[value].last;
                *last = (*last).max(repeat.last + later);
            }
        }
    }
}

/// A value that no op reads and that no mark finds present.
fn unused(tensor: TensorId) -> Value {
    Value {
        tensor,
        bytes: 0,
        source: Source::Written(0),
        reads: Vec::new(),
        read_by_marks: Vec::new(),
        overwritten: None,
        last: 0,
    }
}
