//! Tensors that fill chunks in part get slabs, or lie in the arena, if that costs no time. If a budget has
//! many chunks, an object is several of them.
#![allow(clippy::unwrap_used, reason = "what fails here fails the test")]

use backend_sim::{SimDevice, SimKernels, reference_digest};
use conformance::planners;
use planner_core::planner::{Auto, Order, PlanningError, Request, Strategy as Planner};
use planner_core::{Kind, Machine, MachineParameters};
use proptest::prelude::*;
use spillway::{placing, planning};
use workloads::{OwnedGraph, OwnedPlan, machines};
use zoo::models;

const AUTO: Planner = Planner::Auto(Auto::new().with_order(Order::Given));
const CHUNK_BYTES: u64 = 1024;
const ITERATIONS: u64 = 4;

/// Layers that each keep one value of this many bytes until it is read again, in reverse; and a
/// weight of some chunks each.
fn layers(count: u32, value_bytes: u64, time_ns: u64) -> OwnedGraph {
    let mut graph = OwnedGraph::default();
    let weight = graph.push_tensor("weight", 3 * CHUNK_BYTES, Kind::State);
    let input = graph.push_tensor("input", CHUNK_BYTES, Kind::Input);
    let values: Vec<_> =
        (0..count).map(|_| graph.push_tensor("value", value_bytes, Kind::Temporary)).collect();
    let mut last = input;
    for &value in &values {
        graph.push_op("forward", time_ns, 0, &[last, weight], &[value]);
        last = value;
    }
    for &value in values.iter().rev() {
        graph.push_op("backward", time_ns, 0, &[value], &[weight]);
    }
    graph
}

fn machine(bytes_per_s: u64) -> Machine {
    Machine::new(
        MachineParameters::new()
            .with_device_bytes(1 << 30)
            .with_host_bytes(1 << 30)
            .with_chunk_bytes(CHUNK_BYTES)
            .with_h2d_bytes_per_s(bytes_per_s)
            .with_d2h_bytes_per_s(bytes_per_s)
            .with_transfer_latency_ns(10),
    )
    .unwrap()
}

/// Plans, has the ledger judge it, and runs it in an adversarial order.
fn plan(graph: &OwnedGraph, machine: &Machine, budget_bytes: u64) -> OwnedPlan {
    plan_by(graph, machine, budget_bytes, |request| planning::plan(request, AUTO))
}

/// The same with fixed objects.
fn place(graph: &OwnedGraph, machine: &Machine, budget_bytes: u64) -> OwnedPlan {
    plan_by(graph, machine, budget_bytes, |request| Ok(placing::plan(request, AUTO)?.0))
}

fn plan_by(
    graph: &OwnedGraph,
    machine: &Machine,
    budget_bytes: u64,
    planner: impl Fn(&Request<'_>) -> Result<OwnedPlan, PlanningError>,
) -> OwnedPlan {
    let graph = graph.graph().unwrap();
    let request = Request { graph: &graph, machine, budget_bytes };
    let plan = planners::check(&request, 0, planner);
    let owned = plan.unwrap().unwrap();
    let plan = owned.plan();
    let schedule = planning::schedule(&graph, machine, &plan).unwrap();
    let schedule = schedule.schedule();
    let verified = planning::prove(&graph, machine, &plan, &schedule).unwrap();
    let mut device = SimDevice::adversarial(*machine, plan.predicted.period_ns);
    let (device, kernels) = (&mut device, &mut SimKernels::new(graph));
    planning::with_executor(&verified, device, kernels, |mut executor, device, kernels| {
        executor.run(device, kernels, ITERATIONS)?;
        executor.save_states(device)
    })
    .unwrap();
    assert_eq!(kernels.digest(device).unwrap(), reference_digest(&graph, ITERATIONS));
    owned
}

#[test]
fn slabs_save_transfers() {
    let graph = layers(40, CHUNK_BYTES / 2, 10_000);
    let [slow, fast] = [1_000_000, 1_000_000_000].map(machine);
    // Beside the weight and the input, 15 chunks hold 15 of 40 values, and 30 slabs hold 30.
    let saved = plan(&graph, &fast, 20 * CHUNK_BYTES);
    let named: Vec<_> = saved.pools.iter().map(|pool| pool.object_bytes).collect();
    assert_eq!(named, [CHUNK_BYTES, CHUNK_BYTES / 2]);
    assert!(saved.predicted.d2h_bytes <= 16 * CHUNK_BYTES / 2, "{:?}", saved.predicted);
    // Where the ops wait for the link, chunks serve all.
    let slow = plan(&graph, &slow, 12 * CHUNK_BYTES);
    assert_eq!(slow.pools.len(), 1);
}

#[test]
fn large_budgets_have_objects_of_several_chunks() {
    let graph = layers(100, 64 * CHUNK_BYTES, 10_000);
    let of = |budget_chunks| {
        let plan = place(&graph, &machine(1_000_000_000), budget_chunks * CHUNK_BYTES);
        let objects: Vec<_> = plan.pools.iter().map(|pool| pool.object_bytes).collect();
        (objects, plan.arena_bytes + plan.pools[0].object_bytes * plan.pools[0].count)
    };
    assert_eq!(of(2000).0, [CHUNK_BYTES]);
    let (objects, bytes) = of(4200);
    assert_eq!(objects, [4 * CHUNK_BYTES]);
    assert!((4190 * CHUNK_BYTES..=4200 * CHUNK_BYTES).contains(&bytes), "{bytes}");
    // Where everything fits, nothing moves.
    assert_eq!(of(8000).0, [CHUNK_BYTES]);
}

/// Kernels cannot bind a tensor at any odd address.
#[test]
fn slabs_are_aligned() {
    let graph = layers(40, CHUNK_BYTES / 2 - 75, 10_000);
    let pools = plan(&graph, &machine(1_000_000_000), 20 * CHUNK_BYTES).pools;
    let named: Vec<_> = pools.iter().map(|pool| pool.object_bytes).collect();
    assert_eq!(named, [CHUNK_BYTES, CHUNK_BYTES / 2 - 64]);
}

/// Activations of 6.125 MiB and weights of 1 and 2.25 MiB, in chunks of 2 MiB.
#[test]
fn little_of_the_budget_is_wasted() {
    let graph = models::generate("resnet50:batch=32").unwrap();
    let graph = graph.graph().unwrap();
    let machine = &machines::builtin("v100-pcie3").unwrap().machine;
    let budget_bytes = planning::in_core_peak_bytes(&graph, machine).unwrap() / 2;
    let request = Request { graph: &graph, machine, budget_bytes };
    let plan = planning::plan(&request, Planner::Auto(Auto::default())).unwrap();
    let plan = plan.plan();
    let schedule = planning::schedule(&graph, machine, &plan).unwrap();
    let checked = planning::check_prediction(&graph, machine, &plan, &schedule.schedule());
    let mean_bytes = checked.unwrap().1.mean_internal_waste_bytes;
    assert!(mean_bytes <= budget_bytes / 100 * 3, "{mean_bytes} of {budget_bytes}");
}

proptest! {
    #![proptest_config(conformance::seeds::config(256))]
    #[test]
    fn plans_with_slabs_hold(
        count in 2..40u32,
        value_bytes in 1..=CHUNK_BYTES,
        chunks in 6..40u64,
        time_ns in 0..5_000u64,
    ) {
        let graph = layers(count, value_bytes, time_ns);
        plan(&graph, &machine(1_000_000_000), chunks * CHUNK_BYTES);
    }
}
