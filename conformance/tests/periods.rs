//! The periods of `auto` in `periods.txt`: no change of the planner makes one longer unnoticed, and no setting
//! of `auto` is much better than its defaults.
#![allow(clippy::unwrap_used, reason = "what fails here fails the test")]

use super::decoders::Cell;
use conformance::seeds;
use planner_core::planner::{Auto, Host, Order, Repeats, Request, Strategy};
use spillway::planning::Buffers;
use std::fmt::Write;
use zoo::models;

const PATH: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/periods.txt");

/// A line of the file: a cell, and the period of `auto`.
struct Line<'a> {
    text: &'a str,
    cell: Cell,
    recorded_ns: Option<u64>,
}

impl<'a> Line<'a> {
    /// Parses `SPEC LINK_MB_S LATENCY_NS BUDGET_PERCENT PERIOD_NS`.
    fn parse(line: &'a str) -> Self {
        let words: Vec<_> = line.split_whitespace().collect();
        let [link_mb_s, latency_ns, budget_percent] =
            [1, 2, 3].map(|k| words[k].parse::<u64>().unwrap());
        let recorded_ns = words.get(4).map(|period| period.parse().unwrap());
        let text = recorded_ns.map_or(line, |_| line.rsplit_once(' ').unwrap().0);
        let spec = words[0].to_owned();
        Self { text, cell: Cell { spec, link_mb_s, latency_ns, budget_percent }, recorded_ns }
    }

    fn with_request<T>(&self, then: impl FnOnce(&Request<'_>) -> T) -> T {
        let (owned, machine) = (models::generate(&self.cell.spec).unwrap(), self.cell.machine());
        let graph = owned.graph().unwrap();
        then(&self.cell.request(&graph, &machine, Strategy::Auto(Auto::new())))
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
        let period = line.with_request(|request| period_ns(&mut buffers, request, Auto::new()));
        found.push((line, period.unwrap()));
    }
    if records() {
        let head = text.lines().filter(|line| line.starts_with('#'));
        let mut written: String = head.flat_map(|line| [line, "\n"]).collect();
        for (line, period_ns) in &found {
            writeln!(written, "{} {period_ns}", line.text).unwrap();
        }
        std::fs::write(PATH, written).unwrap();
        return;
    }
    let ratio =
        |(line, period_ns): &(Line<'_>, u64)| *period_ns as f64 / line.recorded_ns.unwrap() as f64;
    let mean = found.iter().map(ratio).sum::<f64>() / found.len() as f64;
    let longer: Vec<_> = found.iter().filter(|found| ratio(found) > 1.001).collect();
    let longer: Vec<_> =
        longer.iter().map(|one| format!("{:.4} {}", ratio(one), one.0.text)).collect();
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
        line.with_request(|request| {
            let has_host = request.graph.ops().iter().any(|op| op.host_ns.is_some());
            let default_ns = period_ns(&mut buffers, request, auto).unwrap();
            for (name, setting) in settings {
                if name.starts_with("host") && !has_host {
                    continue;
                }
                let Some(ns) = period_ns(&mut buffers, request, setting) else { continue };
                let ratio = ns as f64 / default_ns as f64;
                if ratio < 1.0 {
                    println!("{ratio:.4} {name} {}", line.text);
                }
                if ratio < 0.98 {
                    better.push((ratio, name, line.text));
                }
            }
        });
    }
    assert!(better.is_empty(), "{better:?}");
}
