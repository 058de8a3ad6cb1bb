//! Streaming plans of few layers against all plans there are: every choice of layers that stay, and
//! every order in which the others come, through memory in pages.
#![allow(clippy::unwrap_used, reason = "what fails here fails the test")]

use proptest::collection::vec;
use proptest::prelude::*;
use spillway::core::machine::Direction;
use spillway::core::{Machine, MachineParameters};
use spillway::streaming::{self, Layer};
use spillway::{OwnedMachine, machines};

const CHUNK: u64 = 256;
const ITERATIONS: usize = 8;

fn machine(ns_per_chunk: u64) -> OwnedMachine {
    let bytes_per_s = CHUNK * 1_000_000_000 / ns_per_chunk;
    let parameters = MachineParameters {
        device_bytes: 1 << 40,
        host_bytes: 1 << 40,
        chunk_bytes: CHUNK,
        h2d_bytes_per_s: bytes_per_s,
        d2h_bytes_per_s: bytes_per_s,
        transfer_latency_ns: 10,
        map_ns_per_chunk: 0,
        unmap_ns_per_chunk: 0,
    };
    let machine = Machine::new(parameters).unwrap();
    OwnedMachine { machine, ..machines::builtin("v100-pcie3").unwrap() }
}

/// Layers, what their uploads take, and memory.
struct Work<'a> {
    layers: &'a [Layer],
    upload_ns: Vec<u64>,
    budget_bytes: u64,
}

impl Work<'_> {
    /// The shortest period of plans that move whole layers.
    fn shortest_ns(&self) -> u64 {
        let sets = 0..1usize << self.layers.len();
        sets.map(|set| {
            let mut order: Vec<_> =
                (0..self.layers.len()).filter(|layer| set >> layer & 1 == 1).collect();
            self.of_orders(&mut order, 0)
        })
        .min()
        .unwrap()
    }

    /// The same where these layers are streamed, in any order of those from a position on.
    fn of_orders(&self, order: &mut [usize], from: usize) -> u64 {
        if from == order.len() {
            return self.period_ns(order);
        }
        let mut least_ns = u64::MAX;
        for at in from..order.len() {
            order.swap(from, at);
            least_ns = least_ns.min(self.of_orders(order, from + 1));
            order.swap(from, at);
        }
        least_ns
    }

    /// The same if layers come in this order, each as soon as there is memory: later is never better.
    fn period_ns(&self, order: &[usize]) -> u64 {
        let is_streamed = |layer: usize| order.contains(&layer);
        let staying = self.layers.iter().enumerate().filter(|&(layer, _)| !is_streamed(layer));
        let staying_bytes: u64 = staying.map(|(_, layer)| layer.bytes).sum();
        let Some(mut free_bytes) = self.budget_bytes.checked_sub(staying_bytes) else {
            return u64::MAX;
        };
        let mut ready_ns = vec![None; self.layers.len()];
        let (mut next, mut freed_ns, mut uploaded_ns, mut now_ns) = (0, 0, 0, 0);
        let mut ends_ns = Vec::new();
        for _ in 0..ITERATIONS {
            for (at, layer) in self.layers.iter().enumerate() {
                while let Some(&coming) = order.get(next)
                    && ready_ns[coming].is_none()
                    && free_bytes >= self.layers[coming].bytes
                {
                    free_bytes -= self.layers[coming].bytes;
                    uploaded_ns = freed_ns.max(uploaded_ns) + self.upload_ns[coming];
                    ready_ns[coming] = Some(uploaded_ns);
                    next = (next + 1) % order.len();
                }
                if is_streamed(at) {
                    let Some(ready_ns) = ready_ns[at].take() else { return u64::MAX };
                    now_ns = ready_ns.max(now_ns) + layer.time_ns;
                    freed_ns = now_ns;
                    free_bytes += layer.bytes;
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
    let least_bytes = streaming::least(layers, &machine).bytes;
    let all_bytes: u64 = layers.iter().map(|layer| layer.bytes).sum();
    let budget_bytes = least_bytes + (all_bytes - least_bytes) * share / 100;
    let plan = streaming::plan(layers, &machine, budget_bytes).unwrap();
    let upload_ns =
        |layer: &Layer| machine.machine.transfer_ns(Direction::HostToDevice, layer.bytes).unwrap();
    let upload_ns = layers.iter().map(upload_ns).collect();
    let shortest_ns = Work { layers, upload_ns, budget_bytes }.shortest_ns();
    prop_assert!(plan.bound().period_ns <= shortest_ns);
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

fn link() -> impl Strategy<Value = u64> {
    prop_oneof![1..100u64, 1..1000u64, 1..3000u64]
}

fn layers(count: usize, most_chunks: u64) -> impl Strategy<Value = Vec<Layer>> {
    let layer = (1..=most_chunks, 1..2000u64);
    vec(layer.prop_map(|(chunks, ns)| Layer::new(chunks * CHUNK, ns)), 2..=count)
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
}
