//! Kinds of ops: ops with the same times, bytes of states and numbers of operands, such as the ops of one
//! place in all layers.

#![expect(
    clippy::indexing_slicing,
    reason = "ids are those of the checked graph, and the arrays have an entry for each op, tensor \
              or kind"
)]

use super::choice::WHOLE;
use crate::graph::{Graph, Kind, Op, OpId, TensorId};
use crate::scratch::{Limits, OutOfScratch, Scratch, total, words};

/// The most kinds that are told apart.
pub(super) const KINDS: usize = 16;

/// A kind has at least this part of the time on the host, or of the bytes of states.
const PART: u64 = 64;

/// Kinds share a rank if each of them has at least this part of the most bytes that one of them has in
/// a time on the host. A balance: two matrices of one perceptron differ a little.
const SAME_RANK: [u128; 2] = [7, 10];

/// No kind, or no op.
const NONE: u8 = u8::MAX;
const NEVER: u32 = u32::MAX;

/// How many ops of each kind run on the host.
pub(super) type Counts = [u32; KINDS];

/// The positions of ops among the ops of their kind.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Places {
    First,
    Last,
    /// At even distances. Further ops lie between earlier ones.
    Even,
}

impl Places {
    pub(super) const ALL: [Self; 3] = [Self::First, Self::Last, Self::Even];
}

/// The kind of each op that may run on the host, if it has one.
pub(super) struct Kinds<'a> {
    of: &'a [u8],
    /// For each op, the number of ops of its kind that come before it.
    first: &'a [u32],
    /// For each op, the number of ops of its kind that the host takes before it, if it takes ops at
    /// even distances.
    even: &'a [u32],
    /// The number of ops of each kind.
    pub(super) sizes: heapless::Vec<u32, KINDS>,
    /// For each kind, two shares of the time of all kinds: the share of the kinds with higher ranks,
    /// and that share with the kinds of the same rank.
    ranks: [[u32; 2]; KINDS],
}

/// The sums of a kind.
#[derive(Clone, Copy)]
struct Sums {
    op: OpId,
    time_ns: u128,
    bytes: u128,
}

impl<'a> Kinds<'a> {
    pub(super) const fn kept_words(limits: &Limits) -> usize {
        words::<u8>(limits.ops).saturating_add(words::<u32>(limits.ops).saturating_mul(2))
    }

    /// Words in addition to those kept.
    pub(super) const fn working_words(limits: &Limits) -> usize {
        total([
            words::<u64>(limits.ops),
            words::<OpId>(limits.ops),
            words::<u32>(limits.tensors),
            words::<u32>(limits.ops),
        ])
    }

    /// The kinds of ops in an order.
    pub(super) fn new(
        graph: &Graph<'_>,
        order: &[OpId],
        scratch: &mut Scratch<'a>,
    ) -> Result<Self, OutOfScratch> {
        let ops = graph.ops().len();
        let may = |op: &OpId| graph.op(*op).host_ns.is_some();
        let of = scratch.take(ops, NONE)?;
        let (first, even) = (scratch.take(ops, 0u32)?, scratch.take(ops, 0u32)?);
        let mut scratch = scratch.reborrow();
        let bytes = scratch.take(ops, 0u64)?;
        let users = scratch.take(graph.tensors().len(), NEVER)?;
        count(graph, bytes, users);
        let kinds = largest(graph, bytes, &mut scratch)?;
        let mut sizes = heapless::Vec::from_iter(kinds.iter().map(|_| 0u32));
        for &op in order.iter().filter(|op| may(op)) {
            let same =
                kinds.iter().position(|kind| key(graph, bytes, kind.op) == key(graph, bytes, op));
            if let Some(kind) = same {
                of[op.index()] = kind as u8;
                first[op.index()] = sizes[kind];
                sizes[kind] = sizes[kind].saturating_add(1);
            }
        }
        for (kind, &size) in sizes.iter().enumerate() {
            let places = evenly(size, &mut scratch.reborrow())?;
            let of_kind = graph.op_ids().filter(|op| usize::from(of[op.index()]) == kind);
            of_kind.for_each(|op| even[op.index()] = places[first[op.index()] as usize]);
        }
        users.fill(NEVER);
        for &op in order.iter().rev() {
            let states = || states(graph, op);
            let user = states().map(|tensor| users[tensor.index()]).find(|&user| user != NEVER);
            if let (NONE, Some(user), true) = (of[op.index()], user, writes_state(graph, op)) {
                let (at, user) = (op.index(), user as usize);
                (of[at], first[at], even[at]) = (of[user], first[user], even[user]);
            }
            if of[op.index()] != NONE {
                states().for_each(|tensor| users[tensor.index()] = op.0);
            }
        }
        Ok(Self { of, first, even, sizes, ranks: ranks(&kinds) })
    }

