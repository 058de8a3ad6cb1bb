//! What planners answer where numbers are as large as they can be: a plan or a reason, and
//! never a sum that overflows.
#![allow(clippy::unwrap_used, reason = "what fails here fails the test")]

use planner_core::plan::{Location, PlanError, Pool};
use planner_core::planner::swap::{Classes, Threshold};
use planner_core::planner::{
    Auto, Groups, Lms, Order, PlanningError, Request, Strategy, Weights, Window,
};
use planner_core::{Graph, Kind, Machine, MachineParameters, Scratch, TensorId};
use spillway::planning;
use spillway::swapping::{self, Swap};
use workloads::OwnedGraph;

const MOST: u64 = u64::MAX;

const STRATEGIES: [Strategy; 11] = [
    Strategy::InCore,
    Strategy::OnDemand,
    Strategy::Fit,
    Strategy::Groups(Groups::new()),
    Strategy::Vdnn,
    Strategy::Lms(Lms::new()),
    Strategy::Window(Window::new().with_bytes(MOST)),
    Strategy::Weights(Weights::new().with_activations(true)),
    Strategy::WeightsUndiscounted,
    Strategy::LayerToLayer,
    Strategy::Auto(Auto::new().with_effort(40)),
];

fn machine(parameters: MachineParameters) -> Machine {
    Machine::new(parameters).unwrap()
}

/// All that a machine can have.
const HUGE: MachineParameters = MachineParameters::new()
    .with_device_bytes(MOST)
    .with_host_bytes(MOST)
    .with_chunk_bytes(1)
    .with_h2d_bytes_per_s(MOST)
    .with_d2h_bytes_per_s(MOST)
    .with_transfer_latency_ns(MOST)
    .with_map_ns_per_chunk(MOST)
    .with_unmap_ns_per_chunk(MOST);

/// Layers forward and backward, each with a weight and an activation of this many bytes.
fn training_step(layers: usize, bytes: u64, time_ns: u64) -> OwnedGraph {
    let mut graph = OwnedGraph::default();
    let input = graph.push_tensor("input", bytes, Kind::Input);
    let mut chain = vec![input];
    let mut weights = Vec::new();
    for layer in 0..layers {
        weights.push(graph.push_tensor(format!("w{layer}"), bytes, Kind::State));
        chain.push(graph.push_tensor(format!("a{layer}"), bytes, Kind::Temporary));
        graph.push_op(
            format!("F{layer}"),
            time_ns,
            bytes / 2,
            &[chain[layer], weights[layer]],
            &[chain[layer + 1]],
        );
    }
    for layer in (0..layers).rev() {
        let reads = [chain[layer], weights[layer], chain[layer + 1]];
        let writes = [chain[layer], weights[layer]];
        graph.push_op(format!("B{layer}"), time_ns, bytes / 2, &reads, &writes);
    }
    graph
}

/// Plans with every strategy and a range of budgets, and judges what comes of it.
fn plan_everything(graph: &Graph<'_>, machine: &Machine) -> Vec<Result<(), PlanningError>> {
    let mut outcomes = Vec::new();
    for shift in [0, 1, 2, 3, 8, 32, 60] {
        let budget_bytes = machine.device_bytes >> shift;
        let request = Request { graph, machine, budget_bytes };
        for strategy in STRATEGIES {
            let outcome = planning::plan(&request, strategy).map(|plan| {
                let plan = plan.plan();
                let schedule = planning::schedule(graph, machine, &plan).unwrap();
                planning::prove(graph, machine, &plan, &schedule.schedule()).unwrap();
            });
            outcomes.push(outcome);
        }
        outcomes.push(swapping::plan(&request, &Swap::default()).map(|_| ()));
        for strategy in STRATEGIES {
            let _ = planning::min_feasible(&request, strategy);
        }
    }
    outcomes
}

#[test]
fn links_of_any_speed_and_latency_are_planned_for() {
    let owned = training_step(5, 1 << 20, 1_000_000);
    let graph = owned.graph().unwrap();
    for (bytes_per_s, transfer_latency_ns) in [(1, 0), (1, MOST), (MOST, 0), (MOST, MOST)] {
        for chunk_bytes in [1, 1 << 16, MOST] {
            let machine = machine(
                HUGE.with_device_bytes(12 << 20)
                    .with_chunk_bytes(chunk_bytes)
                    .with_h2d_bytes_per_s(bytes_per_s)
                    .with_d2h_bytes_per_s(bytes_per_s)
                    .with_transfer_latency_ns(transfer_latency_ns),
            );
            plan_everything(&graph, &machine);
        }
    }
}

