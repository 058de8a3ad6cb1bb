//! The network of the example, smaller, with validation on: at a third of the memory that it
//! needs it learns the same, bit by bit, also where ops run again instead of values coming back.
#![allow(clippy::unwrap_used, reason = "what fails here fails the test")]

#[path = "../examples/train-wgpu/network.rs"]
mod network;
#[path = "../examples/train-wgpu/text.rs"]
mod text;
#[path = "../examples/train-wgpu/training.rs"]
mod training;

use backend_vulkan::{Integrity, Options, Vulkan};
use integrity::Backend;
use network::Network;
use planner_core::Machine;
use planner_core::planner::{Auto, Request, Strategy};
use spillway::{placing, planning};
use std::process::ExitCode;
use text::Text;
use training::train;
use workloads::machines;

const ITERATIONS: u64 = 6;

fn main() -> ExitCode {
    let chosen = Integrity::from_environment(true).unwrap();
    let missing = chosen.find().err();
    let test = move || {
        let vulkan = Vulkan::load(true).unwrap();
        training_is_the_same_bit_by_bit(&vulkan, &chosen.options());
        assert_eq!(vulkan.messages(), [""; 0]);
    };
    test_harness::with_device(missing, [("training_is_the_same_bit_by_bit", test)])
}

fn training_is_the_same_bit_by_bit(vulkan: &Vulkan, options: &Options<'_>) {
    let chunk_bytes = vulkan.device(options).unwrap().page_bytes;
    let options = Options { chunk_bytes: Some(chunk_bytes), ..*options };
    let machine = machines::builtin("v100-pcie3").unwrap().machine;
    let machine = Machine::new((*machine).with_chunk_bytes(chunk_bytes)).unwrap();
    // Links so slow that it is shorter to launch ops again.
    let slow = (*machine).with_h2d_bytes_per_s(1 << 24).with_d2h_bytes_per_s(1 << 24);
    let slow = Machine::new(slow).unwrap();
    let text = Text::new();
    let network = Network::new(text.characters, 96, 14, ITERATIONS);
    let graph = network.graph.graph().unwrap();
    let run = |strategy, machine: &Machine, budget_bytes, repeats| {
        let request = Request { graph: &graph, machine, budget_bytes };
        let (plan, unplaced) = placing::plan(&request, strategy).unwrap();
        assert_eq!(unplaced, None);
        assert_eq!(plan.predicted.repeat_ns > 0, repeats, "of ops that run again");
        train(vulkan, &options, (&network, &text), machine, &plan, ITERATIONS).unwrap()
    };
    let least = Request { graph: &graph, machine: &machine, budget_bytes: 0 };
    let (all_bytes, _) = planning::min_feasible(&least, Strategy::InCore).unwrap();
    let in_core = run(Strategy::InCore, &machine, all_bytes, false);
    let first_losses = [0, 1].map(|at| in_core.losses[at].to_bits());
    assert_ne!(first_losses[0], first_losses[1]);
    assert!(in_core.losses.iter().all(|loss| loss.is_finite() && *loss > 0.0));
    let third_bytes = planning::in_core_peak_bytes(&graph, &machine).unwrap() / 3;
    for (machine, repeats) in [(&machine, false), (&slow, true)] {
        let third = run(Strategy::Auto(Auto::default()), machine, third_bytes, repeats);
        assert_eq!(third.map_calls, 0);
        assert!(third.time > std::time::Duration::ZERO);
        let bits = |losses: &[f32]| losses.iter().map(|loss| loss.to_bits()).collect::<Vec<_>>();
        assert_eq!(bits(&third.losses), bits(&in_core.losses));
        assert_eq!(third.losses.len(), ITERATIONS as usize);
        assert_eq!(third.weights, in_core.weights);
    }
    let first: Vec<u8> = network.weights.iter().flat_map(|&w| network.state(w).to_vec()).collect();
    assert_ne!(in_core.weights, first);
}
