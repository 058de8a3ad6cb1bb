//! Graphs and plans that own their data, and the steps from a plan to a digest.
#![allow(dead_code, reason = "each test program uses its own part")]

use backend_sim::{SimDevice, SimError, SimKernels};
use planner_core::plan::{ArenaPlacement, Pool, Prediction, Resident};
use planner_core::{
    ExecuteError, Executor, Graph, Kind, Limits, Machine, MachineParameters, Part, Placements,
    Plan, Schedule, Scheduled, Scratch, Step, TensorId, Verified, executor, lower, timeline,
    verify,
};
use workloads::OwnedGraph;

/// A graph whose tensors and ops have no names.
#[derive(Clone, Debug, Default)]
pub(crate) struct Work {
    pub(crate) graph: OwnedGraph,
}

impl Work {
    pub(crate) fn tensor(&mut self, kind: Kind, bytes: u64) -> u32 {
        self.graph.push_tensor("", bytes, kind).0
    }

    pub(crate) fn op(&mut self, time_ns: u64, workspace_bytes: u64, reads: &[u32], writes: &[u32]) {
        let [reads, writes] =
            [reads, writes].map(|ids| ids.iter().copied().map(TensorId).collect::<Vec<_>>());
        self.graph.push_op("", time_ns, workspace_bytes, &reads, &writes);
    }

    pub(crate) fn graph(&self) -> Graph<'_> {
        self.graph.graph().unwrap()
    }
}

#[derive(Clone, Debug, Default)]
pub(crate) struct OwnedPlan {
    pub(crate) arena_bytes: u64,
    pub(crate) arena: Vec<ArenaPlacement>,
    pub(crate) pools: Vec<Pool>,
    pub(crate) tensor_pool: Vec<u32>,
    pub(crate) workspace_pool: Vec<u32>,
    pub(crate) resident_at_start: Vec<Resident>,
    pub(crate) steps: Vec<Step>,
    /// The iterations that placements cover, all object numbers, and the ends of each array.
    pub(crate) placements: Option<(u32, Vec<u64>, Vec<u32>)>,
}

impl OwnedPlan {
    pub(crate) fn plan(&self, machine: &Machine) -> Plan<'_> {
        Plan {
            budget_bytes: machine.device_bytes,
            arena_bytes: self.arena_bytes,
            arena: &self.arena,
            pools: &self.pools,
            tensor_pool: &self.tensor_pool,
            workspace_pool: &self.workspace_pool,
            resident_at_start: &self.resident_at_start,
            steps: &self.steps,
            placements: self.placements.as_ref().map(|(iterations, objects, ends)| Placements {
                iterations: *iterations,
                objects,
                ends,
            }),
            predicted: Prediction::default(),
        }
    }

    /// Everything stays resident, and temporaries are evicted at the end of each iteration.
    pub(crate) fn in_core(work: &Work, object_bytes: u64) -> Self {
        let graph = work.graph();
        let objects = |bytes: u64| bytes.div_ceil(object_bytes);
        // Each input has two copies, since the next value arrives while the last is in use.
        let tensors = graph.tensors().iter().map(|tensor| 2 * objects(tensor.bytes));
        let workspaces = graph.ops().iter().map(|op| objects(op.workspace_bytes));
        let count = tensors.chain(workspaces).sum();
        let whole = |id: TensorId| Part::whole(id);
        let of_kind = |kind| graph.tensor_ids().filter(move |&id| graph.tensor(id).kind == kind);
        let states = of_kind(Kind::State);
        let written = |id: &TensorId| graph.op_ids().any(|op| graph.writes(op).contains(id));
        let touched = |id: &TensorId| graph.op_ids().any(|op| graph.touches(op).any(|t| t == *id));
        let mut steps: Vec<_> = of_kind(Kind::Input).map(|id| Step::Prefetch(whole(id))).collect();
        steps.extend(graph.op_ids().map(Step::launch));
        let leaving = of_kind(Kind::Input).chain(of_kind(Kind::Temporary).filter(touched));
        steps.extend(leaving.map(|id| Step::Evict(whole(id))));
        Self {
            pools: vec![Pool { object_bytes, count }],
            resident_at_start: states
                .map(|id| Resident { part: whole(id), host_copy: !written(&id) })
                .collect(),
            steps,
            ..Self::default()
        }
    }
}

pub(crate) fn limits(graph: &Graph<'_>, plan: &Plan<'_>) -> Limits {
    Limits {
        ops: graph.ops().len(),
        operands: graph.operands().len(),
        tensors: graph.tensors().len(),
        steps: plan.steps.len(),
        pieces: graph.tensors().len() + 2 * (plan.steps.len() + plan.resident_at_start.len()),
        pools: plan.pools.len(),
        iterations: plan.iterations() as usize,
        objects: plan.placements.map_or(0, |placements| placements.objects.len()),
    }
}

pub(crate) fn lowered<'o>(
    graph: &Graph<'_>,
    machine: &Machine,
    plan: &Plan<'_>,
    out: &'o mut Vec<Scheduled>,
) -> Schedule<'o> {
    let mut memory = vec![0; lower::scratch_words(&limits(graph, plan))];
    out.resize(plan.steps.len() * plan.iterations() as usize, Scheduled::EMPTY);
    lower(graph, machine, plan, out, &mut Scratch::new(&mut memory)).unwrap()
}

pub(crate) fn verified<'a>(
    graph: &Graph<'a>,
    machine: &Machine,
    plan: &Plan<'a>,
    schedule: &Schedule<'a>,
) -> Verified<'a> {
    let mut memory = vec![0; verify::scratch_words(&limits(graph, plan))];
    verify(graph, machine, plan, schedule, &mut Scratch::new(&mut memory)).unwrap()
}

pub(crate) fn predicted_period_ns(
    graph: &Graph<'_>,
    machine: &Machine,
    plan: &Plan<'_>,
    schedule: &Schedule<'_>,
) -> u64 {
    let mut memory = vec![0; timeline::scratch_words(&limits(graph, plan))];
    let mut scratch = Scratch::new(&mut memory);
    timeline::predict(graph, machine, plan, schedule, &mut scratch).unwrap().0.period_ns
}

/// Runs iterations on a device, in two calls.
pub(crate) fn execute(
    verified: &Verified<'_>,
    device: &mut SimDevice,
    graph: Graph<'_>,
    iterations: u64,
    runs: usize,
) -> Result<u64, ExecuteError<SimError>> {
    let limits = limits(verified.graph(), verified.plan());
    let mut memory = vec![0; executor::scratch_words(&limits, runs)];
    let mut scratch = Scratch::new(&mut memory);
    let mut kernels = SimKernels::new(graph);
    let mut executor = Executor::start(verified, device, &mut kernels, &mut scratch)?;
    executor.run(device, &mut kernels, iterations / 2)?;
    executor.run(device, &mut kernels, iterations - iterations / 2)?;
    executor.save_states(device)?;
    Ok(kernels.digest(device).unwrap())
}

pub(crate) fn machine(chunk_bytes: u64) -> Machine {
    Machine::new(
        MachineParameters::new()
            .with_device_bytes(1 << 30)
            .with_host_bytes(1 << 40)
            .with_chunk_bytes(chunk_bytes)
            .with_h2d_bytes_per_s(1_000_000_000)
            .with_d2h_bytes_per_s(700_000_000)
            .with_transfer_latency_ns(5),
    )
    .unwrap()
}
