//! The bounds that cost next to nothing, against figures worked out by hand.
#![allow(clippy::unwrap_used, reason = "what fails here fails the test")]

use planner_core::bounds::BoundOrder;
use planner_core::{Kind, Machine, MachineParameters};
use spillway::planning;
use workloads::OwnedGraph;

/// One byte a nanosecond each way.
const MACHINE: Machine = {
    let Ok(machine) = Machine::new(
        MachineParameters::new()
            .with_device_bytes(1 << 40)
            .with_host_bytes(1 << 40)
            .with_chunk_bytes(1 << 10)
            .with_h2d_bytes_per_s(1_000_000_000)
            .with_d2h_bytes_per_s(1_000_000_000),
    ) else {
        panic!("the machine is not sound")
    };
    machine
};

fn bound_ns(graph: &OwnedGraph, budget_bytes: u64, order: BoundOrder) -> u64 {
    planning::lower_bound_ns(&graph.graph().unwrap(), &MACHINE, budget_bytes, order).unwrap()
}

const LAYERS: u64 = 100;

/// Forward and backward through a chain, with other work around every op but the first one
/// backward.
fn chain(other: impl Fn(&mut OwnedGraph, &mut dyn FnMut(&mut OwnedGraph))) -> OwnedGraph {
    let mut graph = OwnedGraph::new("chain");
    let mut values = vec![graph.push_tensor("input", 7, Kind::Input)];
    for _ in 0..LAYERS {
        let value = graph.push_tensor("value", 1000, Kind::Temporary);
        other(&mut graph, &mut |graph| {
            graph.push_op("forward", 1, 0, &[*values.last().unwrap()], &[value]);
        });
        values.push(value);
    }
    let mut gradient = graph.push_tensor("gradient", 10, Kind::Temporary);
    other(&mut graph, &mut |graph| {
        graph.push_op("loss", 1, 0, &[*values.last().unwrap()], &[gradient]);
    });
    for (at, pair) in values.windows(2).rev().enumerate() {
        let next = graph.push_tensor("gradient", 10, Kind::Temporary);
        let mut backward = |graph: &mut OwnedGraph| {
            graph.push_op("backward", 1, 3, &[pair[0], pair[1], gradient], &[next]);
        };
        match at {
            0 => backward(&mut graph),
            _ => other(&mut graph, &mut backward),
        }
        gradient = next;
    }
    graph
}

/// What is held while the first op backward runs, with its workspace: all values and two
/// gradients. The input is there as well, and comes once more for what of it is not.
const HELD_BYTES: u64 = 3 + 1000 * LAYERS + 2 * 10;

/// What has left by then and comes back later; the input leaves for nothing.
const CROSSINGS_NS: u64 = (HELD_BYTES - 5000) + 1 + (HELD_BYTES + 7 - 5000);

#[test]
fn activations_that_outlive_the_forward_pass_cross_both_links_one_after_the_other() {
    let graph = chain(|graph, op| op(graph));
    for order in [BoundOrder::Any, BoundOrder::Given] {
        assert_eq!(bound_ns(&graph, 5000, order), CROSSINGS_NS);
        assert_eq!(bound_ns(&graph, 1 << 20, order), 2 * LAYERS + 1);
    }
}

/// More ops than are looked at together, and the worst of them is not where most is alive in
/// the given order.
#[test]
fn the_worst_op_is_found_among_many() {
    let graph = chain(|graph, op| {
        let elsewhere = graph.push_tensor("elsewhere", 5000, Kind::Temporary);
        graph.push_op("make", 1, 0, &[], &[elsewhere]);
        op(graph);
        graph.push_op("use", 1, 0, &[elsewhere], &[]);
    });
    assert_eq!(bound_ns(&graph, 5000, BoundOrder::Any), CROSSINGS_NS);
}

#[test]
fn what_another_order_avoids_binds_the_given_one_alone() {
    let mut graph = OwnedGraph::new("pairs");
    let values: Vec<_> =
        (0..80).map(|_| graph.push_tensor("value", 1000, Kind::Temporary)).collect();
    for &value in &values {
        graph.push_op("make", 1, 0, &[], &[value]);
    }
    for &value in &values {
        graph.push_op("use", 1, 0, &[value], &[]);
    }
    // Both ways, around the first op that uses.
    assert_eq!(bound_ns(&graph, 3000, BoundOrder::Given), (80_000 - 3000) + 1 + (80_000 - 3000));
    assert_eq!(bound_ns(&graph, 3000, BoundOrder::Any), 160);
}

