//! Trains a network that guesses the next character of a text, once with all memory that it
//! needs and once with a third of it, and compares loss and weights bit by bit.
//!
//! `backend-vulkan/with-lavapipe cargo run --release -p spillway-backend-vulkan --features wgpu \
//!  --example train-wgpu [ITERATIONS]`

mod network;
mod text;
mod training;

use backend_vulkan::{Integrity, Options, Vulkan};
use network::{Network, ROWS};
use planner_core::Machine;
use planner_core::planner::{Auto, Request, Strategy};
use spillway::{placing, planning};
use std::error::Error;
use text::Text;
use training::{Trained, train};
use workloads::machines;

const WIDTH: usize = 256;
const HIDDEN: usize = 6;
/// Losses are shown as means over this many.
const SHOWN: usize = 25;

fn main() -> Result<(), Box<dyn Error>> {
    let iterations = std::env::args().nth(1).map_or(Ok(200), |count| count.parse())?;
    let chosen = Integrity::from_environment(false)?;
    let vulkan = Vulkan::load(false)?;
    let info = vulkan.device(&chosen.options())?;
    println!("{} ({})", info.name, info.driver);
    let chunk_bytes = info.page_bytes.max(16 << 10);
    let options = Options { chunk_bytes: Some(chunk_bytes), ..chosen.options() };
    let machine = machines::builtin("v100-pcie3").ok_or("the machine is built in")?.machine;
    let machine = Machine::new((*machine).with_chunk_bytes(chunk_bytes))?;
    let text = Text::new();
    let network = Network::new(text.characters, WIDTH, HIDDEN, iterations);
    let graph = network.graph.graph()?;
    let need_bytes = planning::in_core_peak_bytes(&graph, &machine)?;
    println!(
        "{} layers, {ROWS} of {} different characters an iteration, {iterations} iterations",
        HIDDEN + 1,
        text.characters
    );
    let run = |what: &str, strategy, budget_bytes| -> Result<Trained, Box<dyn Error>> {
        let request = Request { graph: &graph, machine: &machine, budget_bytes };
        let (plan, _) = placing::plan(&request, strategy)?;
        let trained = train(&vulkan, &options, (&network, &text), &machine, &plan, iterations)?;
        let (mib, speed) = (1 << 20, iterations as f64 / trained.time.as_secs_f64());
        println!(
            "\n{what}: {:.2} MiB of device memory, {:.2} MiB up and {:.2} MiB down an iteration, \
             {speed:.1} iterations a second, {} map calls after the set-up",
            plan.predicted.peak_bytes as f64 / f64::from(mib),
            plan.predicted.h2d_bytes as f64 / f64::from(mib),
            plan.predicted.d2h_bytes as f64 / f64::from(mib),
            trained.map_calls
        );
        let means =
            trained.losses.chunks(SHOWN).map(|some| some.iter().sum::<f32>() / some.len() as f32);
        println!("  loss {}", means.map(|mean| format!("{mean:.3}")).collect::<Vec<_>>().join(" "));
        Ok(trained)
    };
    let least = Request { graph: &graph, machine: &machine, budget_bytes: 0 };
    let (all_bytes, _) = planning::min_feasible(&least, Strategy::InCore)?;
    let in_core = run("in-core", Strategy::InCore, all_bytes)?;
    let third = run("a third", Strategy::Auto(Auto::default()), need_bytes / 3)?;
    let same = |one: &[f32], other: &[f32]| {
        one.iter().map(|loss| loss.to_bits()).eq(other.iter().map(|loss| loss.to_bits()))
    };
    if !same(&in_core.losses, &third.losses) || in_core.weights != third.weights {
        return Err("loss or weights differ between the two runs".into());
    }
    println!(
        "\nall {iterations} losses and {} bytes of weights are the same bit by bit",
        third.weights.len()
    );
    Ok(())
}
