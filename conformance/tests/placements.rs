//! Placements that are found are valid, exact, and run without a mapping call.
#![allow(clippy::unwrap_used, reason = "what fails here fails the test")]

use backend_sim::{SimDevice, SimError, SimKernels, reference_digest};
use conformance::graphs::{graphs, machines};
use conformance::ledger::judge;
use conformance::plans::{Case, unplaced_cases};
use planner_core::placement::{Over, PlacementError};
use planner_core::plan::{Pool, Resident};
use planner_core::planner::{Auto, Request, Strategy as Planner};
use planner_core::{
    ExecuteError, Graph, Kind, Machine, MachineParameters, OpId, Part, Step, TensorId, Verified,
};
use proptest::prelude::*;
use proptest::sample::select;
use spillway::placing::{self, Unplaced};
use spillway::planning;
use workloads::{OwnedGraph, OwnedPlan};
use zoo::models;

const ITERATIONS: u64 = 5;

/// More objects than an iteration of these plans allocates.
const PLENTY: u64 = 20_000;

const ONCE: Over =
    Over { iterations: 1, settled: false, spares_due: false, most_lacking: u64::MAX };

/// Judged by the ledger, proved, and run in an adversarial order; with placements, without
/// mapping anything on the way.
fn hold(graph: Graph<'_>, machine: Machine, owned: &OwnedPlan) -> Result<(), TestCaseError> {
    let plan = owned.plan();
    let judged = judge(&graph, &machine, &plan);
    prop_assert!(judged.is_ok(), "{}", judged.unwrap_err());
    let schedule = planning::schedule(&graph, &machine, &plan).unwrap();
    let schedule = schedule.schedule();
    let verified = planning::prove(&graph, &machine, &plan, &schedule).unwrap();
    let device = || SimDevice::adversarial(machine, plan.predicted.period_ns);
    prop_assert!(runs(&verified, device())?, "without a limit of ranges");
    // The smallest limit that leaves room for the arena and for each tensor.
    for most_chunks in (0..64).map(|power| 1 << power) {
        if runs(&verified, device().with_most_range_chunks(most_chunks))? {
            break;
        }
    }
    Ok(())
}

/// Runs a plan, unless a range is too large for the device.
fn runs(verified: &Verified<'_>, mut device: SimDevice) -> Result<bool, TestCaseError> {
    let (graph, plan) = (*verified.graph(), verified.plan());
    let mut set_up = 0;
    let (device, kernels) = (&mut device, &mut SimKernels::new(graph));
    let ran =
        planning::with_executor(verified, device, kernels, |mut executor, device, kernels| {
            set_up = device.counters().map_calls;
            executor.run(device, kernels, ITERATIONS)?;
            executor.save_states(device)
        });
    match ran {
        Err(ExecuteError::Device { error: SimError::AddressSpace { .. }, .. }) => return Ok(false),
        ran => ran.unwrap(),
    }
    if plan.placements.is_some() {
        let counters = device.counters();
        prop_assert_eq!((counters.map_calls, counters.unmap_calls), (set_up, 0));
    }
    prop_assert_eq!(kernels.digest(device).unwrap(), reference_digest(&graph, ITERATIONS));
    Ok(true)
}

/// A chain of ops over tensors of one chunk. No tensor needs a range of two chunks.
#[test]
fn a_pool_may_be_larger_than_a_range() {
    let (machine, bytes) = (MACHINE, MACHINE.chunk_bytes);
    let mut owned = OwnedGraph::new("chain");
    let mut tensor = |name: &str, kind| owned.push_tensor(name, bytes, kind);
    let state = tensor("state", Kind::State);
    let values = ["a", "b", "c"].map(|name| tensor(name, Kind::Temporary));
    for (read, write) in [(state, values[0]), (values[0], values[1]), (values[1], values[2])] {
        owned.push_op("op", 10, 0, &[read], &[write]);
    }
    owned.push_op("end", 10, 0, &[values[2], values[0]], &[state]);
    let graph = owned.graph().unwrap();
    let request = Request { graph: &graph, machine: &machine, budget_bytes: 4 * bytes };
    let plan = planning::plan(&request, Planner::OnDemand).unwrap();
    let placed = placing::place(&graph, &machine, &plan, u64::MAX).unwrap();
    for plan in [plan, placed] {
        assert!(plan.pools.iter().map(|pool| pool.count).max() > Some(2), "{:?}", plan.pools);
        let plan = plan.plan();
        let schedule = planning::schedule(&graph, &machine, &plan).unwrap();
        let verified = planning::prove(&graph, &machine, &plan, &schedule.schedule()).unwrap();
        let most = |chunks| SimDevice::new(machine).with_most_range_chunks(chunks);
        assert!(runs(&verified, most(1)).unwrap());
        assert!(!runs(&verified, most(0)).unwrap());
    }
}

