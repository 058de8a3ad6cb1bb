//! `auto` finds plans where the host is short: decoders whose states, inputs and outputs leave little
//! of it to what an iteration makes.
#![allow(clippy::unwrap_used, reason = "what fails here fails the test")]

use conformance::planners;
use planner_core::planner::{Auto, PlanningError, Request, Strategy as Planner};
use planner_core::{Graph, Kind, Machine, MachineParameters, PlanError};
use proptest::prelude::*;
use spillway::planning;
use workloads::OwnedGraph;
use zoo::models::generate;

const AUTO: Planner = Planner::Auto(Auto::new().with_effort(16));

/// A training step of a small decoder, a budget and a link.
#[derive(Clone, Debug)]
struct Case {
    layers: u32,
    width: u32,
    vocabulary: u32,
    batch: u32,
    sequence: u32,
    budget_percent: u64,
    link_gb_s: u64,
    latency_ns: u64,
}

impl Case {
    fn graph(&self) -> OwnedGraph {
        let Self { layers, width, vocabulary, batch, sequence, .. } = self;
        let (heads, hidden) = (width / 64, 4 * width);
        let spec = format!(
            "llama:billions=1,layers={layers},width={width},heads={heads},kv_heads={heads},\
             hidden={hidden},vocabulary={vocabulary},batch={batch},sequence={sequence}"
        );
        generate(&spec).unwrap()
    }

    fn machine(&self, host_bytes: u64) -> Machine {
        Machine::new(
            MachineParameters::new()
                .with_device_bytes(1 << 42)
                .with_host_bytes(host_bytes)
                .with_chunk_bytes(8 << 20)
                .with_h2d_bytes_per_s(self.link_gb_s * 1_000_000_000)
                .with_d2h_bytes_per_s(self.link_gb_s * 1_000_000_000)
                .with_transfer_latency_ns(self.latency_ns),
        )
        .unwrap()
    }
}

fn cases() -> impl Strategy<Value = Case> {
    let model = (
        4..9u32,
        prop_oneof![Just(512u32), Just(768), Just(1024), Just(1536)],
        prop_oneof![Just(8192u32), Just(32_000)],
        prop_oneof![Just(1u32), Just(2), Just(4), Just(8)],
        prop_oneof![Just(1024u32), Just(2048), Just(3072)],
    );
    let machine = (15..60u64, 6..200u64, prop_oneof![Just(0u64), Just(10_000)]);
    (model, machine).prop_map(|(model, machine)| {
        let (layers, width, vocabulary, batch, sequence) = model;
        let (budget_percent, link_gb_s, latency_ns) = machine;
        Case { layers, width, vocabulary, batch, sequence, budget_percent, link_gb_s, latency_ns }
    })
}

/// The bytes that the host needs of a graph for the values that no iteration makes, and for its results.
fn kept_bytes(graph: &Graph<'_>) -> u64 {
    let kept = graph.tensors().iter().filter(|tensor| tensor.kind != Kind::Temporary);
    kept.map(|tensor| tensor.bytes).sum()
}

/// A host that holds little beside these.
fn short_host_bytes(case: &Case) -> u64 {
    kept_bytes(&case.graph().graph().unwrap()) / 10 * 13
}

