//! Weight streaming, and plans run in one plain allocation.
#![allow(clippy::unwrap_used, reason = "what fails here fails the test")]

use backend_host::{HostDevice, HostError};
use proptest::collection::vec;
use proptest::prelude::*;
use proptest::test_runner::RngSeed;
use spillway::planner_core::backend::{FillError, InputWriter, Kernels, Launch, StateWriter};
use spillway::planner_core::machine::Direction;
use spillway::planner_core::placement::{Holder, PlacementError, Run};
use spillway::planner_core::planner::{Groups, Request, Strategy as Planner};
use spillway::planner_core::{Kind, Launched, Machine, MachineParameters, Step, TensorId};
use spillway::streaming::{self, Layer};
use spillway::{Error, GraphBuilder, OwnedMachine, Plan, Session, machines, placing, planning};
use std::collections::HashMap;

const CHUNK: u64 = 256;

fn machine(ns_per_chunk: u64) -> OwnedMachine {
    machine_of(CHUNK, ns_per_chunk)
}

fn machine_of(chunk_bytes: u64, ns_per_chunk: u64) -> OwnedMachine {
    let bytes_per_s = chunk_bytes * 1_000_000_000 / ns_per_chunk;
    let parameters = MachineParameters::new()
        .with_device_bytes(1 << 40)
        .with_host_bytes(1 << 40)
        .with_chunk_bytes(chunk_bytes)
        .with_h2d_bytes_per_s(bytes_per_s)
        .with_d2h_bytes_per_s(bytes_per_s)
        .with_transfer_latency_ns(10);
    let machine = Machine::new(parameters).unwrap();
    machines::builtin("v100-pcie3").unwrap().with_machine(machine)
}

/// A runtime with one allocation and nothing to map: a byte stands for what a tensor holds there.
fn run_in_a_slab(plan: &Plan, iterations: u64) {
    let (graph, addresses) = (plan.graph().graph(), plan.addresses().unwrap());
    assert!(addresses.slab_bytes() <= plan.owned().budget_bytes);
    let mut slab = vec![0u8; usize::try_from(addresses.slab_bytes()).unwrap()];
    // The value of each tensor, and the one that the host has.
    let mut value: Vec<u8> = graph.tensor_ids().map(|tensor| tensor.0 as u8 + 1).collect();
    let mut host: HashMap<_, _> = graph.tensor_ids().zip(value.clone()).collect();
    let mut next = 100u8;
    let bytes = |offset: u64, bytes: u64| offset as usize..(offset + bytes) as usize;
    for run in addresses.at_start() {
        let Holder::Tensor(tensor) = run.holder else { panic!("no op has run") };
        slab[bytes(run.offset_bytes, run.bytes)].fill(value[tensor.index()]);
    }
    for iteration in 0..iterations {
        for (position, step) in plan.owned().steps.iter().enumerate() {
            let runs = addresses.at(iteration, position);
            match *step {
                Step::Evict(_) => assert!(runs.is_empty()),
                Step::Prefetch(part) => {
                    let from = host[&part.tensor];
                    runs.iter().for_each(|run| slab[bytes(run.offset_bytes, run.bytes)].fill(from));
                }
                Step::Offload(part) => {
                    for run in runs {
                        let held = &slab[bytes(run.offset_bytes, run.bytes)];
                        assert!(held.iter().all(|&byte| byte == value[part.tensor.index()]));
                    }
                    host.insert(part.tensor, value[part.tensor.index()]);
                }
                Step::Host(op) => {
                    for tensor in graph.reads(op) {
                        assert_eq!(host[tensor], value[tensor.index()], "{tensor} at {op}");
                    }
                    for &tensor in graph.writes(op) {
                        next = next.wrapping_add(1);
                        value[tensor.index()] = next;
                        host.insert(tensor, next);
                    }
                }
                Step::Launch(Launched { op, .. }) => {
                    let of = |tensor: TensorId| {
                        runs.iter().filter(move |run| run.holder == Holder::Tensor(tensor))
                    };
                    for &tensor in graph.reads(op) {
                        let whole: u64 = of(tensor).map(|run| run.bytes).sum();
                        assert_eq!(whole, graph.tensor(tensor).bytes, "{tensor} at {op}");
                        for run in of(tensor) {
                            let held = &slab[bytes(run.offset_bytes, run.bytes)];
                            let is_right = |&byte: &u8| byte == value[tensor.index()];
                            assert!(held.iter().all(is_right), "{tensor} at {op}");
                        }
                    }
                    for run in runs.iter().filter(|run| run.holder == Holder::Workspace(op)) {
                        slab[bytes(run.offset_bytes, run.bytes)].fill(0xff);
                    }
                    for &tensor in graph.writes(op) {
                        next = next.wrapping_add(1);
                        value[tensor.index()] = next;
                        of(tensor)
                            .for_each(|run| slab[bytes(run.offset_bytes, run.bytes)].fill(next));
                    }
                }
            }
        }
        for tensor in graph.tensor_ids() {
            let is_output = graph.tensor(tensor).kind == Kind::Output;
            assert!(!is_output || host[&tensor] == value[tensor.index()], "{tensor}");
        }
    }
}

