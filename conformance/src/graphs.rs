//! Small random graphs and machines, and orders in which the ops may run.

use planner_core::{Graph, Kind, Machine, MachineParameters, OpId, TensorId};
use proptest::collection::vec;
use proptest::option;
use proptest::prelude::*;
use proptest::sample::select;
use std::ops::RangeInclusive;
use workloads::OwnedGraph;

/// Checks a generated graph.
///
/// # Panics
/// If the graph is not valid. The generators of this module make only valid graphs.
pub(crate) fn checked(graph: &OwnedGraph) -> Graph<'_> {
    match graph.graph() {
        Ok(graph) => graph,
        Err(error) => panic!("{error}"),
    }
}

/// How an op uses a tensor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Access {
    Read,
    Overwrite,
    Update,
}

/// One op of a random graph: its time, its workspace, and the tensors that it uses.
type OpSeed = (u64, u64, Vec<(usize, Access)>);

/// Whether a collective touches a tensor.
#[must_use]
pub fn is_exchanged(graph: &Graph<'_>, tensor: TensorId) -> bool {
    let mut collectives = graph.op_ids().filter(|&op| graph.op(op).collective);
    collectives.any(|op| graph.touches(op).any(|touched| touched == tensor))
}

/// Random graphs of every shape. A third of these graphs may have collectives; the others are graphs
/// of [`local_graphs`].
pub fn graphs() -> impl Strategy<Value = OwnedGraph> {
    let collective = prop_oneof![
        2 => Just(vec![false; 12]).boxed(),
        1 => vec(proptest::bool::weighted(0.4), 12).boxed(),
    ];
    (local_graphs(), collective).prop_map(|(mut graph, collective)| {
        for (op, collective) in graph.ops.iter_mut().zip(collective) {
            op.collective = collective && op.host_ns.is_none();
        }
        graph
    })
}

/// Random graphs of every shape, without collectives: graphs of [`small_graphs`], and training steps
/// in the usual or any other order. Any op may be repeatable, and any op that writes no input may
/// have a time on the host.
pub fn local_graphs() -> impl Strategy<Value = OwnedGraph> {
    let graphs = prop_oneof![
        6 => small_graphs().boxed(),
        1 => training_graphs(1..=4).boxed(),
        1 => untidy_graphs(1..=4).boxed(),
    ];
    let promises =
        (vec(proptest::bool::weighted(0.7), 12), vec(option::weighted(0.4, op_ns()), 12));
    (graphs, promises).prop_map(|(mut graph, (repeatable, host_ns))| {
        for (op, repeatable) in graph.ops.iter_mut().zip(repeatable) {
            op.repeatable = repeatable;
        }
        for (op, host_ns) in host_ns.into_iter().enumerate().take(graph.ops.len()) {
            let written = checked(&graph).writes(OpId(op as u32));
            let is_input = |&tensor: &TensorId| graph.tensors[tensor.index()].kind == Kind::Input;
            graph.ops[op].host_ns = host_ns.filter(|_| !written.iter().any(is_input));
        }
        graph
    })
}

/// Graphs of 1 to 12 ops and 1 to 10 tensors of all kinds, from a few bytes to several chunks. They
/// have updates in place, overwrites, tensors that no op touches, inputs that are never read or are
/// written after their last read, and ops that take no time.
pub fn small_graphs() -> impl Strategy<Value = OwnedGraph> {
    let kind = select(vec![Kind::State, Kind::Input, Kind::Temporary, Kind::Output]);
    let access = select(vec![Access::Read, Access::Overwrite, Access::Update]);
    let workspace_bytes = prop_oneof![3 => Just(0), 1 => 1..=1500u64];
    let op = (op_ns(), workspace_bytes, vec((any::<u8>().prop_map(usize::from), access), 0..=4));
    (vec((tensor_bytes(), kind), 1..=10), vec(op, 1..=12))
        .prop_map(|(tensors, ops)| build(&tensors, &ops))
}