/// The plan with this many objects in its only pool.
fn with_objects(case: &Case, count: u64) -> OwnedPlan {
    let mut plan = case.plan.clone();
    plan.pools[0].count = count;
    plan.budget_bytes += count * plan.pools[0].object_bytes + case.machine.chunk_bytes;
    plan
}

fn peak_objects(case: &Case) -> u64 {
    let plan = &case.plan;
    (plan.predicted.peak_bytes - plan.arena_bytes) / plan.pools[0].object_bytes
}

const MACHINE: Machine = {
    let Ok(machine) = Machine::new(
        MachineParameters::new()
            .with_device_bytes(1 << 30)
            .with_host_bytes(1 << 30)
            .with_chunk_bytes(256)
            .with_h2d_bytes_per_s(1_000_000_000)
            .with_d2h_bytes_per_s(1_000_000_000),
    ) else {
        panic!("the machine is not sound")
    };
    machine
};

/// Ops that write and read tensors of this many chunks; `w` is a state and there at the start. A
/// step is `+x`, `-x` or the number of an op. The pool holds this many tensors.
fn written(ops: &[[&str; 2]], chunks: u64, count: u64, steps: &str) -> (OwnedGraph, OwnedPlan) {
    const NAMES: &str = "wabcdxy";
    let bytes = chunks * MACHINE.chunk_bytes;
    let id = |name| TensorId(NAMES.find(name).unwrap() as u32);
    let ids = |names: &str| names.chars().map(id).collect::<Vec<_>>();
    let mut graph = OwnedGraph::default();
    for name in NAMES.chars() {
        graph.push_tensor(name, bytes, if name == 'w' { Kind::State } else { Kind::Temporary });
    }
    for [writes, reads] in ops {
        graph.push_op("op", 100, 0, &ids(reads), &ids(writes));
    }
    let step = |step: &str| match step.split_at(1) {
        ("+", name) => Step::Prefetch(Part::whole(ids(name)[0])),
        ("-", name) => Step::Evict(Part::whole(ids(name)[0])),
        _ => Step::launch(OpId(step.parse().unwrap())),
    };
    let pools = vec![Pool { object_bytes: MACHINE.chunk_bytes, count: count * chunks }];
    let resident_at_start = vec![Resident { part: Part::whole(id('w')), host_copy: true }];
    let steps = steps.split(' ').map(step).collect();
    let mut plan = OwnedPlan::new(pools, resident_at_start, steps);
    plan.budget_bytes = count * bytes;
    let checked = graph.graph().unwrap();
    let schedule = planning::schedule(&checked, &MACHINE, &plan.plan()).unwrap();
    let predicted = planning::predict(&checked, &MACHINE, &plan.plan(), &schedule.schedule());
    plan.predicted = predicted.unwrap().0;
    (graph, plan)
}

/// The object of each allocation, with tensors of one chunk.
fn objects(ops: &[[&str; 2]], count: u64, iterations: u32, steps: &str) -> String {
    let (graph, plan) = written(ops, 1, count, steps);
    let graph = graph.graph().unwrap();
    match placing::place_over(
        &graph,
        &MACHINE,
        &plan,
        Over { iterations, settled: true, spares_due: true, ..ONCE },
    ) {
        Err(error) => error.to_string(),
        Ok(placed) => {
            hold(graph, MACHINE, &placed).unwrap();
            let objects = placed.placements.unwrap().objects;
            objects.iter().map(u64::to_string).collect::<Vec<_>>().join(" ")
        }
    }
}

const CHAIN: [[&str; 2]; 4] = [["a", ""], ["b", "a"], ["c", "b"], ["", "cw"]];

#[test]
fn an_allocation_takes_what_was_released_first() {
    // `w`, then `a`, `b` and `c`, for which 3 is the last that was never used.
    assert_eq!(objects(&CHAIN, 4, 1, "0 1 -a 2 -b 3 -c"), "0 1 2 3");
    assert_eq!(objects(&CHAIN, 3, 1, "0 1 -a 2 -b 3 -c"), "0 1 2 1");
    // In the next iteration, `c` has left its object last.
    assert_eq!(objects(&CHAIN, 3, 2, "0 1 -a 2 -b 3 -c"), "0 1 2 1 1 2 1");
}