#[test]
fn a_budget_that_is_too_small_names_the_layers_that_need_more() {
    let named = |name: &str, bytes| Layer::new(bytes, 1).name(name);
    let layers = [named("small", 100), named("large", 1000), named("as large", 900)];
    let least = streaming::min_feasible(&layers, &machine(1));
    assert_eq!((least.bytes, least.layers), (1024, vec![1, 2]));
    let error = streaming::plan(&layers, &machine(1), 1023).unwrap_err();
    assert!(matches!(error, Error::Infeasible { min_feasible_bytes: 1024, .. }));
    let message = error.to_string();
    assert!(
        message.contains("\"large\", \"as large\" need 1.00 KiB (1024 bytes) each"),
        "{message}"
    );
    assert!(streaming::plan(&layers, &machine(1), 1024).is_ok());
    let error = streaming::plan(&layers[..2], &machine(1), 0).unwrap_err().to_string();
    assert!(error.contains("\"large\" needs 1.00 KiB (1024 bytes)"), "{error}");
}

#[test]
fn layers_that_fit_stay() {
    let layers = [Layer::new(1000, 10), Layer::new(2000, 20)];
    let plan = streaming::plan(&layers, &machine(1), "100%").unwrap();
    assert_eq!((plan.figures().period_ns, plan.figures().h2d_bytes), (30, 0));
    let addresses = plan.addresses().unwrap();
    assert_eq!([0, 1].map(|at| addresses.at(0, at)[0].offset_bytes), [0, 1024]);
    assert_eq!(addresses.slab_bytes(), 3072);
}

#[test]
fn odd_lists_of_layers_are_errors() {
    let too_many = [Layer::new(u64::MAX, 1), Layer::new(u64::MAX, 1)];
    let too_long = [Layer::new(1, u64::MAX), Layer::new(1, 1)];
    for layers in [&[][..], &[Layer::new(0, 1)], &too_many, &too_long] {
        assert!(streaming::plan(layers, &machine(1), "min").is_err(), "{layers:?}");
    }
    // Eight iterations exceed 64 bits.
    let slow = [Layer::new(1000, u64::MAX / 2), Layer::new(1000, 1)];
    assert!(streaming::plan(&slow, &machine(1), "min").is_err());
    let layers = [Layer::new(1000, 10)];
    assert!(streaming::plan(&layers, &machine(1), u64::MAX).is_err());
    assert!(streaming::plan(&layers, &machine(1), "most").is_err());
}

/// Layers that hand on a value; those at the numbers may run on the host for so long.
fn with_host(layers: &[Layer], host_ns: u64, may: &[usize]) -> Vec<Layer> {
    let handed_on = layers.iter().map(|layer| layer.clone().activation_bytes(100)).enumerate();
    handed_on
        .map(|(at, layer)| if may.contains(&at) { layer.host_ns(host_ns) } else { layer })
        .collect()
}

#[test]
fn layers_on_the_host_are_errors_unless_all_say_what_they_hand_on() {
    let mut layers = vec![Layer::new(1000, 10); 3];
    layers[1] = Layer::new(1000, 10).host_ns(20).activation_bytes(1);
    let error = streaming::graph(&layers).unwrap_err().to_string();
    assert_eq!(
        error,
        "\"layer 0\" hands on 0 bytes, but \"layer 1\" may run on the host: then each layer needs \
         activation_bytes"
    );
    layers[1].host_ns = None;
    let error = streaming::graph(&layers).unwrap_err().to_string();
    assert!(error.contains("\"layer 1\" hands something on"), "{error}");
    layers[1].activation_bytes = 0;
    assert!(streaming::graph(&layers).is_ok());
}

