//! Small cases with ops on the host, outputs, repeats and workspaces: the verifier and the ledger
//! reach the verdict that was recorded with each, by the same rule, and valid plans have exactly the
//! recorded figures.
#![allow(clippy::unwrap_used, reason = "what fails here fails the test")]

use conformance::ledger;
use flate2::read::GzDecoder;
use planner_core::plan::{Location, PlanError};
use planner_core::{Graph, Machine, Plan, VerifyError};
use serde_json::Value;
use spillway::planning;
use std::fs::File;
use std::process::ExitCode;
use test_harness::shared;
use workloads::{OwnedGraph, OwnedMachine, OwnedPlan, format};

const FILE: &str = "cases/vectors.json.gz";

fn main() -> ExitCode {
    test_harness::with_shared(
        &[FILE],
        &[
            ("the_verifier_reaches_the_recorded_verdicts", verifier),
            ("the_ledger_reaches_the_recorded_verdicts", ledger),
        ],
    )
}

/// A plan with its verdict.
struct Case {
    graph: OwnedGraph,
    machine: OwnedMachine,
    plan: OwnedPlan,
    /// The rule that is broken, and how; none where the plan is valid.
    broken: Option<(String, String)>,
}

fn cases() -> Vec<Case> {
    let file = GzDecoder::new(File::open(shared(FILE)).unwrap());
    let cases: Vec<Value> = serde_json::from_reader(file).unwrap();
    assert!(!cases.is_empty());
    let part = |case: &Value, name: &str| serde_json::to_vec(&case[name]).unwrap();
    let text = |case: &Value, name: &str| case[name].as_str().unwrap_or_default().to_owned();
    let case = |case: &Value| Case {
        graph: format::read_graph(&part(case, "graph")).unwrap(),
        machine: format::read_machine(&part(case, "machine")).unwrap(),
        plan: format::read_plan(&part(case, "plan")).unwrap(),
        broken: (case["valid"] == false).then(|| (text(case, "rule"), text(case, "first"))),
    };
    cases.iter().map(case).collect()
}

/// Judges every case, and names those of which the verdict is another.
fn judge(verdict: impl Fn(&Graph<'_>, &Machine, &Plan<'_>, &str) -> Result<(), String>) {
    let mut wrong = Vec::new();
    for (number, case) in cases().iter().enumerate() {
        let graph = case.graph.graph().unwrap();
        let rule = case.broken.as_ref().map_or("", |(rule, _)| rule);
        let found = verdict(&graph, &case.machine.machine, &case.plan.plan(), rule);
        match (&case.broken, found) {
            (None, Ok(())) => {}
            (None, Err(found)) => wrong.push(format!("case {number}: valid, refused: {found}")),
            (Some((rule, how)), Ok(())) => {
                wrong.push(format!("case {number}: accepted; {rule}: {how}"));
            }
            (Some((rule, how)), Err(found)) if found.starts_with("another rule") => {
                wrong.push(format!("case {number}: {found}; {rule}: {how}"));
            }
            (Some(_), Err(_)) => {}
        }
    }
    assert!(wrong.is_empty(), "{} wrong verdicts:\n{}", wrong.len(), wrong.join("\n"));
}

fn verifier() {
    judge(|graph, machine, plan, rule| {
        let judged = prove(graph, machine, plan);
        judged.map_err(|error| {
            let is_rule = rule.is_empty() || rules(&error).contains(&rule);
            let other = if is_rule { "" } else { "another rule: " };
            format!("{other}{error}")
        })
    });
}

fn prove(graph: &Graph<'_>, machine: &Machine, plan: &Plan<'_>) -> Result<(), VerifyError> {
    let schedule = planning::schedule(graph, machine, plan)?;
    let schedule = schedule.schedule();
    planning::prove(graph, machine, plan, &schedule)?;
    planning::check_prediction(graph, machine, plan, &schedule)?;
    Ok(())
}

/// The rules that an error may be about.
fn rules(error: &VerifyError) -> &'static [&'static str] {
    use PlanError as E;
    let VerifyError::Plan(error) = error else { return &[] };
    match error {
        E::NeverLaunched(_)
        | E::LaunchedTwice(..)
        | E::NotRepeatable(..)
        | E::RepeatedTooEarly(..)
        | E::NotOnHost(..)
        | E::Dependency { .. } => &["rule 1"],
        // Lists whose residency is broken are not lowered, so that comes before all other rules.
        E::AlreadyResident(Location::End, _) | E::NotResident(Location::End, _) => {
            &["rule 1", "rule 6"]
        }
        E::AlreadyResident(..) => &["rule 1", "rule 2"],
        E::NotResident(..) => &["rule 1", "rule 3", "rule 4", "rule 5"],
        E::ValueLost(Location::End, _) | E::NoHostCopy(Location::End, _) => &["rule 6"],
        E::NoHostCopy(..) => &["rule 2"],
        E::RepeatReads { .. } | E::HostReads { .. } => &["rule 3"],
        E::NoValue(..) => &["rule 3", "rule 4"],
        E::NextInput(..) => &["rule 4"],
        // A state or an output whose last value leaves the device is lost for the end as well.
        E::ValueLost(..) => &["rule 5", "rule 6"],
        E::NoValueAtStart(..) => &["rule 6"],
        E::HostMemory { .. } | E::HostArena { .. } => &["host"],
        _ => &[],
    }
}

fn ledger() {
    judge(|graph, machine, plan, _| {
        ledger::judge(graph, machine, plan).map(drop).map_err(|violation| violation.to_string())
    });
}
