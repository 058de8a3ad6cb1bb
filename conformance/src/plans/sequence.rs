//! The launches of a random plan in order. Some ops are launched more than once, and some on the
//! host.

use crate::choices::Choices;
use planner_core::{Graph, Kind, Launched, OpId, TensorId};
use std::collections::BTreeSet;

/// A value of a tensor within one iteration.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Value {
    /// The value from the start of the iteration.
    Start,
    /// The value that this op makes.
    Of(OpId),
    /// The value of an input for the next iteration.
    Next,
}

/// Launches in an order in which an earlier launch or the host can supply every value that is read.
pub(super) struct Sequence<'a> {
    graph: &'a Graph<'a>,
    /// For each op, the values that its first launch reads, and that each repeat reads again.
    read_first: Vec<Vec<(TensorId, Value)>>,
    launches: Vec<Launched>,
    /// The ops that run on the host.
    on_host: BTreeSet<OpId>,
}

impl<'a> Sequence<'a> {
    /// The ops in `order`, with repeats of some repeatable ops.
    pub(super) fn random(graph: &'a Graph<'a>, order: &[OpId], choices: &mut Choices) -> Self {
        let mut sequence = Self::once(graph, order);
        let repeatable = order.iter().copied().filter(|&op| graph.op(op).repeatable);
        let is_temporary = |tensor: &TensorId| graph.tensor(*tensor).kind == Kind::Temporary;
        // Repeats that make a temporary come first and are more likely.
        let (making, idle): (Vec<OpId>, Vec<OpId>) =
            repeatable.partition(|&op| graph.writes(op).iter().any(is_temporary));
        let ops = [&making[..], &making, &making, &idle].concat();
        for _ in 0..choices.below(2 * ops.len().min(4) + 1) {
            let op = choices.pick(&ops);
            let at = choices.below(sequence.launches.len()) + 1;
            let from_host = choices.one_in(3);
            let repeated = op.and_then(|op| sequence.with_repeat(op, at, from_host));
            sequence = repeated.unwrap_or(sequence);
        }
        sequence
    }

    /// The ops in this order, each once.
    fn once(graph: &'a Graph<'a>, order: &[OpId]) -> Self {
        let mut read_first = vec![Vec::new(); graph.ops().len()];
        let mut current = vec![Value::Start; graph.tensors().len()];
        for &op in order {
            let reads = graph.reads(op).iter();
            read_first[op.index()] =
                reads.map(|&tensor| (tensor, current[tensor.index()])).collect();
            for tensor in graph.writes(op) {
                current[tensor.index()] = Value::Of(op);
            }
        }
        let launches = order.iter().copied().map(Launched::first).collect();
        Self { graph, read_first, launches, on_host: BTreeSet::new() }
    }

    /// The same launches, but some ops run on the host. If `safe`, repeats do not touch the tensors
    /// of these ops. Otherwise there may be no plan.
    pub(super) fn with_some_on_host(mut self, safe: bool, choices: &mut Choices) -> Self {
        if !choices.one_in(2) {
            return self;
        }
        let share = 1 + choices.below(3);
        let is_repeated = |tensor: TensorId| {
            let repeats = self.launches.iter().filter(|launched| launched.is_repeat);
            repeats.into_iter().any(|&launched| self.touches(launched, tensor))
        };
        let may = |op: &OpId| {
            let once = self.launches.iter().filter(|launched| launched.op == *op).count() == 1;
            let is_clear = !safe || !self.graph.touches(*op).any(is_repeated);
            self.graph.op(*op).host_ns.is_some() && once && is_clear
        };
        let on_host: BTreeSet<OpId> = self.graph.op_ids().filter(may).collect();
        self.on_host = on_host.into_iter().filter(|_| choices.one_in(share)).collect();
        self
    }

    /// Whether an op runs on the host.
    pub(super) fn is_on_host(&self, op: OpId) -> bool {
        self.on_host.contains(&op)
    }

    /// Whether an op on the host touches the tensor.
    pub(super) fn touches_on_host(&self, tensor: TensorId) -> bool {
        self.on_host.iter().any(|&op| self.graph.touches(op).any(|touched| touched == tensor))
    }

    /// The sequence with a repeat of an op before some position, and the repeats that this one
    /// needs. `None` if some value can then not be supplied.
    fn with_repeat(&self, op: OpId, at: usize, from_host: bool) -> Option<Self> {
        let first = self.launches.iter().position(|launched| launched.op == op)?;
        let at = at.max(first + 1);
        let mut launches = self.launches.clone();
        launches.insert(at, Launched::repeat(op));
        let read_first = self.read_first.clone();
        let on_host = BTreeSet::new();
        let mut repeated = Self { graph: self.graph, read_first, launches, on_host };
        // Each round repeats one more op. A sequence that needs very many repeats is not worth it.
        for _ in 0..8 {
            match repeated.missing(from_host) {
                None => return Some(repeated),
                Some((reader, Value::Of(maker))) if repeated.graph.op(maker).repeatable => {
                    repeated.launches.insert(reader, Launched::repeat(maker));
                }
                Some(_) => return None,
            }
        }
        None
    }

    /// The first launch that reads a missing value, and that value. A value is missing if neither
    /// the last write of the tensor supplies it nor, if `from_host`, the host can have kept it.
    fn missing(&self, from_host: bool) -> Option<(usize, Value)> {
        let missing = |tensor| self.missing_of(tensor, from_host);
        self.graph.tensor_ids().filter_map(missing).min_by_key(|&(reader, _)| reader)
    }

