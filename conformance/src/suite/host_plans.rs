//! Random plans that run ops on the host. Their results must be the bytes that the graphs define.

use super::failure::{Failure, Outcome, ensure};
use super::plans::{Length, first_wrong, machine, opened, run, stretch};
use super::{Bench, Rig, rig};
use crate::choices::choices;
use crate::graphs::{checked, legal_order, local_graphs};
use crate::plans::random_plan;
use integrity::{Backend, reference_values};
use planner_core::backend::Transfers;
use planner_core::planner::{Request, Strategy};
use planner_core::{ExecuteError, Kind, Machine, OpId, Step, TensorId};
use proptest::prelude::any;
use proptest::strategy::{Strategy as Generator, ValueTree};
use proptest::test_runner::TestRunner;
use spillway::{Capacity, OwnedMachine, Plan, Session, planning};
use workloads::{OwnedGraph, OwnedPlan};

/// The number of plans for each check. With large chunks there are fewer, since their bytes take
/// long.
const PLANS: usize = 16;
const FEW_PLANS: usize = 3;
const SMALL_CHUNK_BYTES: u64 = 4 << 10;
/// The most plans to draw until there are enough of the wanted kind.
const MOST_DRAWN: usize = 4000;
/// Plans that need more memory are skipped.
const MOST_BYTES: u64 = 128 << 20;
/// The iteration in which an op fails.
const FAILS_IN: u64 = 3;

/// Random plans in which some ops run on the host. States and outputs must be the graph's.
pub fn random_plans<T: Backend>(bench: &Bench<'_, T>) -> Outcome {
    run_all(bench, &hosted(&hosting_machine(bench)?, |_| true)?)
}

/// The same, with ops that run twice on the device.
pub fn random_plans_with_repeats<T: Backend>(bench: &Bench<'_, T>) -> Outcome {
    let repeats = |plan: &_| has(plan, |step| step.launched().is_some_and(|op| op.is_repeat));
    run_all(bench, &hosted(&hosting_machine(bench)?, repeats)?)
}

/// Switches from a plan with ops on the host to a plan without them and back keep all states.
pub fn switches_between_plans<T: Backend>(bench: &Bench<'_, T>) -> Outcome {
    let machine = hosting_machine(bench)?;
    for (graph, hosted) in hosted(&machine, |_| true)? {
        let request = Request { graph: &checked(&graph), machine: &machine, budget_bytes: 0 };
        let alone = Strategy::OnDemand;
        let (budget_bytes, _) = planning::min_feasible(&request, alone)?;
        let alone = planning::plan(&Request { budget_bytes, ..request }, alone)?;
        switch(bench, machine, &graph, [hosted, alone])?;
    }
    Ok(())
}

/// If an op fails on the host, the run ends with an error that names the op and the iteration.
/// Nothing more can run, and the host block can be read.
pub fn a_failed_op_ends_the_run<T: Backend>(bench: &Bench<'_, T>) -> Outcome {
    let machine = hosting_machine(bench)?;
    for (graph, plan) in hosted(&machine, |_| true)? {
        let on_host = plan.steps.iter().find_map(|step| match *step {
            Step::Host(op) => Some(op),
            _ => None,
        });
        fail(bench, &machine, &graph, &plan, on_host.unwrap_or(OpId(0)))?;
    }
    Ok(())
}

/// The machine of a bench, if its device has a host stream.
fn hosting_machine<T: Backend>(bench: &Bench<'_, T>) -> Outcome<Machine> {
    let work = rig::work(&bench.machine);
    let mut rig = Rig::open(bench, &work)?;
    rig.needs_host_stream()?;
    rig.close()?;
    Ok(machine(bench))
}

pub(super) fn has(plan: &OwnedPlan, wanted: impl Fn(&Step) -> bool) -> bool {
    plan.steps.iter().any(wanted)
}

/// Plans that run ops on the host and are of the wanted kind.
fn hosted(
    machine: &Machine,
    is_wanted: impl Fn(&OwnedPlan) -> bool,
) -> Outcome<Vec<(OwnedGraph, OwnedPlan)>> {
    let runs_on_host = |plan: &_| has(plan, |step| matches!(step, Step::Host(_)));
    drawn(machine, local_graphs(), |_, plan| runs_on_host(plan) && is_wanted(plan))
}

