//! Slots on the host: packed soundly, as small as they are said to be, and what shares one
//! wrongly is found.
#![allow(clippy::unwrap_used, reason = "what fails here fails the test")]

use backend_sim::{SimDevice, SimKernels, reference_digest};
use conformance::graphs::{graphs, machines, training_graphs};
use conformance::ledger::host::{self, HostUse};
use conformance::ledger::judge;
use conformance::plans::{cases, cases_on_small_hosts, predicted_by_ledger};
use middleware::{Layer, Layered, LayeredKernels};
use planner_core::backend::{DeviceAddress, HostRange, Kernels, Paging, Transfers};
use planner_core::plan::{Pool, Resident};
use planner_core::planner::{Auto, Lms, PlanningError, Request, Strategy as Planner};
use planner_core::{
    ExecuteError, Graph, HostLayout, Kind, Limits, Machine, MachineParameters, OpId, Part, Plan,
    PlanError, Scratch, Step, TensorId, VerifyError,
};
use proptest::prelude::*;
use proptest::sample::{Index, select};
use spillway::planning;
use std::collections::BTreeSet;
use std::vec::IntoIter;
use workloads::{OwnedGraph, OwnedPlan};

const ITERATIONS: u64 = 4;

/// Finds a plan's layout, and hands it on.
fn with_layout<T>(
    graph: &Graph<'_>,
    machine: &Machine,
    plan: &Plan<'_>,
    then: impl FnOnce(Result<HostLayout<'_>, PlanError>) -> T,
) -> T {
    let mut memory = vec![0; HostLayout::scratch_words(&Limits::of_plan(graph, plan))];
    then(HostLayout::new(graph, machine, plan, &mut Scratch::new(&mut memory)))
}

/// Holds a plan's layout to the format; returns how much it saves.
fn hold(graph: &Graph<'_>, machine: &Machine, plan: &Plan<'_>) -> Result<u64, TestCaseError> {
    let uses = host::temporaries(graph, plan);
    with_layout(graph, machine, plan, |layout| {
        let layout = layout.unwrap();
        let at = |tensor, slot, byte| layout.offset_bytes(tensor, slot, byte);
        host::check(graph, &uses, layout.bytes(), at).map_err(TestCaseError::fail)?;
        for used in &uses {
            let shared = uses.iter().position(|other| other.meets(used) && other != used);
            let Some(shared) = shared else { continue };
            let other = &uses[shared];
            let onto = layout.offset_bytes(other.tensor, 0, other.bytes.start);
            let moved = |tensor, slot, byte| {
                if tensor == used.tensor { onto } else { layout.offset_bytes(tensor, slot, byte) }
            };
            prop_assert!(host::check(graph, &uses, layout.bytes(), moved).is_err());
        }
        let lasting = |step: &Step| match *step {
            Step::Prefetch(part) | Step::Offload(part) => vec![part.tensor],
            Step::Host(op) => graph.touches(op).collect(),
            _ => Vec::new(),
        };
        let mut moved: Vec<TensorId> = plan.steps.iter().flat_map(lasting).collect();
        moved.retain(|&tensor| graph.tensor(tensor).kind != Kind::Temporary);
        moved.sort_unstable();
        moved.dedup();
        let lasting_bytes: u64 = moved.iter().map(|&tensor| graph.tensor(tensor).bytes).sum();
        let (load_bytes, sum_bytes) = host::load_bytes(&uses);
        let temporary_bytes = layout.moved_bytes() - lasting_bytes;
        prop_assert!((load_bytes..=sum_bytes).contains(&temporary_bytes));
        Ok(sum_bytes - temporary_bytes)
    })
}

/// The digest that a plan leaves on a device.
fn run<B: Transfers + Paging, K: Kernels<B>>(
    graph: &Graph<'_>,
    machine: &Machine,
    plan: &Plan<'_>,
    device: &mut B,
    kernels: &mut K,
) -> Result<(), ExecuteError<B::Error>> {
    let schedule = planning::schedule(graph, machine, plan).unwrap();
    let schedule = schedule.schedule();
    let verified = planning::prove(graph, machine, plan, &schedule).unwrap();
    planning::execute(&verified, device, kernels, ITERATIONS)
}

/// Plans that move whole tensors.
fn simple_planners() -> impl Strategy<Value = Planner> {
    select(vec![
        Planner::OnDemand,
        Planner::Vdnn,
        Planner::Lms(Lms::new().with_threshold(0).with_ahead(0)),
        Planner::Lms(Lms::new().with_threshold(2).with_ahead(2)),
    ])
}

fn planned(
    graph: &Graph<'_>,
    machine: &Machine,
    strategy: Planner,
) -> Result<OwnedPlan, PlanningError> {
    let request = Request { graph, machine, budget_bytes: 0 };
    let (budget_bytes, _) = planning::min_feasible(&request, strategy).unwrap();
    planning::plan(&Request { budget_bytes, ..request }, strategy)
}

/// With exactly the host memory that a plan states, the same plan is found; with less, none
/// that needs more.
fn with_little_memory(
    graph: &OwnedGraph,
    machine: Machine,
    strategy: Planner,
    share: u64,
) -> Result<(), TestCaseError> {
    let graph = graph.graph().unwrap();
    let plan = planned(&graph, &machine, strategy).unwrap();
    let packed_bytes = plan.predicted.host_bytes;
    hold(&graph, &machine, &plan.plan())?;
    with_layout(&graph, &machine, &plan.plan(), |layout| {
        prop_assert_eq!(layout.unwrap().moved_bytes(), packed_bytes);
        Ok(())
    })?;
    let just = machine.with_host_bytes(packed_bytes);
    if !matches!(strategy, Planner::Auto(_)) {
        prop_assert_eq!(planned(&graph, &just, strategy), Ok(plan));
    }
    let little = machine.with_host_bytes(packed_bytes * share / 64);
    match planned(&graph, &little, strategy) {
        Ok(plan) => {
            prop_assert!(plan.predicted.host_bytes <= little.host_bytes);
            prop_assert!(judge(&graph, &little, &plan.plan()).is_ok());
            let mut device = SimDevice::adversarial(little, share);
            let kernels = &mut SimKernels::new(graph);
            prop_assert_eq!(run(&graph, &little, &plan.plan(), &mut device, kernels), Ok(()));
            prop_assert_eq!(kernels.digest(&device), Ok(reference_digest(&graph, ITERATIONS)));
        }
        Err(PlanningError::Plan(PlanError::HostMemory { needed_bytes, host_bytes })) => {
            prop_assert!(needed_bytes > host_bytes && host_bytes == little.host_bytes);
        }
        Err(error) => return Err(TestCaseError::fail(error.to_string())),
    }
    Ok(())
}

/// Takes one tensor's slot for another's.
struct Mistaken {
    tensor: TensorId,
    from_bytes: u64,
    to_bytes: u64,
    /// What is copied, in the order of the copies.
    uploads: IntoIter<TensorId>,
    downloads: IntoIter<TensorId>,
}

impl Mistaken {
    /// The copies of all iterations of a plan.
    fn new(plan: &Plan<'_>, tensor: TensorId, from_bytes: u64, to_bytes: u64) -> Self {
        let residents = plan.resident_at_start.iter().map(|resident| resident.part.tensor);
        let (mut uploads, mut downloads): (Vec<_>, Vec<_>) = (residents.collect(), Vec::new());
        for _ in 0..ITERATIONS {
            for step in plan.steps {
                match step {
                    Step::Prefetch(part) => uploads.push(part.tensor),
                    Step::Offload(part) => downloads.push(part.tensor),
                    _ => {}
                }
            }
        }
        let (uploads, downloads) = (uploads.into_iter(), downloads.into_iter());
        Self { tensor, from_bytes, to_bytes, uploads, downloads }
    }

    fn range(&self, copied: Option<TensorId>, range: HostRange) -> HostRange {
        if copied != Some(self.tensor) {
            return range;
        }
        HostRange { offset_bytes: range.offset_bytes - self.from_bytes + self.to_bytes, ..range }
    }
}

impl<D: Transfers + Paging> Layer<D> for Mistaken {
    type Error = D::Error;

    fn upload(
        &mut self,
        device: &mut D,
        from: HostRange,
        to: DeviceAddress,
    ) -> Result<(), D::Error> {
        let copied = self.uploads.next();
        device.upload(self.range(copied, from), to)
    }

    fn download(
        &mut self,
        device: &mut D,
        from: DeviceAddress,
        to: HostRange,
    ) -> Result<(), D::Error> {
        let copied = self.downloads.next();
        device.download(from, self.range(copied, to))
    }
}

/// Whether all of one temporary is away while another leaves, so that its value is lost where
/// both have the same slot.
fn is_lost(plan: &Plan<'_>, one: &HostUse, other: &HostUse) -> bool {
    let at = |of: TensorId, prefetch: bool| {
        let wanted = move |step: &Step| match step {
            Step::Prefetch(part) => prefetch && part.tensor == of && part.is_whole(),
            Step::Offload(part) => !prefetch && part.tensor == of && part.is_whole(),
            _ => false,
        };
        plan.steps.iter().position(wanted)
    };
    match [at(one.tensor, false), at(other.tensor, false), at(one.tensor, true)] {
        [Some(leaves), Some(overwrites), Some(returns)] => {
            leaves < overwrites && overwrites < returns
        }
        _ => false,
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 500, ..ProptestConfig::default() })]

    #[test]
    fn random_plans_have_sound_layouts(case in cases()) {
        hold(&case.graph.graph().unwrap(), &case.machine, &case.plan.plan())?;
    }

    /// A plan is proved exactly when its host layout fits. What is proved runs.
    #[test]
    fn the_verifier_refuses_just_what_has_no_host_layout(case in cases_on_small_hosts()) {
        let (graph, machine) = (case.graph.graph().unwrap(), case.machine);
        let plan = case.plan.plan();
        let ample = machine.with_host_bytes(u64::MAX);
        let needed_bytes = with_layout(&graph, &machine, &plan, |layout| layout.map(|it| it.moved_bytes()));
        let ample_bytes = with_layout(&graph, &ample, &plan, |layout| layout.map(|it| it.moved_bytes()));
        let schedule = planning::schedule(&graph, &machine, &plan).unwrap();
        let proved = planning::prove(&graph, &machine, &plan, &schedule.schedule());
        match needed_bytes {
            Ok(needed_bytes) => {
                prop_assert!(needed_bytes <= machine.host_bytes);
                prop_assert!(proved.is_ok());
                let mut device = SimDevice::new(machine);
                let kernels = &mut SimKernels::new(graph);
                prop_assert_eq!(run(&graph, &machine, &plan, &mut device, kernels), Ok(()));
            }
            Err(shortage) => {
                prop_assert!(ample_bytes.is_ok_and(|bytes| bytes > machine.host_bytes));
                prop_assert_eq!(proved.map(|_| ()), Err(VerifyError::Plan(shortage)));
            }
        }
    }

    #[test]
    fn plans_fit_the_hosts_memory(
        graph in graphs(),
        machine in machines(),
        strategy in simple_planners(),
        share in 0..=64u64,
    ) {
        with_little_memory(&graph, machine, strategy, share)?;
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 60, ..ProptestConfig::default() })]

    /// After what is shared others are hit, or the block ends: that is found as well.
    #[test]
    fn two_values_in_one_slot_are_found(
        graph in training_graphs(3..=6),
        machine in machines(),
        strategy in simple_planners(),
        pick in any::<Index>(),
    ) {
        let graph = graph.graph().unwrap();
        let plan = planned(&graph, &machine, strategy).unwrap();
        let plan = plan.plan();
        let uses = host::temporaries(&graph, &plan);
        let mut pairs = Vec::new();
        for one in &uses {
            let others = uses.iter().filter(|other| is_lost(&plan, one, other));
            pairs.extend(others.map(|other| (one, other)));
        }
        prop_assume!(!pairs.is_empty());
        let (one, other) = pairs[pick.index(pairs.len())];
        let [to_bytes, from_bytes] = with_layout(&graph, &machine, &plan, |layout| {
            let layout = layout.unwrap();
            [one, other].map(|used| layout.offset_bytes(used.tensor, 0, 0))
        });
        let layer = Mistaken::new(&plan, other.tensor, from_bytes, to_bytes);
        let mut mistaken = Layered::new(SimDevice::new(machine), layer);
        let kernels = &mut LayeredKernels(SimKernels::new(graph));
        let ran = run(&graph, &machine, &plan, &mut mistaken, kernels);
        let found = ran.is_err() || kernels.0.digest(&mistaken.device) != Ok(reference_digest(&graph, ITERATIONS));
        prop_assert!(found, "{:?} lies where {:?} is", other, one);
    }

    #[test]
    fn plans_of_auto_fit_the_hosts_memory(graph in graphs(), machine in machines(), share in 0..=64u64) {
        let strategy = Planner::Auto(Auto::new().with_effort(3));
        with_little_memory(&graph, machine, strategy, share)?;
    }
}

