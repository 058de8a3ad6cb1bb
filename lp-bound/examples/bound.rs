//! Prints the bounds of a graph on a machine: `bound GRAPH MACHINE BUDGET...`.
//!
//! The machine is a file or a built-in name, or a built-in name and its links' speed in
//! GB/s, as in `v100-pcie3@50`. Budgets are bytes.

use lp_bound::{Options, Pages, any_order_ns, period_ns};
use planner_core::{Graph, Machine};
use std::error::Error;
use std::path::Path;
use std::time::Instant;
use workloads::{format, machines, planning};

fn main() -> Result<(), Box<dyn Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [graph, machine, budgets @ ..] = arguments.as_slice() else {
        return Err("usage: bound GRAPH MACHINE BUDGET...".into());
    };
    let owned = format::read_graph(&format::load(Path::new(graph))?)?;
    let graph = owned.graph()?;
    let machine = machine_of(machine)?;
    println!("period over compute; compute is {} ns", graph.compute_ns());
    println!("budget | cheap | any order | given order | on pages | seconds");
    for budget in budgets {
        print_row(&graph, &machine, budget.parse()?)?;
    }
    Ok(())
}

fn machine_of(argument: &str) -> Result<Machine, Box<dyn Error>> {
    let (name, gigabytes) = argument.split_once('@').unwrap_or((argument, ""));
    let Some(found) = machines::builtin(name) else {
        return Ok(format::read_machine(&format::load(Path::new(argument))?)?.machine);
    };
    let mut machine = found.machine;
    if !gigabytes.is_empty() {
        machine.h2d_bytes_per_s = gigabytes.parse::<u64>()?.saturating_mul(1_000_000_000);
        machine.d2h_bytes_per_s = machine.h2d_bytes_per_s;
    }
    Ok(machine)
}

fn print_row(
    graph: &Graph<'_>,
    machine: &Machine,
    budget_bytes: u64,
) -> Result<(), Box<dyn Error>> {
    let over_compute = |ns: u64| ns as f64 / graph.compute_ns() as f64;
    let cheap = over_compute(planning::lower_bound_ns(graph, machine, budget_bytes)?);
    let any_order = over_compute(any_order_ns(graph, machine, budget_bytes));
    print!("{budget_bytes} | {cheap:.4} | {any_order:.4}");
    let started = Instant::now();
    for pages in [None, Some(Pages::of(machine))] {
        match period_ns(graph, machine, budget_bytes, Options { pages }) {
            Ok(bound) => print!(" | {:.4}", over_compute(bound.period_ns)),
            Err(error) => print!(" | {error}"),
        }
    }
    println!(" | {:.1}", started.elapsed().as_secs_f64());
    Ok(())
}