/// Layers that cannot run on the host need memory, and so does what is handed on.
#[test]
fn the_least_is_that_of_layers_on_the_device() {
    let layers = [2000, 9000, 3000].map(|bytes| Layer::new(bytes, 100));
    let layers = with_host(&layers, 500, &[1]);
    let least = streaming::min_feasible(&layers, &machine(1));
    assert_eq!((least.bytes, &least.layers[..]), (3072 + 3 * CHUNK, &[2][..]));
    let plan = streaming::plan(&layers, &machine(1), least.bytes).unwrap();
    assert_eq!(plan.figures().on_host, 1);
    run_in_a_slab(&plan, 5);
    let error = streaming::plan(&layers, &machine(1), least.bytes - 1).unwrap_err().to_string();
    assert!(error.contains("\"layer 2\" needs"), "{error}");
}

/// The times of one iteration by hand: two layers on the device, one on the host, whose values cross
/// the links, and nothing is streamed.
#[test]
fn what_is_handed_on_crosses_the_links_to_the_host_and_back() {
    let layers = with_host(&vec![Layer::new(10 * CHUNK, 1000); 3], 3000, &[1]);
    let plan = streaming::plan(&layers, &machine(100_000), 20 * CHUNK + 3 * CHUNK).unwrap();
    // A link takes 10 ns and 100 bytes of 256 in 100 us.
    let crossing_ns = 10 + 39_063;
    assert_eq!(plan.figures().on_host, 1);
    assert_eq!(plan.figures().period_ns, 2 * 1000 + 3000 + 2 * crossing_ns);
    run_in_a_slab(&plan, 5);
}

/// Host and link share what does not fit, which is 8 chunks of 20: the host would take three tenths of a layer,
/// and the link the rest while all layers run.
#[test]
fn the_bound_divides_layers_between_host_and_link() {
    let layers = with_host(&vec![Layer::new(10 * CHUNK, 100); 2], 1100, &[0, 1]);
    let plan = streaming::plan(&layers, &machine(100), 12 * CHUNK).unwrap();
    assert_eq!((plan.figures().on_host, plan.lower_bound().period_ns), (1, 500));
    // With room for all but a chunk, which the link brings meanwhile.
    let plan = streaming::plan(&layers, &machine(100), 19 * CHUNK).unwrap();
    assert_eq!((plan.figures().on_host, plan.lower_bound().period_ns), (1, 200));
    // The host is faster than the device.
    let layers = with_host(&vec![Layer::new(10 * CHUNK, 100); 2], 60, &[0, 1]);
    let plan = streaming::plan(&layers, &machine(100), 12 * CHUNK).unwrap();
    assert_eq!((plan.figures().period_ns, plan.lower_bound().period_ns), (120, 120));
}

/// Caches and outputs: the error says how much of the budget they take, and they lie beside the weights.
#[test]
fn caches_and_outputs_are_in_the_budget() {
    let mut layers = vec![Layer::new(10 * CHUNK, 1000).cache_bytes(CHUNK + 1); 4];
    layers[1].cache_bytes = 0;
    layers[3].output_bytes = 300;
    let least = streaming::min_feasible(&layers, &machine(1));
    assert_eq!((least.bytes, least.kept_bytes), (18 * CHUNK, 8 * CHUNK));
    let error = streaming::plan(&layers, &machine(1), 18 * CHUNK - 1).unwrap_err().to_string();
    assert!(
        error.ends_with(
            "need 4.50 KiB (4608 bytes) each, of which caches and outputs take 2.00 KiB (2048 bytes)"
        ),
        "{error}"
    );
    let caches = [0, 1, 2, 3].map(|layer| streaming::cache(&layers, layer));
    assert_eq!(caches, [Some(TensorId(4)), None, Some(TensorId(5)), Some(TensorId(6))]);
    let outputs = [0, 3, 4].map(|layer| streaming::output(&layers, layer));
    assert_eq!(outputs, [None, Some(TensorId(7)), None]);

    let plan = streaming::plan(&layers, &machine(1), 18 * CHUNK).unwrap();
    let names = &plan.graph().owned().tensor_names;
    assert_eq!((&*names[5], &*names[7]), ("layer 2, cache", "layer 3, output"));
    assert_eq!(plan.figures().d2h_bytes, 300);
    let (addresses, offset) = (plan.addresses().unwrap(), |run: &Run| run.offset_bytes / CHUNK);
    let at_start = addresses.at_start();
    let kept =
        at_start.iter().filter(|run| (4..8).any(|at| run.holder == Holder::Tensor(TensorId(at))));
    assert_eq!(kept.map(offset).collect::<Vec<_>>(), [0, 2, 4]);
    run_in_a_slab(&plan, 5);
}

/// Each layer counts its iterations in a cache, and adds the count and its weights to what it leaves.
struct Counts {
    layers: Vec<Layer>,
}