/// Only lists of other strategies fit the device, and they need more host memory.
#[test]
fn auto_names_the_memory_that_is_short() {
    let mut graph = OwnedGraph::default();
    let input = graph.push_tensor("input", 1, Kind::Input);
    let output = graph.push_tensor("output", 1351, Kind::Output);
    graph.push_op("first", 0, 0, &[], &[input, output]);
    graph.push_op("second", 0, 1, &[], &[output]);
    graph.push_op("third", 0, 0, &[input], &[output]);
    for op in [0, 2] {
        graph.ops[op].collective = true;
    }
    let parameters = MachineParameters::new()
        .with_device_bytes(1 << 20)
        .with_host_bytes(845)
        .with_chunk_bytes(64)
        .with_h2d_bytes_per_s(4_000_000_000)
        .with_d2h_bytes_per_s(600_000_000);
    let machine = Machine::new(parameters).unwrap();
    let strategy = Planner::Auto(Auto::new().with_effort(3));
    let error = planned(&graph.graph().unwrap(), &machine, strategy).unwrap_err();
    let missing = PlanError::HostMemory { needed_bytes: 1352, host_bytes: 845 };
    assert_eq!(error, PlanningError::Plan(missing));
}

/// The host memory of a plan in which two temporaries of two chunks, `a` and `b`, are made
/// (by ops 0 and 2) and read (by ops 1 and 3). A step is `*a` for an offload, `+a`, `-a`, or
/// an op, again where it has been launched; in capitals the names mean the second half.
fn moved_bytes(steps: &str) -> u64 {
    let mut graph = OwnedGraph::default();
    let [kept, sum] = [(); 2].map(|()| graph.push_tensor("state", 256, Kind::State));
    let [a, b] = [(); 2].map(|()| graph.push_tensor("value", 512, Kind::Temporary));
    for value in [a, b] {
        graph.push_op("op", 100, 0, &[kept], &[value]);
        graph.push_op("op", 100, 0, &[value, sum], &[sum]);
    }
    graph.ops.iter_mut().for_each(|op| op.repeatable = true);
    let mut launched = BTreeSet::new();
    let part = |name: &str| {
        let tensor = if name.eq_ignore_ascii_case("a") { a } else { b };
        let is_half = name.chars().all(char::is_uppercase);
        if is_half { Part { tensor, first: 1, count: 1 } } else { Part::whole(tensor) }
    };
    let mut launch = |op| if launched.insert(op) { Step::launch(op) } else { Step::repeat(op) };
    let step = |step: &str| match step.split_at(1) {
        ("*", name) => Step::Offload(part(name)),
        ("+", name) => Step::Prefetch(part(name)),
        ("-", name) => Step::Evict(part(name)),
        _ => launch(OpId(step.parse().unwrap())),
    };
    let resident = |tensor, host_copy| Resident { part: Part::whole(tensor), host_copy };
    let pools = vec![Pool { object_bytes: 256, count: 8 }];
    let resident_at_start = vec![resident(kept, true), resident(sum, false)];
    let steps = steps.split(' ').map(step).collect();
    let mut plan = OwnedPlan::new(pools, resident_at_start, steps);
    plan.budget_bytes = 8 * 256;
    let graph = graph.graph().unwrap();
    let plan = predicted_by_ledger(plan, &graph, &MACHINE);
    let plan = plan.plan();
    assert!(judge(&graph, &MACHINE, &plan).is_ok());
    hold(&graph, &MACHINE, &plan).unwrap();
    let mut device = SimDevice::new(MACHINE);
    let mut kernels = SimKernels::new(graph);
    run(&graph, &MACHINE, &plan, &mut device, &mut kernels).unwrap();
    assert_eq!(kernels.digest(&device), Ok(reference_digest(&graph, ITERATIONS)));
    let mut moved_bytes = 0;
    with_layout(&graph, &MACHINE, &plan, |layout| moved_bytes = layout.unwrap().moved_bytes());
    moved_bytes
}

