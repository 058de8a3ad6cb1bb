//! Layers to stream, and plans with fixed objects, run at their addresses as by a runtime that maps
//! nothing.

use crate::case::Files;
use crate::fault::{Fault, returns};
use crate::machines::machines;
use crate::numbers::numbers;
use crate::{judge, plans, slab};
use conformance::plans::{Case, placed_cases};
use planner_core::Machine;
use proptest::collection::vec;
use proptest::prelude::*;
use spillway::streaming::{self, Layer};
use spillway::{Addresses, Plan};

/// A plan lists the objects of up to 64 iterations, so that more of them take too much memory.
const MOST_CHUNKS: u64 = 1 << 16;

/// Layers with a budget, and a plan with fixed objects.
#[derive(Clone, Debug)]
pub struct Input {
    layers: Vec<Layer>,
    machine: Machine,
    budget_bytes: u64,
    /// Whether the budget is beyond the least.
    is_more: bool,
    case: Case,
}

/// Any input.
pub fn inputs() -> impl Strategy<Value = Input> {
    let small = (1..=5000u64, 0..=5000u64);
    let layer = prop_oneof![6 => small.clone(), 1 => (numbers(), numbers())]
        .prop_map(|(bytes, time_ns)| Layer::new(bytes, time_ns));
    // Layers that hand something on, of which some may run on the host.
    let host_ns = prop_oneof![3 => Just(None), 6 => (0..=5000u64).prop_map(Some), 1 => numbers().prop_map(Some)];
    let activation_bytes = prop_oneof![20 => 1..=600u64, 1 => numbers()];
    let handing = (small, host_ns, activation_bytes).prop_map(
        |((bytes, time_ns), host_ns, activation_bytes)| {
            let mut layer = Layer::new(bytes, time_ns).activation_bytes(activation_bytes);
            layer.host_ns = host_ns;
            layer
        },
    );
    let some = || prop_oneof![4 => Just(0), 2 => 1..=3000u64, 1 => numbers()];
    let keeping = (prop_oneof![layer.clone(), handing.clone()], some(), some()).prop_map(
        |(layer, cache_bytes, output_bytes)| {
            layer.cache_bytes(cache_bytes).output_bytes(output_bytes)
        },
    );
    let layers = prop_oneof![vec(layer, 0..=12), vec(handing, 0..=12), vec(keeping, 0..=12)];
    let machine = prop_oneof![conformance::graphs::machines().boxed(), machines().boxed()];
    let budget = prop_oneof![3 => 0..=20_000u64, 1 => numbers()];
    (layers, machine, budget, any::<bool>(), placed_cases()).prop_map(
        |(layers, machine, budget_bytes, is_more, case)| Input {
            layers,
            machine,
            budget_bytes,
            is_more,
            case,
        },
    )
}

/// The files of the plan with fixed objects, and all of the input in words.
#[must_use]
pub fn files(input: &Input) -> Files {
    let mut files = plans::files(&input.case);
    files.push(("input.txt", format!("{input:#?}").into_bytes()));
    files
}

/// Streams the layers, and runs both plans in a slab.
///
/// # Errors
/// A call that does not return, or a wrong byte.
pub fn check(input: &Input) -> Result<(), Fault> {
    let machine = plans::named("fuzzed", input.machine);
    let least =
        returns("streaming::min_feasible", || streaming::min_feasible(&input.layers, &machine))?;
    let more_bytes = if input.is_more { least.bytes } else { 0 };
    let budget_bytes = input.budget_bytes.saturating_add(more_bytes);
    let chunk_bytes = machine.machine.chunk_bytes;
    let chunks_of = |bytes: u64| bytes.div_ceil(chunk_bytes);
    let all_bytes = |it: &Layer| [it.bytes, it.activation_bytes, it.cache_bytes, it.output_bytes];
    let chunks = input.layers.iter().flat_map(all_bytes).map(chunks_of);
    let is_small = chunks.fold(0, u64::saturating_add) <= MOST_CHUNKS;
    let plan = || is_small.then(|| streaming::plan(&input.layers, &machine, budget_bytes));
    if let Some(Ok(plan)) = returns("streaming::plan", plan)? {
        let addresses = addresses_of(&plan)?;
        let mut tensors = plan.graph().graph().tensor_ids();
        if !tensors.all(|tensor| addresses.is_contiguous(tensor)) {
            return Err(Fault::new("a layer in pieces", "a layer lies in several pieces"));
        }
        slab::contains(&plan, &addresses)?;
        slab::run(&plan, &addresses)?;
    }
    let machine = plans::named("fuzzed", input.case.machine);
    let placed = returns("proving", || judge::proved(&input.case, &machine))?;
    if let Some(plan) = placed.filter(|plan| plan.owned().placements.is_some()) {
        let addresses = addresses_of(&plan)?;
        slab::contains(&plan, &addresses)?;
        slab::run(&plan, &addresses)?;
    }
    Ok(())
}

fn addresses_of(plan: &Plan) -> Result<Addresses, Fault> {
    let addresses = returns("addresses", || plan.addresses())?;
    addresses.map_err(|error| Fault::new("no addresses", error.to_string()))
}
