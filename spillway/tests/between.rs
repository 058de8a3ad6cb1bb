//! Plans for an iteration between iterations of another plan: never longer with both switches than the
//! plan alone, and with the same values.
#![allow(clippy::unwrap_used, reason = "what fails here fails the test")]

use backend_host::{HostDevice, HostError};
use proptest::prelude::*;
use spillway::planner_core::backend::{
    DeviceRange, FillError, InputWriter, Kernels, Launch, StateWriter,
};
use spillway::planner_core::planner::{self, Auto};
use spillway::planner_core::{Kind, Machine, MachineParameters};
use spillway::{Capacity, Error, Graph, GraphBuilder, OwnedMachine, Plan, Session, TensorId};

const CHUNK_BYTES: u64 = 256;

/// A decoder: layers with weights and caches, whose steps differ in times and sizes.
#[derive(Clone, Debug)]
struct Decoder {
    /// Bytes of the weights and of the cache of each layer.
    layers: Vec<(u64, u64)>,
    table_bytes: u64,
    link_bytes_per_s: u64,
    permille: u64,
}

impl Decoder {
    fn graph(&self, name: &str, value_bytes: u64, ns_per_byte: u64) -> Graph {
        let mut graph = GraphBuilder::new(name);
        let table = graph.state("table", self.table_bytes);
        let count = graph.state("count", 8);
        let x = graph.input("x", 8);
        let mut value = graph.temporary("embedded", value_bytes);
        graph.op("embed", 10).reads([x, table]).writes([value]);
        for (layer, &(weight_bytes, cache_bytes)) in self.layers.iter().enumerate() {
            let weight = graph.state(format!("weight {layer}"), weight_bytes);
            let cache = graph.state(format!("cache {layer}"), cache_bytes);
            let next = graph.temporary(format!("value {layer}"), value_bytes);
            graph
                .op(format!("layer {layer}"), weight_bytes * ns_per_byte)
                .reads([value, weight, cache])
                .writes([next, cache]);
            value = next;
        }
        let scores = graph.output("scores", 16);
        graph.op("score", 10).reads([value, table, count]).writes([scores, count]);
        graph.build().unwrap()
    }

    fn machine(&self) -> OwnedMachine {
        let machine = Machine::new(
            MachineParameters::new()
                .with_device_bytes(1 << 20)
                .with_host_bytes(1 << 24)
                .with_chunk_bytes(CHUNK_BYTES)
                .with_h2d_bytes_per_s(self.link_bytes_per_s)
                .with_d2h_bytes_per_s(self.link_bytes_per_s)
                .with_transfer_latency_ns(10),
        );
        OwnedMachine::new("m", machine.unwrap())
    }

    /// The plans of a prompt and of a token in one budget; none where that is too small for one of them.
    fn plans(&self) -> Option<[Plan; 2]> {
        let (prompt, token) = (self.graph("prompt", 1500, 3), self.graph("token", 24, 1));
        let machine = self.machine();
        let states: u64 = self.layers.iter().map(|(weight, cache)| weight + cache).sum();
        let budget_bytes = (states + self.table_bytes + 4000) * self.permille / 1000;
        let plan = |graph: &Graph| graph.plan(&machine).budget(budget_bytes).run();
        match (plan(&prompt), plan(&token)) {
            (Ok(prompt), Ok(token)) => Some([prompt, token]),
            (Err(Error::Infeasible { .. }), _) | (_, Err(Error::Infeasible { .. })) => None,
            (prompt, token) => panic!("{:?} {:?}", prompt.err(), token.err()),
        }
    }
}

/// The time of a plan between iterations of another one.
fn time_ns(plan: &Plan, other: &Plan) -> u64 {
    let switches = [other.switch_to(plan).unwrap(), plan.switch_to(other).unwrap()];
    plan.figures().period_ns + switches.map(|switch| switch.time_ns).iter().sum::<u64>()
}

/// Each op writes to the first byte of what it writes a mix of the first bytes that it reads.
struct Mixer {
    x: TensorId,
}

impl Kernels<HostDevice> for Mixer {
    fn launch(&mut self, device: &mut HostDevice, launch: &Launch<'_>) -> Result<(), HostError> {
        let first = |range| DeviceRange { bytes: 1, ..range };
        let mut mix = launch.op.0 as u8;
        for range in launch.reads.iter().flatten() {
            let mut byte = [0u8];
            device.read(first(range), &mut byte)?;
            mix = mix.wrapping_mul(31).wrapping_add(byte[0]);
        }
        let mut writes = launch.writes.iter().flatten().zip(1u8..);
        writes.try_for_each(|(range, at)| device.write(first(range), &[mix.wrapping_add(at)]))
    }

    fn fill_states(
        &mut self,
        states: &mut StateWriter<'_, HostDevice>,
    ) -> Result<(), FillError<HostError>> {
        states.write_at(TensorId(0), 0, &[7u8])
    }

    fn fill_inputs(
        &mut self,
        inputs: &mut InputWriter<'_, HostDevice>,
    ) -> Result<(), FillError<HostError>> {
        inputs.write_at(self.x, 0, &inputs.iteration().to_le_bytes())
    }
}