#[test]
fn values_that_are_away_one_after_the_other_share_bytes() {
    assert_eq!(moved_bytes("0 *a -a +a 1 -a 2 *b -b +b 3 -b"), 512);
    assert_eq!(moved_bytes("0 *a -a 2 *b -b +a 1 -a +b 3 -b"), 1024);
    // A span begins where the value is written, not where it leaves.
    assert_eq!(moved_bytes("0 *a -a 2 +a 1 *b -a -b +b 3 -b"), 1024);
}

#[test]
fn halves_take_half_the_bytes() {
    assert_eq!(moved_bytes("0 *A -A 2 *b -b +A 1 -a +b 3 -b"), 256 + 512);
    assert_eq!(moved_bytes("0 *A -A +A 1 -a 2 *B -B +B 3 -b"), 256);
}

#[test]
fn what_no_launch_touches_after_it_was_copied_has_its_own_bytes() {
    let later = "2 *b -b +b 3 -b";
    for before in ["0 *a -a +a 1 *a -a", "0 *a -a +a 1 -a +a -a", "0 1 *a -a"] {
        assert_eq!(moved_bytes(&format!("{before} {later}")), 1024, "{before}");
    }
    // The last copy counts, though it comes after the last launch that touches the value.
    assert_eq!(moved_bytes("0 *a -a +a 1 2 *b -b *a +b 3 -a -b"), 1024);
}

/// Downloads keep the order of the list.
#[test]
fn what_never_comes_back_shares_bytes() {
    assert_eq!(moved_bytes("0 *a 1 -a 2 *b -b +b 3 -b"), 512);
    assert_eq!(moved_bytes("0 *a 1 -a 2 *b 3 -b"), 512);
    assert_eq!(moved_bytes("0 *a 2 1 -a *b -b +b 3 -b"), 1024);
}

/// Each launch has waited for all copies of what it touches.
#[test]
fn what_is_evicted_while_it_arrives_shares_bytes() {
    for before in ["0 *a -A +A -A +A 1 -a", "0 *a -a +a 1 -a +a -a 0 -a"] {
        assert_eq!(moved_bytes(&format!("{before} 2 *b -b +b 3 -b")), 512, "{before}");
    }
}

const MACHINE: Machine = {
    let Ok(machine) = Machine::new(
        MachineParameters::new()
            .with_device_bytes(1 << 20)
            .with_host_bytes(1 << 20)
            .with_chunk_bytes(256)
            .with_h2d_bytes_per_s(1_000_000_000)
            .with_d2h_bytes_per_s(1_000_000_000)
            .with_transfer_latency_ns(10),
    ) else {
        panic!("the machine is not sound")
    };
    machine
};
