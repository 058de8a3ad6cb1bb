//! The verifier against the ledger, on any plan: the same verdict, and the same figures.

use crate::fault::{Fault, returns};
use backend_sim::{SimDevice, SimKernels, reference_digest};
use conformance::ledger;
use conformance::plans::Case;
use planner_core::plan::{PlanError, Prediction};
use planner_core::{Graph, HostLayout, Limits, Machine, Plan, Scratch, Verified};
use spillway::planning;
use workloads::{OwnedMachine, OwnedPlan};

/// The ledger keeps its books by object,
const MOST_OBJECTS: u64 = 500;
/// and by iteration of the placements.
const MOST_ITERATIONS: u32 = 100;
/// What a run is worth.
const MOST_RUN_BYTES: u64 = 1 << 20;
const ITERATIONS: u64 = 5;
const ORDERS: u64 = 3;

/// What is known of a case once it has been judged without a fault.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// Every rule but the figures that the plan promises is kept.
    Valid,
    /// Some rule is broken.
    Invalid,
    /// There is no such graph.
    NoGraph,
}

/// Judges a case in both ways, and runs it where it is valid and small.
///
/// # Errors
/// Two verdicts, two figures, or a run that goes wrong.
pub fn judge(case: &Case) -> Result<Verdict, Fault> {
    let Ok(graph) = case.graph.graph() else { return Ok(Verdict::NoGraph) };
    let (machine, plan) = (&case.machine, case.plan.plan());
    let fast = returns("the verifier", || prove(&graph, machine, &plan))?;
    if is_for_ledger(&graph, &plan) {
        let slow = returns("the ledger", || ledger::measure(&graph, machine, &plan))?;
        compare(&fast, &slow)?;
        if let Ok(slow) = slow {
            compare_hosts(&graph, machine, &plan, slow.host_layout_bytes)?;
        }
    }
    let Ok(exact) = fast else { return Ok(Verdict::Invalid) };
    let host_bytes = returns("the host layout", || host_bytes(&graph, machine, &plan))?;
    let host_bytes = host_bytes.ok().filter(|&bytes| bytes <= machine.host_bytes);
    let Some(host_bytes) = host_bytes else {
        return Err(Fault::new(
            "host layout",
            "a plan is verified that the host has too little memory for",
        ));
    };
    let predicted = Prediction { host_bytes, ..exact };
    let mut exact = case.plan.clone();
    exact.predicted = predicted;
    for (name, plan) in [("exact", &exact), ("claimed", &case.plan)] {
        compare_claims(name, &graph, machine, &plan.plan())?;
    }
    let bytes = MOST_RUN_BYTES;
    let is_small = graph.tensors().iter().all(|tensor| tensor.bytes <= bytes)
        && exact.budget_bytes <= 4 * bytes
        && exact.pools.iter().all(|pool| pool.count <= bytes)
        && machine.chunk_bytes <= bytes;
    if is_small {
        returns("the run", || run(&graph, machine, &exact))??;
    }
    Ok(Verdict::Valid)
}

/// The plan of a case as an embedder has it, with exact figures; none where it is not valid.
#[must_use]
pub fn proved(case: &Case, machine: &OwnedMachine) -> Option<spillway::Plan> {
    let graph = spillway::Graph::new(case.graph.clone()).ok()?;
    let exact = prove(&graph.graph(), &machine.machine, &case.plan.plan()).ok()?;
    let host_bytes = host_bytes(&graph.graph(), &machine.machine, &case.plan.plan()).ok()?;
    let mut plan = case.plan.clone();
    (plan.graph, plan.machine) = (graph.name().to_owned(), machine.name.clone());
    plan.predicted = Prediction { host_bytes, ..exact };
    spillway::Plan::new(&graph, machine, plan).ok()
}

/// Whether the ledger has time for a plan.
fn is_for_ledger(graph: &Graph<'_>, plan: &Plan<'_>) -> bool {
    let pool = |table: &[u32], at: usize| table.get(at).map_or(0, |&pool| pool as usize);
    let count = |pool: usize, bytes: u64| {
        let object_bytes = plan.pools.get(pool).map_or(0, |pool| pool.object_bytes);
        if object_bytes == 0 { 0 } else { bytes.div_ceil(object_bytes) }
    };
    let tensors = graph.tensors().iter().enumerate();
    let ops = graph.ops().iter().enumerate();
    let of_tensors = tensors.map(|(at, it)| count(pool(plan.tensor_pool, at), it.bytes));
    let of_ops = ops.map(|(at, it)| count(pool(plan.workspace_pool, at), it.workspace_bytes));
    let objects = of_tensors.chain(of_ops).fold(0, u64::saturating_add);
    objects <= MOST_OBJECTS && plan.iterations() <= MOST_ITERATIONS
}

/// Lowers, verifies and predicts a plan, whatever it promises. Returns the figures that it
/// should promise, with a host offset for each tensor.
fn prove(graph: &Graph<'_>, machine: &Machine, plan: &Plan<'_>) -> Result<Prediction, String> {
    let owned = planning::schedule(graph, machine, plan).map_err(|error| error.to_string())?;
    let schedule = owned.schedule();
    planning::prove(graph, machine, plan, &schedule).map_err(|error| error.to_string())?;
    let predicted = planning::predict(graph, machine, plan, &schedule);
    let (prediction, _) = predicted.map_err(|error| error.to_string())?;
    Ok(prediction)
}

/// Bytes that the host layout takes.
fn host_bytes(graph: &Graph<'_>, machine: &Machine, plan: &Plan<'_>) -> Result<u64, PlanError> {
    let mut memory = vec![0; HostLayout::scratch_words(&Limits::of_plan(graph, plan))];
    let layout = HostLayout::new(graph, machine, plan, &mut Scratch::new(&mut memory))?;
    Ok(layout.moved_bytes())
}

