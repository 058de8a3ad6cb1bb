//! The experiments of SwapAdvisor (Huang et al., 2020, section 6): each prints a table of
//! Markdown.
//!
//!     cargo run --release -p spillway-benches --example swapadvisor -- figure6 30
//!
//! The first argument names the experiment. The second is the time of each search in seconds:
//! - `figure6`, with an optional third argument that names a single model;
//! - `bounds`, the same cells beside the linear program (with the feature `highs`);
//! - `repeats`, the models of both figures with and without repeats;
//! - `figure7`, `table2`, `figure9`;
//! - `figure8`, with a file for the plot instead of seconds;
//! - `figure10`, with the number of individuals that each search judges instead of seconds.

#[path = "../window_paper/chart.rs"]
mod chart;
mod figure6;
mod figure7;
mod over_time;
mod repeats;
#[cfg(feature = "highs")]
mod second_bound;
mod serving;
mod table2;

use planner_core::Graph;
use planner_core::bounds::BoundOrder;
use planner_core::planner::{Repeats, Request};
use spillway::planning;
use spillway::search::{Limit, Watch, genetic, joint};
use std::error::Error;
use workloads::{OwnedMachine, OwnedPlan, machines};

type Result<T> = std::result::Result<T, Box<dyn Error>>;

/// The machine of the published experiments.
const MACHINE: &str = "v100-pcie3-duplex";

fn machine(name: &str) -> Result<OwnedMachine> {
    Ok(machines::builtin(name).ok_or("there is no such machine")?)
}

/// The limit of a search over plans that launch each op once.
fn limit(seconds: f64, request: &Request<'_>) -> Result<Limit> {
    Ok(Limit::new().with_seconds(seconds).with_bound_ns(bound_ns(request)?))
}

/// A lower bound on the period in any order, if each op runs once.
fn bound_ns(request: &Request<'_>) -> Result<u64> {
    let Request { graph, machine, budget_bytes } = *request;
    Ok(planning::lower_bound_ns(graph, machine, budget_bytes, BoundOrder::Any)?)
}

fn published(request: &Request<'_>, settings: genetic::Settings) -> Result<genetic::Found> {
    let mut watch = Watch::default();
    let found = genetic::search(request, &settings, &mut watch)?;
    prove(request, &found.plan)?;
    Ok(found)
}

/// The search over orders, for plans that launch each op once.
fn ours(request: &Request<'_>, seconds: f64) -> Result<joint::JointFound> {
    let settings = joint::JointSettings::default().with_limit(limit(seconds, request)?);
    jointly(request, settings.with_repeats(Repeats::Never))
}

fn jointly(request: &Request<'_>, settings: joint::JointSettings) -> Result<joint::JointFound> {
    let mut watch = Watch::default();
    let found = joint::search(request, &settings, &mut watch)?;
    prove(request, &found.plan)?;
    Ok(found)
}

/// Proves a plan safe, because the tables must show only safe plans.
fn prove(request: &Request<'_>, plan: &OwnedPlan) -> Result<()> {
    let Request { graph, machine, .. } = *request;
    let schedule = planning::schedule(graph, machine, &plan.plan())?;
    planning::check_prediction(graph, machine, &plan.plan(), &schedule.schedule())?;
    planning::prove(graph, machine, &plan.plan(), &schedule.schedule())?;
    Ok(())
}

/// The share of the ideal throughput, in percent.
fn share(graph: &Graph<'_>, period_ns: u64) -> f64 {
    100.0 * graph.compute_ns() as f64 / period_ns as f64
}

fn main() -> Result<()> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let argument = |at: usize| arguments.get(at).map(String::as_str);
    let seconds = || argument(1).map_or(Ok(30.0), str::parse);
    match argument(0).unwrap_or_default() {
        "figure6" => figure6::run(seconds()?, argument(2)),
        #[cfg(feature = "highs")]
        "bounds" => second_bound::run(seconds()?, argument(2)),
        "figure7" => figure7::run(seconds()?),
        "figure8" => serving::run(argument(1)),
        "repeats" => repeats::run(seconds()?, argument(2)),
        "table2" => table2::run(seconds()?),
        "figure9" => over_time::figure9(seconds()?),
        "figure10" => over_time::figure10(argument(1).map_or(Ok(1500), str::parse)?),
        _ => Err("what to do is table2, bounds, repeats, or figure6 to figure10".into()),
    }
}