impl Kernels<HostDevice> for Counts {
    fn launch(&mut self, device: &mut HostDevice, launch: &Launch<'_>) -> Result<(), HostError> {
        let [mut weights, mut count] = [0, 0u64];
        device.read(launch.reads.get(0).unwrap(), std::slice::from_mut(&mut weights))?;
        device.read(launch.reads.get(1).unwrap(), std::slice::from_mut(&mut count))?;
        count += 1;
        device.write(launch.writes.get(0).unwrap(), &[count])?;
        match launch.writes.get(1) {
            Some(output) => device.write(output, &[weights + count]),
            None => Ok(()),
        }
    }

    fn fill_states(
        &mut self,
        states: &mut StateWriter<'_, HostDevice>,
    ) -> Result<(), FillError<HostError>> {
        for layer in 0..self.layers.len() {
            states.write(TensorId(layer as u32), &[1000 * layer as u64])?;
            let cache = streaming::cache(&self.layers, layer).unwrap();
            states.write(cache, &[10u64])?;
        }
        Ok(())
    }

    fn fill_inputs(
        &mut self,
        _: &mut InputWriter<'_, HostDevice>,
    ) -> Result<(), FillError<HostError>> {
        Ok(())
    }
}

#[test]
fn a_session_reads_the_outputs_of_layers_and_their_caches() {
    let mut layers = vec![Layer::new(8, 1000).cache_bytes(8); 6];
    (layers[2].output_bytes, layers[5].output_bytes) = (8, 8);
    let plan = streaming::plan(&layers, &machine(500), "min").unwrap();
    assert!(plan.figures().h2d_bytes > 0);
    let device = HostDevice::new(CHUNK, plan.owned().budget_bytes);
    let mut session = Session::new(plan, device, Counts { layers: layers.clone() }).unwrap();
    for iteration in 1..=4 {
        session.step().unwrap();
        for (layer, weights) in [(2, 2000), (5, 5000)] {
            let (mut left, output) = ([0; 8], streaming::output(&layers, layer).unwrap());
            session.read_output(output, &mut left).unwrap();
            assert_eq!(u64::from_le_bytes(left), weights + 10 + iteration);
        }
    }
    let mut count = [0; 8];
    session.read_state(streaming::cache(&layers, 1).unwrap(), &mut count).unwrap();
    assert_eq!(u64::from_le_bytes(count), 14);
}

/// A cache lies where its layer runs: on the host, it takes no memory of the device.
#[test]
fn a_cache_on_the_host_takes_no_device_memory() {
    let layers = with_host(&vec![Layer::new(10 * CHUNK, 1000); 3], 3000, &[1]);
    let mut layers = layers;
    layers[1].cache_bytes = 100 * CHUNK;
    layers[2] = layers[2].clone().cache_bytes(CHUNK).output_bytes(1);
    let least = streaming::min_feasible(&layers, &machine(1));
    assert_eq!(least.bytes, (10 + 2 + 3) * CHUNK);
    let plan = streaming::plan(&layers, &machine(100_000), 60 * CHUNK).unwrap();
    assert_eq!((plan.figures().on_host, plan.figures().h2d_bytes), (1, 100));
    run_in_a_slab(&plan, 5);
    // The device keeps the cache where that is faster.
    let plan = streaming::plan(&layers, &machine(1), 135 * CHUNK).unwrap();
    assert_eq!((plan.figures().on_host, plan.figures().stall_ns), (0, 0));
    run_in_a_slab(&plan, 5);
}

/// With the least budget, the host has to take all layers with a cache that it may, whatever the search for
/// shares finds.
#[test]
fn the_least_is_enough_with_caches_that_the_host_has_to_take() {
    let of = [(1, 1), (1, 6), (1, 0), (2, 1), (1, 0), (2, 0), (1, 1)];
    let layers =
        of.map(|(bytes, cache)| Layer::new(bytes * CHUNK, 1000).cache_bytes(cache * CHUNK));
    let layers = with_host(&layers, 2000, &[0, 1, 2, 3, 4, 5]);
    let plan = streaming::plan(&layers, &machine(240), "min").unwrap();
    assert_eq!(plan.owned().budget_bytes, 5 * CHUNK);
    assert!(plan.figures().on_host >= 3, "as many have caches");
    run_in_a_slab(&plan, 4);
}

/// A host that is slower than the link is not asked.
#[test]
fn a_slow_host_is_left_out() {
    let layers = with_host(&vec![Layer::new(10 * CHUNK, 1000); 12], 1_000_000, &[0, 3, 4, 11]);
    let plan = streaming::plan(&layers, &machine(90), 23 * CHUNK).unwrap();
    assert_eq!((plan.figures().on_host, plan.figures().stall_ns), (0, 0));
}

