//! Weight streaming: layers in a row whose weights exceed the device memory.
//!
//! Some layers stay on the device. The others come over the link for each launch, into a slot at a fixed
//! address, or run on the host, if they [may](Layer::host_ns). [Caches](Layer::cache_bytes) stay on the
//! processor that runs their layers, and [outputs](Layer::output_bytes) come to the host.
//!
//! [`plan`] takes the layers as a plain list, and returns an ordinary [`Plan`]. The layer, its op and its
//! weights have the same number. [`Plan::addresses`] gives the address of each layer, and [`Plan::schedule`]
//! the waits of each upload and launch. Nothing depends on values, so an iteration can be captured into a
//! graph of the device.
//!
//! The search:
//!
//! - `candidates` chooses the streamed layers. Of up to 9 layers, every set is tried. Of more, all sets of
//!   `groups` and `fit`, sets at even distances by size and time, and changes of the best set.
//! - `hosts` chooses the layers on the host. Of up to 6 layers, every choice of roles is tried. Of more, layers
//!   on the host lie in runs, each followed by streamed layers, and by layers that stay while the link brings
//!   the streamed layers. The search varies the share of the host and the runs, then the roles of one or two
//!   layers.
//! - `course` estimates the periods. In their order, `layout` and `list` make plans, which the core proves and
//!   times. The search stops at the first estimate that is no better than the best plan.
//! - `kept` adds caches and outputs last. The search uses the memory that they leave.
//!
//! ```
//! use spillway::planner_core::placement::Holder;
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

mod bound;
mod candidates;
mod course;
mod hosts;
mod kept;
mod knobs;
mod layout;
mod list;
mod streamed;
mod turns;
mod work;

use crate::budget::Budget;
use crate::error::Error;
use crate::figures::{Context, Needs};
use crate::graph::Graph;
use crate::names::{Names, exactly};
use crate::plan::Plan;
use kept::Kept;
use planner_core::{Machine, OpId};
use std::time::Instant;
use streamed::Layers;
use workloads::{OwnedMachine, Shown};

pub use work::{cache, graph, output};

/// The most layers in an error.
const MOST_NAMED: usize = 3;

/// The name of the strategy in plan files.
const STRATEGY: &str = "streaming";

/// A layer. No other layer reads its weights.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Layer {
    /// The name in errors and reports. If it is empty, they use the number of the layer.
    pub name: String,
    /// The size of its weights, which lie at consecutive addresses.
    pub bytes: u64,
    /// The time of the layer on the device.
    pub time_ns: u64,
    /// The time of the layer on the host; `None` if it cannot run there.
    pub host_ns: Option<u64>,
    /// The size of the activation that the next layer reads. After the last layer comes the first layer of
    /// the next iteration. If all layers have 0, the plan moves no activations. If a layer may run on the
    /// host, no layer may have 0.
    pub activation_bytes: u64,
    /// The size of the cache, such as a KV cache, which each iteration reads and writes; 0 without a cache.
    /// The cache stays at one address on the device, or on the host if the layer runs there.
    pub cache_bytes: u64,
    /// The size of the output, such as the logits of the last layer, which each iteration leaves on the host;
    /// 0 without an output.
    pub output_bytes: u64,
}

impl Layer {
    /// Creates a layer without a name that runs on the device.
    #[must_use]
    pub const fn new(bytes: u64, time_ns: u64) -> Self {
        Self {
            name: String::new(),
            bytes,
            time_ns,
            host_ns: None,
            activation_bytes: 0,
            cache_bytes: 0,
            output_bytes: 0,
        }
    }

    /// Sets the name.
    #[must_use]
    pub fn name(self, name: impl Into<String>) -> Self {
        Self { name: name.into(), ..self }
    }

    /// Allows the layer to run on the host, with its time there.
    #[must_use]
    pub fn host_ns(self, time_ns: u64) -> Self {
        Self { host_ns: Some(time_ns), ..self }
    }

    /// Sets the size of the activation.
    #[must_use]
    pub fn activation_bytes(self, bytes: u64) -> Self {
        Self { activation_bytes: bytes, ..self }
    }

    /// Sets the size of the cache.
    #[must_use]
    pub fn cache_bytes(self, bytes: u64) -> Self {
        Self { cache_bytes: bytes, ..self }
    }

    /// Sets the size of the output.
    #[must_use]
    pub fn output_bytes(self, bytes: u64) -> Self {
        Self { output_bytes: bytes, ..self }
    }
}

/// The least device memory with which layers can be streamed. It is the sum of three parts: the largest layer
/// that cannot run on the host, the caches and outputs of all such layers, and [room for activations](plan).
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct MinFeasible {
    /// The bytes.
    pub bytes: u64,
    /// The part of these bytes that caches and outputs take.
    pub kept_bytes: u64,
    /// The numbers of the layers that need these bytes.
    pub layers: Vec<usize>,
}

