//! Weight streaming: layers in a row whose weights are more than the device holds.
//!
//! Some layers stay on the device. The others come over the link for their turn, each into a slot
//! at a fixed address.
//!
//! [`plan`] takes the layers as a plain list. Its result is a [`Plan`] like any other: layer, op and
//! tensor have the same number, [`Plan::addresses`] says where each layer lies, and
//! [`Plan::schedule`] what each upload and each launch waits for. Nothing depends on values, so
//! an iteration can be captured into a graph of the device.
//!
//! ```
//! use spillway::core::placement::Holder;
//! use spillway::streaming::{self, Layer};
//! use spillway::{TensorId, machines};
//!
//! let mib = 1 << 20;
//! let layers: Vec<_> = (0..32).map(|_| Layer::new(400 * mib, 20_000_000)).collect();
//! let machine = machines::builtin("a100-pcie4").expect("the name is in the list");
//! let plan = streaming::plan(&layers, &machine, "75%")?;
//!
//! assert_eq!(plan.figures().stall_ns, 0);
//! let addresses = plan.addresses()?;
//! assert!(addresses.slab_bytes() <= plan.owned().budget_bytes);
//! assert!(addresses.is_contiguous(TensorId(7)));
//! for (position, step) in plan.owned().steps.iter().enumerate() {
//!     for run in addresses.at(0, position) {
//!         println!("{step:?}: {} bytes at {}", run.bytes, run.offset_bytes);
//!         assert!(matches!(run.holder, Holder::Tensor(_)));
//!     }
//! }
//! # Ok::<(), spillway::Error>(())
//! ```

mod candidates;
mod course;
mod knobs;
mod layout;
mod list;
mod streamed;

use crate::budget::Budget;
use crate::error::Error;
use crate::figures::{Context, Needs};
use crate::graph::Graph;
use crate::names::{Names, exactly};
use crate::plan::Plan;
use planner_core::{Kind, OpId};
use std::time::Instant;
use streamed::Layers;
use workloads::{OwnedGraph, OwnedMachine, OwnedPlan, Shown};

/// Most layers that an error names.
const MOST_NAMED: usize = 3;

/// What plan files name as the strategy.
const STRATEGY: &str = "streaming";

/// A layer, whose weights only it reads.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Layer {
    /// Its name in errors and reports; its number where that is empty.
    pub name: String,
    /// The size of its weights, which lie at consecutive addresses.
    pub bytes: u64,
    /// How long it computes.
    pub time_ns: u64,
}

impl Layer {
    /// A layer without a name.
    #[must_use]
    pub const fn new(bytes: u64, time_ns: u64) -> Self {
        Self { name: String::new(), bytes, time_ns }
    }
}

/// The least device memory with which layers can be streamed: that of the largest.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Least {
    /// How many bytes.
    pub bytes: u64,
    /// The layers that need them, by number.
    pub layers: Vec<usize>,
}

/// Returns the least device memory, and which layers need it. O(layers).
#[must_use]
pub fn least(layers: &[Layer], machine: &OwnedMachine) -> Least {
    let rounded = |layer: &Layer| machine.machine.round_up_to_chunks(layer.bytes);
    let bytes_of = |layer: &Layer| rounded(layer).unwrap_or(u64::MAX);
    let bytes = layers.iter().map(bytes_of).max().unwrap_or(0);
    let numbers = (0..).zip(layers);
    let largest = numbers.filter(|(_, layer)| bytes_of(layer) == bytes);
    Least { bytes, layers: largest.map(|(number, _)| number).collect() }
}

/// The graph of layers: each is an op that reads a state, with its number.
///
/// # Errors
/// [`Error::Graph`]: there is no layer, one has no bytes, or bytes or times exceed 64 bits.
pub fn graph(layers: &[Layer]) -> Result<Graph, Error> {
    let mut graph = OwnedGraph::new("layers");
    for (number, Layer { name, bytes, time_ns }) in layers.iter().enumerate() {
        let name = if name.is_empty() { format!("layer {number}") } else { name.clone() };
        let weights = graph.push_tensor(name.clone(), *bytes, Kind::State);
        graph.push_op(name, *time_ns, 0, &[weights], &[]);
    }
    Graph::new(graph)
}

/// Plans which layers stay, and when and where the others come. The budget is for weights alone:
/// bytes, a [`Budget`], or a text; percentages are of all weights. Addresses are multiples of the
/// machine's `chunk_bytes`, which may be as small as the device's alignment.
///
/// Takes a few milliseconds for 100 layers. `docs/streaming.md` compares the period with those of the
/// settings that inference servers have.
///
/// # Errors
/// [`Error::Infeasible`] names the layers for which the budget is too small; those of [`graph`]; a
/// budget of more than the device has; host memory that does not suffice.
pub fn plan<B: TryInto<Budget>>(
    layers: &[Layer],
    machine: &OwnedMachine,
    budget: B,
) -> Result<Plan, Error>
where
    Error: From<B::Error>,
{
    let budget: Budget = budget.try_into()?;
    let started = Instant::now();
    let graph = graph(layers)?;
    let (core, on) = (graph.graph(), &machine.machine);
    let least = least(layers, machine);
    let needs = Needs::of(&core, on, Some(least.bytes))
        .map_err(|error| Error::planning(&Names::new(graph.owned(), &[]), error, 0))?;
    let budget_bytes = budget.bytes(&needs);
    if budget_bytes < least.bytes {
        return Err(too_small(&graph, budget_bytes, &least));
    }
    let context = Context::new(graph.owned(), machine, STRATEGY, budget_bytes, needs)?;
    let plan = list::best(&Layers::new(&core, on, budget_bytes), &core, on)
        .map_err(|error| Error::planning(&Names::new(graph.owned(), &[]), error, budget_bytes))?;
    let plan = OwnedPlan {
        graph: graph.name().to_owned(),
        machine: machine.name.clone(),
        strategy: STRATEGY.to_owned(),
        ..plan
    };
    let context =
        Context { planning_ns: u64::try_from(started.elapsed().as_nanos()).ok(), ..context };
    Plan::in_context(graph, machine.clone(), plan, context)
}

fn too_small(graph: &Graph, budget_bytes: u64, least: &Least) -> Error {
    let Least { bytes: least_bytes, layers } = least;
    let names = &graph.owned().op_names;
    let quoted = |&number: &usize| format!("{:?}", Shown::name(&*names[number]));
    let named: Vec<_> = layers.iter().take(MOST_NAMED).map(quoted).collect();
    let others = match layers.len().saturating_sub(MOST_NAMED) {
        0 => String::new(),
        others => format!(" and {others} more"),
    };
    let each = if layers.len() > 1 { " each" } else { "" };
    let message = format!(
        "the budget of {} is too small: {}{others} need{} {}{each}",
        exactly(budget_bytes),
        named.join(", "),
        if layers.len() > 1 { "" } else { "s" },
        exactly(*least_bytes),
    );
    let op = OpId(layers.first().map_or(0, |&number| number as u32));
    Error::Infeasible { budget_bytes, least_bytes: *least_bytes, op, message }
}