#[test]
fn more_objects_than_can_be_counted_are_refused() {
    let owned = training_step(3, MOST / 11, 1);
    let graph = owned.graph().unwrap();
    let refused = Err(PlanningError::Plan(PlanError::Overflow(Location::End)));
    let without_latency = HUGE.with_transfer_latency_ns(0);
    for parameters in [HUGE, without_latency] {
        assert!(plan_everything(&graph, &machine(parameters)).contains(&refused));
    }
    // In chunks, they can be counted.
    let in_chunks = without_latency.with_chunk_bytes(1 << 40);
    assert!(plan_everything(&graph, &machine(in_chunks)).contains(&Ok(())));
}

#[test]
fn an_object_for_each_of_so_many_bytes_is_refused_too() {
    let mut owned = OwnedGraph::default();
    let state = owned.push_tensor("state", 1 << 63, Kind::State);
    let other = owned.push_tensor("other", 1 << 20, Kind::State);
    owned.push_op("one", 1, 0, &[state], &[state]);
    owned.push_op("other", 1, 0, &[other], &[other]);
    let graph = owned.graph().unwrap();
    let machine = machine(HUGE.with_transfer_latency_ns(0));
    let budget_bytes = 1 << 63;
    let request = Request { graph: &graph, machine: &machine, budget_bytes };
    let auto = Strategy::Auto(Auto::new().with_effort(9).with_order(Order::Given));
    let refused = PlanningError::Plan(PlanError::Overflow(Location::End));
    assert_eq!(planning::plan(&request, auto).unwrap_err(), refused);
}

#[test]
fn times_that_fill_64_bits_are_refused_or_planned_for() {
    for share in [10, 100, 1 << 20] {
        let owned = training_step(5, 1 << 20, MOST / share);
        let graph = owned.graph().unwrap();
        for transfer_latency_ns in [0, MOST / share, MOST] {
            let parameters =
                HUGE.with_chunk_bytes(1 << 16).with_transfer_latency_ns(transfer_latency_ns);
            plan_everything(&graph, &machine(parameters).with_device_bytes(12 << 20));
        }
    }
}

#[test]
fn a_class_may_have_any_number_of_objects() {
    let owned = training_step(2, 1, 10);
    let graph = owned.graph().unwrap();
    let machine = machine(HUGE.with_transfer_latency_ns(0));
    let request = Request { graph: &graph, machine: &machine, budget_bytes: MOST };
    let classes = vec![Pool { object_bytes: 1, count: MOST }];
    let swap = Swap::default().with_classes(classes).with_threshold(Threshold::Ns(0));
    swapping::plan(&request, &swap).unwrap();
}

#[test]
fn classes_that_are_too_small_have_no_needs() {
    let owned = training_step(1, 100, 10);
    let graph = owned.graph().unwrap();
    let pools = [Pool { object_bytes: 99, count: 1 }];
    let mut memory = [0; 64];
    let mut scratch = Scratch::new(&mut memory);
    let needs = |tensor_pool: &[u32], least: &mut [u64], scratch: &mut Scratch<'_>| {
        let classes = Classes { pools: &pools, tensor_pool, workspace_pool: &[0, 0] };
        classes.needs(&graph, least, scratch)
    };
    let small = PlanError::ObjectSize(Location::Pool(0));
    assert_eq!(needs(&[0; 3], &mut [0], &mut scratch), Err(small));
    let unknown = PlanError::TensorWithoutPool(TensorId(0));
    assert_eq!(needs(&[1; 3], &mut [0], &mut scratch), Err(unknown));
    let short = PlanError::PoolTable { length: 2, expected: 3 };
    assert_eq!(needs(&[0; 2], &mut [0], &mut scratch), Err(short));
    let pools = [Pool { object_bytes: 100, count: 1 }];
    let classes = Classes { pools: &pools, tensor_pool: &[0; 3], workspace_pool: &[0, 0] };
    let no_table = PlanError::PoolTable { length: 0, expected: 1 };
    assert_eq!(classes.needs(&graph, &mut [], &mut scratch), Err(no_table));
}

#[test]
fn the_peak_of_what_exceeds_64_bits_in_chunks_is_all_of_them() {
    let mut owned = OwnedGraph::default();
    let values: Vec<_> =
        (0..5).map(|_| owned.push_tensor("value", 1 << 61, Kind::Temporary)).collect();
    owned.push_op("write", 1, 0, &[], &values);
    owned.push_op("read", 1, 0, &values, &[]);
    let graph = owned.graph().unwrap();
    let machine = machine(HUGE.with_chunk_bytes(1 << 62));
    assert_eq!(planning::in_core_peak_bytes(&graph, &machine), Ok(MOST));
}