/// Returns the least device memory, and the layers that need it. O(layers).
#[must_use]
pub fn min_feasible(layers: &[Layer], machine: &OwnedMachine) -> MinFeasible {
    let on_device = |layer: &Layer| if layer.host_ns.is_none() { layer.bytes } else { 0 };
    let rounded = |layer: &Layer| machine.machine.round_up_to_chunks(on_device(layer));
    let bytes_of = |layer: &Layer| rounded(layer).unwrap_or(u64::MAX);
    let bytes = layers.iter().map(bytes_of).max().unwrap_or(0);
    let numbers = (0..).zip(layers);
    let largest = numbers.filter(|(_, layer)| bytes_of(layer) == bytes);
    let activations = layers.iter().map(|layer| layer.activation_bytes);
    let activations = streamed::activations(activations, &machine.machine);
    let kept = layers.iter().map(|layer| kept::bytes_on_device(layer, &machine.machine));
    let kept_bytes = kept.fold(0, u64::saturating_add);
    let beside_bytes = kept_bytes.saturating_add(streamed::pool_bytes(activations));
    MinFeasible {
        bytes: bytes.saturating_add(beside_bytes),
        kept_bytes,
        layers: largest.map(|(number, _)| number).collect(),
    }
}

/// Plans the layers that stay, the times and addresses of streamed layers, and the layers that run on the
/// host. The budget is bytes, a [`Budget`], or a text. It covers weights, caches and outputs, and percentages
/// refer to their sum. If layers have activations, the budget also covers three times the largest activation.
/// The caches and outputs of layers on the device stay there and never move. Addresses are multiples of the
/// machine's `chunk_bytes`, which may be as small as the device's alignment.
///
/// Takes a few milliseconds for 100 layers, and a tenth of a second if layers may run on the host.
/// `docs/research/streaming.md` compares the period with the settings of inference servers.
///
/// # Errors
/// [`Error::Infeasible`] if the budget is too small: it names the layers that need more; [`Error::Budget`] if
/// a text is not a budget; [`Error::Planning`] if the budget exceeds the device memory or the host has too
/// little memory; the errors of [`graph`].
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
    let least = min_feasible(layers, machine);
    let needs = Needs::of(&core, on, Some(least.bytes))
        .map_err(|error| Error::planning(&Names::new(graph.owned(), &[]), error, 0))?;
    let budget_bytes = budget.bytes(&needs);
    if budget_bytes < least.bytes {
        return Err(too_small(&graph, budget_bytes, &least));
    }
    let context = Context::new(graph.owned(), machine, STRATEGY, budget_bytes, needs)?;
    let bare = work::graph(&kept::without(layers))?;
    let bare = bare.graph();
    let kept = Kept { layers, graph: &core, machine: on, budget_bytes };
    let best = |machine: &Machine| {
        let kept_bytes = layers.iter().map(|layer| kept::bytes(layer, on)).collect();
        let layers = Layers::new(&bare, machine, budget_bytes, kept_bytes);
        list::best(&layers, &bare, machine, &kept)
    };
    let coarse = coarse(layers, on).and_then(|coarse| {
        let mut plan = best(&coarse).ok()?;
        plan.predicted = list::predict(&core, on, &plan).ok()?;
        Some(plan)
    });
    let mut plan = coarse
        .map_or_else(|| best(on), Ok)
        .map_err(|error| Error::planning(&Names::new(graph.owned(), &[]), error, budget_bytes))?;
    graph.name().clone_into(&mut plan.graph);
    plan.machine.clone_from(&machine.name);
    STRATEGY.clone_into(&mut plan.strategy);
    let bound_ns = bound::period_ns(layers, on, budget_bytes);
    let context = Context {
        planning_ns: u64::try_from(started.elapsed().as_nanos()).ok(),
        host_bound_ns: context.host_bound_ns.map(|_| bound_ns),
        ..context
    };
    Plan::in_context(graph, machine.clone(), plan, context)
}

/// The most objects of all layers. Each object has a number in the plan, so planning with more objects would
/// take seconds.
const MOST_OBJECTS: u64 = 1 << 16;

/// Returns the machine with chunks so large that the layers have few enough of them. Returns `None` if the
/// chunks of the machine are large enough.
fn coarse(layers: &[Layer], machine: &Machine) -> Option<Machine> {
    let bytes = layers.iter().fold(0, |sum: u64, layer| sum.saturating_add(layer.bytes));
    let chunks = bytes / machine.chunk_bytes;
    let several = (chunks / (MOST_OBJECTS / 2)).checked_next_power_of_two()?;
    let chunk_bytes = machine.chunk_bytes.checked_mul(several)?;
    let coarse = Machine::new((**machine).with_chunk_bytes(chunk_bytes));
    coarse.ok().filter(|_| chunks > MOST_OBJECTS)
}

fn too_small(graph: &Graph, budget_bytes: u64, least: &MinFeasible) -> Error {
    let MinFeasible { bytes: min_feasible_bytes, kept_bytes, layers } = least;
    let names = &graph.owned().op_names;
    let quoted = |&number: &usize| format!("{:?}", Shown::name(&*names[number]));
    let named: Vec<_> = layers.iter().take(MOST_NAMED).map(quoted).collect();
    let others = match layers.len().saturating_sub(MOST_NAMED) {
        0 => String::new(),
        others => format!(" and {others} more"),
    };
    let each = if layers.len() > 1 { " each" } else { "" };
    let kept = match kept_bytes {
        0 => String::new(),
        &bytes => format!(", of which caches and outputs take {}", exactly(bytes)),
    };
    let message = format!(
        "the budget of {} is too small: {}{others} need{} {}{each}{kept}",
        exactly(budget_bytes),
        named.join(", "),
        if layers.len() > 1 { "" } else { "s" },
        exactly(*min_feasible_bytes),
    );
    let op = OpId(layers.first().map_or(0, |&number| number as u32));
    Error::Infeasible { budget_bytes, min_feasible_bytes: *min_feasible_bytes, op, message }
}