/// The rules, and the figures except `host_bytes`.
fn compare(
    fast: &Result<Prediction, String>,
    slow: &Result<ledger::Judgement, ledger::Violation>,
) -> Result<(), Fault> {
    match (fast, slow) {
        (Ok(_), Err(violation)) => {
            let detail = format!("the verifier accepts, the ledger says: {violation}");
            Err(Fault::new(
                format!("accepted though {}", without_numbers(&violation.message)),
                detail,
            ))
        }
        (Err(error), Ok(_)) => {
            let detail = format!("the ledger accepts, the verifier says: {error}");
            Err(Fault::new(format!("refused since {}", without_numbers(error)), detail))
        }
        (Ok(fast), Ok(slow)) => {
            let slow = Prediction { host_bytes: fast.host_bytes, ..slow.prediction };
            match *fast == slow {
                true => Ok(()),
                false => Err(Fault::new("figures", format!("{fast:?} for the ledger's {slow:?}"))),
            }
        }
        (Err(_), Err(_)) => Ok(()),
    }
}

/// A host with the fewest bytes that the ledger finds is enough, and with one byte less it is not.
fn compare_hosts(
    graph: &Graph<'_>,
    machine: &Machine,
    plan: &Plan<'_>,
    (least_bytes, _): (u64, u64),
) -> Result<(), Fault> {
    for host_bytes in [Some(least_bytes), least_bytes.checked_sub(1)].into_iter().flatten() {
        let machine = machine.with_host_bytes(host_bytes);
        let is_enough = host_bytes == least_bytes;
        let fast = returns("the verifier", || prove(graph, &machine, plan))?;
        let slow = returns("the ledger", || ledger::measure(graph, &machine, plan))?;
        if (fast.is_ok(), slow.is_ok()) != (is_enough, is_enough) {
            let detail = format!(
                "with {host_bytes} bytes on the host, of {least_bytes}: {fast:?}, and by the \
                 ledger {:?}",
                slow.map(|_| ())
            );
            return Err(Fault::new("host memory to the byte", detail));
        }
    }
    Ok(())
}

/// A sentence without its numbers.
fn without_numbers(sentence: &str) -> String {
    let words = sentence.split_whitespace();
    let plain = words.filter(|word| !word.contains(|c: char| c.is_ascii_digit()));
    plain.collect::<Vec<_>>().join(" ")
}

/// What a plan promises is right for both the verifier and the ledger, or for neither.
fn compare_claims(
    name: &str,
    graph: &Graph<'_>,
    machine: &Machine,
    plan: &Plan<'_>,
) -> Result<(), Fault> {
    let fast = returns("the check", || {
        let owned = planning::schedule(graph, machine, plan)?;
        planning::check_prediction(graph, machine, plan, &owned.schedule()).map(|_| ())
    })?;
    if name == "exact"
        && let Err(error) = fast
    {
        return Err(Fault::new("exact figures refused", format!("exact figures refused: {error}")));
    }
    if !is_for_ledger(graph, plan) {
        return Ok(());
    }
    let slow = returns("the ledger", || ledger::judge(graph, machine, plan))?;
    if fast.is_ok() != slow.is_ok() {
        let detail = format!("{name} figures: {fast:?} by the timeline, {slow:?} by the ledger");
        return Err(Fault::new(format!("{name} figures judged in two ways"), detail));
    }
    Ok(())
}

/// In several orders, the plan computes what the graph says.
fn run(graph: &Graph<'_>, machine: &Machine, plan: &OwnedPlan) -> Result<(), Fault> {
    let plan = plan.plan();
    let fault = |error: String| Fault::new(format!("run: {}", without_numbers(&error)), error);
    let owned = planning::schedule(graph, machine, &plan).map_err(|it| fault(it.to_string()))?;
    let schedule = owned.schedule();
    let verified = planning::prove(graph, machine, &plan, &schedule);
    run_verified(&verified.map_err(|it| fault(it.to_string()))?).map_err(fault)
}

/// In several orders, a verified plan computes what the graph says.
///
/// # Errors
/// What goes wrong.
pub fn run_verified(verified: &Verified<'_>) -> Result<(), String> {
    let (graph, machine) = (*verified.graph(), *verified.machine());
    let reference = reference_digest(&graph, ITERATIONS);
    for seed in 0..ORDERS {
        let mut device = SimDevice::adversarial(machine, seed);
        let mut kernels = SimKernels::new(graph);
        planning::execute(verified, &mut device, &mut kernels, ITERATIONS)
            .map_err(|error| error.to_string())?;
        if kernels.digest(&device).map_err(|error| error.to_string())? != reference {
            return Err("the digest is not that of the graph".to_owned());
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use planner_core::Kind;
    use planner_core::plan::Pool;
    use workloads::OwnedGraph;

    #[test]
    fn the_ledger_counts_objects_that_are_not_full() {
        for tensors in [MOST_OBJECTS, MOST_OBJECTS + 1] {
            let mut graph = OwnedGraph::new("g");
            for _ in 0..tensors {
                graph.push_tensor("t", 1, Kind::State);
            }
            graph.push_op("o", 1, 0, &[], &[]);
            let pools = vec![Pool { object_bytes: 1024, count: tensors }];
            let plan = OwnedPlan::new(pools, Vec::new(), Vec::new());
            assert_eq!(
                is_for_ledger(&graph.graph().unwrap(), &plan.plan()),
                tensors == MOST_OBJECTS
            );
        }
    }
}
