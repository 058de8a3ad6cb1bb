//! From plans to digests: every plan, in every order that its waits allow, computes what
//! the graph says.
#![allow(clippy::unwrap_used, reason = "what fails here fails the test")]

mod common;

use backend_sim::{SimDevice, reference_digest};
use common::random::{self, Random};
use common::{OwnedPlan, execute, lowered, machine, predicted_period_ns, verified};
use planner_core::{Graph, Kind, Step, TensorId};

/// Whether the host never waits for a range or a room: only whole tensors move, none comes
/// and goes twice, and no input goes back to its room.
fn host_never_waits(graph: &Graph<'_>, plan: &OwnedPlan) -> bool {
    let evicts = |of: TensorId| {
        let is_evict = move |step: &&Step| matches!(step, Step::Evict(part) if part.tensor == of);
        plan.steps.iter().filter(is_evict).count()
    };
    plan.steps.iter().all(|step| match step {
        Step::Prefetch(part) => part.is_whole(),
        Step::Offload(part) => part.is_whole() && graph.tensor(part.tensor).kind != Kind::Input,
        Step::Evict(part) => part.is_whole() && evicts(part.tensor) == 1,
        Step::Launch(_) => true,
    })
}

#[test]
fn random_plans_reproduce_the_reference_in_every_order() {
    let mut timed = 0;
    for seed in 0..400 {
        let mut random = Random(seed);
        let machine = machine([1, 4, 8][random.below(3) as usize]);
        let work = random::graph(&mut random);
        let graph = work.graph();
        let owned = random::plan(&mut random, &work, machine.chunk_bytes);
        let plan = owned.plan(&machine);
        let mut steps = Vec::new();
        let schedule = lowered(&graph, &machine, &plan, &mut steps);
        let verified = verified(&graph, &machine, &plan, &schedule);
        let reference = Ok(reference_digest(&graph, 8));

        let mut device = SimDevice::new(graph, machine);
        assert_eq!(execute(&verified, &mut device, graph, 8, 100), reference, "seed {seed}");
        if host_never_waits(&graph, &owned) {
            timed += 1;
            let predicted_ns = predicted_period_ns(&graph, &machine, &plan, &schedule);
            assert!(device.period_ns(4, 8).unwrap() <= predicted_ns, "seed {seed}");
        }
        for order in 0..8 {
            let mut device = SimDevice::adversarial(graph, machine, order);
            let digest = execute(&verified, &mut device, graph, 8, 100);
            assert_eq!(digest, reference, "seed {seed}, order {order}");
        }
    }
    assert!(timed > 50, "only {timed} plans were timed");
}
