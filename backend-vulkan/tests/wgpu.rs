//! The network of the example, smaller, with validation on: at a third of the memory that it
//! needs it learns the same, bit by bit.
#![allow(clippy::unwrap_used, reason = "what fails here fails the test")]

#[path = "../examples/train-wgpu/network.rs"]
mod network;
#[path = "../examples/train-wgpu/text.rs"]
mod text;
#[path = "../examples/train-wgpu/training.rs"]
mod training;

use backend_vulkan::{Integrity, Options, Vulkan};
use conformance::suite::REQUIRE_DEVICES;
use integrity::Backend;
use libtest_mimic::{Arguments, Completion, Failed, Trial};
use network::Network;
use planner_core::planner::{Auto, Request, Strategy};
use planner_core::{Machine, MachineParameters};
use std::process::ExitCode;
use text::Text;
use training::train;
use workloads::{machines, placing, planning};

const ITERATIONS: u64 = 6;

fn main() -> ExitCode {
    let device = std::env::var("SPILLWAY_VULKAN_DEVICE").ok();
    let missing = Integrity { device: device.clone(), validation: true }.find().err();
    let is_required = std::env::var_os(REQUIRE_DEVICES).is_some_and(|value| value != "0");
    let trial = Trial::ignorable_test("training_is_the_same_bit_by_bit", move || match missing {
        Some(reason) if is_required => Err(Failed::from(format!("no device: {reason}"))),
        Some(reason) => Ok(Completion::ignored_with(format!("no device: {reason}"))),
        None => {
            let vulkan = Vulkan::load(true)?;
            training_is_the_same_bit_by_bit(&vulkan, device.as_deref());
            let messages = vulkan.messages();
            if messages.is_empty() {
                return Ok(Completion::Completed);
            }
            Err(Failed::from(messages.join("\n")))
        }
    });
    libtest_mimic::run(&Arguments::from_args(), vec![trial]).exit_code()
}

fn training_is_the_same_bit_by_bit(vulkan: &Vulkan, device: Option<&str>) {
    let chunk_bytes = vulkan.device(device).unwrap().page_bytes;
    let options = Options { device, chunk_bytes: Some(chunk_bytes) };
    let machine = machines::builtin("v100-pcie3").unwrap().machine;
    let machine = Machine::new(MachineParameters { chunk_bytes, ..*machine }).unwrap();
    let text = Text::new();
    let network = Network::new(text.characters, 96, 14, ITERATIONS);
    let graph = network.graph.graph().unwrap();
    let run = |strategy, budget_bytes| {
        let request = Request { graph: &graph, machine: &machine, budget_bytes };
        let (plan, unplaced) = placing::plan(&request, strategy).unwrap();
        assert_eq!(unplaced, None);
        let both = (&network, &text);
        train(vulkan, &options, both, &machine, &plan, ITERATIONS).unwrap()
    };
    let least = Request { graph: &graph, machine: &machine, budget_bytes: 0 };
    let (all_bytes, _) = planning::min_feasible(&least, Strategy::InCore).unwrap();
    let in_core = run(Strategy::InCore, all_bytes);
    let need_bytes = planning::in_core_peak_bytes(&graph, &machine).unwrap();
    let third = run(Strategy::Auto(Auto::default()), need_bytes / 3);
    assert_eq!(third.map_calls, 0);
    assert!(third.time > std::time::Duration::ZERO);
    let bits = |losses: &[f32]| losses.iter().map(|loss| loss.to_bits()).collect::<Vec<_>>();
    assert_eq!(bits(&third.losses), bits(&in_core.losses));
    assert_eq!(third.losses.len(), ITERATIONS as usize);
    assert!(third.losses.iter().all(|loss| loss.is_finite() && *loss > 0.0));
    assert_ne!(third.losses[0].to_bits(), third.losses[1].to_bits());
    assert_eq!(third.weights, in_core.weights);
    let first: Vec<u8> = network.weights.iter().flat_map(|&w| network.state(w).to_vec()).collect();
    assert_ne!(third.weights, first);
}
