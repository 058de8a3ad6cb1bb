//! Training under a plan.

use crate::launcher::{Launcher, Products};
use crate::model::{LOSSES, Model};
use crate::text::Text;
use crate::work::Location;
use backend_cuda::{Cuda, CudaDevice, CudaError, Options, Replay, Timestamp, cycle};
use integrity::slots;
use planner_core::backend::{FillError, InputWriter, Kernels, Launch, StateWriter, Transfers};
use planner_core::executor::Moment;
use planner_core::{ExecuteError, Executor, Graph, HostLayout, Kind, Machine, Stream, Verified};
use spillway::planning;
use std::error::Error;
use std::time::{Duration, Instant};
use workloads::OwnedPlan;

/// Bounds the memory that filling a state takes.
const PIECE_BYTES: usize = 1 << 20;

/// What is trained, and on what.
#[derive(Debug)]
pub(crate) struct Bench<'b> {
    pub(crate) cuda: &'b Cuda,
    pub(crate) options: Options,
    pub(crate) machine: Machine,
    pub(crate) model: &'b Model,
    pub(crate) text: &'b Text,
    pub(crate) products: Products,
}

/// How iterations are enqueued.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Way {
    /// Call by call.
    Eager,
    /// As CUDA graphs.
    Graphs,
    /// Call by call, with the time of each op taken.
    Timed,
}

/// What a training run left.
#[derive(Clone, Debug)]
pub(crate) struct Trained {
    pub(crate) losses: Vec<f32>,
    /// The bytes of all states, in their order.
    pub(crate) states: Vec<Vec<u8>>,
    /// Time of an iteration, those of the set-up left out.
    pub(crate) period: Duration,
    /// What the plan and the way of running it lead one to expect.
    pub(crate) predicted_ns: Option<u64>,
    /// Calls that map or unmap after the set-up.
    pub(crate) map_calls: u64,
    /// By op, the median over all iterations but the first, where times are taken.
    pub(crate) times_ns: Vec<u64>,
    /// What multiplied matrices.
    pub(crate) products: String,
}

impl Trained {
    /// The first state that differs from that of another run, by a bit or more; losses are in
    /// the first of all.
    pub(crate) fn difference(&self, other: &Self) -> Option<usize> {
        let mut states = self.states.iter().zip(&other.states);
        states.position(|(one, other)| one != other)
    }
}

/// Times before and after an op.
type Span = [Timestamp; 2];

/// The kernels as an executor takes them.
struct Training<'b> {
    bench: &'b Bench<'b>,
    graph: Graph<'b>,
    launcher: Launcher,
    /// By op, where times are taken.
    spans: Option<Vec<Vec<Span>>>,
}

/// Trains under a plan for some iterations, at most those that the model has room for.
pub(crate) fn train(
    bench: &Bench<'_>,
    plan: &OwnedPlan,
    way: Way,
    iterations: u64,
) -> Result<Trained, Box<dyn Error>> {
    let Bench { model, machine, .. } = bench;
    let graph = model.graph.graph()?;
    let plan = plan.plan();
    let schedule = planning::schedule(&graph, machine, &plan)?;
    let schedule = schedule.schedule();
    let verified = planning::prove(&graph, machine, &plan, &schedule)?;
    let mut device = bench.cuda.open(&bench.options)?;
    let works = model.ops.iter().flatten();
    let launcher = Launcher::new(device.raw_stream(Stream::Compute)?, bench.products, works)?;
    let spans = (way == Way::Timed).then(|| model.ops.iter().map(|_| Vec::new()).collect());
    let mut training = Training { bench, graph, launcher, spans };
    let ran = run(&verified, &mut device, &mut training, (way, iterations));
    // The kernels go before the device does, and nothing may run in them then.
    let is_idle = device.wait_idle();
    let Ran { period, map_calls, states } = ran?;
    is_idle?;
    // The progress is the first of them.
    let losses = states[0].chunks_exact(4).skip(LOSSES).map(bytemuck::pod_read_unaligned);
    let losses = losses.take(iterations as usize);
    let predicted_ns = match way {
        Way::Graphs => cycle(&graph, &plan).and_then(|cycle| cycle.predicted_ns(&verified)),
        Way::Eager | Way::Timed => Some(plan.predicted.period_ns),
    };
    Ok(Trained {
        losses: losses.collect(),
        states,
        period,
        predicted_ns,
        map_calls,
        times_ns: training.times_ns()?,
        products: training.launcher.products().to_owned(),
    })
}

/// What the host holds of all states.
fn states(
    device: &mut CudaDevice,
    graph: &Graph<'_>,
    layout: &HostLayout<'_>,
) -> Result<Vec<Vec<u8>>, CudaError> {
    let slots = slots(graph, layout, Kind::State, 0);
    let bytes = slots.map(|(_, slot)| {
        let mut bytes = vec![0; slot.bytes as usize];
        device.read_host(slot.offset_bytes, &mut bytes).map(|()| bytes)
    });
    bytes.collect()
}

/// What an executor left.
struct Ran {
    /// Time of an iteration.
    period: Duration,
    /// Calls that map after the set-up.
    map_calls: u64,
    states: Vec<Vec<u8>>,
}