/// While the host computes, the link brings layers, and more of them than if the host had none.
#[test]
fn the_host_computes_while_layers_come() {
    let layers = vec![Layer::new(10 * CHUNK, 100); 40];
    let may: Vec<_> = (0..40).collect();
    let machine = machine(500);
    let of = |layers: &[Layer]| {
        let plan = streaming::plan(layers, &machine, 203 * CHUNK).unwrap();
        run_in_a_slab(&plan, 5);
        *plan.figures()
    };
    let (alone, joint) = (of(&with_host(&layers, 0, &[])), of(&with_host(&layers, 3000, &may)));
    assert!(joint.on_host > 5 && joint.h2d_bytes > 0, "{joint:?}");
    // The host alone would take 60 us for what does not fit, and the link alone 100 us.
    assert!(joint.period_ns < 50_000 && alone.period_ns > 95_000, "{joint:?} {alone:?}");
}

/// A token needs few experts, so experts take as long as attention with eight times its bytes.
#[test]
fn experts_leave_the_device_before_attention() {
    let of = |chunks| Layer::new(chunks * CHUNK, 100).host_ns(2000).activation_bytes(16);
    let layers: Vec<_> = (0..24).map(|layer| of(if layer % 2 == 0 { 10 } else { 80 })).collect();
    let machine = machine(1000);
    let rest_bytes = 3 * CHUNK;
    for kept in [2, 6, 9] {
        let budget_bytes = (120 + 80 * kept) * CHUNK + rest_bytes;
        let plan = streaming::plan(&layers, &machine, budget_bytes).unwrap();
        assert_eq!(plan.figures().on_host, 12 - kept, "with experts of {kept} layers");
    }
}

/// Offsets in the arena are multiples of 256, and chunks need not be.
#[test]
fn chunks_may_have_any_size() {
    let equal = vec![Layer::new(5000, 100); 4];
    let mixed = [5000, 300, 12_345, 1, 7000].map(|bytes| Layer::new(bytes, 100));
    for chunk_bytes in [1, 100, 128, 256, 300, 384, 512, 1000, 4000, 4096, 10_000] {
        let machine = machine_of(chunk_bytes, 100);
        for layers in [&equal, &mixed[..]] {
            let least_bytes = streaming::min_feasible(layers, &machine).bytes;
            let budgets = [0, chunk_bytes, 5 * chunk_bytes].map(|more| least_bytes + more);
            let budgets = budgets.map(|bytes| bytes.to_string());
            for budget in budgets.iter().map(String::as_str).chain(["80%", "100%"]) {
                let (activations, half) =
                    (with_host(layers, 150, &[]), with_host(layers, 150, &[1, 2]));
                let least_bytes = streaming::min_feasible(&activations, &machine).bytes;
                for layers in [&activations, &half] {
                    let budget_bytes = least_bytes + 2 * chunk_bytes;
                    let plan = streaming::plan(layers, &machine, budget_bytes).unwrap();
                    run_in_a_slab(&plan, 8);
                }
                let plan = streaming::plan(layers, &machine, budget);
                let plan = plan.unwrap_or_else(|error| panic!("{chunk_bytes} {budget}: {error}"));
                run_in_a_slab(&plan, 8);
                let addresses = plan.addresses().unwrap();
                for run in addresses.at_start() {
                    assert_eq!(run.offset_bytes % chunk_bytes, 0, "{chunk_bytes} {budget}");
                }
                let all_bytes =
                    layers.iter().map(|layer| layer.bytes.next_multiple_of(chunk_bytes));
                if all_bytes.sum::<u64>() <= plan.owned().budget_bytes {
                    assert_eq!(plan.owned().predicted.h2d_bytes, 0, "{chunk_bytes} {budget}");
                }
            }
        }
    }
}

/// Objects are larger than chunks where these would be millions, each with a number in the plan.
#[test]
fn small_chunks_make_no_more_objects_and_no_longer_plans() {
    let times = [2, 48, 61, 50, 57, 52, 66, 45, 58, 55, 49, 60, 53, 1];
    let bytes = [76_127_232].into_iter().chain([14_196_736; 12]).chain([6144]);
    let layers: Vec<_> =
        bytes.zip(times).map(|(bytes, ms)| Layer::new(bytes, ms * 1_000_000)).collect();
    let plan = |chunk_bytes| {
        let machine = machine_of(64 << 10, 37_880);
        let parameters = (*machine.machine).with_chunk_bytes(chunk_bytes);
        let machine = machine.with_machine(Machine::new(parameters).unwrap());
        streaming::plan(&layers, &machine, 83_763_200u64).unwrap()
    };
    let [fine, large] = [64, 64 << 10].map(plan);
    assert_eq!(fine.figures().period_ns, large.figures().period_ns);
    let objects = fine.owned().pools.iter().map(|pool| pool.count).sum::<u64>();
    assert!(objects < 1 << 16, "{objects}");
}

