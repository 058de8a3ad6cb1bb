//! The fast code against the ledger: same verdict, same figures, on the same plans.
//!
//! A run of a million plans with ops on the host, from the seed 1, of which 330,269 were valid, found no
//! disagreement.
#![allow(clippy::unwrap_used, reason = "what fails here fails the test")]

use conformance::choices::choices;
use conformance::ledger::{judge, measure};
use conformance::plans::{
    Case, cases, cases_on_small_hosts, misplaced_cases, mutate, mutated_cases,
};
use conformance::seeds;
use planner_core::pieces::Pieces;
use planner_core::plan::Step;
use planner_core::timeline::{self, Timeline};
use planner_core::{Limits, Plan, Scratch, Stream, VerifyError};
use proptest::collection::vec;
use proptest::prelude::*;
use proptest::strategy::ValueTree;
use spillway::planning;

/// What lowering, verifying and predicting say of a plan, whatever it predicts itself.
fn fast_safety(case: &Case) -> Result<(), String> {
    let (graph, plan) = (case.graph.graph().unwrap(), case.plan.plan());
    let machine = &case.machine;
    let schedule = planning::schedule(&graph, machine, &plan).map_err(|e| e.to_string())?;
    let schedule = schedule.schedule();
    planning::prove(&graph, machine, &plan, &schedule).map_err(|e| e.to_string())?;
    planning::predict(&graph, machine, &plan, &schedule).map(|_| ()).map_err(|e| e.to_string())
}

/// What lowering, predicting and verifying say of a plan together.
fn fast_verdict(case: &Case, plan: &Plan<'_>) -> Result<(), String> {
    let graph = case.graph.graph().unwrap();
    let machine = &case.machine;
    let schedule = planning::schedule(&graph, machine, plan).map_err(|e| e.to_string())?;
    let schedule = schedule.schedule();
    planning::prove(&graph, machine, plan, &schedule).map_err(|e| e.to_string())?;
    planning::check_prediction(&graph, machine, plan, &schedule)
        .map(|_| ())
        .map_err(|e| e.to_string())
}

/// Whether the plan is valid, which verifier and ledger have to agree on.
fn same_verdict(case: &Case) -> Result<bool, String> {
    let graph = case.graph.graph().unwrap();
    let (machine, plan) = (&case.machine, case.plan.plan());
    let (slow, fast) = (measure(&graph, machine, &plan), fast_safety(case));
    if slow.is_ok() != fast.is_ok() {
        return Err(format!("safety: {slow:?} {fast:?}"));
    }
    let (slow, fast) = (judge(&graph, machine, &plan), fast_verdict(case, &plan));
    if slow.is_ok() != fast.is_ok() {
        return Err(format!("verdict: {slow:?} {fast:?}"));
    }
    Ok(fast.is_ok())
}

/// How many corruptions of each plan are judged in [`a_million_plans_with_host_ops_get_the_same_verdict`].
const CORRUPTIONS: usize = 19;

/// A plan and corruptions of it, which seldom are valid.
fn families() -> impl Strategy<Value = Vec<Case>> {
    (cases(), vec(choices(8), CORRUPTIONS)).prop_map(|(case, corruptions)| {
        let graph = case.graph.graph().unwrap();
        let corrupt = |mut choices| mutate(&graph, &case.machine, &case.plan, &mut choices);
        let corrupted = corruptions.into_iter().map(corrupt);
        let plans = std::iter::once(case.plan.clone()).chain(corrupted);
        plans.map(|plan| Case { plan, ..case.clone() }).collect()
    })
}

