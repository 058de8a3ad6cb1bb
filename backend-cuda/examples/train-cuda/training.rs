//! Training under a plan.

use crate::launcher::{Launcher, Products, named};
use crate::model::{LOSSES, Model};
use crate::text::Text;
use crate::work::Place;
use backend_cuda::cudarc::driver::CudaEvent;
use backend_cuda::cudarc::driver::sys::CUevent_flags::CU_EVENT_DEFAULT;
use backend_cuda::{Compute, Cuda, CudaDevice, CudaError, Options, Replay, cycle};
use integrity::Rooms;
use planner_core::backend::{Kernels, Launch};
use planner_core::executor::Moment;
use planner_core::{ExecuteError, Graph, HostRooms, Kind, Limits, Machine, Scratch, Verified};
use spillway::planning;
use std::error::Error;
use std::time::{Duration, Instant};
use workloads::OwnedPlan;

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
    pub(crate) products: &'static str,
}

impl Trained {
    /// The first state that differs from that of another run, by a bit or more; losses are in
    /// the first of all.
    pub(crate) fn difference(&self, other: &Self) -> Option<usize> {
        let mut states = self.states.iter().zip(&other.states);
        states.position(|(one, other)| one != other)
    }
}

/// Events before and behind an op.
type Span = [CudaEvent; 2];

/// The kernels as an executor takes them.
struct Training<'b> {
    bench: &'b Bench<'b>,
    graph: Graph<'b>,
    rooms: Rooms<'b>,
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
    let fill = |state, first: u64, bytes: &mut [u8]| model.fill(state, first, bytes);
    let mut device = bench.cuda.open(&bench.options, graph, Box::new(fill))?;
    let works = model.ops.iter().flatten();
    let launcher = Launcher::new(device.compute()?, bench.products, works)?;
    let rooms = rooms(&verified)?;
    let spans = (way == Way::Timed).then(|| model.ops.iter().map(|_| Vec::new()).collect());
    let mut training = Training { bench, graph, rooms, launcher, spans };
    let ran = run(&verified, &mut device, &mut training, (way, iterations));
    // The kernels go before the device does, and nothing may run in them then.
    let is_idle = device.wait_idle();
    let (period, map_calls) = ran?;
    is_idle?;
    let states = states(&device, &graph, &training.rooms)?;
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
        products: training.launcher.products(),
    })
}

/// What the host holds of all states.
fn states(
    device: &CudaDevice<'_>,
    graph: &Graph<'_>,
    rooms: &Rooms<'_>,
) -> Result<Vec<Vec<u8>>, CudaError> {
    let mut states = Vec::new();
    for (state, properties) in graph.tensor_ids().zip(graph.tensors()) {
        if properties.kind == Kind::State {
            let mut bytes = vec![0; properties.bytes as usize];
            device.read_host(rooms.offset_bytes(state, 0), &mut bytes)?;
            states.push(bytes);
        }
    }
    Ok(states)
}