/// The same plans in every run. They copy in both directions, and are of the wanted kind.
pub(super) fn drawn(
    machine: &Machine,
    graphs: impl Generator<Value = OwnedGraph>,
    is_wanted: impl Fn(&OwnedGraph, &OwnedPlan) -> bool,
) -> Outcome<Vec<(OwnedGraph, OwnedPlan)>> {
    let mut runner = TestRunner::deterministic();
    let keys = proptest::collection::vec(any::<u16>(), 12);
    let generator = (graphs, keys, choices(1200));
    let wanted = if machine.chunk_bytes > SMALL_CHUNK_BYTES { FEW_PLANS } else { PLANS };
    let mut plans = Vec::new();
    for _ in 0..MOST_DRAWN {
        let tree = generator.new_tree(&mut runner).map_err(Failure::new)?;
        let (mut graph, keys, mut choices) = tree.current();
        stretch(&mut graph, machine);
        let order = legal_order(&checked(&graph), &keys);
        let plan = random_plan(&checked(&graph), machine, &order, &mut choices);
        // Kernels need whole words.
        let is_aligned = plan.pools.iter().all(|pool| pool.object_bytes.is_multiple_of(4));
        let moves = has(&plan, |step| matches!(step, Step::Prefetch(_)))
            && has(&plan, |step| matches!(step, Step::Offload(_)));
        if is_aligned && moves && plan.budget_bytes <= MOST_BYTES && is_wanted(&graph, &plan) {
            plans.push((graph, plan));
        }
        if plans.len() == wanted {
            return Ok(plans);
        }
    }
    Err(Failure::new(format_args!(
        "only {} of {MOST_DRAWN} random plans are of this kind",
        plans.len()
    )))
}

pub(super) fn run_all<T: Backend>(
    bench: &Bench<'_, T>,
    plans: &[(OwnedGraph, OwnedPlan)],
) -> Outcome {
    for (number, (graph, plan)) in plans.iter().enumerate() {
        let ran = run(bench, &checked(graph), &plan.plan(), Length::Short);
        ran.map_err(|failure| failure.context(format_args!("plan {number}")))?;
    }
    Ok(())
}

/// Runs plans of one graph in turn, each for two iterations, and compares all states at the end.
fn switch<T: Backend>(
    bench: &Bench<'_, T>,
    machine: Machine,
    graph: &OwnedGraph,
    plans: [OwnedPlan; 2],
) -> Outcome {
    const TURNS: usize = 4;
    const ITERATIONS: u64 = 2;
    let owned_machine = OwnedMachine::new("", machine);
    let owned = spillway::Graph::new(graph.clone())?;
    let [hosted, alone] = plans.map(|plan| Plan::new(&owned, &owned_machine, plan));
    let plans = [hosted?, alone?];
    let mut capacity = Capacity::default();
    for plan in &plans {
        capacity = capacity.max(plan.capacity());
    }
    let view = checked(graph);
    let (device, kernels, runs) = opened(bench, view)?;
    let mut session = Session::with_capacity(plans[0].clone(), capacity, device, kernels)?;
    session.run(ITERATIONS)?;
    for plan in plans.iter().cycle().skip(1).take(TURNS) {
        session.switch(plan.clone(), |_| {})?;
        session.run(ITERATIONS)?;
    }
    let values = reference_values(&view, ITERATIONS * (TURNS as u64 + 1));
    for (state, tensor) in (0..).map(TensorId).zip(view.tensors()) {
        if tensor.kind != Kind::State {
            continue;
        }
        let mut found = vec![0; tensor.bytes as usize];
        session.read_state(state, &mut found)?;
        let wrong = first_wrong(&found, values[state.index()], runs);
        ensure!(wrong.is_none(), "after {TURNS} switches {state} is wrong from {wrong:?} on");
    }
    Ok(())
}

/// Runs a plan in which an op fails.
fn fail<T: Backend>(
    bench: &Bench<'_, T>,
    machine: &Machine,
    graph: &OwnedGraph,
    plan: &OwnedPlan,
    op: OpId,
) -> Outcome {
    let (graph, plan) = (checked(graph), plan.plan());
    let schedule = planning::schedule(&graph, machine, &plan)?;
    let schedule = schedule.schedule();
    let verified = planning::prove(&graph, machine, &plan, &schedule)?;
    let (mut device, mut kernels, _) = opened(bench, graph)?;
    bench.backend.fail_host_op(&mut kernels, op, FAILS_IN).map_err(Failure::unsupported)?;
    let ran = planning::with_executor(
        &verified,
        &mut device,
        &mut kernels,
        |mut executor, device, kernels| {
            let saved = executor.run(device, kernels, FAILS_IN - 1);
            saved.and_then(|()| executor.save_states(device))?;
            let ran = executor.run(device, kernels, 5);
            let ended = ran.and_then(|()| executor.save_states(device));
            let again = executor.run(device, kernels, 1);
            let mut bytes = vec![0; executor.host_layout().bytes().min(64) as usize];
            Ok((ended, again, device.read_host(0, &mut bytes)))
        },
    );
    let (ended, again, read) = ran?;
    let said = match ended {
        Err(ExecuteError::Device { error, .. }) => error.to_string(),
        Err(error) => error.to_string(),
        Ok(()) => String::from("nothing"),
    };
    let names = said.contains(&op.to_string()) && said.contains(&format!("iteration {FAILS_IN}"));
    ensure!(
        names,
        "{op} failed on the host in iteration {FAILS_IN}, but the device reported: {said}"
    );
    ensure!(matches!(again, Err(ExecuteError::Failed)), "a run goes on after an op failed");
    Ok(read?)
}
