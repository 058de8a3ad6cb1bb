//! A small runtime with a device of its own, in half of the memory that the work needs:
//! `cargo run -p spillway-plan --example runtime`. `docs/embedding.md` walks through it.

mod device;

use device::{CHUNK_BYTES, Device, Fault};
use spillway::planner_core::backend::{FillError, InputWriter, Kernels, Launch, StateWriter};
use spillway::planner_core::{Machine, MachineParameters, Stream};
use spillway::{Error, Graph, GraphBuilder, OwnedMachine, Plan, Session, TensorId};

const LAYERS: usize = 8;
/// Numbers in a weight.
const WIDTH: usize = 1000;
/// Rows in a value.
const ROWS: usize = 5;
const WEIGHT_BYTES: u64 = 4 * WIDTH as u64;
const VALUE_BYTES: u64 = WEIGHT_BYTES * ROWS as u64;

/// The ids by which the kernels know the tensors.
struct Network {
    x: TensorId,
    weights: Vec<TensorId>,
}

/// Layers that add noise, as dropout does, and update their weights in the backward pass.
fn describe() -> Result<(Graph, Network), Error> {
    let mut graph = GraphBuilder::new("network");
    let x = graph.input("x", VALUE_BYTES);
    let (mut values, mut weights) = (vec![x], Vec::new());
    for layer in 0..LAYERS {
        weights.push(graph.state(format!("weight {layer}"), WEIGHT_BYTES));
        values.push(graph.temporary(format!("value {layer}"), VALUE_BYTES));
        let forward = graph.op(format!("forward {layer}"), 20_000);
        forward.reads([values[layer], weights[layer]]).writes([values[layer + 1]]).repeatable();
    }
    let mut above = values[LAYERS];
    for layer in (0..LAYERS).rev() {
        let gradient = graph.temporary(format!("gradient {layer}"), VALUE_BYTES);
        let backward = graph.op(format!("backward {layer}"), 40_000);
        backward.reads([above, weights[layer], values[layer]]).writes([gradient, weights[layer]]);
        above = gradient;
    }
    Ok((graph.build()?, Network { x, weights }))
}

fn machine() -> Result<OwnedMachine, Box<dyn std::error::Error>> {
    let machine = Machine::new(
        MachineParameters::new()
            .with_device_bytes(1 << 20)
            .with_host_bytes(1 << 20)
            .with_chunk_bytes(CHUNK_BYTES)
            .with_h2d_bytes_per_s(200_000_000)
            .with_d2h_bytes_per_s(200_000_000)
            .with_transfer_latency_ns(1_000),
    )?;
    Ok(OwnedMachine::new("threads", machine))
}

impl Kernels<Device> for Network {
    fn launch(&mut self, device: &mut Device, launch: &Launch<'_>) -> Result<(), Fault> {
        let (op, iteration) = (launch.op.index(), launch.iteration);
        // Ops that run again write no state here, so no operand is left alone.
        let locate = |range| device.locate(range);
        let reads = launch.reads.iter().flatten().map(locate).collect::<Result<Vec<_>, _>>()?;
        let writes = launch.writes.iter().flatten().map(locate).collect::<Result<Vec<_>, _>>()?;
        device.enqueue(Stream::Compute, move || {
            let read: Vec<_> = reads.iter().map(|tensor| words(&tensor.load())).collect();
            let results = compute(op, iteration, &read);
            for (tensor, result) in writes.iter().zip(results) {
                tensor.store(&bytes_of(&result));
            }
        });
        Ok(())
    }

    fn fill_states(
        &mut self,
        states: &mut StateWriter<'_, Device>,
    ) -> Result<(), FillError<Fault>> {
        let zeros = [0u8; WEIGHT_BYTES as usize];
        self.weights.iter().try_for_each(|&weight| states.write(weight, &zeros))
    }

