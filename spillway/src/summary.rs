//! A plan in a few lines.

use crate::figures::{ByKind, Context, Figures};
use crate::units::{bytes, count, percent, ratio, time};
use planner_core::bounds::BoundOrder;
use workloads::OwnedMachine;

/// Returns the rows of a plan's summary. Each has a title and a text.
#[must_use]
pub fn rows(
    context: &Context,
    figures: &Figures,
    machine: &OwnedMachine,
) -> Vec<(&'static str, String)> {
    let mut rows = vec![("memory", memory(context))];
    rows.extend(times(context, figures));
    if figures.repeats > 0 {
        rows.push(("repeats", repeats(figures)));
    }
    if figures.on_host > 0 {
        rows.push(("host ops", on_host(figures)));
    }
    if let Some(cycle_ns) = context.cycle_ns {
        rows.push(("cycle", format!("{} as published, with a barrier at its end", time(cycle_ns))));
    }
    rows.extend(traffic(figures));
    rows.extend(links(figures, machine).map(|links| ("links", links)));
    rows.extend(waits(figures, machine).map(|waits| ("waits", waits)));
    rows.extend([("peak", peak(figures)), ("host", host(figures, machine))]);
    let planning =
        context.planning_ns.map_or_else(String::new, |ns| format!(", planned in {}", time(ns)));
    let order = if figures.reordered { ", ops in another order than given" } else { "" };
    let steps = count(figures.steps);
    let method = match &context.method {
        Some(method) if *method != context.strategy => format!(" ({method})"),
        _ => String::new(),
    };
    rows.push(("objects", objects(context, figures)));
    rows.push(("plan", format!("{steps} steps{method}{order}{planning}; proved safe")));
    rows
}

fn memory(context: &Context) -> String {
    let least = match context.min_feasible_bytes {
        Some(least) => format!("; this strategy needs at least {}", bytes(least)),
        None => String::new(),
    };
    format!(
        "needs {} in-core, budget {} ({}){least}",
        bytes(context.in_core_peak_bytes),
        bytes(context.budget_bytes),
        percent(context.budget_bytes, context.in_core_peak_bytes),
    )
}