fn op_ns() -> impl Strategy<Value = u64> {
    prop_oneof![1 => Just(0), 5 => 1..=3000u64]
}

fn tensor_bytes() -> impl Strategy<Value = u64> {
    prop_oneof![
        2 => 1..=64u64,
        2 => 65..=1024u64,
        2 => 1025..=4096u64,
        1 => (1..=16u64).prop_map(|chunks| chunks * 256),
    ]
}

/// Makes a valid graph from any numbers. Ids wrap around, and an op names no tensor twice. If an op
/// would read a temporary or an output before any op has written it, the op overwrites it instead.
/// An output that no op writes becomes a temporary.
fn build(tensors: &[(u64, Kind)], ops: &[OpSeed]) -> OwnedGraph {
    let mut graph = OwnedGraph::default();
    for &(bytes, kind) in tensors {
        graph.push_tensor("tensor", bytes, kind);
    }
    let mut has_value: Vec<bool> = tensors.iter().map(|&(_, kind)| !kind.is_made()).collect();
    for (time_ns, workspace_bytes, accesses) in ops {
        let (mut reads, mut writes) = (Vec::new(), Vec::new());
        for &(pick, access) in accesses {
            let index = pick % tensors.len();
            let tensor = TensorId(index as u32);
            if reads.contains(&tensor) || writes.contains(&tensor) {
                continue;
            }
            if has_value[index] && access != Access::Overwrite {
                reads.push(tensor);
            }
            if !has_value[index] || access != Access::Read {
                writes.push(tensor);
            }
        }
        for tensor in &writes {
            has_value[tensor.index()] = true;
        }
        graph.push_op("op", *time_ns, *workspace_bytes, &reads, &writes);
    }
    for (tensor, has_value) in graph.tensors.iter_mut().zip(has_value) {
        if !has_value && tensor.kind == Kind::Output {
            tensor.kind = Kind::Temporary;
        }
    }
    graph
}

/// One layer of a network in training.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Layer {
    /// Size of its weight, of the weight's gradient and of its momentum.
    pub weight_bytes: u64,
    /// Size of its output, and of the output's gradient.
    pub activation_bytes: u64,
    /// Time of the forward op. The backward op takes twice as long, the update a quarter.
    pub forward_ns: u64,
    /// Workspace of the backward op.
    pub workspace_bytes: u64,
    /// Whether its update keeps a momentum.
    pub has_momentum: bool,
}

/// Training steps with a number of layers from `layers`. Sizes differ widely between layers.
pub fn training_graphs(layers: RangeInclusive<usize>) -> impl Strategy<Value = OwnedGraph> {
    let skewed_bytes = || (0..=5u32, 1..=64u64).prop_map(|(doublings, bytes)| bytes << doublings);
    let workspace_bytes = prop_oneof![1 => Just(0), 1 => skewed_bytes()];
    let layer = (skewed_bytes(), skewed_bytes(), op_ns(), workspace_bytes, any::<bool>()).prop_map(
        |(weight_bytes, activation_bytes, forward_ns, workspace_bytes, has_momentum)| Layer {
            weight_bytes,
            activation_bytes,
            forward_ns,
            workspace_bytes,
            has_momentum,
        },
    );
    (1..=2048u64, vec(layer, layers))
        .prop_map(|(input_bytes, layers)| training_graph(input_bytes, &layers))
}

/// Training steps in any order that keeps the dependencies.
pub fn untidy_graphs(layers: RangeInclusive<usize>) -> impl Strategy<Value = OwnedGraph> {
    let keys = vec(any::<u16>(), 3 * layers.end());
    (training_graphs(layers), keys)
        .prop_map(|(graph, keys)| graph.in_order(&legal_order(&checked(&graph), &keys)))
}

