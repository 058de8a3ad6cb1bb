//! Figure 1 of SwapAdvisor, reconstructed: two branches, two orders, two divisions of 10 MB.
//!
//! The right branch is `Conv2`, `Conv3` and `Conv4`, the left one `Conv1`; both begin at `A0`,
//! and `Concat` joins them. Tensors have 1 MB, but `A2` and `A5` 2 MB. An op takes a unit of
//! time, and so does 1 MB on a link. Activations are wanted for the backward pass, here one op
//! each, so that they must be copied when they leave; parameters come from the host.
#![allow(clippy::unwrap_used, reason = "what fails here fails the test")]

use planner_core::pieces::Pieces;
use planner_core::plan::{Pool, Step};
use planner_core::planner::Request;
use planner_core::planner::swap::Threshold;
use planner_core::timeline::{self, Timeline};
use planner_core::{Kind, Limits, Machine, MachineParameters, OpId, Scratch, Stream};
use spillway::planning;
use spillway::search::{Limit, Watch, joint};
use spillway::swapping::{self, Swap};
use std::sync::atomic::AtomicBool;
use workloads::{OwnedGraph, OwnedPlan};

const MB: u64 = 1_000_000;
const UNIT_NS: u64 = 1_000_000;

const MACHINE: Machine = {
    let Ok(machine) = Machine::new(
        MachineParameters::new()
            .with_device_bytes(10 * MB)
            .with_host_bytes(1 << 40)
            .with_chunk_bytes(MB / 10)
            .with_h2d_bytes_per_s(1_000_000_000)
            .with_d2h_bytes_per_s(1_000_000_000),
    ) else {
        panic!("the machine is not sound")
    };
    machine
};

#[derive(Clone, Copy, Debug)]
enum First {
    Left,
    Right,
}

fn graph(first: First) -> OwnedGraph {
    let mut graph = OwnedGraph::new("figure 1");
    let a: Vec<_> =
        [1, 1, 2, 1, 1, 2].map(|mb| graph.push_tensor("A", mb * MB, Kind::Temporary)).into();
    let w = [(); 4].map(|()| graph.push_tensor("W", MB, Kind::Input));
    graph.push_op("begin", 0, 0, &[], &[a[0]]);
    let left = |graph: &mut OwnedGraph| {
        graph.push_op("Conv1", UNIT_NS, 0, &[a[0], w[0]], &[a[1]]);
    };
    if let First::Left = first {
        left(&mut graph);
    }
    graph.push_op("Conv2", UNIT_NS, 0, &[a[0], w[1]], &[a[2]]);
    // Published copies begin after the last use, ours after the last write: so the op writes.
    graph.push_op("Conv3", UNIT_NS, 0, &[a[2], w[2]], &[a[2], a[3]]);
    graph.push_op("Conv4", UNIT_NS, 0, &[a[3], w[3]], &[a[4]]);
    if let First::Right = first {
        left(&mut graph);
    }
    graph.push_op("Concat", UNIT_NS, 0, &[a[1], a[4]], &[a[5]]);
    for &activation in a.iter().rev() {
        graph.push_op("backward", UNIT_NS, 0, &[activation], &[]);
    }
    graph
}

/// `Concat` comes after `begin` and four convolutions.
const CONCAT: OpId = OpId(5);

fn coarse() -> Vec<Pool> {
    vec![Pool { object_bytes: 2 * MB, count: 5 }]
}

fn fine() -> Vec<Pool> {
    vec![Pool { object_bytes: MB, count: 8 }, Pool { object_bytes: 2 * MB, count: 1 }]
}

fn swap(first: First, classes: Vec<Pool>) -> OwnedPlan {
    let graph = graph(first);
    let graph = graph.graph().unwrap();
    let request = Request { graph: &graph, machine: &MACHINE, budget_bytes: 10 * MB };
    let swap = Swap::default().with_classes(classes).with_threshold(Threshold::Ns(0));
    swapping::plan(&request, &swap).unwrap()
}

/// When `Concat` ends for the first time, with nothing on the device at the start.
fn concat_units(first: First, classes: Vec<Pool>) -> u64 {
    let owned = swap(first, classes);
    let (graph, plan) = (graph(first), owned.plan());
    let graph = graph.graph().unwrap();
    assert!(plan.resident_at_start.is_empty());
    let schedule = planning::schedule(&graph, &MACHINE, &plan).unwrap();
    let mut memory = vec![0; timeline::scratch_words(&Limits::of_plan(&graph, &plan))];
    let scratch = &mut Scratch::new(&mut memory);
    let pieces = Pieces::new(&graph, &MACHINE, &plan, scratch).unwrap();
    let mut durations_ns = vec![0; plan.steps.len()];
    timeline::durations(&MACHINE, &pieces, &mut durations_ns).unwrap();
    let timeline = Timeline::new(&schedule.schedule(), &durations_ns, scratch).unwrap();
    let launches = plan.steps.iter().filter(|step| matches!(step, Step::Launch(_)));
    let at = launches.take_while(|step| **step != Step::launch(CONCAT)).count();
    timeline.end_ns(0, Stream::Compute, at as u32) / UNIT_NS
}

#[test]
fn right_first_with_the_fine_pool_is_a_unit_faster() {
    assert_eq!(concat_units(First::Left, coarse()), 7, "(b)");
    assert_eq!(concat_units(First::Right, coarse()), 7, "(c)");
    assert_eq!(concat_units(First::Right, fine()), 6, "(d)");
    assert_eq!(concat_units(First::Left, fine()), 7, "(e)");
}

/// With the backward pass, by the period: whatever the order to begin with, no plan in size
/// classes is faster.
#[test]
fn joint_is_the_fastest_from_either_order() {
    let interrupted = AtomicBool::new(false);
    let period_ns = |first| {
        let graph = graph(first);
        let graph = graph.graph().unwrap();
        let request = Request { graph: &graph, machine: &MACHINE, budget_bytes: 10 * MB };
        let mut watch = Watch::default();
        watch.interrupted = Some(&interrupted);
        let settings = joint::JointSettings::default().with_limit(Limit::new().with_rounds(20));
        joint::search(&request, &settings, &mut watch).unwrap().plan.predicted.period_ns
    };
    let best_ns = period_ns(First::Left);
    assert_eq!(best_ns, period_ns(First::Right));
    for first in [First::Left, First::Right] {
        for classes in [coarse(), fine()] {
            let swapped_ns = swap(first, classes.clone()).predicted.period_ns;
            assert!(best_ns <= swapped_ns, "{first:?} {classes:?}: {best_ns} > {swapped_ns}");
        }
    }
}
