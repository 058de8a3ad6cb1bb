//! Graphs as chains.

use super::{bytes, grows};
use planner_core::Kind;
use planner_core::planner::{Request, Strategy, Weights};
use serde_json::json;
use spillway::planning;
use std::hint::black_box;
use workloads::format::read_chain;
use workloads::{OwnedGraph, OwnedMachine};
use zoo::layers::chain;

/// A chain of `size` layers, each with a weight.
fn layers(size: usize) -> (OwnedGraph, OwnedMachine) {
    let layer = json!({
        "forward_ns": 1, "backward_ns": 2, "weight_bytes": 1024, "activation_bytes": 1024,
        "optimizer_bytes": 1024,
    });
    let chain = read_chain(&bytes(&json!({
        "format": "spillway.chain.v1", "name": "c", "device_bytes": 1u64 << 40,
        "bandwidth_bytes_per_s": 1 << 30, "input_bytes": 1024, "layers": vec![layer; size],
    })))
    .unwrap();
    (chain.graph(), chain.machine().unwrap())
}

#[test]
fn least_memory_of_chains() {
    for strategy in [Strategy::Weights(Weights::default()), Strategy::LayerToLayer] {
        grows("least memory", layers, |(graph, machine)| {
            let (graph, machine) = (&graph.graph().unwrap(), &machine.machine);
            let request = Request { graph, machine, budget_bytes: machine.device_bytes };
            black_box(planning::min_feasible(&request, strategy).unwrap());
        });
    }
}

/// Two layers, of which the second has `size` operands of each kind.
fn wide(size: usize) -> (OwnedGraph, OwnedMachine) {
    let mut graph = OwnedGraph::new("g");
    let mut push = |count: usize, kind| -> Vec<_> {
        (0..count).map(|at| graph.push_tensor(format!("{kind:?}{at}"), 1, kind)).collect()
    };
    let (states, values) = (push(size, Kind::State), push(size, Kind::Temporary));
    let first = push(1, Kind::Temporary);
    graph.push_op("first", 1, 0, &[], &first);
    graph.push_op("forward", 1, 0, &[&*first, &*states].concat(), &values);
    graph.push_op("backward", 1, 0, &[&*values, &*states].concat(), &states);
    (graph, workloads::machines::builtin("v100-pcie3").unwrap())
}

#[test]
fn chains_of_wide_layers() {
    grows("chain", wide, |(graph, machine)| {
        black_box(chain(graph, machine, false).unwrap());
    });
}