    /// Whether there is a choice between kinds.
    pub(super) fn differ(&self) -> bool {
        self.sizes.len() > 1
    }

    /// Whether an op is among these counts of its kind; `None` if it has no kind.
    pub(super) fn takes(&self, op: OpId, counts: &Counts, places: Places) -> Option<bool> {
        let kind = usize::from(self.of[op.index()]);
        let (size, count) = (*self.sizes.get(kind)?, counts[kind]);
        Some(match places {
            Places::First => self.first[op.index()] < count,
            Places::Last => self.first[op.index()] >= size.saturating_sub(count),
            Places::Even => self.even[op.index()] < count,
        })
    }

    /// The counts of a share of the time of all kinds, higher ranks first. Takes the same share of
    /// each kind of a rank.
    pub(super) fn counts(&self, share: u32) -> Counts {
        let mut counts = [0; KINDS];
        for ((count, &size), [start, end]) in counts.iter_mut().zip(&self.sizes).zip(self.ranks) {
            let within = u64::from(share.clamp(start, end).saturating_sub(start));
            let taken = within.saturating_mul(size.into());
            let length = u64::from(end.saturating_sub(start));
            *count = taken.checked_div(length).map_or(0, |taken| taken.min(size.into()) as u32);
        }
        counts
    }

    /// The ways to change counts: the kind of which more ops are taken, and the kind of which fewer
    /// are taken. An exchange has both, another change has one of them.
    pub(super) fn changes(
        &self,
        exchanges: bool,
    ) -> impl Iterator<Item = [Option<usize>; 2]> + use<> {
        let count = self.sizes.len();
        let kinds = move || (0..count).map(Some).chain([None]);
        let pairs = kinds().flat_map(move |more| kinds().map(move |less| [more, less]));
        pairs.filter(move |&[more, less]| {
            more != less && (more.is_some() && less.is_some()) == exchanges
        })
    }

    /// Counts with `step` more ops of one kind and `step` fewer ops of another.
    pub(super) fn changed(
        &self,
        mut counts: Counts,
        [more, less]: [Option<usize>; 2],
        step: u32,
    ) -> Counts {
        if let Some(kind) = more {
            counts[kind] = counts[kind].saturating_add(step).min(self.sizes[kind]);
        }
        if let Some(kind) = less {
            counts[kind] = counts[kind].saturating_sub(step);
        }
        counts
    }

    /// The counts of some ops.
    pub(super) fn counts_of(&self, ops: impl Iterator<Item = OpId>) -> Counts {
        let mut counts = [0u32; KINDS];
        for op in ops {
            if let Some(count) = counts.get_mut(usize::from(self.of[op.index()])) {
                *count = count.saturating_add(1);
            }
        }
        let sizes = self.sizes.iter().chain(core::iter::repeat(&0));
        counts.iter_mut().zip(sizes).for_each(|(count, &size)| *count = (*count).min(size));
        counts
    }
}

pub(super) fn time_ns(graph: &Graph<'_>, op: OpId) -> u64 {
    graph.op(op).host_ns.unwrap_or(0).max(1)
}

/// Ops with the same key are of one kind.
fn key(graph: &Graph<'_>, bytes: &[u64], op: OpId) -> [u64; 5] {
    let Op { time_ns, host_ns, reads, writes, .. } = graph.op(op);
    [time_ns, host_ns.unwrap_or(0), bytes[op.index()], reads.into(), writes.into()]
}

/// The states that an op uses. Some may come twice.
fn states<'g>(graph: &Graph<'g>, op: OpId) -> impl Iterator<Item = TensorId> {
    let operands = graph.operands_of(op).iter().copied();
    operands.filter(|&tensor| graph.tensor(tensor).kind == Kind::State)
}

fn writes_state(graph: &Graph<'_>, op: OpId) -> bool {
    graph.writes(op).iter().any(|&tensor| graph.tensor(tensor).kind == Kind::State)
}

/// Adds the bytes of each state to the last op that uses it.
fn count(graph: &Graph<'_>, bytes: &mut [u64], users: &mut [u32]) {
    for op in graph.op_ids().rev() {
        for tensor in states(graph, op) {
            if users[tensor.index()] == NEVER {
                users[tensor.index()] = op.0;
                bytes[op.index()] = bytes[op.index()].saturating_add(graph.tensor(tensor).bytes);
            }
        }
    }
}