/// Draws `PLANS` plans with host ops, from the seed `FROM`; most of them are corrupted.
#[test]
#[ignore = "takes long: cargo test --release -p spillway-conformance --test all -- --ignored --nocapture agreement::"]
fn a_million_plans_with_host_ops_get_the_same_verdict() {
    let (from, plans) = (seeds::setting("FROM", 0), seeds::setting("PLANS", 1_000_000));
    let mut runner = seeds::runner(from);
    let runs_on_host =
        |case: &Case| case.plan.plan().steps.iter().any(|step| matches!(step, Step::Host(_)));
    let (mut judged, mut valid) = (0, 0);
    while judged < plans {
        let family = families().new_tree(&mut runner).unwrap().current();
        for case in family.iter().filter(|case| runs_on_host(case)) {
            valid += u64::from(same_verdict(case).unwrap_or_else(|why| panic!("{why}: {case:?}")));
            judged += 1;
            if judged % 10_000 == 0 {
                println!("seed {from}: {judged} plans with host ops, {valid} of them valid");
            }
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 2000, ..ProptestConfig::default() })]

    #[test]
    fn valid_plans_are_verified_and_predicted_exactly(case in cases()) {
        let verdict = fast_verdict(&case, &case.plan.plan());
        prop_assert_eq!(verdict, Ok(()));
    }

    #[test]
    fn every_step_ends_when_the_ledger_says(case in cases()) {
        let (graph, plan) = (case.graph.graph().unwrap(), case.plan.plan());
        let judgement = judge(&graph, &case.machine, &plan).unwrap();
        let owned = planning::schedule(&graph, &case.machine, &plan).unwrap();
        let schedule = owned.schedule();
        let limits = Limits::of_plan(&graph, &plan);
        let mut memory = vec![0; timeline::scratch_words(&limits)];
        let scratch = &mut Scratch::new(&mut memory);
        let pieces = Pieces::new(&graph, &case.machine, &plan, scratch).unwrap();
        let mut durations_ns = vec![0; plan.steps.len()];
        timeline::durations(&case.machine, &pieces, &mut durations_ns).unwrap();
        let timeline = Timeline::new(&schedule, &durations_ns, scratch).unwrap();
        for event in &judgement.timeline {
            let iteration = event.iteration as usize - 1;
            let entry = schedule.of_iteration(iteration as u64)[event.step];
            let Some(stream) = entry.stream() else { continue };
            let end_ns = timeline.end_ns(iteration, stream, entry.index());
            prop_assert_eq!(end_ns, event.end_ns, "{:?}", event);
        }
    }

    /// Published as equation 2: what is wasted is less than an object for each allocation.
    #[test]
    fn waste_is_what_the_ledger_says_and_below_the_bound(case in cases()) {
        let (graph, plan) = (case.graph.graph().unwrap(), case.plan.plan());
        let judgement = judge(&graph, &case.machine, &plan).unwrap();
        let mut sum_bytes = 0;
        for &[waste_bytes, bound_bytes] in &judgement.waste_bytes {
            prop_assert!(waste_bytes < bound_bytes || waste_bytes == 0, "{waste_bytes} {bound_bytes}");
            sum_bytes += waste_bytes;
        }
        let steps = plan.steps.len().max(1) as u128;
        let most_bytes = judgement.waste_bytes.iter().map(|&[waste_bytes, _]| waste_bytes).max();
        let schedule = planning::schedule(&graph, &case.machine, &plan).unwrap();
        let (_, footprint) =
            planning::check_prediction(&graph, &case.machine, &plan, &schedule.schedule()).unwrap();
        let fast = [footprint.most_internal_waste_bytes, footprint.mean_internal_waste_bytes];
        prop_assert_eq!(fast.map(u128::from), [most_bytes.unwrap_or(0), sum_bytes / steps]);
    }

    #[test]
    fn corrupted_plans_get_the_same_verdict(case in mutated_cases()) {
        same_verdict(&case).map_err(TestCaseError::fail)?;
    }

    /// Between these bounds only the verifier, which packs, can tell.
    #[test]
    fn small_hosts_get_the_same_verdict(case in cases_on_small_hosts()) {
        let slow = judge(&case.graph.graph().unwrap(), &case.machine, &case.plan.plan());
        let fast = fast_verdict(&case, &case.plan.plan());
        let most_bytes = slow.as_ref().map_or(0, |judgement| judgement.host_layout_bytes.1);
        match &fast {
            Err(reason) if case.machine.host_bytes < most_bytes => {
                prop_assert!(reason.contains("pinned host memory"), "{}", reason);
            }
            _ => prop_assert_eq!(slow.is_ok(), fast.is_ok(), "{:?} {:?}", slow, fast),
        }
    }

    /// Lowering refuses bad placements, too, but the verifier does not count on that.
    #[test]
    fn bad_placements_are_found_under_a_schedule_for_good_ones(
        (case, misplaced) in misplaced_cases(),
    ) {
        let graph = case.graph.graph().unwrap();
        let schedule = planning::schedule(&graph, &case.machine, &case.plan.plan()).unwrap();
        let misplaced = misplaced.plan();
        let slow = measure(&graph, &case.machine, &misplaced);
        let fast = planning::prove(&graph, &case.machine, &misplaced, &schedule.schedule());
        match slow {
            Ok(_) => prop_assert!(
                matches!(fast, Ok(_) | Err(VerifyError::Memory { .. } | VerifyError::NotThisPlan { .. })),
                "{:?}", fast
            ),
            Err(violation) => prop_assert!(fast.is_err(), "{}", violation),
        }
    }

    #[test]
    fn every_dropped_wait_is_found(case in cases()) {
        let graph = case.graph.graph().unwrap();
        let plan = case.plan.plan();
        let mut schedule = planning::schedule(&graph, &case.machine, &plan).unwrap();
        for step in 0..schedule.steps.len() {
            for stream in Stream::ALL {
                let wait = schedule.steps[step].wait(stream);
                if wait.is_none() {
                    continue;
                }
                schedule.steps[step].set_wait(stream, None);
                let verdict =
                    planning::prove(&graph, &case.machine, &plan, &schedule.schedule());
                prop_assert!(
                    matches!(
                        verdict,
                        Err(VerifyError::Race { .. } | VerifyError::Memory { .. })
                    ),
                    "without its wait for {} step {} passes",
                    stream,
                    step
                );
                schedule.steps[step].set_wait(stream, wait);
            }
        }
    }
}