#[test]
fn a_layer_at_a_time_needs_only_the_largest() {
    let layers: Vec<_> = (1..=5).map(|layer| Layer::new(layer * 700, 100)).collect();
    let plan = streaming::plan(&layers, &machine(1), "min").unwrap();
    assert_eq!(plan.owned().budget_bytes, 3584);
    assert!(plan.addresses().unwrap().slab_bytes() <= 3584);
}

/// With two slots, a layer comes while the one before it computes.
#[test]
fn two_slots_are_enough_for_a_fast_link() {
    for count in [3, 4, 7, 20, 101] {
        let layers = vec![Layer::new(10 * CHUNK, 1000); count];
        let plan = streaming::plan(&layers, &machine(90), 20 * CHUNK).unwrap();
        assert_eq!(plan.figures().stall_ns, 0, "{count} layers");
    }
}

/// Training: tensors of all kinds, which need not lie in one piece.
#[test]
fn a_training_step_runs_in_one_allocation() {
    let mut graph = GraphBuilder::new("step");
    let x = graph.input("x", 3 * CHUNK);
    let weights: Vec<_> = (0..6).map(|layer| graph.state(format!("w{layer}"), 5 * CHUNK)).collect();
    let mut values = vec![x];
    for (layer, &weight) in weights.iter().enumerate() {
        let value = graph.temporary(format!("h{layer}"), 4 * CHUNK);
        let op = graph.op(format!("forward {layer}"), 5000).workspace_bytes(CHUNK + 1);
        op.reads([values[layer], weight]).writes([value]);
        values.push(value);
    }
    for (layer, &weight) in weights.iter().enumerate().rev() {
        let gradient = graph.temporary(format!("g{layer}"), 5 * CHUNK);
        graph
            .op(format!("backward {layer}"), 9000)
            .reads([values[layer], values[layer + 1], weight])
            .writes([gradient]);
        graph.op(format!("update {layer}"), 900).reads([gradient, weight]).writes([weight]);
    }
    let graph = graph.build().unwrap();
    for budget in ["100%", "70%", "50%"] {
        let plan = graph.plan(&machine(50)).budget(budget).run().unwrap();
        assert!(plan.figures().placement_iterations.is_some(), "{budget}");
        run_in_a_slab(&plan, 9);
    }
    let unplaced = graph.plan(&machine(50)).budget("50%").placed(false).run().unwrap();
    assert_eq!(unplaced.addresses(), Err(Error::NotPlaced));
}

/// Small tensors share chunks, and each lies in one piece, aligned.
#[test]
fn with_chunks_of_the_largest_tensor_each_lies_in_one_piece() {
    for (chunk_bytes, budget) in [(8192, "100%"), (8192, "min"), (1 << 16, "min")] {
        let mut graph = GraphBuilder::new("sizes");
        let mut value = graph.input("x", 8192);
        for layer in 0..40 {
            let weight = graph.state(format!("w{layer}"), 1 + layer * 2999 % 1900);
            let next = graph.temporary(format!("h{layer}"), 1 + layer * 307 % 1000);
            let op = graph.op(format!("op {layer}"), 5000).workspace_bytes(layer % 3 * 1001);
            op.reads([value, weight]).writes([next]);
            value = next;
        }
        let graph = graph.build().unwrap();
        let plan = graph.plan(&machine_of(chunk_bytes, 2000)).budget(budget).run().unwrap();
        let addresses = plan.addresses().unwrap();
        assert!(graph.graph().tensor_ids().all(|tensor| addresses.is_contiguous(tensor)));
        let pieces = addresses.all().iter().filter(|run| run.first_byte == 0);
        assert_eq!(pieces.count(), addresses.all().len(), "workspaces too");
        assert!(addresses.all().iter().all(|run| run.offset_bytes % 256 == 0));
        assert!(addresses.all().iter().any(|run| run.offset_bytes % chunk_bytes != 0));
    }
}

fn layers() -> impl Strategy<Value = Vec<Layer>> {
    let layer =
        |most| (1..=most, 1..2000u64).prop_map(|(chunks, ns)| Layer::new(chunks * CHUNK, ns));
    prop_oneof![Just(1u64), Just(2), Just(9), Just(40)]
        .prop_flat_map(move |most| vec(layer(most), 2..24))
}

