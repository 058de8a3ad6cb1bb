//! Compares the linear program for plans with repeats with optima worked out by hand.
#![cfg(feature = "highs")]
#![allow(clippy::unwrap_used, reason = "what fails here fails the test")]

use lp_bound::{Options, period_ns, period_with_repeats_ns};
use planner_core::{Kind, Machine, MachineParameters};
use workloads::OwnedGraph;

fn machine(bytes_per_s: u64) -> Machine {
    Machine::new(
        MachineParameters::new()
            .with_device_bytes(1 << 40)
            .with_host_bytes(1 << 40)
            .with_chunk_bytes(1)
            .with_h2d_bytes_per_s(bytes_per_s)
            .with_d2h_bytes_per_s(bytes_per_s),
    )
    .unwrap()
}

/// Links of one byte per nanosecond, and of one byte per second.
const FAST: u64 = 1_000_000_000;
const NONE: u64 = 1;

fn bound_ns(graph: &OwnedGraph, budget_bytes: u64, bytes_per_s: u64) -> u64 {
    let graph = graph.graph().unwrap();
    period_with_repeats_ns(&graph, &machine(bytes_per_s), budget_bytes).unwrap().period_ns
}

#[track_caller]
fn assert_close(found_ns: u64, optimum_ns: u64) {
    assert!(found_ns <= optimum_ns && found_ns + 3 >= optimum_ns, "{found_ns} of {optimum_ns}");
}

/// A row of values, each made of the one before, and read again from the last to the first.
fn row(values: usize, bytes: u64, time_ns: u64, is_repeatable: bool) -> OwnedGraph {
    let mut graph = OwnedGraph::new("row");
    let mut made = Vec::new();
    for _ in 0..values {
        let value = graph.push_tensor("value", bytes, Kind::Temporary);
        let reads: Vec<_> = made.last().copied().into_iter().collect();
        let op = graph.push_op("make", time_ns, 0, &reads, &[value]);
        if is_repeatable {
            graph.set_repeatable(op);
        }
        made.push(value);
    }
    for &value in made.iter().rev() {
        graph.push_op("use", time_ns, 0, &[value], &[]);
    }
    graph
}

#[test]
fn without_repeatable_ops_it_is_the_bound_without_repeats() {
    let graph = row(4, 1000, 100, false);
    let once_ns = period_ns(&graph.graph().unwrap(), &machine(FAST), 2000, Options::default());
    assert_eq!(bound_ns(&graph, 2000, FAST), once_ns.unwrap().period_ns);
}

#[test]
fn what_fits_costs_nothing() {
    assert_eq!(bound_ns(&row(4, 1000, 100, true), 4000, FAST), 800);
}

#[test]
fn what_cannot_move_is_made_again() {
    // The first of two values is away while the second is made and used.
    let mut graph = OwnedGraph::new("two");
    let values = [6000, 6000].map(|bytes| graph.push_tensor("value", bytes, Kind::Temporary));
    for value in values {
        let op = graph.push_op("make", 500, 0, &[], &[value]);
        graph.set_repeatable(op);
    }
    graph.push_op("use", 100, 0, &[values[1]], &[]);
    graph.push_op("use", 100, 0, &[values[0]], &[]);
    assert_close(bound_ns(&graph, 6000, NONE), 1200 + 500);
    // In parts: of the first value a third has to be made again.
    assert_close(bound_ns(&graph, 10_000, NONE), 1200 + 500 / 3);
}

#[test]
fn a_repeat_needs_what_it_reads() {
    // The second op is cheap; what it reads is gone as well, and takes longer to make.
    let mut graph = OwnedGraph::new("chain");
    let [first, second, other] =
        [4000, 6000, 10_000].map(|bytes| graph.push_tensor("value", bytes, Kind::Temporary));
    for (time_ns, reads, value) in [(900, &[][..], first), (50, &[first], second)] {
        let op = graph.push_op("make", time_ns, 0, reads, &[value]);
        graph.set_repeatable(op);
    }
    graph.push_op("other", 1000, 0, &[], &[other]);
    graph.push_op("use", 100, 0, &[second], &[]);
    let compute_ns = 900 + 50 + 1000 + 100;
    assert_close(bound_ns(&graph, 10_000, NONE), compute_ns + 950);
    // What is read fits, and is all that it takes to make the second one.
    assert_close(bound_ns(&graph, 14_000, NONE), compute_ns + 50);
}

#[test]
fn one_repeat_gives_all_that_its_op_writes() {
    let mut graph = OwnedGraph::new("twins");
    let [left, right, other] =
        [3000, 3000, 6000].map(|bytes| graph.push_tensor("value", bytes, Kind::Temporary));
    let op = graph.push_op("make", 600, 0, &[], &[left, right]);
    graph.set_repeatable(op);
    graph.push_op("other", 1000, 0, &[], &[other]);
    graph.push_op("use", 100, 0, &[left, right], &[]);
    assert_close(bound_ns(&graph, 6000, NONE), 1700 + 600);
}

/// Three values, of which one fits beside the one that is made: the shortest plan, found by trying
/// all. Kept are the last made; the others are made again from the first on.
#[test]
fn no_row_is_shorter() {
    for values in 3..7 {
        let graph = row(values, 1000, 100, true);
        for fits in 2..=values as u64 {
            let found_ns = bound_ns(&graph, 1000 * fits, NONE);
            let best_ns = shortest::row_ns(values, fits as usize, 100);
            assert!(found_ns <= best_ns, "{values} values, {fits} fit: {found_ns} > {best_ns}");
            let compute_ns = 200 * values as u64;
            let needed = (fits as usize) < values;
            assert!(!needed || found_ns > compute_ns, "{values} values, {fits} fit: {found_ns}");
        }
    }
}

/// All plans of a row without transfers.
mod shortest {
    use std::collections::{BTreeMap, BTreeSet};

    /// What is on the device, as bits, and how many first launches are done.
    type State = (u32, usize);

    /// The shortest period: a search over all launches and evictions by their total time.
    pub(super) fn row_ns(values: usize, fits: usize, time_ns: u64) -> u64 {
        let mut best = BTreeMap::from([((0, 0), 0)]);
        let mut queue = BTreeSet::from([(0, (0, 0))]);
        while let Some((at_ns, state)) = queue.pop_first() {
            if state.1 == 2 * values {
                return at_ns;
            }
            for (cost_ns, next) in steps(state, values, fits, time_ns) {
                let next_ns = at_ns + cost_ns;
                if best.get(&next).is_none_or(|&known_ns| next_ns < known_ns) {
                    best.insert(next, next_ns);
                    queue.insert((next_ns, next));
                }
            }
        }
        unreachable!("two values always fit")
    }

    fn steps((held, done): State, values: usize, fits: usize, time_ns: u64) -> Vec<(u64, State)> {
        let evicts = (0..values).filter(|at| held >> at & 1 == 1);
        let mut steps: Vec<_> = evicts.map(|at| (0, (held & !(1 << at), done))).collect();
        let made = done.min(values);
        // The next first launch of a maker, and repeats of the earlier ones.
        for at in 0..=made.min(values - 1) {
            let is_next = at == done;
            let reads_held = at == 0 || held >> (at - 1) & 1 == 1;
            let after = held | 1 << at;
            if reads_held && after.count_ones() as usize <= fits && (is_next || at < made) {
                steps.push((time_ns, (after, done + usize::from(is_next))));
            }
        }
        if done >= values && held >> (2 * values - 1 - done) & 1 == 1 {
            steps.push((time_ns, (held, done + 1)));
        }
        steps
    }
}
