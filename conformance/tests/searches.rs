//! What both searches must satisfy.
#![allow(clippy::unwrap_used, reason = "what fails here fails the test")]

use conformance::graphs::{machines, untidy_graphs};
use conformance::ledger::judge;
use planner_core::planner::{Auto, PlanningError, Repeats, Request, Strategy as Planner};
use planner_core::{Kind, Machine};
use proptest::prelude::*;
use spillway::planning;
use spillway::search::{Limit, Watch, genetic, joint};
use spillway::swapping::{self, Swap};
use std::sync::atomic::AtomicBool;
use workloads::{OwnedGraph, OwnedPlan};

const ROUNDS: Limit = Limit::new().with_rounds(3);

fn published(request: &Request<'_>, seed: u64) -> Result<genetic::Found, PlanningError> {
    let settings =
        genetic::Settings::PUBLISHED.with_population(8).with_seed(seed).with_limit(ROUNDS);
    let interrupted = AtomicBool::new(false);
    let mut watch = Watch::default();
    watch.interrupted = Some(&interrupted);
    genetic::search(request, &settings, &mut watch)
}

fn ours(
    request: &Request<'_>,
    seed: u64,
    repeats: Repeats,
) -> Result<joint::JointFound, PlanningError> {
    let interrupted = AtomicBool::new(false);
    let mut watch = Watch::default();
    watch.interrupted = Some(&interrupted);
    let settings =
        joint::JointSettings::default().with_seed(seed).with_limit(ROUNDS).with_repeats(repeats);
    joint::search(request, &settings, &mut watch)
}

fn with_threads<T: Send>(threads: usize, search: impl FnOnce() -> T + Send) -> T {
    rayon::ThreadPoolBuilder::new().num_threads(threads).build().unwrap().install(search)
}

/// By the ledger and the verifier, with all dependencies of the given graph.
fn is_valid(request: &Request<'_>, plan: &OwnedPlan) -> Result<(), String> {
    let Request { graph, machine, .. } = *request;
    judge(graph, machine, &plan.plan()).map_err(|violation| violation.to_string())?;
    let schedule = planning::schedule(graph, machine, &plan.plan()).unwrap();
    let proved = planning::prove(graph, machine, &plan.plan(), &schedule.schedule());
    proved.map(|_| ()).map_err(|error| error.to_string())
}

fn hold(graph: &OwnedGraph, machine: &Machine, spare: u64, seed: u64) -> Result<(), String> {
    let graph = graph.graph().unwrap();
    let request = |budget_bytes| Request { graph: &graph, machine, budget_bytes };
    let (least, _) = swapping::min_feasible(&request(0), &Swap::default()).unwrap();
    let roomy = request(2 * least + spare);
    let [one, two] = [1, 2]
        .map(|threads| with_threads(threads, || published(&roomy, seed)).map(|found| found.plan));
    assert_eq!(one, two);
    is_valid(&roomy, &one.unwrap())?;
    for repeats in [Repeats::Allowed, Repeats::Never] {
        let auto = Planner::Auto(Auto::new().with_repeats(repeats));
        let (least, _) = planning::min_feasible(&request(0), auto).unwrap();
        let tight = request(least + spare);
        let found = ours(&tight, seed, repeats).map_err(|error| error.to_string())?;
        is_valid(&tight, &found.plan)?;
        let predicted = found.plan.predicted;
        let auto_ns = planning::plan(&tight, auto).unwrap().predicted.period_ns;
        assert!(predicted.period_ns <= auto_ns);
        assert!(repeats == Repeats::Allowed || predicted.repeat_ns == 0);
        assert_eq!(with_threads(1, || ours(&tight, seed, repeats)).unwrap().plan, found.plan);
    }
    Ok(())
}

proptest! {
    #![proptest_config(conformance::seeds::config(32))]

    #[test]
    fn searches_are_valid_and_the_same_at_any_thread_count(
        graph in untidy_graphs(2..=6),
        machine in machines(),
        spare in 0..4096u64,
        seed in any::<u64>(),
    ) {
        hold(&graph, &machine, spare, seed).map_err(TestCaseError::fail)?;
    }
}

/// Another generation is never worse, and an interrupt returns the best plan so far.
#[test]
fn an_interrupt_hands_over_the_best_so_far() {
    let work = zoo::models::generate("rnn:batch=8,layers=3,steps=6,width=256").unwrap();
    let graph = work.graph().unwrap();
    let machine = workloads::machines::builtin("v100-pcie3").unwrap().machine;
    let request = Request { graph: &graph, machine: &machine, budget_bytes: 12 << 20 };
    let interrupted = AtomicBool::new(true);
    let mut shown = 0;
    let mut progress = |_: &spillway::search::Progress| shown += 1;
    let mut watch = Watch::default();
    watch.interrupted = Some(&interrupted);
    watch.progress = Some(&mut progress);
    let settings = genetic::Settings::PUBLISHED.with_population(8);
    let first = genetic::search(&request, &settings, &mut watch).unwrap();
    assert_eq!((shown, first.generations.len()), (1, 1));
    let longer = published(&request, 0).unwrap();
    assert!(longer.generations.len() == 3 && longer.evaluations > first.evaluations);
    assert!(longer.plan.predicted.period_ns <= first.plan.predicted.period_ns);
}

/// A step of training whose activations take five times longer to move than to make.
fn activations_quickly_made() -> OwnedGraph {
    const LAYERS: usize = 5;
    const BYTES: u64 = 6 << 20;
    let mut graph = OwnedGraph::new("quickly-made");
    let mut values = vec![graph.push_tensor("x", BYTES, Kind::Input)];
    for layer in 0..LAYERS {
        let output = graph.push_tensor("a", BYTES, Kind::Temporary);
        let forward = graph.push_op("forward", 100_000, 0, &[values[layer]], &[output]);
        graph.set_repeatable(forward);
        values.push(output);
    }
    let mut gradient = values[LAYERS];
    for layer in (0..LAYERS).rev() {
        let before = graph.push_tensor("g", BYTES, Kind::Temporary);
        graph.push_op("backward", 100_000, 0, &[gradient, values[layer]], &[before]);
        gradient = before;
    }
    graph
}

#[test]
fn plans_repeat_ops_only_where_they_may() {
    let work = activations_quickly_made();
    let graph = work.graph().unwrap();
    let machine = workloads::machines::builtin("v100-pcie3").unwrap().machine;
    let request = Request { graph: &graph, machine: &machine, budget_bytes: 24 << 20 };
    let [with, without] = [Repeats::Allowed, Repeats::Never]
        .map(|repeats| ours(&request, 0, repeats).unwrap().plan.predicted);
    assert!(with.repeat_ns > 0 && with.period_ns < without.period_ns, "{with:?}");
    assert_eq!(without.repeat_ns, 0);
}