/// Layers of which some may run on the host, and the most that they hand on.
fn layers_with_host() -> impl Strategy<Value = Vec<Layer>> {
    let host_ns = prop_oneof![1 => Just(None), 3 => (1..4000u64).prop_map(Some)];
    (layers(), vec((host_ns, 1..400u64), 24)).prop_map(|(layers, of_host)| {
        let pairs = layers.into_iter().zip(of_host);
        let with = |(mut layer, (host_ns, bytes)): (Layer, _)| {
            layer.host_ns = host_ns;
            layer.activation_bytes(bytes)
        };
        pairs.map(with).collect()
    })
}

/// The same layers, of which some have caches and outputs.
fn keeping(layers: impl Strategy<Value = Vec<Layer>>) -> impl Strategy<Value = Vec<Layer>> {
    let some = |most: u64| prop_oneof![1 => Just(0), 1 => 1..most];
    (layers, vec((some(4000), prop_oneof![4 => Just(0), 1 => 1..900u64]), 24)).prop_map(
        |(layers, kept)| {
            let pairs = layers.into_iter().zip(kept);
            let with = |(layer, (cache, output)): (Layer, _)| {
                layer.cache_bytes(cache).output_bytes(output)
            };
            pairs.map(with).collect()
        },
    )
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(96))]

    /// Caches and outputs take their bytes of the budget, and change nothing else but for the time of downloads.
    #[test]
    fn plans_with_caches_are_those_of_what_the_caches_leave(
        layers in keeping(layers()),
        ns_per_chunk in prop_oneof![1..100u64, 1..1000u64, 1..3000u64],
        chunk_bytes in prop_oneof![Just(CHUNK), Just(64), Just(300), Just(4096)],
        share in 0..=100u64,
    ) {
        let machine = machine_of(chunk_bytes, ns_per_chunk);
        let bare = |layer: &Layer| layer.clone().cache_bytes(0).output_bytes(0);
        let bare: Vec<_> = layers.iter().map(bare).collect();
        let least = streaming::min_feasible(&layers, &machine);
        let all: u64 = layers.iter().map(|layer| layer.bytes).sum();
        let budget_bytes = least.bytes + all * share / 100;
        let plan = streaming::plan(&layers, &machine, budget_bytes).unwrap();
        run_in_a_slab(&plan, 4);
        let addresses = plan.addresses().unwrap();
        let is_kept = |run: &&Run| matches!(run.holder, Holder::Tensor(tensor) if tensor.index() >= layers.len());
        for run in addresses.all().iter().filter(is_kept) {
            prop_assert_eq!(run.offset_bytes % chunk_bytes, 0);
        }
        let bare = streaming::plan(&bare, &machine, budget_bytes - least.kept_bytes).unwrap();
        let transfer_ns = |bytes| machine.machine.transfer_ns(Direction::DeviceToHost, bytes).unwrap();
        let outputs = layers.iter().filter(|layer| layer.output_bytes > 0);
        let busy_ns = outputs.clone().map(|layer| layer.time_ns + transfer_ns(layer.output_bytes));
        let downloads_ns: u64 = outputs.map(|layer| transfer_ns(layer.output_bytes)).sum();
        let least_ns = bare.figures().period_ns.max(downloads_ns);
        let ours_ns = plan.figures().period_ns;
        let least_ns = least_ns.max(busy_ns.max().unwrap_or(0));
        prop_assert!(ours_ns >= least_ns);
        if layers.iter().filter(|layer| layer.output_bytes > 0).count() <= 1 {
            prop_assert_eq!(ours_ns, least_ns);
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(128))]

    /// With the host, a plan is never longer than without, nor than a split of the layers.
    #[test]
    fn the_host_is_never_a_loss(
        layers in prop_oneof![layers_with_host(), keeping(layers_with_host())],
        ns_per_chunk in prop_oneof![1..100u64, 1..1000u64, 1..3000u64],
        share in 0..=100u64,
    ) {
        let machine = machine(ns_per_chunk);
        let mut alone = layers.clone();
        alone.iter_mut().for_each(|layer| layer.host_ns = None);
        let least = streaming::min_feasible(&layers, &machine).bytes;
        let all: u64 = layers.iter().map(|layer| layer.bytes).sum();
        let budget_bytes = least + all * share / 100;
        let plan = streaming::plan(&layers, &machine, budget_bytes).unwrap();
        let ours_ns = plan.figures().period_ns;
        prop_assert!(ours_ns >= plan.lower_bound().period_ns);
        let addresses = plan.addresses().unwrap();
        prop_assert!(plan.graph().graph().tensor_ids().all(|tensor| addresses.is_contiguous(tensor)));
        run_in_a_slab(&plan, 4);

        match streaming::plan(&alone, &machine, budget_bytes) {
            Ok(alone) => prop_assert!(ours_ns <= alone.figures().period_ns),
            Err(error) => {
                let is_short = matches!(error, Error::Infeasible { .. });
                // Layers that all stay have less room for activations than layers that stream.
                let is_whole = plan.figures().h2d_bytes == 0;
                prop_assert!(is_short && (plan.figures().on_host > 0 || is_whole), "{}", error);
            }
        }
        let work = streaming::graph(&layers).unwrap();
        let graph = work.graph();
        let request = Request { graph: &graph, machine: &machine.machine, budget_bytes };
        let Ok(split) = planning::plan(&request, Planner::Split) else { return Ok(()) };
        let split = (1..=4).filter_map(|iterations| {
            let on = &machine.machine;
            placing::place_contiguously(&graph, on, &split, iterations, 1 << 14).ok()
        });
        let split_ns = split.map(|split| split.predicted.period_ns).min();
        prop_assert!(split_ns.is_none_or(|split_ns| ours_ns <= split_ns), "{} ns", ours_ns);
    }
}

