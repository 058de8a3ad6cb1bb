//! Twenty plans of few works: whether they take as long as each other as is predicted.

use crate::judge::{Timed, in_order, worst_pair};
use crate::plans::{placed, request, row};
use crate::run::{Way, timed};
use crate::{Bench, Work, note};
use planner_core::planner::{Auto, Lms, Strategy, Window};

const PLANS: usize = 20;
/// Shares of the in-core peak.
const PERCENT: [u64; 4] = [75, 50, 35, 25];

fn strategies() -> [(&'static str, Strategy); 5] {
    [
        ("window", Strategy::Window(Window::default())),
        ("vdnn", Strategy::Vdnn),
        ("lms", Strategy::Lms(Lms::default())),
        ("fit", Strategy::Fit),
        ("auto", Strategy::Auto(Auto::default())),
    ]
}

/// Measures the first twenty plans that there are; whether all of them have run.
pub(crate) fn measure(bench: &Bench, works: &[Work]) -> Result<bool, String> {
    println!("Plans of several strategies and budgets, carried out eagerly, by prediction:\n");
    println!("| plan | predicted | measured | error | of the stall | | place |");
    println!("|---|--:|--:|--:|--:|---|--:|");
    let (mut plans, mut all_ran) = (Vec::new(), true);
    for work in works {
        for (strategy_name, strategy) in strategies() {
            for percent in PERCENT {
                if plans.len() == PLANS {
                    break;
                }
                let name = format!("{}, {strategy_name}, {percent} %", work.name);
                note(&name);
                match plan(bench, work, name.clone(), strategy, percent) {
                    Ok(timed) => plans.extend(timed),
                    Err(reason) => {
                        println!("| {name} | not run: {reason} | | | | | |");
                        all_ran = false;
                    }
                }
            }
        }
    }
    print(&mut plans);
    Ok(all_ran)
}

/// A plan on the device; `None` if the budget allows none, or none with placements.
fn plan(
    bench: &Bench,
    work: &Work,
    name: String,
    strategy: Strategy,
    percent: u64,
) -> Result<Option<Timed>, String> {
    let (graph, machine) = (work.graph()?, &bench.measured.machine);
    match placed(&request(&graph, machine, percent)?, strategy) {
        Ok(plan) => timed(bench, name, &graph, &plan.plan(), Way::Eager).map(Some),
        Err(_) => Ok(None),
    }
}

fn print(plans: &mut [Timed]) {
    plans.sort_by(|one, other| one.predicted_ns.total_cmp(&other.predicted_ns));
    for timed in &*plans {
        let is_before = |other: &&Timed| other.measured_ns < timed.measured_ns;
        println!("{} {} |", row(timed), 1 + plans.iter().filter(is_before).count());
    }
    let met = plans.iter().filter(|timed| timed.is_met()).count();
    println!("\n{met} of {} within the tolerance.", plans.len());
    println!(
        "{} of {} in order: this many can be chosen of which no two, predicted further apart than \
         the tolerance, were measured the other way round.",
        in_order(plans),
        plans.len()
    );
    if let Some((faster, slower)) = worst_pair(plans) {
        let [faster, slower] = [faster, slower].map(|at| &plans[at]);
        println!(
            "Furthest apart and the wrong way round: {} ({:.3} ms predicted, {:.3} ms measured) \
             and {} ({:.3} ms, {:.3} ms).",
            faster.name,
            faster.predicted_ns / 1e6,
            faster.measured_ns / 1e6,
            slower.name,
            slower.predicted_ns / 1e6,
            slower.measured_ns / 1e6
        );
    }
}