/// Calls a function with the request of a case, which has at least the least budget, and that budget.
fn with_request<T>(case: &Case, host_bytes: u64, visit: impl FnOnce(&Request<'_>, u64) -> T) -> T {
    let owned = case.graph();
    let graph = owned.graph().unwrap();
    let machine = case.machine(host_bytes);
    let peak_bytes = planning::in_core_peak_bytes(&graph, &machine).unwrap();
    let budget_bytes = peak_bytes / 100 * case.budget_percent;
    let request = Request { graph: &graph, machine: &machine, budget_bytes };
    let (least_bytes, _) = planning::min_feasible(&request, AUTO).unwrap();
    visit(&Request { budget_bytes: budget_bytes.max(least_bytes), ..request }, least_bytes)
}

/// A plan with such a host keeps every rule; its period and the host's memory that it takes.
fn plan(case: &Case, host_bytes: u64) -> Result<(u64, u64), String> {
    let plan = with_request(case, host_bytes, |request, least_bytes| {
        planners::check(request, least_bytes, |request| planning::plan(request, AUTO))
    })?;
    let predicted = plan.unwrap().predicted;
    Ok((predicted.period_ns, predicted.host_bytes))
}

proptest! {
    // A case takes seconds.
    #![proptest_config(conformance::seeds::config(32))]
    #[test]
    fn a_decoder_is_planned_where_the_host_holds_little_beside_its_states(case in cases()) {
        let host_bytes = short_host_bytes(&case);
        let (_, taken_bytes) = plan(&case, host_bytes).map_err(TestCaseError::fail)?;
        prop_assert!(taken_bytes <= host_bytes, "{taken_bytes} of {host_bytes}");
    }
}

/// Transfers alone need more of the host than it has, by far.
const DEEP: Case = Case {
    layers: 8,
    width: 768,
    vocabulary: 8192,
    batch: 8,
    sequence: 4096,
    budget_percent: 16,
    link_gb_s: 120,
    latency_ns: 10_000,
};

#[test]
fn a_plan_is_found_where_one_round_of_repeats_still_lacks_host_memory() {
    let case = Case {
        layers: 4,
        width: 512,
        vocabulary: 8192,
        batch: 8,
        sequence: 2048,
        budget_percent: 15,
        link_gb_s: 6,
        latency_ns: 0,
    };
    plan(&case, short_host_bytes(&case)).unwrap();
}

#[test]
fn a_plan_is_found_where_ops_run_more_than_twice() {
    let case = Case {
        layers: 5,
        width: 512,
        vocabulary: 8192,
        batch: 4,
        sequence: 3072,
        budget_percent: 0,
        link_gb_s: 133,
        latency_ns: 0,
    };
    let host_bytes = kept_bytes(&case.graph().graph().unwrap()) / 20 * 23;
    plan(&case, host_bytes).unwrap();
}

#[test]
fn the_error_names_host_memory_that_a_plan_takes() {
    let case = Case {
        layers: 4,
        width: 512,
        vocabulary: 8192,
        batch: 8,
        sequence: 3072,
        budget_percent: 0,
        link_gb_s: 44,
        latency_ns: 0,
    };
    let planned = |host_bytes| {
        let plan = with_request(&case, host_bytes, |request, _| planning::plan(request, AUTO));
        plan.map(|plan| plan.predicted.host_bytes)
    };
    let host_bytes = short_host_bytes(&case) / 100 * 90;
    let Err(PlanningError::Plan(PlanError::HostMemory { needed_bytes, .. })) = planned(host_bytes)
    else {
        panic!("a plan, or another error");
    };
    assert!(planned(needed_bytes).unwrap() <= needed_bytes);
    // A plan without repeats takes five times as much.
    assert!(needed_bytes < host_bytes / 10 * 11, "{needed_bytes} beside {host_bytes}");
}

#[test]
fn a_repeat_does_not_overwrite_a_gradient_that_changes_in_place() {
    let case = Case {
        layers: 6,
        width: 512,
        vocabulary: 8192,
        batch: 1,
        sequence: 3072,
        budget_percent: 22,
        link_gb_s: 11,
        latency_ns: 0,
    };
    plan(&case, short_host_bytes(&case)).unwrap();
}

#[test]
fn less_host_memory_makes_a_plan_longer_and_does_not_end_planning() {
    let kept_bytes = kept_bytes(&DEEP.graph().graph().unwrap());
    let (any_ns, any_bytes) = plan(&DEEP, u64::MAX / 4).unwrap();
    assert!(any_bytes > 2 * kept_bytes, "{any_bytes} beside {kept_bytes}");
    for percent in [110, 160] {
        let host_bytes = kept_bytes / 100 * percent;
        let (period_ns, taken_bytes) = plan(&DEEP, host_bytes).unwrap();
        assert!(taken_bytes <= host_bytes, "{taken_bytes} of {host_bytes}");
        // As long as with any amount of host memory, and all of the forward pass once more.
        assert!(period_ns < any_ns / 10 * 15, "{period_ns} where {any_ns} is possible");
    }
}
