//! Layers to stream, which a runtime that maps nothing finds at their addresses, and addresses of
//! plans with fixed objects, which all lie in the slab.

use crate::case::Files;
use crate::fault::{Fault, returns};
use crate::machines::machines;
use crate::numbers::numbers;
use crate::{judge, plans};
use conformance::plans::{Case, placed_cases};
use planner_core::placement::{Holder, Run};
use planner_core::{Kind, Machine, Step, TensorId};
use proptest::collection::vec;
use proptest::prelude::*;
use spillway::streaming::{self, Layer};
use spillway::{Addresses, Plan};

/// A larger slab is not made, nor larger tensors filled.
const MOST_BYTES: u64 = 1 << 18;
const ITERATIONS: u64 = 5;

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
    let layer = prop_oneof![6 => small, 1 => (numbers(), numbers())]
        .prop_map(|(bytes, time_ns)| Layer::new(bytes, time_ns));
    let machine = prop_oneof![conformance::graphs::machines().boxed(), machines().boxed()];
    let budget = prop_oneof![3 => 0..=20_000u64, 1 => numbers()];
    (vec(layer, 0..=12), machine, budget, any::<bool>(), placed_cases()).prop_map(
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

/// Streams the layers and runs them in a slab; finds the addresses of both plans.
///
/// # Errors
/// A call that does not return, or a wrong byte.
pub fn check(input: &Input) -> Result<(), Fault> {
    let machine = plans::named("fuzzed", input.machine);
    let least = returns("streaming::least", || streaming::least(&input.layers, &machine))?;
    let more_bytes = if input.is_more { least.bytes } else { 0 };
    let budget_bytes = input.budget_bytes.saturating_add(more_bytes);
    let planned =
        returns("streaming::plan", || streaming::plan(&input.layers, &machine, budget_bytes))?;
    if let Ok(plan) = planned {
        let addresses = addresses_of(&plan)?;
        let mut tensors = plan.graph().graph().tensor_ids();
        if !tensors.all(|tensor| addresses.is_contiguous(tensor)) {
            return Err(Fault::new("a layer in pieces", "a layer lies in several pieces"));
        }
        is_in_the_slab(&plan, &addresses)?;
        run_in_a_slab(&plan, &addresses)?;
    }
    let machine = plans::named("fuzzed", input.case.machine);
    let placed = returns("proving", || judge::proved(&input.case, &machine))?;
    match placed.filter(|plan| plan.owned().placements.is_some()) {
        Some(plan) => is_in_the_slab(&plan, &addresses_of(&plan)?),
        None => Ok(()),
    }
}

fn addresses_of(plan: &Plan) -> Result<Addresses, Fault> {
    let addresses = returns("addresses", || plan.addresses())?;
    addresses.map_err(|error| Fault::new("no addresses", error.to_string()))
}

/// What is where: a byte stands for a value.
struct Slab<'p> {
    plan: &'p Plan,
    bytes: Vec<u8>,
    /// The value of each tensor.
    values: Vec<u8>,
    /// The host's copy of each.
    host: Vec<Vec<u8>>,
    next: u8,
}

/// All addresses lie in the slab, and the slab in the budget.
fn is_in_the_slab(plan: &Plan, addresses: &Addresses) -> Result<(), Fault> {
    let slab_bytes = addresses.slab_bytes();
    let end = |run: &Run| run.offset_bytes.checked_add(run.bytes);
    let is_inside = |run: &Run| end(run).is_some_and(|end| end <= slab_bytes);
    if slab_bytes <= plan.owned().budget_bytes && addresses.all().iter().all(is_inside) {
        return Ok(());
    }
    let detail = format!("{slab_bytes} bytes, {:?}", addresses.all());
    Err(Fault::new("an address beyond the slab", detail))
}

