//! Plans of every kind on the simulated device: in every order that their waits allow they
//! compute what the graph says.
#![allow(clippy::unwrap_used, reason = "what fails here fails the test")]

use backend_sim::{SimDevice, SimKernels, reference_digest};
use conformance::plans::{Case, cases};
use planner_core::Verified;
use proptest::prelude::*;
use spillway::planning;

const ITERATIONS: u64 = 8;
const ORDERS: u64 = 8;

fn digest(verified: &Verified<'_>, mut device: SimDevice) -> Result<u64, String> {
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
    kernels.digest(&device).map_err(|error| error.to_string())
}

fn run(case: &Case) -> Result<(), TestCaseError> {
    let graph = case.graph.graph().unwrap();
    let plan = case.plan.plan();
    let machine = case.machine;
    let schedule = planning::schedule(&graph, &machine, &plan).unwrap();
    let schedule = schedule.schedule();
    let verified = planning::prove(&graph, &machine, &plan, &schedule).unwrap();
    let reference = reference_digest(&graph, ITERATIONS);
    let in_order = digest(&verified, SimDevice::new(machine));
    prop_assert_eq!(in_order.map_err(TestCaseError::fail)?, reference);
    for seed in 0..ORDERS {
        let device = SimDevice::adversarial(machine, seed);
        let digest = digest(&verified, device).map_err(TestCaseError::fail)?;
        prop_assert_eq!(digest, reference, "order {}", seed);
    }
    Ok(())
}

proptest! {
    #![proptest_config(conformance::seeds::config(256))]
    #[test]
    fn every_order_computes_what_the_graph_says(case in cases()) {
        run(&case)?;
    }
}
