//! The experiments of SwapAdvisor (Huang et al., 2020, section 6): each prints a table of
//! Markdown.
//!
//!     cargo run --release -p spillway-benches --example swapadvisor -- figure6 30
//!
//! The first argument is `figure6`, `table2`, `figure9` or `figure10`; the second how many
//! seconds each search gets; the third, for `figure6`, the only model to look at.

mod figure6;
mod lab;
#[cfg(feature = "highs")]
mod lp;
mod over_time;
mod table2;

use planner_core::Graph;
use planner_core::bounds::Order;
use planner_core::planner::Request;
use search::{Limit, Watch, genetic, joint};
use std::error::Error;
use std::sync::atomic::AtomicBool;
use workloads::{OwnedMachine, OwnedPlan, machines, planning};

type Outcome<T> = Result<T, Box<dyn Error>>;

/// The machine of the published experiments.
const MACHINE: &str = "v100-pcie3-duplex";

static NEVER: AtomicBool = AtomicBool::new(false);

fn machine(name: &str) -> Outcome<OwnedMachine> {
    Ok(machines::builtin(name).ok_or("there is no such machine")?)
}

fn limit(seconds: f64, request: &Request<'_>) -> Outcome<Limit> {
    Ok(Limit { seconds: Some(seconds), rounds: None, bound_ns: bound_ns(request)? })
}

/// No order of the ops has a shorter period.
fn bound_ns(request: &Request<'_>) -> Outcome<u64> {
    let Request { graph, machine, budget_bytes } = *request;
    Ok(planning::lower_bound_ns(graph, machine, budget_bytes, Order::Any)?)
}

fn published(request: &Request<'_>, settings: genetic::Settings) -> Outcome<genetic::Found> {
    let mut watch = Watch { interrupted: &NEVER, progress: &mut |_| {} };
    let found = genetic::search(request, &settings, &mut watch)?;
    prove(request, &found.plan)?;
    Ok(found)
}

fn ours(request: &Request<'_>, seconds: f64) -> Outcome<joint::Found> {
    let settings = joint::Settings { seed: 0, limit: limit(seconds, request)? };
    let mut watch = Watch { interrupted: &NEVER, progress: &mut |_| {} };
    let found = joint::search(request, &settings, &mut watch)?;
    prove(request, &found.plan)?;
    Ok(found)
}

/// No plan is shown that is not safe.
fn prove(request: &Request<'_>, plan: &OwnedPlan) -> Outcome<()> {
    let Request { graph, machine, .. } = *request;
    let schedule = planning::schedule(graph, machine, &plan.plan())?;
    planning::check_prediction(graph, machine, &plan.plan(), &schedule.schedule())?;
    planning::prove(graph, machine, &plan.plan(), &schedule.schedule())?;
    Ok(())
}

/// How much of the ideal throughput, in percent.
fn share(graph: &Graph<'_>, period_ns: u64) -> f64 {
    100.0 * graph.compute_ns() as f64 / period_ns as f64
}

fn main() -> Outcome<()> {
    let mut arguments = std::env::args().skip(1);
    let what = arguments.next().unwrap_or_default();
    let seconds = arguments.next().map_or(Ok(30.0), |text| text.parse())?;
    match what.as_str() {
        "figure6" => figure6::run(seconds, arguments.next().as_deref()),
        #[cfg(feature = "highs")]
        "lp" => lp::run(seconds, arguments.next().as_deref()),
        "lab" => lab::run(seconds),
        "table2" => table2::run(seconds),
        "figure9" => over_time::figure9(seconds),
        "figure10" => over_time::figure10(seconds),
        _ => Err("what to do is figure6, table2, figure9 or figure10".into()),
    }
}
