//! Plans of every kind on the simulated device: in every order that their waits allow they
//! compute what the graph says, and when the host has nothing to wait for they take no
//! longer than predicted.
#![allow(clippy::unwrap_used, reason = "what fails here fails the test")]

use backend_sim::{SimDevice, SimKernels, reference_digest};
use conformance::plans::{Case, cases};
use planner_core::{Graph, Kind, Step, TensorId, Verified};
use proptest::prelude::*;
use spillway::planning;
use workloads::OwnedPlan;

const ITERATIONS: u64 = 8;
const ORDERS: u64 = 8;

fn digest(verified: &Verified<'_>, mut device: SimDevice) -> Result<(u64, u64), String> {
    let mut kernels = SimKernels::new(*verified.graph());
    let calls = |device: &SimDevice| (device.counters().map_calls, device.counters().unmap_calls);
    let mut before = (0, 0);
    planning::with_executor(
        verified,
        &mut device,
        &mut kernels,
        |mut executor, device, kernels| {
            before = calls(device);
            executor.run(device, kernels, ITERATIONS)?;
            executor.save_states(device)
        },
    )
    .map_err(|error| error.to_string())?;
    if verified.plan().placements.is_some() && calls(&device) != before {
        return Err("a plan with placements makes mapping calls while it runs".into());
    }
    let period_ns = device.period_ns(ITERATIONS / 2, ITERATIONS).unwrap_or(0);
    Ok((kernels.digest(&device).map_err(|error| error.to_string())?, period_ns))
}

/// Whether the host never waits for a range or a slot: only whole tensors move, all of them
/// for some op, none comes and goes twice, and no input goes back to its slot.
fn host_never_waits(graph: &Graph<'_>, plan: &OwnedPlan) -> bool {
    let used = |of: TensorId| graph.op_ids().any(|op| graph.operands_of(op).contains(&of));
    let evicts = |of: TensorId| {
        let is_evict = move |step: &&Step| matches!(step, Step::Evict(part) if part.tensor == of);
        plan.steps.iter().filter(is_evict).count()
    };
    plan.steps.iter().all(|step| match step {
        Step::Prefetch(part) => part.is_whole() && used(part.tensor),
        Step::Offload(part) => part.is_whole() && graph.tensor(part.tensor).kind != Kind::Input,
        Step::Evict(part) => part.is_whole() && evicts(part.tensor) == 1,
        Step::Launch(_) => true,
    })
}

fn run(case: &Case) -> Result<(), TestCaseError> {
    let graph = case.graph.graph().unwrap();
    let plan = case.plan.plan();
    let machine = planner_core::Machine::new(planner_core::MachineParameters {
        map_ns_per_chunk: 0,
        unmap_ns_per_chunk: 0,
        ..*case.machine
    })
    .unwrap();
    let schedule = planning::schedule(&graph, &machine, &plan).unwrap();
    let schedule = schedule.schedule();
    let verified = planning::prove(&graph, &machine, &plan, &schedule).unwrap();
    let reference = reference_digest(&graph, ITERATIONS);
    let in_order = digest(&verified, SimDevice::new(machine));
    let (in_order, period_ns) = in_order.map_err(TestCaseError::fail)?;
    prop_assert_eq!(in_order, reference);
    if host_never_waits(&graph, &case.plan) {
        prop_assert!(period_ns <= plan.predicted.period_ns);
    }
    for seed in 0..ORDERS {
        let device = SimDevice::adversarial(machine, seed);
        let (digest, _) = digest(&verified, device).map_err(TestCaseError::fail)?;
        prop_assert_eq!(digest, reference, "order {}", seed);
    }
    Ok(())
}

proptest! {
    #[test]
    fn every_order_computes_what_the_graph_says(case in cases()) {
        run(&case)?;
    }
}
