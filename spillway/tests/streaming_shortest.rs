//! Streaming plans of few layers against all plans there are: every choice of layers that stay and of those
//! that run on the host, and every order in which the others come, through memory in pages.
#![allow(clippy::unwrap_used, reason = "what fails here fails the test")]

use proptest::collection::vec;
use proptest::prelude::*;
use spillway::planner_core::machine::Direction;
use spillway::planner_core::{Machine, MachineParameters};
use spillway::streaming::{self, Layer};
use spillway::{OwnedMachine, machines};
use std::collections::VecDeque;

const CHUNK: u64 = 256;
const ITERATIONS: usize = 8;

fn machine(ns_per_chunk: u64) -> OwnedMachine {
    let bytes_per_s = CHUNK * 1_000_000_000 / ns_per_chunk;
    let parameters = MachineParameters::new()
        .with_device_bytes(1 << 40)
        .with_host_bytes(1 << 40)
        .with_chunk_bytes(CHUNK)
        .with_h2d_bytes_per_s(bytes_per_s)
        .with_d2h_bytes_per_s(bytes_per_s)
        .with_transfer_latency_ns(10);
    let machine = Machine::new(parameters).unwrap();
    machines::builtin("v100-pcie3").unwrap().with_machine(machine)
}

/// Layers, what their uploads take, and memory.
struct Work<'a> {
    layers: &'a [Layer],
    machine: &'a Machine,
    budget_bytes: u64,
}

/// One of the plans: what runs on the host, in what order other layers come, and how many uploads go before
/// what comes back from the host: a digit, in base [`BEFORE`], for each layer on the device behind one
/// on the host.
struct Choice<'c> {
    on_host: usize,
    order: &'c [usize],
    before: usize,
}

const BEFORE: usize = 3;