    fn fill_inputs(
        &mut self,
        inputs: &mut InputWriter<'_, Device>,
    ) -> Result<(), FillError<Fault>> {
        inputs.write(self.x, &input(inputs.iteration()))
    }
}

/// What an op computes. Random numbers depend on the op and the iteration alone, so a repeat draws
/// the same.
fn compute(op: usize, iteration: u64, read: &[Vec<u32>]) -> Vec<Vec<u32>> {
    let noise = |at| random((iteration as u32) << 8 | op as u32, at);
    let (first, weight) = (&read[0], &read[1]);
    let scaled = first.iter().zip(weight.iter().cycle()).map(|(a, w)| a.wrapping_mul(3) ^ w);
    let Some(value) = read.get(2) else {
        return vec![scaled.zip(0..).map(|(a, at)| a ^ noise(at)).collect()];
    };
    let products = first.iter().zip(value).map(|(g, v)| g.wrapping_mul(*v)).collect::<Vec<_>>();
    let step =
        |at| products.iter().skip(at).step_by(WIDTH).fold(0, |sum: u32, p| sum.wrapping_add(*p));
    let updated = weight.iter().enumerate().map(|(at, w)| w.wrapping_sub(step(at))).collect();
    vec![scaled.collect(), updated]
}

fn random(seed: u32, at: u32) -> u32 {
    (seed ^ at.wrapping_mul(0x9e37_79b9)).wrapping_mul(0x85eb_ca6b).rotate_left(13)
}

fn input(iteration: u64) -> Vec<u32> {
    (0..(ROWS * WIDTH) as u32).map(|at| at ^ iteration as u32).collect()
}

fn words(bytes: &[u8]) -> Vec<u32> {
    bytes.chunks_exact(4).map(|b| u32::from_le_bytes([b[0], b[1], b[2], b[3]])).collect()
}

fn bytes_of(words: &[u32]) -> Vec<u8> {
    words.iter().flat_map(|word| word.to_le_bytes()).collect()
}

fn run(plan: Plan, network: Network) -> Result<Vec<Vec<u32>>, Box<dyn std::error::Error>> {
    let weights = network.weights.clone();
    let device = Device::new(plan.owned().budget_bytes);
    let mut session = Session::new(plan, device, network)?;
    session.run(20)?;
    let read = |weight| {
        let mut value = vec![0; WEIGHT_BYTES as usize];
        session.read_state(weight, &mut value)?;
        Ok(words(&value))
    };
    weights.into_iter().map(read).collect()
}

/// The weights after that many iterations, with everything in memory.
fn expected(iterations: u64) -> Vec<Vec<u32>> {
    let mut weights = vec![vec![0; WIDTH]; LAYERS];
    for iteration in 1..=iterations {
        let mut values = vec![input(iteration)];
        for (op, weight) in weights.iter().enumerate() {
            let read = [values[op].clone(), weight.clone()];
            values.extend(compute(op, iteration, &read));
        }
        let mut above = values[LAYERS].clone();
        for layer in (0..LAYERS).rev() {
            let read = [above, weights[layer].clone(), values[layer].clone()];
            let mut results = compute(2 * LAYERS - 1 - layer, iteration, &read).into_iter();
            above = results.next().unwrap_or_default();
            weights[layer] = results.next().unwrap_or_default();
        }
    }
    weights
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let (graph, network) = describe()?;
    let plan = graph.plan(&machine()?).budget("50%").run()?;
    let figures = *plan.figures();
    println!("{} bytes on the device, {} repeats", figures.peak_bytes, figures.repeats);
    if run(plan, network)? != expected(20) {
        return Err("the weights are wrong".into());
    }
    println!("the weights are right");
    Ok(())
}

#[test]
fn the_weights_are_right() {
    main().unwrap();
    let plan = describe().unwrap().0.plan(&machine().unwrap()).budget("50%").run().unwrap();
    let figures = plan.figures();
    assert!(figures.repeats > 0 && figures.h2d_bytes > 2 * VALUE_BYTES, "{figures:?}");
}