#[test]
fn what_comes_back_finds_its_object_free() {
    // `b` is there when `w` comes back to object 0, so it may not lie there.
    assert_eq!(objects(&CHAIN, 3, 1, "-w 0 1 -a 2 +w -b 3 -c"), "0 1 2 1 0");
}

#[test]
fn what_comes_back_soon_waits_for_no_other() {
    let ops = [["a", ""], ["b", "a"], ["c", "b"], ["", "c"], ["", "w"]];
    // `c` would take object 0, which has been free for longest; but `w` comes back to that as soon
    // as `c` is gone.
    assert_eq!(objects(&ops, 3, 1, "-w 0 1 -a 2 -b 3 -c +w 4"), "0 1 2 1 0");
    // With time enough between the two, it does; then `y` does not.
    let (again, last) = ([["d", ""], ["x", "d"], ["y", "x"], ["", "y"]], [["", "w"]]);
    let ops = [&ops[..4], &again, &last].concat();
    let steps = "-w 0 1 -a 2 -b 3 -c 4 5 -d 6 -x 7 -y +w 8";
    assert_eq!(objects(&ops, 3, 1, steps), "0 1 2 0 1 2 1 0");
}

#[test]
fn objects_exchange_what_they_serve() {
    let ops = [["a", ""], ["b", "a"], ["", "b"], ["", "w"]];
    // `a` would take object 1, which has been free for longer; but `b` needs that, since
    // object 0 is due when `w` comes back.
    assert_eq!(objects(&ops, 2, 1, "-w 0 1 -a +w 2 -b 3"), "0 0 1 0");
}

/// Three arcs around the circle, of which any two overlap.
const RING: [[&str; 2]; 3] = [["a", "w"], ["b", "a"], ["", "bw"]];
const RING_STEPS: &str = "0 -w 1 -a +w 2 -b";

#[test]
fn an_odd_ring_closes_after_two_iterations() {
    assert_eq!(objects(&RING, 2, 1, RING_STEPS), "the pools are short of 1 objects");
    assert_eq!(objects(&RING, 2, 2, RING_STEPS), "0 1 0 1 0 1 0");
    assert_eq!(objects(&RING, 3, 1, RING_STEPS), "0 1 2 0");
}

/// Of the ring, two placements of 4 tensors are tried before the one of 7 that closes it.
#[test]
fn where_there_are_too_many_objects_they_are_not_fixed() {
    let place = |chunks| {
        let (graph, plan) = written(&RING, chunks, 2, RING_STEPS);
        placing::place(&graph.graph().unwrap(), &MACHINE, &plan, u64::MAX)
    };
    assert!(place(1000).is_ok());
    assert_eq!(place(300_000).unwrap_err(), Unplaced::Large);
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 1000, ..ProptestConfig::default() })]

    #[test]
    fn placements_are_valid_and_exact(
        case in unplaced_cases(),
        iterations in 1..=4u32,
        settled: bool,
        spares_due: bool,
        most_lacking in 0..=4u64,
    ) {
        let graph = case.graph.graph().unwrap();
        let place = |most_lacking| {
            let over = Over { iterations, settled, spares_due, most_lacking };
            placing::place_over(&graph, &case.machine, &case.plan, over)
        };
        let (placed, within) = (place(u64::MAX), place(most_lacking));
        match placed {
            Err(PlacementError::Short { objects }) if objects > most_lacking => {
                let is_short = matches!(within, Err(PlacementError::Short { objects }) if objects > most_lacking);
                prop_assert!(is_short, "{:?}", within);
            }
            Err(PlacementError::Short { .. }) => prop_assert_eq!(within, placed),
            Err(error) => prop_assert!(false, "{}", error),
            Ok(placed) => {
                hold(graph, case.machine, &placed)?;
                prop_assert_eq!(within, Ok(placed));
            }
        }
    }
}