/// Overwritten unread, a state's old value is dead, so that it need not be anywhere.
#[test]
fn states_are_somewhere_unless_they_are_dead() {
    let mut graph = OwnedGraph::new("states");
    let read = graph.push_tensor("read", 5000, Kind::State);
    let updated = graph.push_tensor("updated", 3000, Kind::State);
    graph.push_op("read", 1, 0, &[read], &[]);
    graph.push_op("update", 1, 0, &[updated], &[updated]);
    for bytes in [900, 800] {
        let overwritten = graph.push_tensor("overwritten", bytes, Kind::State);
        graph.push_op("overwrite", 1, 0, &[], &[overwritten]);
        graph.push_op("read", 1, 0, &[overwritten], &[]);
    }
    assert_eq!(bound_ns(&graph, 6000, BoundOrder::Given), 5000 + 3000 + 900 - 6000);
    assert_eq!(bound_ns(&graph, 6000, BoundOrder::Any), 5000 + 3000 + 900 - 6000);
}

/// What an op overwrites unread is there, and its old value need not be anywhere.
#[test]
fn what_overwrites_an_input_has_no_copy() {
    let mut graph = OwnedGraph::new("input");
    let input = graph.push_tensor("input", 4000, Kind::Input);
    let [first, second] = [(); 2].map(|()| graph.push_tensor("value", 10, Kind::Temporary));
    graph.push_op("read", 1, 0, &[input], &[]);
    graph.push_op("overwrite", 1, 0, &[], &[input, first]);
    graph.push_op("between", 1, 3000, &[first], &[second]);
    graph.push_op("use", 1, 0, &[input, second], &[]);
    // Uploads are a thousand times as fast: else the arrivals alone take longer.
    let machine = Machine::new((*MACHINE).with_h2d_bytes_per_s(1_000_000_000_000)).unwrap();
    let graph = graph.graph().unwrap();
    let bound_ns = planning::lower_bound_ns(&graph, &machine, 5000, BoundOrder::Any).unwrap();
    let (download_ns, upload_ns) = (4000 + 3000 + 2 * 10 - 5000, 3);
    // It leaves after the op that overwrites it, and comes back after the next.
    assert_eq!(bound_ns, 1 + (1 + download_ns) + (1 + upload_ns) + 1);
}

/// A long op early in the forward pass, and one late in the backward pass: what outlives the
/// first part has left before the ops between, and what the last part reads comes after them.
#[test]
fn compute_lies_between_the_crossings_of_what_is_made_before_it_and_read_after_it() {
    let mut graph = OwnedGraph::new("valley");
    let [large, small, other] =
        [9000, 10, 10].map(|bytes| graph.push_tensor("value", bytes, Kind::Temporary));
    graph.push_op("make", 5, 0, &[], &[large, small]);
    graph.push_op("long", 70_000, 4000, &[small], &[other]);
    graph.push_op("use", 6, 0, &[large, other], &[]);
    let away_ns = 9000 + 10 + 10 + 4000 - 9500;
    for order in [BoundOrder::Any, BoundOrder::Given] {
        assert_eq!(bound_ns(&graph, 9500, order), 5 + away_ns + 70_000 + away_ns + 6);
    }
}

/// A state that is read before and after an op comes back in this iteration, but need not
/// leave in it.
#[test]
fn states_come_back_between_their_readers() {
    let mut graph = OwnedGraph::new("state");
    let weight = graph.push_tensor("weight", 6000, Kind::State);
    let values = [(); 3].map(|()| graph.push_tensor("value", 500, Kind::Temporary));
    graph.push_op("first", 10, 0, &[weight], &[values[0]]);
    graph.push_op("middle", 10, 5000, &[values[0]], &[values[1]]);
    graph.push_op("last", 10, 0, &[values[1], weight], &[values[2]]);
    let absent_ns = 6000 + 2 * 500 + 5000 - 8000;
    assert_eq!(bound_ns(&graph, 8000, BoundOrder::Any), 10 + (10 + absent_ns) + 10);
}