/// Runs all iterations; the time of one, and calls that map after the set-up.
fn run<'g>(
    verified: &Verified<'g>,
    device: &mut CudaDevice<'g>,
    training: &mut Training<'g>,
    (way, iterations): (Way, u64),
) -> Result<(Duration, u64), Box<dyn Error>> {
    let divided = match cycle(verified.graph(), verified.plan()) {
        Some(divided) => Some(divided).filter(|_| way == Way::Graphs),
        None if way == Way::Graphs => return Err("the plan is mapped as it goes".into()),
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
    let maps =
        |device: &CudaDevice<'_>| device.counters().map_calls + device.counters().unmap_calls;
    let ran =
        planning::with_executor(verified, device, training, |mut executor, device, training| {
            let set_up = maps(device);
            let mut done = first;
            executor.run(device, training, done)?;
            let mut replay = None;
            if let Some(divided) = divided {
                replay = Some(Replay::record(&mut executor, device, training, divided, done)?);
                done += length;
            }
            device.wait_idle().map_err(idle)?;
            let start = Instant::now();
            match &mut replay {
                None => executor.run(device, training, iterations - done)?,
                Some(replay) => {
                    for _ in 0..(iterations - done) / length {
                        replay.run(device, training)?;
                    }
                }
            }
            device.wait_idle().map_err(idle)?;
            let period = start.elapsed().div_f64((iterations - done) as f64);
            executor.finish(device)?;
            Ok((period, maps(device) - set_up))
        });
    Ok(ran?)
}

fn idle(error: CudaError) -> ExecuteError<CudaError> {
    ExecuteError::Device { at: Moment::End, error }
}

fn rooms<'g>(verified: &Verified<'g>) -> Result<Rooms<'g>, Box<dyn Error>> {
    let (graph, plan) = (verified.graph(), verified.plan());
    let mut memory = vec![0; HostRooms::scratch_words(&Limits::of_plan(graph, plan))];
    let scratch = &mut Scratch::new(&mut memory);
    Ok(Rooms::new(*graph, &HostRooms::new(graph, verified.machine(), plan, scratch)?))
}

impl Training<'_> {
    /// The median times of ops; empty where none were taken.
    fn times_ns(&self) -> Result<Vec<u64>, CudaError> {
        let median = |spans: &Vec<Span>| {
            let mut times_ms = Vec::new();
            for [start, end] in spans.iter().skip(1) {
                times_ms.push(named("cuEventElapsedTime", start.elapsed_ms(end))?);
            }
            times_ms.sort_unstable_by(f32::total_cmp);
            let median_ms = times_ms.get(times_ms.len() / 2).copied().unwrap_or(0.0);
            Ok((f64::from(median_ms) * 1e6) as u64)
        };
        self.spans.iter().flatten().map(median).collect()
    }

    fn event(&self, compute: &Compute<'_>) -> Result<Option<CudaEvent>, CudaError> {
        if self.spans.is_none() {
            return Ok(None);
        }
        let event = named("cuEventCreate", compute.context.new_event(Some(CU_EVENT_DEFAULT)))?;
        named("cuEventRecord", event.record(compute.stream))?;
        Ok(Some(event))
    }
}

impl<'g> Kernels<CudaDevice<'g>> for Training<'g> {
    fn launch(
        &mut self,
        device: &mut CudaDevice<'g>,
        launch: &Launch<'_>,
    ) -> Result<(), CudaError> {
        let op = launch.op;
        let reads = self.graph.reads(op).iter().zip(launch.reads.iter());
        let writes = self.graph.writes(op).iter().zip(launch.writes.iter());
        let operands: Vec<_> = reads.chain(writes).collect();
        let address = |place: Place| {
            let at = match place.tensor {
                None => launch.workspace,
                Some(tensor) => {
                    let operand = operands.iter().find(|(operand, _)| **operand == tensor);
                    operand.map(|(_, at)| *at)
                }
            };
            at.expect("an op launches what works on its operands").0 + 4 * place.first
        };
        let compute = device.compute()?;
        let start = self.event(&compute)?;
        for work in &self.bench.model.ops[op.index()] {
            self.launcher.launch(compute.stream, work, address)?;
        }
        let end = self.event(&compute)?;
        if let (Some(spans), Some(start), Some(end)) = (&mut self.spans, start, end) {
            spans[op.index()].push([start, end]);
        }
        Ok(())
    }

    fn fill_inputs(
        &mut self,
        device: &mut CudaDevice<'g>,
        iteration: u64,
    ) -> Result<(), CudaError> {
        let Bench { model, text, .. } = self.bench;
        let batch = text.batch(iteration, model.sizes.batch, model.sizes.context);
        for (tensor, numbers) in [model.text, model.targets].into_iter().zip(&batch) {
            let room = self.rooms.offset_bytes(tensor, iteration);
            device.write_host(room, bytemuck::cast_slice(numbers))?;
        }
        Ok(())
    }
}