/// The largest kinds.
fn largest(
    graph: &Graph<'_>,
    bytes: &[u64],
    scratch: &mut Scratch<'_>,
) -> Result<heapless::Vec<Sums, KINDS>, OutOfScratch> {
    let mut scratch = scratch.reborrow();
    let hosted = || graph.op_ids().filter(|&op| graph.op(op).host_ns.is_some());
    let ops = scratch.take(hosted().count(), OpId(0))?;
    ops.iter_mut().zip(hosted()).for_each(|(slot, op)| *slot = op);
    ops.sort_unstable_by_key(|&op| (key(graph, bytes, op), op));
    let sums = |ops: &[OpId]| {
        let time_ns = ops.iter().map(|&op| u128::from(time_ns(graph, op)));
        let bytes = ops.iter().map(|&op| u128::from(bytes[op.index()]));
        let add = u128::saturating_add;
        Sums { op: ops[0], time_ns: time_ns.fold(0, add), bytes: bytes.fold(0, add) }
    };
    let mut largest = heapless::Vec::<(u128, Sums), KINDS>::new();
    if ops.is_empty() {
        return Ok(heapless::Vec::new());
    }
    let of_all = sums(ops);
    for kind in
        ops.chunk_by(|&one, &other| key(graph, bytes, one) == key(graph, bytes, other)).map(sums)
    {
        let part =
            |part: u128, of: u128| part.saturating_mul(WHOLE.into()).checked_div(of).unwrap_or(0);
        let weight = part(kind.time_ns, of_all.time_ns).max(part(kind.bytes, of_all.bytes));
        if weight.saturating_mul(PART.into()) < WHOLE.into() {
            continue;
        }
        if let Err(kept) = largest.push((weight, kind))
            && let Some(least) = largest.iter_mut().min_by_key(|(weight, _)| *weight)
            && least.0 < kept.0
        {
            *least = kept;
        }
    }
    largest.sort_unstable_by_key(|(_, kind)| kind.op);
    Ok(largest.into_iter().map(|(_, kind)| kind).collect())
}

/// For each of `size` ops, the number of ops that are taken before it at even distances: in the order
/// of their numbers with reversed bits (van der Corput).
fn evenly<'s>(size: u32, scratch: &mut Scratch<'s>) -> Result<&'s [u32], OutOfScratch> {
    let places = scratch.take(size as usize, 0u32)?;
    let unused_bits = size.saturating_sub(1).leading_zeros();
    let all = size.checked_next_power_of_two().unwrap_or(u32::MAX);
    let numbers =
        (0..all).map(|number| number.reverse_bits().checked_shr(unused_bits).unwrap_or(0));
    for (place, number) in numbers.filter(|&number| number < size).enumerate() {
        places[number as usize] = place as u32;
    }
    Ok(places)
}