fn repeats_ns(graph: &OwnedGraph, budget_bytes: u64, order: BoundOrder) -> u64 {
    let graph = graph.graph().unwrap();
    planning::lower_bound_repeats_ns(&graph, &MACHINE, budget_bytes, order).unwrap()
}

/// A value that is cheap to make again is away while another op takes all memory.
fn kept_value(is_repeatable: bool) -> OwnedGraph {
    let mut graph = OwnedGraph::new("kept");
    let [kept, twin, other] =
        [4000, 2000, 10].map(|bytes| graph.push_tensor("value", bytes, Kind::Temporary));
    let make = graph.push_op("make", 1000, 0, &[], &[kept, twin]);
    let middle = graph.push_op("middle", 4000, 4990, &[], &[other]);
    graph.push_op("use", 1000, 0, &[kept, twin, other], &[]);
    if is_repeatable {
        graph.set_repeatable(make);
        graph.set_repeatable(middle);
    }
    graph
}

/// Of 4000 bytes that do not fit, half of what is not made again leaves in time; the rest takes a
/// sixth of a nanosecond a byte: `4000 = (2000 + x) / 2 + 6 x`.
#[test]
fn what_is_away_moves_or_is_made_again() {
    let in_given = repeats_ns(&kept_value(true), 7000, BoundOrder::Given);
    assert_eq!(in_given, 6000 + 461);
    // With no link to speak of, all of it is made again.
    let slow = Machine::new((*MACHINE).with_h2d_bytes_per_s(1).with_d2h_bytes_per_s(1));
    let graph = kept_value(true);
    let bound_ns = planning::lower_bound_repeats_ns(
        &graph.graph().unwrap(),
        &slow.unwrap(),
        7000,
        BoundOrder::Given,
    );
    assert_eq!(bound_ns.unwrap(), 6000 + 666);
    // Memory for everything, and no op that may run again.
    assert_eq!(repeats_ns(&kept_value(true), 11_000, BoundOrder::Given), 6000);
    let once = kept_value(false);
    assert_eq!(repeats_ns(&once, 7000, BoundOrder::Given), bound_ns_once(&once));
}

fn bound_ns_once(graph: &OwnedGraph) -> u64 {
    bound_ns(graph, 7000, BoundOrder::Given)
}

/// States and inputs cannot be made again: what is read of them is uploaded once an iteration.
#[test]
fn what_no_op_makes_comes_over_the_link() {
    let mut graph = OwnedGraph::new("weights");
    let weights = ["a", "b"].map(|name| graph.push_tensor(name, 8000, Kind::State));
    let value = graph.push_tensor("value", 100, Kind::Temporary);
    let first = graph.push_op("first", 1000, 0, &[weights[0]], &[value]);
    graph.push_op("second", 1000, 0, &[weights[1], value], &[]);
    graph.set_repeatable(first);
    for order in [BoundOrder::Any, BoundOrder::Given] {
        // Without the small value, which costs as good as nothing.
        let bound_ns = repeats_ns(&graph, 9000, order);
        assert!((6990..7100).contains(&bound_ns), "{order:?}: {bound_ns}");
    }
}

/// Two layers that each gather their weight first.
#[test]
fn collectives_run_beside_compute_in_every_bound() {
    let mut graph = OwnedGraph::new("gathers");
    let rows = graph.push_tensor("rows", 1000, Kind::State);
    for layer in 0..2 {
        let weight = graph.push_tensor("weight", 1000, Kind::Temporary);
        let gather = graph.push_op("gather", 4000 + layer, 0, &[rows], &[weight]);
        graph.set_collective(gather);
        graph.set_repeatable(gather);
        graph.push_op("layer", 3000, 0, &[weight], &[]);
    }
    for order in [BoundOrder::Any, BoundOrder::Given] {
        assert_eq!(bound_ns(&graph, 2000, order), 8001, "the sum of the gathers");
        assert_eq!(repeats_ns(&graph, 2000, order), 8001, "the sum of the gathers");
    }
}
