//! Weight offloading: table 1 of the paper.
#![allow(clippy::unwrap_used, reason = "what fails here fails the test")]

#[path = "weights/common.rs"]
mod common;
#[path = "weights/naive.rs"]
mod naive;

use common::{ALL, BETTER, PUBLISHED, plan, run};
use planner_core::planner::{Auto, Strategy};
use std::process::ExitCode;
use test_harness::shared;
use workloads::{OwnedChain, format};

fn main() -> ExitCode {
    test_harness::with_shared(
        &["chains"],
        &[
            (
                "every_row_is_reproduced_to_the_millisecond",
                every_row_is_reproduced_to_the_millisecond,
            ),
            (
                "the_printed_figures_in_the_files_are_not_looked_at",
                the_printed_figures_in_the_files_are_not_looked_at,
            ),
            ("the_default_leaves_no_idle_time", the_default_leaves_no_idle_time),
            (
                "parts_of_weights_need_no_longer_than_a_prototype",
                parts_of_weights_need_no_longer_than_a_prototype,
            ),
            (
                "perturbed_rows_agree_with_a_second_implementation",
                perturbed_rows_agree_with_a_second_implementation,
            ),
            ("every_row_runs", every_row_runs),
        ],
    )
}

/// A row as printed, in milliseconds: the sum of the ops' times, greedy, layer-to-layer, and
/// greedy without the discount.
const ROWS: [(&str, [u64; 4]); 15] = [
    ("gpt-2-74-b64", [47421, 47493, 52707, 47493]),
    ("gpt-2-56-b64", [35553, 35625, 39542, 35625]),
    ("gpt-2-38-b64", [23694, 23838, 26387, 23838]),
    ("gpt-2-74-b32", [23697, 23769, 28983, 23769]),
    ("gpt-2-56-b32", [17762, 17834, 21751, 17834]),
    ("gpt-2-38-b32", [11840, 11948, 14533, 11948]),
    ("gpt-2-74-b16", [11612, 11684, 16898, 11715]),
    ("gpt-2-56-b16", [8697, 8769, 12686, 8800]),
    ("gpt-2-38-b16", [5794, 5902, 8487, 5934]),
    ("bert-144-b64", [34486, 34499, 38379, 34499]),
    ("bert-96-b64", [22965, 22978, 25577, 22978]),
    ("bert-144-b32", [17443, 17483, 21336, 17483]),
    ("bert-96-b32", [11617, 11657, 14230, 11657]),
    ("bert-144-b16", [9090, 9183, 12983, 9215]),
    ("bert-96-b16", [6058, 6085, 8670, 6085]),
];

/// Figures that these chains, being reconstructed, do not give.
const OTHERWISE: [(&str, usize, u64); 2] = [("bert-96-b32", 2, 14229), ("bert-96-b16", 3, 6095)];

fn file(name: &str) -> Vec<u8> {
    format::load(shared(&format!("chains/{name}.chain.json"))).unwrap()
}

fn chain(name: &str) -> OwnedChain {
    format::read_chain(&file(name)).unwrap()
}

fn rounded_ms(ns: u64) -> u64 {
    (ns + 500_000) / 1_000_000
}

fn cycle_ns(chain: &OwnedChain, strategy: Strategy) -> u64 {
    plan(chain, strategy).unwrap().0
}

fn every_row_is_reproduced_to_the_millisecond() {
    for (name, printed) in ROWS {
        let chain = chain(name);
        let sum_ns = chain.layers.iter().map(|layer| layer.forward_ns + layer.backward_ns).sum();
        let strategies = [PUBLISHED, Strategy::LayerToLayer, Strategy::WeightsUndiscounted];
        let [greedy, l2l, undiscounted] = strategies.map(|s| cycle_ns(&chain, s));
        let found = [sum_ns, greedy, l2l, undiscounted].map(rounded_ms);
        let expected = std::array::from_fn(|at| {
            let otherwise = OTHERWISE.iter().find(|(row, column, _)| (*row, *column) == (name, at));
            otherwise.map_or(printed[at], |(.., ms)| *ms)
        });
        assert_eq!(found, expected, "{name}");
    }
}

