//! The periods of `auto` in `periods.txt`: no change of the planner makes one longer unnoticed, and no setting
//! of `auto` is much better than its defaults.
#![allow(clippy::unwrap_used, reason = "what fails here fails the test")]

use conformance::seeds;
use planner_core::planner::{Auto, Host, Order, Repeats, Request, Strategy};
use planner_core::{Machine, MachineParameters};
use spillway::planning::{self, Buffers};
use std::fmt::Write;
use workloads::OwnedGraph;
use zoo::models;

const PATH: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/periods.txt");

/// A line of the file: a model, a machine, a part of the memory in-core as the budget, and the period of `auto`.
struct Line<'a> {
    cell: &'a str,
    spec: &'a str,
    machine: Machine,
    budget_percent: u64,
    recorded_ns: Option<u64>,
}

impl<'a> Line<'a> {
    /// Parses `SPEC LINK_MB_S LATENCY_NS BUDGET_PERCENT PERIOD_NS`.
    fn parse(line: &'a str) -> Self {
        let words: Vec<_> = line.split_whitespace().collect();
        let [link_mb_s, latency_ns, budget_percent] =
            [1, 2, 3].map(|k| words[k].parse::<u64>().unwrap());
        let machine = Machine::new(
            MachineParameters::new()
                .with_device_bytes(1 << 42)
                .with_host_bytes(1 << 42)
                .with_chunk_bytes(2 << 20)
                .with_h2d_bytes_per_s(link_mb_s * 1_000_000)
                .with_d2h_bytes_per_s(link_mb_s * 1_000_000)
                .with_transfer_latency_ns(latency_ns),
        );
        let recorded_ns = words.get(4).map(|period| period.parse().unwrap());
        let cell = recorded_ns.map_or(line, |_| line.rsplit_once(' ').unwrap().0);
        Self { cell, spec: words[0], machine: machine.unwrap(), budget_percent, recorded_ns }
    }

    fn graph(&self) -> OwnedGraph {
        models::generate(self.spec).unwrap()
    }

    /// Calls a function with a request for the budget, or for the least that `auto` needs if that is more.
    fn with_request<T>(&self, owned: &OwnedGraph, then: impl FnOnce(&Request<'_>) -> T) -> T {
        let (graph, machine) = (&owned.graph().unwrap(), &self.machine);
        let all = Request { graph, machine, budget_bytes: machine.device_bytes };
        let (least_bytes, _) = planning::min_feasible(&all, Strategy::Auto(Auto::new())).unwrap();
        let in_core_bytes = planning::in_core_peak_bytes(graph, machine).unwrap();
        let budget_bytes = (in_core_bytes / 100 * self.budget_percent).max(least_bytes);
        then(&Request { budget_bytes, ..all })
    }
}

fn period_ns(buffers: &mut Buffers, request: &Request<'_>, auto: Auto) -> Option<u64> {
    buffers.plan(request, Strategy::Auto(auto)).ok().map(|plan| plan.predicted.period_ns)
}

/// A part of the lines, spread over the file: all of them at a `SPILLWAY_CASES_PERCENT` of 100, or to record.
fn sampled(text: &str) -> impl Iterator<Item = &str> {
    let percent = seeds::setting("SPILLWAY_CASES_PERCENT", 100).min(100) as usize;
    let percent = if records() { 100 } else { percent };
    let is_taken = move |&(k, _): &(usize, &str)| (k + 1) * percent / 100 > k * percent / 100;
    let lines = text.lines().filter(|line| !line.starts_with('#'));
    lines.enumerate().filter(is_taken).map(|(_, line)| line)
}

fn records() -> bool {
    seeds::setting("SPILLWAY_RECORD", 0) == 1
}

/// A change that makes plans shorter on average may make some longer. `SPILLWAY_RECORD=1` then writes all periods
/// again.
#[test]
fn no_period_is_longer_than_on_record() {
    let text = std::fs::read_to_string(PATH).unwrap();
    let (mut buffers, mut found) = (Buffers::default(), Vec::new());
    for line in sampled(&text).map(Line::parse) {
        let owned = line.graph();
        let period =
            line.with_request(&owned, |request| period_ns(&mut buffers, request, Auto::new()));
        found.push((line, period.unwrap()));
    }
    if records() {
        let head = text.lines().filter(|line| line.starts_with('#'));
        let mut written: String = head.flat_map(|line| [line, "\n"]).collect();
        for (line, period_ns) in &found {
            writeln!(written, "{} {period_ns}", line.cell).unwrap();
        }
        std::fs::write(PATH, written).unwrap();
        return;
    }
    let ratio =
        |(line, period_ns): &(Line<'_>, u64)| *period_ns as f64 / line.recorded_ns.unwrap() as f64;
    let mean = found.iter().map(ratio).sum::<f64>() / found.len() as f64;
    let longer: Vec<_> = found.iter().filter(|found| ratio(found) > 1.001).collect();
    let longer: Vec<_> =
        longer.iter().map(|one| format!("{:.4} {}", ratio(one), one.0.cell)).collect();
    assert!(
        longer.is_empty(),
        "of {} periods (mean {mean:.4}), longer: {longer:#?}; SPILLWAY_RECORD=1 records them",
        found.len()
    );
}

#[test]
#[ignore = "takes minutes: cargo test --release -p spillway-conformance --test all -- --ignored --nocapture --exact periods::no_setting_is_much_better_than_the_default"]
fn no_setting_is_much_better_than_the_default() {
    let text = std::fs::read_to_string(PATH).unwrap();
    let auto = Auto::new();
    let settings = [
        ("order=given", auto.with_order(Order::Given)),
        ("repeats=no", auto.with_repeats(Repeats::Never)),
        ("host=no", auto.with_host(Host::Never)),
        ("host=all", auto.with_host(Host::All)),
    ];
    let (mut buffers, mut better) = (Buffers::default(), Vec::new());
    for line in sampled(&text).map(Line::parse) {
        let owned = line.graph();
        line.with_request(&owned, |request| {
            let has_host = request.graph.ops().iter().any(|op| op.host_ns.is_some());
            let default_ns = period_ns(&mut buffers, request, auto).unwrap();
            for (name, setting) in settings {
                if name.starts_with("host") && !has_host {
                    continue;
                }
                let Some(ns) = period_ns(&mut buffers, request, setting) else { continue };
                let ratio = ns as f64 / default_ns as f64;
                if ratio < 1.0 {
                    println!("{ratio:.4} {name} {}", line.cell);
                }
                if ratio < 0.98 {
                    better.push((ratio, name, line.cell));
                }
            }
        });
    }
    assert!(better.is_empty(), "{better:?}");
}