/// Runs the plan of layers at its addresses: each op finds the bytes that it reads.
fn run_in_a_slab(plan: &Plan, addresses: &Addresses) -> Result<(), Fault> {
    let graph = plan.graph().graph();
    let fault = |detail: String| Fault::new("a wrong address", detail);
    let slab_bytes = addresses.slab_bytes();
    let bytes = graph.tensors().iter().map(|tensor| tensor.bytes);
    if bytes.chain([slab_bytes]).any(|bytes| bytes > MOST_BYTES) {
        return Ok(());
    }
    let values: Vec<u8> = graph.tensor_ids().map(|tensor| tensor.0 as u8 % 100 + 1).collect();
    let tensors = graph.tensors().iter().zip(&values);
    let host = tensors.map(|(tensor, &value)| vec![value; tensor.bytes as usize]).collect();
    let mut slab = Slab { plan, bytes: vec![0; slab_bytes as usize], values, host, next: 100 };
    addresses.at_start().iter().for_each(|run| slab.upload(run));
    for iteration in 0..ITERATIONS {
        for tensor in graph.tensor_ids() {
            if graph.tensor(tensor).kind == Kind::Input {
                slab.values[tensor.index()] = tensor.0 as u8 % 100 + 1;
            }
        }
        for (position, step) in plan.owned().steps.iter().enumerate() {
            let done = slab.step(step, addresses.at(iteration, position));
            let at = |error| fault(format!("iteration {iteration}, step {position}: {error}"));
            done.map_err(at)?;
        }
    }
    Ok(())
}

const fn range(first: u64, bytes: u64) -> std::ops::Range<usize> {
    first as usize..(first + bytes) as usize
}

impl Slab<'_> {
    fn upload(&mut self, run: &Run) {
        if let Holder::Tensor(tensor) = run.holder {
            let from = &self.host[tensor.index()][range(run.first_byte, run.bytes)];
            self.bytes[range(run.offset_bytes, run.bytes)].copy_from_slice(from);
        }
    }

    fn step(&mut self, step: &Step, runs: &[Run]) -> Result<(), String> {
        match *step {
            Step::Evict(_) => {}
            Step::Prefetch(_) => runs.iter().for_each(|run| self.upload(run)),
            Step::Offload(part) => {
                for run in runs {
                    let held = &self.bytes[range(run.offset_bytes, run.bytes)];
                    let host = &mut self.host[part.tensor.index()];
                    host[range(run.first_byte, run.bytes)].copy_from_slice(held);
                }
            }
            Step::Host(op) => self.launch(op.0, None)?,
            Step::Launch(launched) => {
                self.launch(launched.op.0, Some(runs))?;
            }
        }
        Ok(())
    }

    /// Runs an op, at addresses of the device or on the host.
    fn launch(&mut self, op: u32, runs: Option<&[Run]>) -> Result<(), String> {
        let graph = self.plan.graph().graph();
        let id = planner_core::OpId(op);
        let of = |tensor: TensorId| {
            let runs = runs.unwrap_or_default().iter();
            runs.filter(move |run| run.holder == Holder::Tensor(tensor))
        };
        for &tensor in graph.reads(id) {
            let value = self.values[tensor.index()];
            let held: Vec<u8> = match runs {
                None => self.host[tensor.index()].clone(),
                Some(_) => of(tensor)
                    .flat_map(|run| &self.bytes[range(run.offset_bytes, run.bytes)])
                    .copied()
                    .collect(),
            };
            let is_whole = held.len() as u64 == graph.tensor(tensor).bytes;
            if !is_whole || held.iter().any(|&byte| byte != value) {
                return Err(format!("op {op} reads other bytes of {tensor} than {value}"));
            }
        }
        for run in runs.unwrap_or_default() {
            if run.holder == Holder::Workspace(id) {
                self.bytes[range(run.offset_bytes, run.bytes)].fill(0xff);
            }
        }
        for &tensor in graph.writes(id) {
            self.next = if self.next == 250 { 101 } else { self.next + 1 };
            let value = self.next;
            self.values[tensor.index()] = value;
            match runs {
                None => self.host[tensor.index()].fill(value),
                Some(_) => {
                    for run in of(tensor) {
                        self.bytes[range(run.offset_bytes, run.bytes)].fill(value);
                    }
                }
            }
        }
        Ok(())
    }
}