impl Work<'_> {
    /// The shortest period of plans that move whole layers.
    fn shortest_ns(&self) -> u64 {
        let count = self.layers.len();
        let may = |set: usize| {
            (0..count).all(|at| set >> at & 1 == 0 || self.layers[at].host_ns.is_some())
        };
        let sets = (0..1usize << count).filter(|&on_host| may(on_host));
        let pairs = sets.flat_map(|on_host| (0..1usize << count).map(move |set| (on_host, set)));
        let apart = pairs.filter(|(on_host, streamed)| on_host & streamed == 0);
        apart
            .map(|(on_host, streamed)| {
                let mut order: Vec<_> =
                    (0..count).filter(|&layer| streamed >> layer & 1 == 1).collect();
                self.of_orders(on_host, &mut order, 0)
            })
            .min()
            .unwrap()
    }

    /// The same where these layers are streamed, in any order of those from a position on.
    fn of_orders(&self, on_host: usize, order: &mut [usize], from: usize) -> u64 {
        if from == order.len() {
            let count = self.layers.len();
            let is_back = |&at: &usize| {
                on_host >> at & 1 == 0 && on_host >> ((at + count - 1) % count) & 1 == 1
            };
            let choices = BEFORE.pow((0..count).filter(is_back).count() as u32);
            let all = (0..choices).map(|before| self.period_ns(&Choice { on_host, order, before }));
            return all.min().unwrap();
        }
        let mut least_ns = u64::MAX;
        for at in from..order.len() {
            order.swap(from, at);
            least_ns = least_ns.min(self.of_orders(on_host, order, from + 1));
            order.swap(from, at);
        }
        least_ns
    }

    fn transfer_ns(&self, direction: Direction, bytes: u64) -> u64 {
        self.machine.transfer_ns(direction, bytes).unwrap()
    }

    /// What three activations take.
    fn handed_on_bytes(&self) -> u64 {
        let largest = self.layers.iter().map(|layer| layer.activation_bytes).max().unwrap();
        largest.next_multiple_of(CHUNK) * self.layers.len().min(3) as u64
    }

    /// The period if layers come in this order, each as soon as there is memory: later is only better
    /// where something else waits for the link.
    fn period_ns(&self, &Choice { on_host, order, before }: &Choice<'_>) -> u64 {
        let count = self.layers.len();
        let is_on_host = |layer: usize| on_host >> layer & 1 == 1;
        let staying = (0..count).filter(|layer| !is_on_host(*layer) && !order.contains(layer));
        let staying_bytes: u64 = staying.map(|layer| self.layers[layer].bytes).sum();
        let launched = self.layers.iter().enumerate().filter(|&(layer, _)| !is_on_host(layer));
        let kept_bytes: u64 = launched.map(|(_, layer)| layer.cache_bytes).sum();
        let all_bytes = staying_bytes + kept_bytes + self.handed_on_bytes();
        let Some(mut free_bytes) = self.budget_bytes.checked_sub(all_bytes) else {
            return u64::MAX;
        };
        // Layers with memory that wait for the link, each with the time at which it got the memory.
        let mut waiting: VecDeque<(usize, u64)> = VecDeque::new();
        let mut has_memory = vec![false; count];
        let mut ready_ns = vec![0; count];
        let (mut next, mut freed_ns, mut uploaded_ns, mut now_ns) = (0, 0, 0, 0);
        let mut ends_ns = Vec::new();
        for _ in 0..ITERATIONS {
            let mut digits = before;
            for (at, layer) in self.layers.iter().enumerate() {
                while let Some(&coming) = order.get(next)
                    && !has_memory[coming]
                    && free_bytes >= self.layers[coming].bytes
                {
                    free_bytes -= self.layers[coming].bytes;
                    has_memory[coming] = true;
                    waiting.push_back((coming, freed_ns));
                    next = (next + 1) % order.len();
                }
                let upload = |uploaded_ns: u64, (coming, freed_ns): (usize, u64)| {
                    let bytes = self.layers[coming].bytes;
                    freed_ns.max(uploaded_ns) + self.transfer_ns(Direction::HostToDevice, bytes)
                };
                let last = (at + count - 1) % count;
                let handed_on = self.layers[last].activation_bytes;
                match (is_on_host(last), is_on_host(at)) {
                    (false, true) => now_ns += self.transfer_ns(Direction::DeviceToHost, handed_on),
                    (true, false) => {
                        for _ in 0..digits % BEFORE {
                            let Some(first) = waiting.pop_front() else { break };
                            let end_ns = upload(uploaded_ns, first);
                            (uploaded_ns, ready_ns[first.0]) = (end_ns, end_ns);
                        }
                        digits /= BEFORE;
                        now_ns = now_ns.max(uploaded_ns)
                            + self.transfer_ns(Direction::HostToDevice, handed_on);
                        uploaded_ns = now_ns;
                    }
                    _ => {}
                }
                if is_on_host(at) {
                    now_ns += layer.host_ns.unwrap();
                } else if order.contains(&at) {
                    if !has_memory[at] {
                        return u64::MAX;
                    }
                    while waiting.iter().any(|&(coming, _)| coming == at) {
                        let first = waiting.pop_front().unwrap();
                        let end_ns = upload(uploaded_ns, first);
                        (uploaded_ns, ready_ns[first.0]) = (end_ns, end_ns);
                    }
                    now_ns = ready_ns[at].max(now_ns) + layer.time_ns;
                    freed_ns = now_ns;
                    free_bytes += layer.bytes;
                    has_memory[at] = false;
                } else {
                    now_ns += layer.time_ns;
                }
            }
            ends_ns.push(now_ns);
        }
        // The mean of the last four, as the format has it.
        (ends_ns[ITERATIONS - 1] - ends_ns[ITERATIONS - 5]).div_ceil(4)
    }
}

