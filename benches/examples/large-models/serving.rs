//! Prompts and tokens of models that are larger than the card, and the switch between them.

use super::{AUTO, Card, Done, GH200, LAPTOP, RTX_4090, RTX_5090, plan};
use planner_core::Kind;
use planner_core::planner::Strategy;
use spillway::{OwnedGraph, OwnedMachine, Plan};
use zoo::models;

/// A card, the memory for a plan, and the host's arithmetic speed in TFLOP/s.
const CARDS: [(Card, u64, &str); 4] =
    [(LAPTOP, 7, "0.5"), (RTX_4090, 22, "2"), (RTX_5090, 30, "2"), (GH200, 80, "3")];

pub(super) fn print() -> Done<()> {
    println!(
        "| billions | bits | machine | budget | prompt: `fit` | `auto` | with switches: `fit` | `auto` \
         | **`between`** | token: `fit` | `split` | **`auto`** | tokens/s |"
    );
    println!("|--:|--:|---|--:|--:|--:|--:|--:|--:|--:|--:|--:|--:|");
    for billions in [8, 70] {
        for bits in ["4.5", "16"] {
            for (card, budget_gib, host_tflops) in CARDS {
                let work = |mode| {
                    let spec = format!(
                        "llama:billions={billions},mode={mode},sequence=2048,bits={bits},host_tflops={host_tflops},\
                         {},host_gb_s={}",
                        card.speeds, card.host_gb_s
                    );
                    models::generate(&spec)
                };
                let machine = card.machine(0)?;
                let (mut prompt, mut token) = (work("prompt")?, work("token")?);
                declare_states(&token, &mut prompt);
                declare_states(&prompt, &mut token);
                let prompt = Ways::of(&prompt, &machine, budget_gib)?;
                let token = Ways::of(&token, &machine, budget_gib)?;
                let [fit, alone, between] = with_switches(&prompt, &token)?;
                println!(
                    "| {billions} | {bits} | {} | {budget_gib} GiB | {} | {} | {fit} | {alone} \
                     | **{between}** | {} | {} | **{}** | {} |",
                    card.machine,
                    cell(prompt.fit.as_ref()),
                    cell(prompt.auto.as_ref()),
                    cell(token.fit.as_ref()),
                    cell(token.split.as_ref()),
                    cell(token.auto.as_ref()),
                    token.auto.map_or_else(none, |plan| format!("{:.1}", 1e9 / period(&plan))),
                );
            }
        }
    }
    Ok(())
}

/// Declares the states of one graph in another, because a switch needs the same states in both.
fn declare_states(of: &OwnedGraph, to: &mut OwnedGraph) {
    for (tensor, name) in of.tensors.iter().zip(&of.tensor_names) {
        if tensor.kind == Kind::State && !to.tensor_names.contains(name) {
            to.push_tensor(name.clone(), tensor.bytes, Kind::State);
        }
    }
}

/// The plans of a step.
struct Ways {
    fit: Option<Plan>,
    split: Option<Plan>,
    auto: Option<Plan>,
}

impl Ways {
    fn of(work: &OwnedGraph, machine: &OwnedMachine, budget_gib: u64) -> Done<Self> {
        let plan = |strategy| plan(work, machine, budget_gib << 30, strategy);
        Ok(Self { fit: plan(Strategy::Fit)?, split: plan(Strategy::Split)?, auto: plan(AUTO)? })
    }
}

fn cell(plan: Option<&Plan>) -> String {
    plan.map_or_else(none, |plan| ms(period(plan)))
}

/// The times of a prompt between tokens with both switches: by `fit`, by `auto`, and by a plan that
/// knows the token's plan.
fn with_switches(prompt: &Ways, token: &Ways) -> Done<[String; 3]> {
    let whole = |plan: &Plan, token: &Plan| -> Done<String> {
        let switches = [token.switch_to(plan)?.time_ns, plan.switch_to(token)?.time_ns];
        let switches_ns: u64 = switches.iter().sum();
        Ok(ms(period(plan) + switches_ns as f64))
    };
    let fit = match (&prompt.fit, &token.fit) {
        (Some(prompt), Some(token)) => whole(&prompt.arranged_after(token)?, token)?,
        _ => none(),
    };
    let (Some(prompt), Some(token)) = (&prompt.auto, &token.auto) else {
        return Ok([fit, none(), none()]);
    };
    let alone = whole(&prompt.arranged_after(token)?, token)?;
    Ok([fit, alone, whole(&prompt.between(token)?, token)?])
}

fn period(plan: &Plan) -> f64 {
    plan.figures().period_ns as f64
}

fn ms(ns: f64) -> String {
    format!("{:.1}", ns / 1e6)
}

fn none() -> String {
    "–".to_owned()
}
