//! A plan with fixed objects, run at its addresses in one slab of bytes: each op finds the bytes that it
//! reads, and each output is on the host after its iteration.

use crate::fault::Fault;
use planner_core::placement::{Holder, Run};
use planner_core::{Graph, Kind, Launched, OpId, Part, Step, TensorId};
use spillway::{Addresses, Plan};
use std::ops::Range;

/// A larger slab is not made, nor larger tensors filled.
const MOST_BYTES: u64 = 1 << 18;
/// Beyond those after which the addresses repeat.
const MORE_ITERATIONS: u64 = 3;

/// Checks that all addresses lie in the slab, and that the slab is within the budget.
///
/// # Errors
/// An address beyond them.
pub fn contains(plan: &Plan, addresses: &Addresses) -> Result<(), Fault> {
    let slab_bytes = addresses.slab_bytes();
    let end = |run: &Run| run.offset_bytes.checked_add(run.bytes);
    let is_inside = |run: &Run| end(run).is_some_and(|end| end <= slab_bytes);
    if slab_bytes <= plan.owned().budget_bytes && addresses.all().iter().all(is_inside) {
        return Ok(());
    }
    let detail = format!("{slab_bytes} bytes, {:?}", addresses.all());
    Err(Fault::new("an address beyond the slab", detail))
}

/// Runs some iterations in list order, if the slab and the tensors are small.
///
/// # Errors
/// Other bytes than those of the graph.
pub fn run(plan: &Plan, addresses: &Addresses) -> Result<(), Fault> {
    let graph = plan.graph().graph();
    let bytes = graph.tensors().iter().map(|tensor| tensor.bytes);
    if bytes.chain([addresses.slab_bytes()]).any(|bytes| bytes > MOST_BYTES) {
        return Ok(());
    }
    let mut slab = Slab::new(plan, addresses.slab_bytes());
    let fault = |detail: String| Fault::new("a wrong byte in the slab", detail);
    for run in addresses.at_start() {
        slab.upload(run, 0);
    }
    let iterations = u64::from(addresses.iterations()) + MORE_ITERATIONS;
    for iteration in 0..iterations {
        slab.begin(iteration);
        for (position, step) in plan.owned().steps.iter().enumerate() {
            slab.step(position, step, addresses.at(iteration, position))
                .map_err(|it| fault(format!("iteration {iteration}, step {position}: {it}")))?;
        }
        slab.end().map_err(|it| fault(format!("end of iteration {iteration}: {it}")))?;
    }
    Ok(())
}

/// What an op reads and writes in one iteration, by the graph alone.
#[derive(Default)]
struct Values {
    read: Vec<u64>,
    written: u64,
}

struct Slab<'p> {
    graph: Graph<'p>,
    /// Behind the last read of each tensor in the list, from where on an input is the next one.
    read_until: Vec<usize>,
    bytes: Vec<u8>,
    /// The host's copies, in the even iterations and in the odd ones. Only those of inputs differ.
    host: [Vec<Vec<u8>>; 2],
    iteration: u64,
    /// What each tensor holds after the iteration.
    last: Vec<u64>,
    ops: Vec<Values>,
}

/// Where an iteration's inputs lie on the host.
const fn slot(iteration: u64) -> usize {
    (iteration % 2) as usize
}

const fn range(first: u64, bytes: u64) -> Range<usize> {
    first as usize..(first + bytes) as usize
}

/// A number that stands for all that it is made of.
fn mixed(numbers: impl IntoIterator<Item = u64>) -> u64 {
    numbers.into_iter().fold(1, |mixed, number| {
        (mixed ^ number).wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(29)
    })
}

/// A byte of a value: no two bytes of a tensor can change places unseen.
fn byte(value: u64, at: u64) -> u8 {
    (mixed([value, at]) >> 56) as u8
}

fn filled(value: u64, bytes: u64) -> Vec<u8> {
    (0..bytes).map(|at| byte(value, at)).collect()
}

impl<'p> Slab<'p> {
    fn new(plan: &'p Plan, slab_bytes: u64) -> Self {
        let graph = plan.graph().graph();
        let first = |tensor: TensorId| mixed([u64::from(tensor.0), 0]);
        let last: Vec<u64> = graph.tensor_ids().map(first).collect();
        let copies: Vec<_> = graph
            .tensor_ids()
            .zip(&last)
            .map(|(tensor, &value)| filled(value, graph.tensor(tensor).bytes))
            .collect();
        let mut read_until = vec![0; graph.tensors().len()];
        for (position, step) in plan.owned().steps.iter().enumerate() {
            let launched = match *step {
                Step::Launch(launched) => launched,
                Step::Host(op) => Launched::first(op),
                Step::Prefetch(_) | Step::Offload(_) | Step::Evict(_) => continue,
            };
            graph.read_by(launched).for_each(|it| read_until[it.index()] = position + 1);
        }
        Self {
            graph,
            read_until,
            bytes: vec![0; slab_bytes as usize],
            host: [copies.clone(), copies],
            iteration: 0,
            last,
            ops: Vec::new(),
        }
    }