proptest! {
    // The same lists in every run: some heuristics are compared with others here.
    #![proptest_config(ProptestConfig { rng_seed: RngSeed::Fixed(19), ..ProptestConfig::with_cases(64) })]

    /// Whoever sets the knobs of a server by hand gets no shorter plan in one plain allocation; nor, if
    /// all layers are alike, with memory that is mapped in pages.
    #[test]
    fn no_setting_of_the_knobs_is_faster(
        layers in layers(),
        ns_per_chunk in prop_oneof![1..100u64, 1..1000u64, 1..3000u64],
        share in 0..=100u64,
    ) {
        let machine = machine(ns_per_chunk);
        let least = streaming::min_feasible(&layers, &machine).bytes;
        let all: u64 = layers.iter().map(|layer| layer.bytes).sum();
        let budget_bytes = least + (all - least) * share / 100;
        let plan = streaming::plan(&layers, &machine, budget_bytes).unwrap();
        let ours_ns = plan.figures().period_ns;
        prop_assert!(ours_ns >= plan.lower_bound().period_ns);

        let addresses = plan.addresses().unwrap();
        prop_assert!((0..layers.len() as u32).all(|layer| addresses.is_contiguous(TensorId(layer))));
        run_in_a_slab(&plan, 4);

        let work = streaming::graph(&layers).unwrap();
        let (graph, on) = (work.graph(), &machine.machine);
        let request = Request { graph: &graph, machine: on, budget_bytes };
        let alike = layers.iter().all(|layer| layer.bytes == layers[0].bytes);
        let one = |size, leaving, ahead| Groups::new().with_size(size).with_leaving(leaving).with_ahead(ahead);
        let settings = [Groups::default(), one(1, 1, 1), one(2, 1, 1), one(4, 2, 2), one(8, 2, 4)].map(Planner::Groups);
        for strategy in settings.into_iter().chain([Planner::Fit]) {
            let paged = planning::plan(&request, strategy).unwrap();
            let placed = (1..=4).filter_map(|iterations| {
                match placing::place_contiguously(&graph, on, &paged, iterations, 1 << 14) {
                    Err(PlacementError::Short { .. } | PlacementError::InParts(_)) => None,
                    placed => Some(placed.unwrap()),
                }
            });
            let placed = placed.min_by_key(|placed| placed.predicted.period_ns).map(|mut placed| {
                (placed.graph, placed.machine) = (work.name().to_owned(), machine.name.clone());
                placed
            });
            if let Some(placed) = &placed {
                let placed = Plan::new(&work, &machine, placed.clone()).unwrap();
                let addresses = placed.addresses().unwrap();
                prop_assert!(graph.tensor_ids().all(|tensor| addresses.is_contiguous(tensor)));
                run_in_a_slab(&placed, 9);
            }
            let placed_ns = placed.map_or(u64::MAX, |placed| placed.predicted.period_ns);
            prop_assert!(ours_ns <= placed_ns, "{ours_ns} ns, {strategy:?} {placed_ns} ns");
            let paged_ns = paged.predicted.period_ns;
            prop_assert!(!alike || ours_ns <= paged_ns, "{ours_ns} ns, {strategy:?} {paged_ns} ns in pages");
        }
    }
}
