//! A small training step, planned and proved in memory that is sized at compile time.
#![no_std]

use planner_core::machine::MachineError;
use planner_core::plan::{ArenaPlacement, Part, Pool, Resident};
use planner_core::planner::{self, Auto, Output, PlanningError, Request, Strategy};
use planner_core::schedule::Scheduled;
use planner_core::{
    Graph, GraphError, Kind, Launched, Limits, Machine, MachineParameters, Op, OpId, Plan, Scratch,
    Step, Tensor, TensorId, VerifyError, lower, verify,
};

const LAYERS: usize = 8;
const TENSORS: usize = 5 * LAYERS + 1;
const OPS: usize = 3 * LAYERS;
const OPERANDS: usize = 13 * LAYERS;
const STEPS: usize = 512;

const LIMITS: Limits = Limits {
    ops: OPS,
    operands: OPERANDS,
    tensors: TENSORS,
    steps: 0,
    pieces: 0,
    pools: 2,
    iterations: 1,
    objects: 0,
}
.with_steps(STEPS);

const fn max(one: usize, other: usize) -> usize {
    if one > other { one } else { other }
}

/// Words of working memory: what the most demanding of the three verbs asks for.
pub const WORDS: usize = max(
    planner::scratch_words(&LIMITS),
    max(lower::scratch_words(&LIMITS), verify::scratch_words(&LIMITS)),
);

/// What [`digest`] returns, wherever it runs.
pub const EXPECTED: u64 = 0xd560_f62b_a865_1f9d;

/// Forward, backward and update of layers with a weight and its momentum.
struct Network {
    tensors: [Tensor; TENSORS],
    ops: [Op; OPS],
    operands: [TensorId; OPERANDS],
}

impl Network {
    fn new() -> Self {
        let kind = |id: usize| match id {
            0 => Kind::Input,
            _ if id <= 2 * LAYERS => Kind::State,
            _ => Kind::Temporary,
        };
        let bytes = |id: usize| 3000 + 1700 * (id as u64 % 5);
        let mut network = Self {
            tensors: core::array::from_fn(|id| Tensor::new(bytes(id), kind(id))),
            ops: [Op::default(); OPS],
            operands: [TensorId(0); OPERANDS],
        };
        let weight = |layer: usize| 1 + layer;
        let momentum = |layer: usize| 1 + LAYERS + layer;
        let value = |layer: usize| if layer == 0 { 0 } else { 2 * LAYERS + layer };
        let value_gradient = |layer: usize| 1 + 3 * LAYERS + layer;
        let weight_gradient = |layer: usize| 1 + 4 * LAYERS + layer;
        let (mut ops, mut operands) = (0, 0);
        let mut add = |time_ns, reads: &[usize], writes: &[usize]| {
            network.ops[ops] = Op::new(time_ns)
                .with_workspace_bytes(512)
                .with_first_operand(operands as u32)
                .with_reads(reads.len() as u32)
                .with_writes(writes.len() as u32);
            ops += 1;
            for &id in reads.iter().chain(writes) {
                network.operands[operands] = TensorId(id as u32);
                operands += 1;
            }
        };
        for layer in 0..LAYERS {
            add(9_000, &[value(layer), weight(layer)], &[value(layer + 1)]);
        }
        for layer in (0..LAYERS).rev() {
            let last = layer + 1 == LAYERS;
            let above = if last { value(LAYERS) } else { value_gradient(layer + 1) };
            let (d_value, d_weight) = (value_gradient(layer), weight_gradient(layer));
            add(20_000, &[above, weight(layer), value(layer)], &[d_value, d_weight]);
            let state = [momentum(layer), weight(layer)];
            add(2_000, &[d_weight, state[0], state[1]], &state);
        }
        network
    }
}

/// Why there is no digest.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Failure {
    /// The network is no valid graph.
    Graph(GraphError),
    /// The machine was rejected.
    Machine(MachineError),
    /// The planner found no plan.
    Planning(PlanningError),
    /// The verifier found the plan unsafe.
    Verify(VerifyError),
}

/// Plans with a third of the memory that the network needs, proves the plan safe, and mixes
/// its steps and its prediction into one number.
///
/// # Errors
/// None, unless something is broken.
pub fn digest(memory: &mut [u64; WORDS]) -> Result<u64, Failure> {
    let network = Network::new();
    let mut scratch = Scratch::new(memory);
    let mut graph_memory = [0; Graph::scratch_words(TENSORS)];
    let graph = Graph::new(
        &network.tensors,
        &network.ops,
        &network.operands,
        &mut Scratch::new(&mut graph_memory),
    )
    .map_err(Failure::Graph)?;
    let machine = Machine::new(
        MachineParameters::new()
            .with_device_bytes(80_000)
            .with_host_bytes(1 << 30)
            .with_chunk_bytes(1024)
            .with_h2d_bytes_per_s(1_000_000_000)
            .with_d2h_bytes_per_s(1_000_000_000)
            .with_transfer_latency_ns(500),
    )
    .map_err(Failure::Machine)?;
    let launch = Step::launch(OpId(0));
    let mut steps = [launch; STEPS];
    let part = Part::whole(TensorId(0));
    let mut resident = [Resident { part, host_copy: false }; 2 * TENSORS];
    let mut arena = [ArenaPlacement { tensor: TensorId(0), offset_bytes: 0 }; TENSORS];
    let (mut pools, mut tensor_pool) = ([Pool { object_bytes: 1, count: 0 }; 2], [0; TENSORS]);
    let output = Output {
        steps: &mut steps,
        resident: &mut resident,
        arena: &mut arena,
        pools: &mut pools,
        tensor_pool: &mut tensor_pool,
    };
    let request = Request { graph: &graph, machine: &machine, budget_bytes: machine.device_bytes };
    let plan = planner::plan(&request, Strategy::Auto(Auto::default()), output, &mut scratch)
        .map_err(Failure::Planning)?;
    let mut lowered = [Scheduled::EMPTY; STEPS];
    let schedule = lower(&graph, &machine, &plan, &mut lowered, &mut scratch)
        .map_err(|error| Failure::Verify(error.into()))?;
    verify(&graph, &machine, &plan, &schedule, &mut scratch).map_err(Failure::Verify)?;
    Ok(mix(&plan))
}

/// FNV-1a over the steps and the predicted period.
fn mix(plan: &Plan<'_>) -> u64 {
    let mut hash = 0xcbf2_9ce4_8422_2325_u64;
    let mut add = |word: u64| {
        for byte in word.to_le_bytes() {
            hash = (hash ^ u64::from(byte)).wrapping_mul(0x100_0000_01b3);
        }
    };
    for step in plan.steps {
        let (kind, id) = match *step {
            Step::Launch(Launched { op, .. }) => (0, op.0),
            Step::Prefetch(part) => (1, part.tensor.0),
            Step::Offload(part) => (2, part.tensor.0),
            Step::Evict(part) => (3, part.tensor.0),
            Step::Host(op) => (4, op.0),
        };
        add(kind << 32 | u64::from(id));
    }
    add(plan.predicted.period_ns);
    hash
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_host_plans_the_same() {
        assert_eq!(digest(&mut [0; WORDS]), Ok(EXPECTED));
    }
}