fn times(context: &Context, figures: &Figures) -> [(&'static str, String); 3] {
    let Figures { period_ns, compute_ns, stall_ns, .. } = *figures;
    let slower = ratio(period_ns, compute_ns)
        .map_or_else(String::new, |ratio| format!(", {ratio:.2} × compute alone"));
    let bound = context.bound(figures);
    let order = match bound.order {
        BoundOrder::Given => "in the given order",
        BoundOrder::Any => "in any order",
    };
    let gap = match period_ns.checked_sub(bound.period_ns) {
        Some(0) | None => "this plan takes no longer".to_owned(),
        Some(gap_ns) => format!("this plan is {} above it", percent(gap_ns, bound.period_ns)),
    };
    let that = if bound.repeats { "" } else { " that runs each op once" };
    let also = match (figures.on_host, context.certified) {
        (0, _) if bound.repeats => {
            let once_ns = match bound.order {
                BoundOrder::Given => context.given_order_bound_ns,
                BoundOrder::Any => context.any_order_bound_ns,
            };
            format!(" ({} where each op runs once)", time(once_ns.max(bound.period_ns)))
        }
        (1.., Some(certified)) if certified.repeats && certified.order == BoundOrder::Any => {
            format!(" ({} where every op runs on the device)", time(certified.period_ns))
        }
        _ => String::new(),
    };
    [
        ("period", format!("{} an iteration{slower}", time(period_ns))),
        ("stall", format!("{} of it, {}", time(stall_ns), percent(stall_ns, period_ns))),
        ("bound", format!("no plan{that} can beat {} {order}{also}; {gap}", time(bound.period_ns))),
    ]
}

/// The text about repeats: their number, their time, and the bytes that would stay or move without them.
fn repeats(figures: &Figures) -> String {
    let Figures { repeats, repeat_ns, repeated_bytes, compute_ns, .. } = *figures;
    let plural = if repeats == 1 { "" } else { "s" };
    format!(
        "{} op{plural}, {} ({} of compute), for {} of values that neither stay nor move",
        count(repeats),
        time(repeat_ns),
        percent(repeat_ns, compute_ns),
        bytes(repeated_bytes)
    )
}

fn on_host(figures: &Figures) -> String {
    let Figures { on_host, host_ns, period_ns, .. } = *figures;
    let plural = if on_host == 1 { "" } else { "s" };
    format!(
        "{} op{plural}, {} ({} of the period)",
        count(on_host),
        time(host_ns),
        percent(host_ns, period_ns)
    )
}

fn traffic(figures: &Figures) -> [(&'static str, String); 2] {
    let Figures { h2d_bytes, d2h_bytes, .. } = *figures;
    let link = |sum_bytes, kinds| format!("{} an iteration{}", bytes(sum_bytes), by_kind(kinds));
    [
        ("upload", link(h2d_bytes, &figures.h2d_bytes_by_kind)),
        ("download", link(d2h_bytes, &figures.d2h_bytes_by_kind)),
    ]
}

/// The text about the link speeds of the prediction, and about its pessimism. In every schedule, the
/// direction with the longer copies runs alone for at least the difference.
fn links(figures: &Figures, machine: &OwnedMachine) -> Option<String> {
    let alone = machine.one_way_bytes_per_s?;
    let together = [machine.machine.h2d_bytes_per_s, machine.machine.d2h_bytes_per_s];
    let gbs = |[up, down]: [u64; 2]| {
        format!("{:.2} GB/s up and {:.2} down", up as f64 / 1e9, down as f64 / 1e9)
    };
    let text = format!("predicted with {} (both in use); one way {}", gbs(together), gbs(alone));
    let moved = [figures.h2d_bytes, figures.d2h_bytes];
    let copy_ns = [0, 1].map(|way: usize| moved[way] as f64 / together[way] as f64 * 1e9);
    let way = usize::from(copy_ns[1] > copy_ns[0]);
    let alone_ns = copy_ns[way] - copy_ns[1 - way];
    let saved_ns = alone_ns * (1.0 - together[way] as f64 / alone[way] as f64);
    if figures.stall_ns == 0 || saved_ns < 1.0 {
        return Some(text);
    }
    Some(format!(
        "{text}; pessimistic: {} at least {} of an iteration while no {} runs, which takes {} less \
         one way",
        ["uploads run for", "downloads run for"][way],
        time(alone_ns as u64),
        ["download", "upload"][way],
        time(saved_ns as u64),
    ))
}

/// The text about the time of waits, which the prediction leaves out.
fn waits(figures: &Figures, machine: &OwnedMachine) -> Option<String> {
    let [_, wait_ns] = machine.costs_ns?;
    let all_ns = wait_ns.saturating_mul(figures.waits);
    Some(format!(
        "{} of ops for copies, each {} of the device; the {} are not in the prediction",
        count(figures.waits),
        time(wait_ns),
        time(all_ns)
    ))
}

fn peak(figures: &Figures) -> String {
    let Figures { peak_bytes, requested_peak_bytes, waste_bytes, .. } = *figures;
    let share = percent(waste_bytes, peak_bytes);
    let (requested, waste) = (bytes(requested_peak_bytes), bytes(waste_bytes));
    format!("{}: {requested} requested, {waste} wasted ({share})", bytes(peak_bytes))
}

fn host(figures: &Figures, machine: &OwnedMachine) -> String {
    let Figures { host_bytes, host_unshared_bytes, .. } = *figures;
    let shared = match host_bytes < host_unshared_bytes {
        true => format!("; {} with a whole slot for each tensor", bytes(host_unshared_bytes)),
        false => String::new(),
    };
    format!("{} of {} pinned{shared}", bytes(host_bytes), bytes(machine.machine.host_bytes))
}

/// The text about physical objects: whether they are fixed; if not, the reason and the time of mapping.
fn objects(context: &Context, figures: &Figures) -> String {
    match figures.placement_iterations {
        Some(1) => "fixed; all memory is mapped before the first iteration".to_owned(),
        Some(n) => format!("fixed for {n} iterations; all memory is mapped before the first one"),
        None => {
            let reason = context.unplaced.map_or_else(String::new, |reason| format!(": {reason}"));
            let cost = match figures.mapping_ns {
                0 => String::new(),
                ns => format!("; mapping takes the host {}, not in the prediction", time(ns)),
            };
            format!("mapped as it runs{reason}{cost}")
        }
    }
}

fn by_kind(kinds: &ByKind) -> String {
    let named = [
        ("states", kinds.state),
        ("inputs", kinds.input),
        ("temporaries", kinds.temporary),
        ("outputs", kinds.output),
    ];
    let moved = named.iter().filter(|(_, sum_bytes)| *sum_bytes > 0);
    let parts: Vec<_> = moved.map(|(name, b)| format!("{name} {}", bytes(*b))).collect();
    if parts.is_empty() { String::new() } else { format!(": {}", parts.join(", ")) }
}