fn check(layers: &[Layer], ns_per_chunk: u64, share: u64) -> Result<(), TestCaseError> {
    let machine = machine(ns_per_chunk);
    let least_bytes = streaming::min_feasible(layers, &machine).bytes;
    let all_bytes: u64 = layers.iter().map(|layer| layer.bytes + layer.cache_bytes).sum();
    let budget_bytes = least_bytes + all_bytes.saturating_sub(least_bytes) * share / 100;
    let plan = streaming::plan(layers, &machine, budget_bytes).unwrap();
    let shortest_ns = Work { layers, machine: &machine.machine, budget_bytes }.shortest_ns();
    prop_assert!(plan.lower_bound().period_ns <= shortest_ns);
    prop_assert!(
        plan.figures().period_ns <= shortest_ns,
        "{} ns, {shortest_ns} ns",
        plan.figures().period_ns
    );
    Ok(())
}

/// In the order of launches, small layers would wait for memory behind large ones.
#[test]
fn layers_come_in_the_order_that_is_shortest() {
    let of = |of: [(u64, u64); 5]| of.map(|(chunks, ns)| Layer::new(chunks * CHUNK, ns));
    let small = of([(2, 1447), (5, 1066), (3, 320), (9, 538), (3, 649)]);
    check(&small, 95, 47).unwrap();
    let large = of([(6, 89), (26, 1798), (32, 596), (32, 1210), (15, 280)]);
    check(&large, 33, 59).unwrap();
}

/// What comes back from the host goes before an upload that would end later, but not before one that the
/// same layer waits for.
#[test]
fn uploads_wait_for_what_comes_back_from_the_host() {
    let of =
        [(1280, 1, None, 1), (256, 13, None, 43), (1024, 44, Some(75), 1), (1280, 90, None, 1)];
    let layers = of.map(|(bytes, time_ns, host_ns, activation_bytes)| {
        let mut layer = Layer::new(bytes, time_ns).activation_bytes(activation_bytes);
        layer.host_ns = host_ns;
        layer
    });
    check(&layers, 16, 72).unwrap();
}

fn link() -> impl Strategy<Value = u64> {
    prop_oneof![1..100u64, 1..1000u64, 1..3000u64]
}

fn layers(count: usize, most_chunks: u64) -> impl Strategy<Value = Vec<Layer>> {
    let layer = (1..=most_chunks, 1..2000u64);
    vec(layer.prop_map(|(chunks, ns)| Layer::new(chunks * CHUNK, ns)), 2..=count)
}

/// Layers of which some may run on the host, and some have a cache.
fn hosted(count: usize, most_chunks: u64) -> impl Strategy<Value = Vec<Layer>> {
    let host_ns = prop_oneof![1 => Just(None), 4 => (1..6000u64).prop_map(Some)];
    let cache_chunks = prop_oneof![3 => Just(0), 1 => 1..=most_chunks];
    let beside = (host_ns, 1..=CHUNK, cache_chunks);
    (layers(count, most_chunks), vec(beside, count)).prop_map(|(layers, beside)| {
        let pairs = layers.into_iter().zip(beside);
        let with = |(mut layer, (host_ns, bytes, cache_chunks)): (Layer, _)| {
            layer.host_ns = host_ns;
            layer.activation_bytes(bytes).cache_bytes(cache_chunks * CHUNK)
        };
        pairs.map(with).collect()
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(256))]

    /// So there is no stall unless every plan of whole layers has one.
    #[test]
    fn no_plan_of_few_layers_is_shorter(
        layers in prop_oneof![layers(4, 2), layers(4, 9), layers(4, 40)],
        ns_per_chunk in link(),
        share in 0..=100u64,
    ) {
        check(&layers, ns_per_chunk, share)?;
    }

    #[test]
    fn no_plan_of_layers_of_one_size_is_shorter(
        layers in layers(6, 1),
        ns_per_chunk in link(),
        share in 0..=100u64,
    ) {
        check(&layers, ns_per_chunk, share)?;
    }

    #[test]
    fn no_plan_of_few_layers_with_the_host_is_shorter(
        layers in prop_oneof![hosted(4, 2), hosted(4, 40), hosted(6, 1)],
        ns_per_chunk in link(),
        share in 0..=100u64,
    ) {
        check(&layers, ns_per_chunk, share)?;
    }
}