proptest! {
    // Cases of one pool, and without arcs across the start, are the smaller part.
    #![proptest_config(ProptestConfig {
        cases: 200,
        max_global_rejects: 10_000,
        ..ProptestConfig::default()
    })]

    #[test]
    fn with_objects_enough_all_are_placed(case in unplaced_cases()) {
        prop_assume!(case.plan.pools.len() == 1);
        let graph = case.graph.graph().unwrap();
        let plan = with_objects(&case, PLENTY);
        let placed = placing::place_over(&graph, &case.machine, &plan, ONCE).unwrap();
        hold(graph, case.machine, &placed)?;
    }

    /// Without arcs across the start, the colours that are in use at the peak suffice.
    #[test]
    fn what_starts_empty_takes_no_more_than_its_peak(case in unplaced_cases()) {
        let in_pool = |entry: &Resident| {
            !case.plan.arena.iter().any(|placement| placement.tensor == entry.part.tensor)
        };
        let crosses = case.plan.resident_at_start.iter().any(in_pool);
        prop_assume!(case.plan.pools.len() == 1 && !crosses);
        let graph = case.graph.graph().unwrap();
        let plan = with_objects(&case, peak_objects(&case));
        let placed = placing::place_over(&graph, &case.machine, &plan, ONCE).unwrap();
        hold(graph, case.machine, &placed)?;
    }
}

proptest! {
    #![proptest_config(conformance::seeds::config(256))]
    /// Where its objects do not suffice, a plan is made anew for fewer and placed in all.
    #[test]
    fn planners_leave_what_their_placements_take(
        graph in graphs(),
        machine in machines(),
        spare_bytes in 0..8192u64,
        strategy in select(vec![Planner::OnDemand, Planner::Auto(Auto::new().with_effort(3))]),
    ) {
        let graph = graph.graph().unwrap();
        let request = |budget_bytes| Request { graph: &graph, machine: &machine, budget_bytes };
        let (min_bytes, _) = planning::min_feasible(&request(0), strategy).unwrap();
        let request = request(min_bytes + spare_bytes);
        let plain_ns = planning::plan(&request, strategy).unwrap().predicted.period_ns;
        let (plan, unplaced) = placing::plan(&request, strategy).unwrap();
        prop_assert_eq!(plan.placements.is_none(), unplaced.is_some());
        prop_assert_eq!(plan.budget_bytes, request.budget_bytes);
        prop_assert!(plan.predicted.period_ns <= plain_ns + plain_ns / 100);
        hold(graph, machine, &plan)?;
    }
}

/// Its tensors fill objects of a chunk best, but these are too many.
#[test]
fn a_large_model_is_mapped_before_it_runs() {
    let graph = models::generate("llama:billions=14").unwrap();
    let graph = graph.graph().unwrap();
    let machine = workloads::machines::builtin("rtx5090").unwrap().machine;
    let request = Request { graph: &graph, machine: &machine, budget_bytes: 30 << 30 };
    let strategy = Planner::Auto(Auto::new().with_effort(1));
    let (plan, unplaced) = placing::plan(&request, strategy).unwrap();
    assert_eq!(unplaced, None);
    let plan = plan.plan();
    let schedule = planning::schedule(&graph, &machine, &plan).unwrap();
    planning::prove(&graph, &machine, &plan, &schedule.schedule()).unwrap();
}

/// Thousands of objects are free, but most are due before the allocation ends.
#[test]
fn a_free_object_is_found_among_thousands_that_are_due() {
    let graph = models::generate("llama:billions=8").unwrap();
    let graph = graph.graph().unwrap();
    let machine = workloads::machines::builtin("gh200").unwrap().machine;
    let request = Request { graph: &graph, machine: &machine, budget_bytes: 49 << 30 };
    let plan = planning::plan(&request, Planner::Fit).unwrap();
    let over = Over { spares_due: true, ..ONCE };
    let placed = placing::place_over(&graph, &machine, &plan, over).unwrap();
    assert_eq!(placed.predicted.period_ns, plan.predicted.period_ns);
}

/// The number is the caller's, so none of them may panic.
#[test]
fn iterations_that_cannot_be_are_refused() {
    let (graph, plan) = written(&RING, 1, 3, RING_STEPS);
    let graph = graph.graph().unwrap();
    for (iterations, settled) in [(0, true), (0, false), (u32::MAX, true)] {
        let over = Over { iterations, settled, spares_due: true, ..ONCE };
        let refused = placing::place_over(&graph, &MACHINE, &plan, over).unwrap_err();
        assert!(matches!(refused, PlacementError::Plan(_)), "{over:?}: {refused}");
    }
}