    fn missing_of(&self, tensor: TensorId, from_host: bool) -> Option<(usize, Value)> {
        let is_made = self.graph.tensor(tensor).kind.is_made();
        let (mut device, mut host) = (Value::Start, (!is_made).then_some(Value::Start));
        for (at, &launched) in self.launches.iter().enumerate() {
            if let Some(value) = self.value_read(launched, tensor).filter(|&it| it != device) {
                let is_kept = from_host && host == Some(value);
                if !is_kept || self.is_needed(at + 1, tensor, device) {
                    return Some((at, value));
                }
                device = value;
            }
            if !self.writes(launched, tensor) {
                continue;
            }
            let is_lost =
                device != Value::Of(launched.op) && self.is_needed(at + 1, tensor, device);
            if is_lost {
                // The host holds one value at a time.
                if host.is_some_and(|it| it != device && self.is_needed(at + 1, tensor, it)) {
                    return self.next_reader(at + 1, tensor, device).map(|reader| (reader, device));
                }
                host = Some(device);
            }
            device = Value::Of(launched.op);
        }
        None
    }

    fn next_reader(&self, from: usize, tensor: TensorId, value: Value) -> Option<usize> {
        (from..self.launches.len())
            .find(|&at| self.value_read(self.launches[at], tensor) == Some(value))
    }

    /// All launches.
    pub(super) fn launches(&self) -> &[Launched] {
        &self.launches
    }

    /// The value of the tensor that a launch reads.
    pub(super) fn value_read(&self, launched: Launched, tensor: TensorId) -> Option<Value> {
        let is_temporary = self.graph.tensor(tensor).kind == Kind::Temporary;
        let is_left_alone =
            !is_temporary && launched.is_repeat && self.graph.writes(launched.op).contains(&tensor);
        let reads = self.read_first[launched.op.index()].iter();
        let mut reads = reads.filter(|&&(read, _)| read == tensor && !is_left_alone);
        reads.next().map(|&(_, value)| value)
    }

    /// Whether a launch writes the tensor.
    pub(super) fn writes(&self, launched: Launched, tensor: TensorId) -> bool {
        let is_temporary = self.graph.tensor(tensor).kind == Kind::Temporary;
        (is_temporary || !launched.is_repeat) && self.graph.writes(launched.op).contains(&tensor)
    }

    fn touches(&self, launched: Launched, tensor: TensorId) -> bool {
        self.value_read(launched, tensor).is_some() || self.writes(launched, tensor)
    }

    /// The position of the last launch that reads the tensor.
    pub(super) fn last_read(&self, tensor: TensorId) -> Option<usize> {
        self.launches.iter().rposition(|&it| self.value_read(it, tensor).is_some())
    }

    /// The position of the last launch that writes the tensor.
    pub(super) fn last_write(&self, tensor: TensorId) -> Option<usize> {
        self.launches.iter().rposition(|&it| self.writes(it, tensor))
    }

    /// The value that the last first launch before a position wrote. After the last read of an
    /// input, its value for the next iteration.
    pub(super) fn current(&self, position: usize, tensor: TensorId) -> Value {
        if self.is_next(position, tensor) {
            return Value::Next;
        }
        let before = self.launches[..position].iter().filter(|launched| !launched.is_repeat);
        let mut makers = before.filter(|&&launched| self.writes(launched, tensor));
        makers.next_back().map_or(Value::Start, |launched| Value::Of(launched.op))
    }

    /// Whether an input holds the value for the next iteration at a position.
    pub(super) fn is_next(&self, position: usize, tensor: TensorId) -> bool {
        let is_input = self.graph.tensor(tensor).kind == Kind::Input;
        is_input && self.last_read(tensor).is_some_and(|last_read| last_read < position)
    }

    /// Whether a value has to be kept at a position: a later launch reads it before another makes
    /// it again, or a state or an output ends with it.
    pub(super) fn is_needed(&self, position: usize, tensor: TensorId, value: Value) -> bool {
        for &launched in &self.launches[position..] {
            if self.value_read(launched, tensor) == Some(value) {
                return true;
            }
            if self.writes(launched, tensor) && value == Value::Of(launched.op) {
                return false;
            }
        }
        let is_result = value == self.current(self.launches.len(), tensor);
        matches!(self.graph.tensor(tensor).kind, Kind::State | Kind::Output) && is_result
    }

    /// Whether a copy of a value is useful at a position: the value is current or is read later.
    pub(super) fn is_valid(&self, position: usize, tensor: TensorId, value: Value) -> bool {
        value == self.current(position, tensor)
            || self.next_reader(position, tensor, value).is_some()
    }

    /// The spans of a temporary, as positions. A span begins with each launch that writes it
    /// without reading it.
    pub(super) fn spans(&self, tensor: TensorId) -> Vec<(usize, usize)> {
        let mut spans: Vec<(usize, usize)> = Vec::new();
        for (at, &launched) in self.launches.iter().enumerate() {
            match spans.last_mut() {
                _ if !self.touches(launched, tensor) => {}
                Some(span) if self.value_read(launched, tensor).is_some() => span.1 = at,
                _ => spans.push((at, at)),
            }
        }
        spans
    }

    /// Whether the host has to keep a value that the device does not keep.
    pub(super) fn needs_host(&self, tensor: TensorId) -> bool {
        self.missing_of(tensor, false).is_some()
    }
}
