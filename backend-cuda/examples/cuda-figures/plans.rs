//! Whole plans, in all ways: periods against predictions.

use crate::judge::{Host, Timed};
use crate::run::{Way, timed};
use crate::{Bench, Work, note};
use planner_core::planner::{Auto, Request, Strategy};
use planner_core::{Graph, Machine};
use spillway::{placing, planning};
use workloads::OwnedPlan;

/// Measures each work; whether all plans have run.
pub(crate) fn measure(bench: &Bench, works: &[Work]) -> Result<bool, String> {
    println!("Periods of plans by `auto` at half of the in-core peak, or in all of the device's");
    println!("memory if that is less:\n");
    println!("| work | way | predicted | measured | error | of the stall | |");
    println!("|---|---|--:|--:|--:|--:|---|");
    let (mut rows, mut all_ran) = (Vec::new(), true);
    for work in works {
        let graph = work.graph()?;
        note(&format!("{}: planning", work.name));
        let request = request(&graph, &bench.measured.machine, 50)?;
        let placed = placed(&request, auto());
        let queued = planning::plan(&request, auto()).map_err(|error| error.to_string());
        for (way, name, plan) in [
            (Way::Eager, "eager", &placed),
            (Way::Dynamic, "mapped as it runs", &queued),
            (Way::Graph, "graph", &placed),
        ] {
            let plan = match plan {
                Ok(plan) => plan,
                Err(reason) => {
                    println!("| {} | {name} | not planned: {reason} | | | | |", work.name);
                    continue;
                }
            };
            note(&format!("{}: {name}", work.name));
            let name = format!("{} | {name}", work.name);
            match timed(bench, name.clone(), &graph, &plan.plan(), way) {
                Ok(timed) => {
                    println!("{}", row(&timed));
                    rows.push(timed);
                }
                Err(reason) => {
                    println!("| {name} | not run: {reason} | | | | |");
                    all_ran = false;
                }
            }
        }
    }
    let met = rows.iter().filter(|timed| timed.is_met()).count();
    println!(
        "\n{met} of {} within the larger of 5 % of the stall and 1 % of the period.\n",
        rows.len()
    );
    println!(
        "What the host does in an iteration. A step has an event only if somebody may wait for it.\n"
    );
    println!("| work | way | enqueues | maps | is blocked | steps | events | waits | copies |");
    println!("|---|---|--:|--:|--:|--:|--:|--:|--:|");
    rows.iter().for_each(print_host);
    println!();
    Ok(all_ran)
}

fn print_host(timed: &Timed) {
    let Host { enqueue_ns, mapping_ns, blocked_ns, steps, events, waits, copies } = timed.host;
    let times = [enqueue_ns, mapping_ns, blocked_ns].map(|ns| format!("{:.3} ms", ns / 1e6));
    let counts = [steps, events, waits, copies].map(|count| format!("{count:.0}"));
    println!("| {} | {} | {} |", timed.name, times.join(" | "), counts.join(" | "));
}

/// A row, with the verdict.
pub(crate) fn row(timed: &Timed) -> String {
    format!(
        "| {} | {:.3} ms | {:.3} ms | {} | {} | {} |",
        timed.name,
        timed.predicted_ns / 1e6,
        timed.measured_ns / 1e6,
        timed.error(),
        timed.error_of_stall(),
        timed.verdict()
    )
}

fn auto() -> Strategy {
    Strategy::Auto(Auto::default())
}

/// A plan that is mapped once.
pub(crate) fn placed(request: &Request<'_>, strategy: Strategy) -> Result<OwnedPlan, String> {
    match placing::plan(request, strategy) {
        Ok((plan, None)) => Ok(plan),
        Ok((_, Some(reason))) => Err(reason.to_string()),
        Err(error) => Err(error.to_string()),
    }
}

/// A request for a share of the in-core peak, as far as the device has it.
pub(crate) fn request<'r>(
    graph: &'r Graph<'r>,
    machine: &'r Machine,
    percent: u64,
) -> Result<Request<'r>, String> {
    let peak = planning::in_core_peak_bytes(graph, machine).map_err(|error| error.to_string())?;
    let budget_bytes = (peak / 100 * percent).min(machine.device_bytes);
    Ok(Request { graph, machine, budget_bytes })
}
