//! Trains a small network on a device of host memory, with kernels of its own, in 70 % of the
//! memory that it needs: `cargo run -p spillway-plan --example train`.

use backend_host::{HostDevice, HostError};
use spillway::planner_core::backend::{FillError, InputWriter, Kernels, Launch, StateWriter};
use spillway::planner_core::{Machine, MachineParameters};
use spillway::{GraphBuilder, OwnedMachine, Session, TensorId};

/// Numbers in and out of each layer.
const WIDTH: usize = 64;
const LAYERS: usize = 6;

/// Linear layers that learn to reverse their input.
struct Network {
    x: TensorId,
    weights: Vec<TensorId>,
    loss: f32,
}

impl Kernels<HostDevice> for Network {
    fn launch(&mut self, device: &mut HostDevice, launch: &Launch<'_>) -> Result<(), HostError> {
        let op = launch.op.0 as usize;
        // Activations and gradients come first, weights last.
        let mut read = Vec::new();
        for range in launch.reads.iter().flatten() {
            let mut values = vec![0f32; range.bytes as usize / 4];
            device.read(range, &mut values)?;
            read.push(values);
        }
        let written = match &mut read[..] {
            [y, x] if op == LAYERS => {
                let error: Vec<f32> = y.iter().zip(x.iter().rev()).map(|(y, x)| y - x).collect();
                self.loss = error.iter().map(|e| e * e).sum();
                vec![error]
            }
            [input, weights] => {
                let dot = |row: &[f32]| row.iter().zip(&*input).map(|(w, i)| w * i).sum();
                vec![weights.chunks(WIDTH).map(dot).collect()]
            }
            [error, input, weights] => {
                let mut back = vec![0.0; WIDTH];
                for (row, e) in weights.chunks_mut(WIDTH).zip(error) {
                    for ((back, weight), i) in back.iter_mut().zip(row).zip(&*input) {
                        *back += *weight * *e;
                        *weight -= 0.003 * *e * i;
                    }
                }
                vec![weights.clone(), back]
            }
            _ => unreachable!("each op reads two or three tensors"),
        };
        let mut writes = launch.writes.iter().flatten().zip(written);
        writes.try_for_each(|(range, floats)| device.write(range, &floats))
    }

    fn fill_states(
        &mut self,
        states: &mut StateWriter<'_, HostDevice>,
    ) -> Result<(), FillError<HostError>> {
        let numbers = |seed| noise(WIDTH * WIDTH, seed).iter().map(|w| 0.2 * w).collect::<Vec<_>>();
        self.weights
            .iter()
            .zip(1..)
            .try_for_each(|(&weights, seed)| states.write(weights, &numbers(seed)))
    }

    fn fill_inputs(
        &mut self,
        inputs: &mut InputWriter<'_, HostDevice>,
    ) -> Result<(), FillError<HostError>> {
        inputs.write(self.x, &noise(WIDTH, inputs.iteration() % 8))
    }
}

fn floats(bytes: &[u8]) -> Vec<f32> {
    bytes.chunks_exact(4).map(|b| f32::from_le_bytes([b[0], b[1], b[2], b[3]])).collect()
}

/// Numbers between -1 and 1 that look random.
fn noise(len: usize, seed: u64) -> Vec<f32> {
    let hash = |i: u64| (seed << 32 | i).wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(29);
    let hash = |i| hash(hash(i) & 0xffff_ffff);
    (0..len as u64).map(|i| (hash(i) >> 40) as f32 / (1 << 23) as f32 - 1.0).collect()
}

/// Returns the loss of the last iteration.
fn train() -> Result<f32, Box<dyn std::error::Error>> {
    let bytes = 4 * WIDTH as u64;
    let mut graph = GraphBuilder::new("network");
    let x = graph.input("x", bytes);
    let (mut activations, mut weights) = (vec![x], Vec::new());
    for layer in 0..LAYERS {
        weights.push(graph.state(format!("weights {layer}"), bytes * WIDTH as u64));
        activations.push(graph.temporary(format!("activation {layer}"), bytes));
        let (input, output) = (activations[layer], activations[layer + 1]);
        graph
            .op(format!("forward {layer}"), 20_000)
            .reads([input, weights[layer]])
            .writes([output]);
    }
    let mut error = graph.temporary("error", bytes);
    graph.op("loss", 1_000).reads([activations[LAYERS], x]).writes([error]);
    for layer in (0..LAYERS).rev() {
        let back = graph.temporary(format!("gradient {layer}"), bytes);
        let reads = [error, activations[layer], weights[layer]];
        graph.op(format!("backward {layer}"), 40_000).reads(reads).writes([weights[layer], back]);
        error = back;
    }

    let machine = Machine::new(
        MachineParameters::new()
            .with_device_bytes(1 << 20)
            .with_host_bytes(1 << 20)
            .with_chunk_bytes(1024)
            .with_h2d_bytes_per_s(1_000_000_000)
            .with_d2h_bytes_per_s(1_000_000_000),
    )?;
    let device = HostDevice::new(machine.chunk_bytes, machine.device_bytes);
    let machine = OwnedMachine::new("host", machine);
    let plan = graph.build()?.plan(&machine).budget("70%").run()?;
    println!("{} bytes on the device", plan.figures().peak_bytes);

    let first = weights[0];
    let mut session = Session::new(plan, device, Network { x, weights, loss: 0.0 })?;
    for _ in 0..10 {
        session.run(80)?;
        println!("after {} iterations, loss {:.4}", session.iterations(), session.kernels().loss);
    }
    let mut trained = vec![0; 4 * WIDTH * WIDTH];
    session.read_state(first, &mut trained)?;
    println!("the first weight is {}", floats(&trained)[0]);
    Ok(session.kernels().loss)
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    train().map(drop)
}

#[test]
fn the_loss_falls() {
    assert!(train().is_ok_and(|loss| loss < 0.1));
}