/// For each kind, two shares of the time of all kinds; see [`Kinds`].
fn ranks(kinds: &[Sums]) -> [[u32; 2]; KINDS] {
    let mut ranks = [[WHOLE; 2]; KINDS];
    let sum_ns = kinds.iter().fold(0u128, |sum, kind| sum.saturating_add(kind.time_ns));
    let mut before_ns = 0u128;
    let share = |ns: u128| ns.saturating_mul(WHOLE.into()).checked_div(sum_ns).unwrap_or(0) as u32;
    let is_denser = |one: &Sums, other: &Sums, part: [u128; 2]| {
        let [one, other] =
            [one.bytes.saturating_mul(other.time_ns), other.bytes.saturating_mul(one.time_ns)];
        one.saturating_mul(part[1]) >= other.saturating_mul(part[0])
    };
    let mut is_ranked = [false; KINDS];
    loop {
        let rest = kinds.iter().zip(is_ranked).filter(|(_, is_ranked)| !is_ranked);
        let densest = rest
            .map(|(kind, _)| kind)
            .reduce(|most, kind| if is_denser(most, kind, [1, 1]) { most } else { kind });
        let Some(densest) = densest else { return ranks };
        let is_of_rank = |&at: &usize| !is_ranked[at] && is_denser(&kinds[at], densest, SAME_RANK);
        let of_rank: heapless::Vec<usize, KINDS> = (0..kinds.len()).filter(is_of_rank).collect();
        let times_ns = of_rank.iter().map(|&at| kinds[at].time_ns);
        let end_ns = times_ns.fold(before_ns, u128::saturating_add);
        for at in of_rank {
            (ranks[at], is_ranked[at]) = ([before_ns, end_ns].map(share), true);
        }
        before_ns = end_ns;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::graph::Tensor;

    const LAYERS: u32 = 5;
    /// Of each layer: a cache, attention's result, experts, the experts' result.
    const TENSORS: u32 = 4;

    /// Calls a function with the kinds of layers of four ops: one updates a cache; one reads it in
    /// 8 us; experts take 4 us and have eight times its bytes; an add has no kind.
    fn with_kinds(test: impl FnOnce(&Kinds<'_>)) {
        let tensor = |bytes, kind| Tensor { bytes, kind };
        let mut tensors = [tensor(1, Kind::Temporary); (LAYERS * TENSORS) as usize];
        let mut ops = [Op::default(); (LAYERS * 4) as usize];
        let mut operands = [TensorId(0); (LAYERS * 8) as usize];
        for layer in 0..LAYERS {
            let [cache, out, experts, end] = [0, 1, 2, 3].map(|at| TensorId(layer * TENSORS + at));
            tensors[cache.index()] = tensor(100, Kind::State);
            tensors[experts.index()] = tensor(800, Kind::State);
            let mut at = (layer * 8) as usize;
            let layer_ops: [(u64, &[TensorId], &[TensorId]); 4] = [
                (0, &[], &[cache]),
                (8_000, &[cache], &[out]),
                (4_000, &[out, experts], &[end]),
                (0, &[], &[end]),
            ];
            for (number, (host_ns, reads, writes)) in layer_ops.into_iter().enumerate() {
                ops[(layer * 4) as usize + number] = Op {
                    time_ns: 1,
                    host_ns: Some(host_ns),
                    first_operand: at as u32,
                    reads: reads.len() as u32,
                    writes: writes.len() as u32,
                    ..Op::default()
                };
                for &tensor in reads.iter().chain(writes) {
                    operands[at] = tensor;
                    at += 1;
                }
            }
        }
        let mut words = [0; 1024];
        let mut scratch = Scratch::new(&mut words);
        let graph = Graph::new(&tensors, &ops, &operands, &mut scratch).unwrap();
        let order: [OpId; (LAYERS * 4) as usize] = core::array::from_fn(|op| OpId(op as u32));
        test(&Kinds::new(&graph, &order, &mut scratch).unwrap());
    }

    /// The layers whose op at a place runs on the host.
    fn taken(kinds: &Kinds<'_>, place: u32, counts: [u32; 2], places: Places) -> [bool; 5] {
        let mut all = Counts::default();
        all[..2].copy_from_slice(&counts);
        let op = |layer: usize| OpId(layer as u32 * 4 + place);
        core::array::from_fn(|layer| kinds.takes(op(layer), &all, places) == Some(true))
    }

    #[test]
    fn ops_of_a_kind_run_on_the_host_from_either_end_or_at_even_distances() {
        with_kinds(|kinds| {
            assert_eq!(kinds.sizes, [LAYERS; 2]);
            for (places, expected) in [
                (Places::First, [true, true, false, false, false]),
                (Places::Last, [false, false, false, true, true]),
                (Places::Even, [true, false, false, false, true]),
            ] {
                assert_eq!(taken(kinds, 1, [2, 0], places), expected, "{places:?}");
                assert_eq!(taken(kinds, 2, [0, 2], places), expected, "{places:?}");
                assert_eq!(taken(kinds, 2, [2, 0], places), [false; 5], "{places:?}");
                // The op that updates the cache goes with the op that reads it.
                assert_eq!(taken(kinds, 0, [2, 0], places), expected, "{places:?}");
            }
            assert_eq!(kinds.takes(OpId(3), &[LAYERS; KINDS], Places::First), None);
        });
    }

    #[test]
    fn more_ops_at_even_distances_include_fewer() {
        with_kinds(|kinds| {
            for count in 0..=LAYERS {
                let layers = taken(kinds, 1, [count, 0], Places::Even);
                assert_eq!(layers.iter().filter(|&&taken| taken).count() as u32, count);
                let fewer = taken(kinds, 1, [count.saturating_sub(1), 0], Places::Even);
                assert!(fewer.iter().zip(&layers).all(|(fewer, more)| fewer <= more));
            }
        });
    }

    /// Experts take a third of the time.
    #[test]
    fn the_kind_with_the_most_bytes_in_its_time_comes_first() {
        with_kinds(|kinds| {
            let counts = |share| [kinds.counts(share)[0], kinds.counts(share)[1]];
            assert_eq!(counts(0), [0, 0]);
            assert_eq!(counts(WHOLE / 6), [0, 2]);
            assert_eq!(counts(WHOLE / 3 + 1), [0, 5]);
            assert_eq!(counts(WHOLE / 3 * 2), [2, 5]);
            assert_eq!(counts(WHOLE), [5, 5]);
        });
    }

    #[test]
    fn ops_are_counted_by_kind() {
        with_kinds(|kinds| {
            let ops = [1, 2, 3, 6, 10].map(OpId);
            assert_eq!(kinds.counts_of(ops.into_iter())[..3], [1, 3, 0]);
        });
    }
}
