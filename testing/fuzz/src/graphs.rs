//! Graphs with sizes and times at the edges, and arrays that are none.

use crate::numbers::{numbers, numbers_u32};
use planner_core::{Kind, Op, Tensor, TensorId};
use proptest::bool::weighted;
use proptest::collection::vec;
use proptest::option;
use proptest::prelude::*;
use proptest::sample::select;
use workloads::OwnedGraph;

/// Graphs of every shape, many of them with absurd sizes and times, some of them wide.
pub fn graphs() -> impl Strategy<Value = OwnedGraph> {
    prop_oneof![
        12 => (conformance::graphs::graphs(), vec(resizes(), 0..=6)).prop_map(|(graph, resizes)| {
            resizes.into_iter().fold(graph, resized)
        }),
        1 => (1..=3000u32, numbers()).prop_map(|(width, bytes)| wide(width, bytes)),
    ]
}

/// A new size or time for something, or something new.
#[derive(Clone, Copy, Debug)]
pub enum Resize {
    /// Bytes of a tensor.
    Tensor(usize, u64),
    /// A further input, which no op touches.
    Input(u64),
    /// Bytes of an op's workspace.
    Workspace(usize, u64),
    /// Time of an op.
    Time(usize, u64),
    /// All bytes, doubled this many times.
    Bytes(u32),
    /// All times, doubled this many times.
    Times(u32),
}

/// Any of them.
pub fn resizes() -> impl Strategy<Value = Resize> {
    let at = 0..64usize;
    prop_oneof![
        (at.clone(), numbers()).prop_map(|(at, bytes)| Resize::Tensor(at, bytes)),
        numbers().prop_map(Resize::Input),
        (at.clone(), numbers()).prop_map(|(at, bytes)| Resize::Workspace(at, bytes)),
        (at, numbers()).prop_map(|(at, ns)| Resize::Time(at, ns)),
        (0..=56u32).prop_map(Resize::Bytes),
        (0..=56u32).prop_map(Resize::Times),
    ]
}

/// The graph with a new size or time, where it is a graph then.
#[must_use]
pub fn resized(graph: OwnedGraph, resize: Resize) -> OwnedGraph {
    let mut changed = graph.clone();
    let (tensors, ops) = (graph.tensors.len().max(1), graph.ops.len().max(1));
    match resize {
        Resize::Tensor(at, bytes) => {
            changed.tensors.iter_mut().skip(at % tensors).take(1).for_each(|it| it.bytes = bytes);
        }
        Resize::Input(bytes) => {
            changed.push_tensor("untouched", bytes, Kind::Input);
        }
        Resize::Workspace(at, bytes) => {
            let mut ops = changed.ops.iter_mut().skip(at % ops);
            ops.by_ref().take(1).for_each(|op| op.workspace_bytes = bytes);
        }
        Resize::Time(at, ns) => {
            changed.ops.iter_mut().skip(at % ops).take(1).for_each(|op| op.time_ns = ns);
        }
        Resize::Bytes(doublings) => {
            changed.tensors.iter_mut().for_each(|it| it.bytes = doubled(it.bytes, doublings));
            let ops = changed.ops.iter_mut();
            ops.for_each(|op| op.workspace_bytes = doubled(op.workspace_bytes, doublings));
        }
        Resize::Times(doublings) => {
            changed.ops.iter_mut().for_each(|op| op.time_ns = doubled(op.time_ns, doublings));
        }
    }
    if changed.graph().is_ok() { changed } else { graph }
}

/// A number doubled this many times, or the largest number if that overflows.
#[must_use]
pub const fn doubled(number: u64, doublings: u32) -> u64 {
    number.saturating_mul(1 << doublings)
}

/// One op that reads and one that updates everything.
fn wide(width: u32, bytes: u64) -> OwnedGraph {
    let mut graph = OwnedGraph::new("wide");
    let bytes = (bytes / u64::from(width)).max(1);
    let states: Vec<TensorId> =
        (0..width).map(|_| graph.push_tensor("state", bytes, Kind::State)).collect();
    let sum = graph.push_tensor("sum", 1, Kind::Temporary);
    graph.push_op("read", 5, 0, &states, &[sum]);
    graph.push_op("update", 5, 0, &states, &states);
    graph
}

/// Arrays that a graph might be made of, and mostly cannot.
#[derive(Clone, Debug)]
pub struct Arrays {
    /// Tensors.
    pub tensors: Vec<Tensor>,
    /// Ops.
    pub ops: Vec<Op>,
    /// Operands.
    pub operands: Vec<TensorId>,
}

/// Any arrays.
pub fn arrays() -> impl Strategy<Value = Arrays> {
    let kind = select(vec![Kind::State, Kind::Input, Kind::Temporary, Kind::Output]);
    let tensor = (numbers(), kind).prop_map(|(bytes, kind)| Tensor::new(bytes, kind));
    let run = (numbers_u32(), numbers_u32(), numbers_u32());
    let marks = (any::<bool>(), option::weighted(0.3, numbers()), weighted(0.3));
    let op = (numbers(), numbers(), run, marks).prop_map(
        |(time_ns, workspace_bytes, (first_operand, reads, writes), marks)| {
            let (repeatable, host_ns, collective) = marks;
            Op::new(time_ns)
                .with_workspace_bytes(workspace_bytes)
                .with_first_operand(first_operand)
                .with_reads(reads)
                .with_writes(writes)
                .with_repeatable(repeatable)
                .with_host_ns(host_ns)
                .with_collective(collective)
        },
    );
    let operands = vec(numbers_u32().prop_map(TensorId), 0..=12);
    (vec(tensor, 0..=6), vec(op, 0..=6), operands).prop_map(|(tensors, ops, operands)| Arrays {
        tensors,
        ops,
        operands,
    })
}
