//! A plan on one screen.

use crate::figures::{ByKind, Figures, Planned};
use crate::units::{bytes, count, percent, ratio, time};
use planner_core::Machine;
use planner_core::bounds::Order;
use std::fmt::Write;
use workloads::Shown;

/// The summary of a plan, or of what is known without one.
pub(crate) fn of(figures: &Figures, machine: &Machine) -> String {
    let mut text = format!(
        "{}\n  on {} with {} of device memory, strategy {}\n\n",
        Shown::name(&figures.graph),
        Shown::name(&figures.machine),
        bytes(figures.budget_bytes),
        Shown::name(&figures.strategy)
    );
    for (name, value) in rows(figures, machine) {
        // A string takes every write.
        let _ = writeln!(text, "  {name:<10}{value}");
    }
    text
}

/// The summary's lines: what each is about, and what it says.
pub(crate) fn rows(figures: &Figures, machine: &Machine) -> Vec<(&'static str, String)> {
    let mut rows = vec![("memory", memory(figures))];
    rows.extend(times(figures));
    if let Some(cycle_ns) = figures.cycle_ns {
        rows.push(("cycle", format!("{} as published, with a barrier at its end", time(cycle_ns))));
    }
    rows.extend(traffic(&figures.planned, machine));
    if let Some(steps) = figures.planned.steps {
        rows.push(("objects", objects(figures)));
        let planning =
            figures.planning_ns.map_or_else(String::new, |ns| format!(", planned in {}", time(ns)));
        let order = match figures.planned.reordered {
            Some(true) => ", ops in another order than given",
            _ => "",
        };
        rows.push(("plan", format!("{} steps{order}{planning}; proved safe", count(steps))));
    }
    rows
}

fn memory(figures: &Figures) -> String {
    let least = match figures.min_feasible_bytes {
        Some(least) => format!("; {} is the least this strategy can do with", bytes(least)),
        None => String::new(),
    };
    format!(
        "needs {} in-core, may take {} ({}){least}",
        bytes(figures.in_core_peak_bytes),
        bytes(figures.budget_bytes),
        percent(figures.budget_bytes, figures.in_core_peak_bytes),
    )
}

fn times(figures: &Figures) -> Vec<(&'static str, String)> {
    let Figures { compute_ns, lower_bound_ns, .. } = *figures;
    let (Some(period_ns), Some(stall_ns)) = (figures.planned.period_ns, figures.planned.stall_ns)
    else {
        return vec![("time", format!("{} of compute an iteration", time(compute_ns)))];
    };
    let slower = ratio(period_ns, compute_ns)
        .map_or_else(String::new, |ratio| format!(", {ratio:.2} × compute alone"));
    let plans = match figures.lower_bound_order {
        Order::Given => "no plan in the given order",
        Order::Any => "no plan in any order",
    };
    let gap = match period_ns.saturating_sub(lower_bound_ns) {
        0 => "this plan takes no longer".to_owned(),
        gap_ns => format!("this plan is {} above it", percent(gap_ns, lower_bound_ns)),
    };
    vec![
        ("period", format!("{} an iteration{slower}", time(period_ns))),
        ("stall", format!("{} of it, {}", time(stall_ns), percent(stall_ns, period_ns))),
        ("bound", format!("{plans} can beat {}; {gap}", time(lower_bound_ns))),
    ]
}

fn traffic(planned: &Planned, machine: &Machine) -> Vec<(&'static str, String)> {
    let mut rows = Vec::new();
    for (name, sum_bytes, kinds) in [
        ("upload", planned.h2d_bytes, planned.h2d_bytes_by_kind),
        ("download", planned.d2h_bytes, planned.d2h_bytes_by_kind),
    ] {
        if let (Some(sum_bytes), Some(kinds)) = (sum_bytes, kinds) {
            rows.push((name, format!("{} an iteration{}", bytes(sum_bytes), by_kind(&kinds))));
        }
    }
    if let (Some(peak), Some(requested), Some(waste)) =
        (planned.peak_bytes, planned.requested_peak_bytes, planned.waste_bytes)
    {
        let (share, peak) = (percent(waste, peak), bytes(peak));
        let (requested, waste) = (bytes(requested), bytes(waste));
        rows.push(("peak", format!("{peak}: {requested} requested, {waste} wasted ({share})")));
    }
    if let (Some(host), Some(unshared)) = (planned.host_bytes, planned.host_unshared_bytes) {
        let shared = match host < unshared {
            true => format!("; {} with a whole slot for each tensor", bytes(unshared)),
            false => String::new(),
        };
        let (pinned, all) = (bytes(host), bytes(machine.host_bytes));
        rows.push(("host", format!("{pinned} of {all} pinned{shared}")));
    }
    rows
}

/// Whether physical objects are fixed, and why not.
fn objects(figures: &Figures) -> String {
    match (figures.planned.placement_iterations, &figures.unplaced) {
        (Some(1), _) => "fixed, so that all is mapped before it runs".to_owned(),
        (Some(n), _) => format!("fixed for {n} iterations, so that all is mapped before it runs"),
        (None, Some(reason)) => format!("mapped as it goes: {reason}"),
        (None, None) => "mapped as it goes".to_owned(),
    }
}

fn by_kind(kinds: &ByKind) -> String {
    let named =
        [("states", kinds.state), ("inputs", kinds.input), ("temporaries", kinds.temporary)];
    let moved = named.iter().filter(|(_, sum_bytes)| *sum_bytes > 0);
    let parts: Vec<_> = moved.map(|(name, b)| format!("{name} {}", bytes(*b))).collect();
    if parts.is_empty() { String::new() } else { format!(": {}", parts.join(", ")) }
}