/// A training step: all layers forward, then each layer from the last to the first backward,
/// followed at once by its update.
#[must_use]
pub fn training_graph(input_bytes: u64, layers: &[Layer]) -> OwnedGraph {
    let mut graph = OwnedGraph::default();
    let input = graph.push_tensor("input", input_bytes, Kind::Input);
    let mut activations = vec![input];
    let mut weights = Vec::new();
    for layer in layers {
        let weight = graph.push_tensor("weight", layer.weight_bytes, Kind::State);
        let from = activations[activations.len() - 1];
        let to = graph.push_tensor("activation", layer.activation_bytes, Kind::Temporary);
        graph.push_op("forward", layer.forward_ns, 0, &[from, weight], &[to]);
        activations.push(to);
        weights.push(weight);
    }
    let mut gradient = activations[layers.len()];
    for (at, layer) in layers.iter().enumerate().rev() {
        let weight_gradient =
            graph.push_tensor("weight gradient", layer.weight_bytes, Kind::Temporary);
        let reads = [activations[at], weights[at], gradient];
        let mut writes = vec![weight_gradient];
        if at > 0 {
            gradient =
                graph.push_tensor("gradient", layers[at - 1].activation_bytes, Kind::Temporary);
            writes.push(gradient);
        }
        graph.push_op("backward", 2 * layer.forward_ns, layer.workspace_bytes, &reads, &writes);
        let mut updated = vec![weights[at]];
        if layer.has_momentum {
            updated.push(graph.push_tensor("momentum", layer.weight_bytes, Kind::State));
        }
        let reads: Vec<TensorId> = updated.iter().copied().chain([weight_gradient]).collect();
        graph.push_op("update", layer.forward_ns / 4, 0, &reads, &updated);
    }
    graph
}

/// Machines with small chunks and more memory than random graphs need. Each link has its own speed,
/// which is about as fast as random ops.
pub fn machines() -> impl Strategy<Value = Machine> {
    let bytes_per_s = || 200_000_000..=5_000_000_000u64;
    let latency_ns = prop_oneof![1 => Just(0), 2 => 1..=400u64];
    (select(vec![256, 512, 1024, 64]), bytes_per_s(), bytes_per_s(), latency_ns).prop_map(
        |(chunk_bytes, h2d_bytes_per_s, d2h_bytes_per_s, transfer_latency_ns)| {
            Machine::new(
                MachineParameters::new()
                    .with_device_bytes(1 << 30)
                    .with_host_bytes(1 << 30)
                    .with_chunk_bytes(chunk_bytes)
                    .with_h2d_bytes_per_s(h2d_bytes_per_s)
                    .with_d2h_bytes_per_s(d2h_bytes_per_s)
                    .with_transfer_latency_ns(transfer_latency_ns),
            )
            .expect("no speed and no chunk is zero")
        },
    )
}

/// An order of all ops that keeps the dependencies. The next op is always the op with the least key
/// among the ops that may run, and the first of them if keys are equal. Missing keys are 0, so
/// without keys the order is the graph's own.
#[must_use]
pub fn legal_order(graph: &Graph<'_>, keys: &[u16]) -> Vec<OpId> {
    let key = |op: OpId| keys.get(op.index()).map_or(0, |&key| key);
    let mut waiting: Vec<OpId> = graph.op_ids().collect();
    let mut order = Vec::new();
    while !waiting.is_empty() {
        let ready = (0..waiting.len())
            .filter(|&at| waiting[..at].iter().all(|&op| !conflict(graph, op, waiting[at])));
        let next = ready.min_by_key(|&at| key(waiting[at])).unwrap_or(0);
        order.push(waiting.remove(next));
    }
    order
}

/// Whether one op writes a tensor that the other touches.
fn conflict(graph: &Graph<'_>, one: OpId, other: OpId) -> bool {
    let writes_into = |writer, toucher| {
        graph.touches(toucher).any(|tensor| graph.writes(writer).contains(&tensor))
    };
    writes_into(one, other) || writes_into(other, one)
}