/// How iterations are enqueued once memory is set up.
enum Running<'p> {
    Eager(Executor<'p>),
    Graphs(Replay<'p>),
}

/// Runs all iterations.
fn run(
    verified: &Verified<'_>,
    device: &mut CudaDevice,
    training: &mut Training<'_>,
    (way, iterations): (Way, u64),
) -> Result<Ran, Box<dyn Error>> {
    let divided = match cycle(verified.graph(), verified.plan()) {
        Some(divided) => Some(divided).filter(|_| way == Way::Graphs),
        None if way == Way::Graphs => return Err("the plan is mapped as it runs".into()),
        None => None,
    };
    let length = divided.map_or(1, |divided| divided.length());
    // At first, what sets memory up, and lets libraries load what a capture could not; then what
    // is recorded, and what is timed.
    let first = match divided {
        None => iterations.min(2) - 1,
        Some(_) => 1 + (iterations - 1) % length,
    };
    if divided.is_some() && iterations < first + 2 * length {
        return Err(format!("as graphs, at least {} iterations are needed", 2 * length + 1).into());
    }
    let maps = |device: &CudaDevice| device.counters().map_calls + device.counters().unmap_calls;
    let ran =
        planning::with_executor(verified, device, training, |mut executor, device, training| {
            let set_up = maps(device);
            let mut done = first;
            executor.run(device, training, done)?;
            let mut running = match divided {
                None => Running::Eager(executor),
                Some(divided) => {
                    let replay = Replay::record(executor, device, training, divided)?;
                    done += length;
                    Running::Graphs(replay)
                }
            };
            device.wait_idle().map_err(idle)?;
            let start = Instant::now();
            match &mut running {
                Running::Eager(executor) => executor.run(device, training, iterations - done)?,
                Running::Graphs(replay) => {
                    for _ in 0..(iterations - done) / length {
                        replay.run(device, training)?;
                    }
                }
            }
            device.wait_idle().map_err(idle)?;
            let period = start.elapsed().div_f64((iterations - done) as f64);
            let layout = match &mut running {
                Running::Eager(executor) => {
                    executor.save_states(device)?;
                    executor.host_layout()
                }
                Running::Graphs(replay) => {
                    replay.save_states(device)?;
                    replay.executor().host_layout()
                }
            };
            let states = states(device, verified.graph(), layout).map_err(idle)?;
            Ok(Ran { period, map_calls: maps(device) - set_up, states })
        });
    Ok(ran?)
}

fn idle(error: CudaError) -> ExecuteError<CudaError> {
    ExecuteError::Device { at: Moment::Save, error }
}

impl Training<'_> {
    /// The median times of ops; empty where none were taken.
    fn times_ns(&self) -> Result<Vec<u64>, CudaError> {
        let median = |spans: &Vec<Span>| {
            let mut times_ns = Vec::new();
            for [start, end] in spans.iter().skip(1) {
                times_ns.push(start.ns_until(end)? as u64);
            }
            times_ns.sort_unstable();
            Ok(times_ns.get(times_ns.len() / 2).copied().unwrap_or(0))
        };
        self.spans.iter().flatten().map(median).collect()
    }

    fn timestamp(&self, device: &CudaDevice) -> Result<Option<Timestamp>, CudaError> {
        self.spans.as_ref().map(|_| device.timestamp(Stream::Compute)).transpose()
    }
}

impl Kernels<CudaDevice> for Training<'_> {
    fn launch(&mut self, device: &mut CudaDevice, launch: &Launch<'_>) -> Result<(), CudaError> {
        let op = launch.op;
        let reads = self.graph.reads(op).iter().zip(launch.reads.iter());
        let writes = self.graph.writes(op).iter().zip(launch.writes.iter());
        let operands: Vec<_> = reads.chain(writes).collect();
        let address = |location: Location| {
            let range = match location.tensor {
                None => launch.workspace,
                Some(tensor) => {
                    let operand = operands.iter().find(|(operand, _)| **operand == tensor);
                    operand.and_then(|(_, range)| *range)
                }
            };
            range.expect("an op launches what works on its operands").address.0 + 4 * location.first
        };
        let start = self.timestamp(device)?;
        let stream = device.raw_stream(Stream::Compute)?;
        for work in &self.bench.model.ops[op.index()] {
            self.launcher.launch(stream, work, address)?;
        }
        let end = self.timestamp(device)?;
        if let (Some(spans), Some(start), Some(end)) = (&mut self.spans, start, end) {
            spans[op.index()].push([start, end]);
        }
        Ok(())
    }

    fn fill_states(
        &mut self,
        states: &mut StateWriter<'_, CudaDevice>,
    ) -> Result<(), FillError<CudaError>> {
        let mut piece = Vec::new();
        for state in states.tensors().collect::<Vec<_>>() {
            let bytes = self.graph.tensor(state).bytes;
            for first in (0..bytes).step_by(PIECE_BYTES) {
                piece.resize(PIECE_BYTES.min((bytes - first) as usize), 0);
                self.bench.model.fill(state, first, &mut piece);
                states.write_at(state, first, &piece)?;
            }
        }
        Ok(())
    }

    fn fill_inputs(
        &mut self,
        inputs: &mut InputWriter<'_, CudaDevice>,
    ) -> Result<(), FillError<CudaError>> {
        let Bench { model, text, .. } = self.bench;
        let batch = text.batch(inputs.iteration(), model.sizes.batch, model.sizes.context);
        for (tensor, numbers) in [model.text, model.targets].into_iter().zip(&batch) {
            inputs.write(tensor, numbers)?;
        }
        Ok(())
    }
}