/// Nothing is read off the figures that the files hold beside the chain.
fn the_printed_figures_in_the_files_are_not_looked_at() {
    for (name, _) in ROWS {
        let bytes = file(name);
        let text = String::from_utf8(bytes).unwrap();
        let from = text.find("\"published_ms\"").unwrap();
        let to = from + text[from..].find('}').unwrap() + 1;
        let (before, after) = (text[..from].trim_end(), text[to..].trim_start());
        let rest = match (before.strip_suffix(','), after.strip_prefix(',')) {
            (Some(before), None) => before.to_owned() + after,
            (_, after_comma) => before.to_owned() + after_comma.unwrap_or(after),
        };
        assert!(!rest.contains("published_ms"));
        assert_eq!(format::read_chain(rest.as_bytes()).unwrap(), chain(name));
    }
}

/// Whole weights, without idle time but for a thousandth.
fn the_default_leaves_no_idle_time() {
    for (name, _) in ROWS {
        let chain = chain(name);
        let (_, plan) = plan(&chain, BETTER).unwrap();
        let compute_ns = plan.predicted.compute_ns;
        assert!(plan.predicted.period_ns - compute_ns <= compute_ns / 1000, "{name}");
    }
}

/// A prototype's periods in milliseconds, at 500 and 1000 MiB/s, where nothing moves but
/// weights: the linear bounds are 24195, 14144, 37386 and 25464.
fn parts_of_weights_need_no_longer_than_a_prototype() {
    let most_ms = [("gpt-2-38-b32", [24441, 14145]), ("gpt-2-38-b64", [37878, 25464])];
    for (name, most_ms) in most_ms {
        for (bandwidth, most_ms) in [500 << 20, 1000 << 20].into_iter().zip(most_ms) {
            let chain = chain(name);
            let chain = OwnedChain {
                bandwidth_bytes_per_s: bandwidth,
                device_bytes: chain.device_bytes - chain.input_bytes,
                input_bytes: 0,
                ..chain
            };
            let (_, plan) = plan(&chain, Strategy::Auto(Auto::default())).unwrap();
            let found_ms = rounded_ms(plan.predicted.period_ns);
            assert!(found_ms <= most_ms, "{name}, {bandwidth}: {found_ms} above {most_ms}");
        }
    }
}

/// Fifty chains with other memory and bandwidth, over and under what the rows have.
fn perturbed_rows_agree_with_a_second_implementation() {
    // A few numbers in no order, the same every time.
    let mut state = 1u64;
    let mut next = |below: u64| {
        state =
            state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 33) % below
    };
    let mut infeasible = 0;
    for at in 0..50 {
        // Of the shortest chains, since the second implementation takes its time.
        let name = ["gpt-2-38-b16", "gpt-2-38-b32", "gpt-2-38-b64"][at % 3];
        let row = chain(name);
        let chain = OwnedChain {
            device_bytes: row.device_bytes / 1000 * (250 + next(1200)),
            bandwidth_bytes_per_s: row.bandwidth_bytes_per_s / 1000 * (30 + next(1500)),
            ..row
        };
        match naive::cycles_ns(&chain) {
            Some(cycles_ns) => {
                let found = [PUBLISHED, Strategy::WeightsUndiscounted].map(|s| cycle_ns(&chain, s));
                assert_eq!(found, cycles_ns, "{chain:?}");
            }
            None => {
                assert!(plan(&chain, PUBLISHED).is_err());
                infeasible += 1;
            }
        }
    }
    assert!((1..25).contains(&infeasible), "{infeasible}");
}

fn every_row_runs() {
    for (name, _) in ROWS {
        let chain = chain(name);
        for strategy in ALL {
            run(&chain, &plan(&chain, strategy).unwrap().1);
        }
    }
}