/// The first bytes of all states after tokens, a prompt, tokens, a prompt and a token.
fn run(prompt: &Plan, token: &Plan) -> Vec<u8> {
    let (one, other) = (prompt.capacity(), token.capacity());
    let capacity: Capacity = one.max(other);
    let device = HostDevice::new(CHUNK_BYTES, capacity.chunks * CHUNK_BYTES);
    let kernels = Mixer { x: TensorId(2) };
    let mut session = Session::with_capacity(token.clone(), capacity, device, kernels).unwrap();
    for (tokens, plan) in [(3, Some(prompt)), (1, Some(token)), (2, Some(prompt)), (1, Some(token))]
    {
        session.run(tokens).unwrap();
        if let Some(plan) = plan {
            session.switch(plan.clone(), |_| ()).unwrap();
        }
    }
    session.run(1).unwrap();
    let graph = token.graph().owned();
    let states = (0..).map(TensorId).zip(&graph.tensors);
    let states = states.filter(|(_, data)| data.kind == Kind::State);
    states
        .map(|(state, _)| {
            let mut byte = [0];
            session.read_state_at(state, 0, &mut byte).unwrap();
            byte[0]
        })
        .collect()
}

fn decoders() -> impl Strategy<Value = Decoder> {
    let layers = prop::collection::vec((100..4000u64, 20..900u64), 2..9);
    let link = prop::sample::select(vec![100_000_000, 500_000_000, 2_000_000_000]);
    (layers, 50..3000u64, link, 350..1400u64).prop_map(
        |(layers, table_bytes, link_bytes_per_s, permille)| Decoder {
            layers,
            table_bytes,
            link_bytes_per_s,
            permille,
        },
    )
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 60, ..ProptestConfig::default() })]

    #[test]
    fn no_plan_between_is_longer_and_values_are_the_same(decoder in decoders()) {
        let Some([prompt, token]) = decoder.plans() else { return Ok(()) };
        let between = prompt.between(&token).unwrap();
        prop_assert_eq!(between.owned().budget_bytes, prompt.owned().budget_bytes);
        let plain = time_ns(&prompt, &token).min(time_ns(&prompt.arranged_after(&token).unwrap(), &token));
        prop_assert!(time_ns(&between, &token) <= plain);
        prop_assert_eq!(run(&between, &token), run(&prompt, &token));
    }
}

/// The states of a small decoder at the token plan's offsets lengthen the switch back more than they
/// shorten the switch to the prompt.
#[test]
fn a_plan_that_is_better_as_it_is_stays() {
    let decoder = Decoder {
        layers: vec![(2714, 769), (3461, 851), (1673, 312)],
        table_bytes: 1610,
        link_bytes_per_s: 500_000_000,
        permille: 865,
    };
    let [prompt, token] = decoder.plans().unwrap();
    let between = prompt.between(&token).unwrap();
    assert!(time_ns(&between, &token) <= time_ns(&prompt, &token));
}

fn decoder(permille: u64) -> Decoder {
    let layers = vec![(3000, 400); 12];
    Decoder { layers, table_bytes: 500, link_bytes_per_s: 1_000_000_000, permille }
}

/// Half of the layers are streamed in both steps: the prompt streams those that the token streams.
#[test]
fn a_prompt_leaves_on_the_device_what_tokens_need() {
    let [prompt, token] = decoder(600).plans().unwrap();
    let between = prompt.between(&token).unwrap();
    let (plain_ns, between_ns) =
        (time_ns(&prompt.arranged_after(&token).unwrap(), &token), time_ns(&between, &token));
    assert!(between_ns * 10 < plain_ns * 9, "{between_ns} {plain_ns}");
}

/// The prompt uses the memory of the tokens' weights, and uploads them again while it computes. If they stayed,
/// or came back after the prompt, it would take a quarter longer than without tokens.
#[test]
fn a_prompt_brings_back_what_tokens_need() {
    let decoder = Decoder { link_bytes_per_s: 500_000_000, ..decoder(600) };
    let [prompt, token] = decoder.plans().unwrap();
    let (alone_ns, between) = (prompt.figures().period_ns, prompt.between(&token).unwrap());
    let between_ns = time_ns(&between, &token);
    assert!(between_ns * 10 < alone_ns * 11, "{between_ns} {alone_ns}");
}

/// Weights and caches have the same places in both plans. The switch copies the input of tokens, and the prompt
/// uploads its own input.
#[test]
fn switches_between_plans_with_all_in_memory_copy_nothing() {
    let [prompt, token] = decoder(1400).plans().unwrap();
    let between = prompt.between(&token).unwrap();
    for (from, to, input_bytes) in [(&token, &between, 0), (&between, &token, 8)] {
        let switch = from.switch_to(to).unwrap();
        assert_eq!((switch.h2d_bytes, switch.d2h_bytes), (input_bytes, 0), "{switch:?}");
    }
}

/// With all memory, no state moves, so a table of two chunks joins the arena unless it is to be small.
#[test]
fn a_small_arena_has_small_tensors_alone() {
    let decoder = decoder(1400);
    let (graph, machine) = (decoder.graph("token", 24, 1), decoder.machine());
    let largest_bytes = |auto: Auto| {
        let plan = graph.plan(&machine).strategy(planner::Strategy::Auto(auto)).run().unwrap();
        let tensors = &graph.owned().tensors;
        let placed = plan.owned().arena.iter();
        placed.map(|placed| tensors[placed.tensor.index()].bytes).max().unwrap_or(0)
    };
    assert!(largest_bytes(Auto::new()) > CHUNK_BYTES);
    assert!(largest_bytes(Auto::new().with_small_arena(true)) < CHUNK_BYTES);
}

#[test]
fn other_states_are_refused() {
    let [prompt, _] = decoder(1400).plans().unwrap();
    let [_, token] = Decoder { table_bytes: 501, ..decoder(1400) }.plans().unwrap();
    assert!(matches!(prompt.between(&token), Err(Error::States(_))));
}