    /// Works out an iteration by the graph, and supplies the inputs of the one after it.
    fn begin(&mut self, iteration: u64) {
        let graph = self.graph;
        let input = |tensor: TensorId, iteration| mixed([u64::from(tensor.0), iteration]);
        let inputs = graph.tensor_ids().filter(|&it| graph.tensor(it).kind == Kind::Input);
        for tensor in inputs {
            let next = filled(input(tensor, iteration + 1), graph.tensor(tensor).bytes);
            self.host[slot(iteration + 1)][tensor.index()] = next;
            self.last[tensor.index()] = input(tensor, iteration);
        }
        self.iteration = iteration;
        self.ops.clear();
        for op in graph.op_ids() {
            let read: Vec<_> = graph.reads(op).iter().map(|it| self.last[it.index()]).collect();
            let written = mixed(read.iter().copied().chain([u64::from(op.0), iteration]));
            for tensor in graph.writes(op) {
                self.last[tensor.index()] = mixed([written, u64::from(tensor.0)]);
            }
            self.ops.push(Values { read, written });
        }
    }

    /// The host has each output.
    fn end(&self) -> Result<(), String> {
        let graph = self.graph;
        let outputs = graph.tensor_ids().filter(|&it| graph.tensor(it).kind == Kind::Output);
        for tensor in outputs {
            let held = &self.host[0][tensor.index()];
            if *held != filled(self.last[tensor.index()], held.len() as u64) {
                return Err(format!("the host has other bytes of {tensor}"));
            }
        }
        Ok(())
    }

    /// Where the host has a tensor for an iteration.
    fn slot_of(&self, tensor: TensorId, iteration: u64) -> usize {
        match self.graph.tensor(tensor).kind {
            Kind::Input => slot(iteration),
            Kind::State | Kind::Temporary | Kind::Output => 0,
        }
    }

    fn upload(&mut self, run: &Run, iteration: u64) {
        if let Holder::Tensor(tensor) = run.holder {
            let slot = self.slot_of(tensor, iteration);
            let from = &self.host[slot][tensor.index()][range(run.first_byte, run.bytes)];
            self.bytes[range(run.offset_bytes, run.bytes)].copy_from_slice(from);
        }
    }

    fn step(&mut self, position: usize, step: &Step, runs: &[Run]) -> Result<(), String> {
        match *step {
            Step::Evict(_) => {}
            Step::Prefetch(Part { tensor, .. }) => {
                let is_next = position >= self.read_until[tensor.index()];
                let iteration = self.iteration + u64::from(is_next);
                runs.iter().for_each(|run| self.upload(run, iteration));
            }
            Step::Offload(Part { tensor, .. }) => {
                let slot = self.slot_of(tensor, self.iteration);
                for run in runs {
                    let held = &self.bytes[range(run.offset_bytes, run.bytes)];
                    self.host[slot][tensor.index()][range(run.first_byte, run.bytes)]
                        .copy_from_slice(held);
                }
            }
            Step::Host(op) => self.run_on_host(op)?,
            Step::Launch(launched) => self.launch(launched, runs)?,
        }
        Ok(())
    }

    fn is_read(&self, op: OpId, tensor: TensorId, held: &[u8]) -> Result<(), String> {
        let reads = self.graph.reads(op).iter().position(|&it| it == tensor);
        let value = reads.map_or(0, |at| self.ops[op.index()].read[at]);
        if *held == filled(value, self.graph.tensor(tensor).bytes)[..] {
            return Ok(());
        }
        Err(format!("{op} reads other bytes of {tensor}"))
    }

    fn written(&self, op: OpId, tensor: TensorId) -> Vec<u8> {
        let value = mixed([self.ops[op.index()].written, u64::from(tensor.0)]);
        filled(value, self.graph.tensor(tensor).bytes)
    }

    fn run_on_host(&mut self, op: OpId) -> Result<(), String> {
        for &tensor in self.graph.reads(op) {
            let slot = self.slot_of(tensor, self.iteration);
            self.is_read(op, tensor, &self.host[slot][tensor.index()])?;
        }
        for &tensor in self.graph.writes(op) {
            let slot = self.slot_of(tensor, self.iteration);
            self.host[slot][tensor.index()] = self.written(op, tensor);
        }
        Ok(())
    }

    fn launch(&mut self, launched: Launched, runs: &[Run]) -> Result<(), String> {
        let (graph, op) = (self.graph, launched.op);
        let of =
            |tensor: TensorId| runs.iter().filter(move |run| run.holder == Holder::Tensor(tensor));
        for tensor in graph.read_by(launched) {
            let held = of(tensor).flat_map(|run| &self.bytes[range(run.offset_bytes, run.bytes)]);
            self.is_read(op, tensor, &held.copied().collect::<Vec<_>>())?;
        }
        for run in runs.iter().filter(|run| run.holder == Holder::Workspace(op)) {
            self.bytes[range(run.offset_bytes, run.bytes)].fill(0xff);
        }
        for tensor in graph.written_by(launched) {
            let written = self.written(op, tensor);
            if of(tensor).map(|run| run.bytes).sum::<u64>() != written.len() as u64 {
                return Err(format!("{op} writes {tensor}, of which a part has no address"));
            }
            for run in of(tensor) {
                let from = &written[range(run.first_byte, run.bytes)];
                self.bytes[range(run.offset_bytes, run.bytes)].copy_from_slice(from);
            }
        }
        Ok(())
    }
}
