//! Chains of layers: the model of weight offloading (Beaumont, Eyraud-Dubois, Shilova & Zhao,
//! Weight Offloading Strategies for Training Large DNN Models, section 3).

use crate::{OwnedGraph, OwnedMachine};
use planner_core::machine::MachineError;
use planner_core::{Kind, Machine, MachineParameters, TensorId};

/// A layer: it runs forward once and backward once an iteration.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Layer {
    /// Time of the op forward.
    pub forward_ns: u64,
    /// Time of the op backward.
    pub backward_ns: u64,
    /// The bytes of the weight, which the backward op updates; 0 without a weight.
    pub weight_bytes: u64,
    /// The bytes of the layer's output; 0 without an output.
    pub activation_bytes: u64,
    /// The bytes of the optimizer's states of the weight, such as momentum, which the backward op reads and
    /// updates; 0 without such states.
    pub optimizer_bytes: u64,
}

/// Layers that run forward in their order, then backward, with their own machine.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct OwnedChain {
    /// Name of the chain, of its graph and of its machine.
    pub name: String,
    /// Device memory.
    pub device_bytes: u64,
    /// Speed of the link, each way.
    pub bandwidth_bytes_per_s: u64,
    /// The bytes that the first layer reads; 0 without an input.
    pub input_bytes: u64,
    /// The layers.
    pub layers: Vec<Layer>,
}

impl OwnedChain {
    /// Builds the chain of theorem 1. It can run without idle time exactly if the numbers fall into triples
    /// with the same sum (3-partition). A byte is a unit of the numbers, and an iteration then takes two
    /// seconds per triple.
    ///
    /// Returns `None` if the count of numbers is not a multiple of 3, if their sum cannot be divided equally
    /// among the triples, or if a share does not divide 10^9, since transfers would not take whole
    /// nanoseconds.
    #[must_use]
    pub fn three_partition(numbers: &[u64]) -> Option<Self> {
        const SECOND_NS: u64 = 1_000_000_000;
        let triples = numbers.len() as u64 / 3;
        let sum = numbers.iter().try_fold(0u64, |sum, &number| sum.checked_add(number))?;
        let share = sum.checked_div(triples)?;
        let is_exact = 3 * triples == numbers.len() as u64 && sum == share * triples;
        if !is_exact || share == 0 || !SECOND_NS.is_multiple_of(share) {
            return None;
        }
        let weight = |weight_bytes| Layer { weight_bytes, ..Layer::default() };
        let clock = Layer { backward_ns: SECOND_NS, ..Layer::default() };
        let mut layers: Vec<_> = (0..triples).flat_map(|_| [weight(share), clock]).collect();
        layers.last_mut()?.forward_ns = triples.checked_mul(SECOND_NS)?;
        layers.extend(numbers.iter().map(|&number| weight(number)));
        Some(Self {
            name: "three-partition".to_owned(),
            device_bytes: sum.checked_add(share)?,
            bandwidth_bytes_per_s: share,
            input_bytes: 0,
            layers,
        })
    }

    /// Builds the graph of the chain: `F1`, `F2`, … and back to `B1`.
    ///
    /// `Fi` reads the weight `wi` and `a(i-1)`, and writes `ai`. `Bi` reads these three tensors, updates
    /// `wi`, and overwrites `a(i-1)` with its gradient; its workspace is the weight's gradient. It also
    /// updates `si`, the optimizer's states. A size of 0 bytes gives no tensor. Forward ops that write a
    /// tensor are repeatable.
    #[must_use]
    pub fn graph(&self) -> OwnedGraph {
        let mut graph = OwnedGraph::new(self.name.as_str());
        let mut add = |name, bytes, kind| (bytes > 0).then(|| graph.push_tensor(name, bytes, kind));
        let mut before = add("a0".to_owned(), self.input_bytes, Kind::Input);
        let layers: Vec<_> = (1..)
            .zip(&self.layers)
            .map(|(number, layer)| {
                let weight = add(format!("w{number}"), layer.weight_bytes, Kind::State);
                let after = add(format!("a{number}"), layer.activation_bytes, Kind::Temporary);
                let state = add(format!("s{number}"), layer.optimizer_bytes, Kind::State);
                (number, layer, [state, weight, std::mem::replace(&mut before, after), after])
            })
            .collect();
        let present =
            |tensors: &[Option<TensorId>]| tensors.iter().flatten().copied().collect::<Vec<_>>();
        for (number, layer, operands) in &layers {
            let (reads, writes) = (present(&operands[1..3]), present(&operands[3..]));
            let op = graph.push_op(format!("F{number}"), layer.forward_ns, 0, &reads, &writes);
            graph.promise_repeats(op);
        }
        for (number, layer, operands) in layers.iter().rev() {
            let (reads, writes) = (present(operands), present(&operands[..3]));
            let time_ns = layer.backward_ns;
            graph.push_op(format!("B{number}"), time_ns, layer.weight_bytes, &reads, &writes);
        }
        graph
    }

    /// Returns the chain's machine: sizes are exact, transfers have no latency, and the
    /// host memory fits everything.
    ///
    /// # Errors
    /// The bandwidth is zero.
    pub fn machine(&self) -> Result<OwnedMachine, MachineError> {
        let machine = Machine::new(
            MachineParameters::new()
                .with_device_bytes(self.device_bytes)
                .with_host_bytes(u64::MAX)
                .with_chunk_bytes(1)
                .with_h2d_bytes_per_s(self.bandwidth_bytes_per_s)
                .with_d2h_bytes_per_s(self.bandwidth_bytes_per_s),
        )?;
        Ok(OwnedMachine::new(self.name.clone(), machine))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_make_the_chain_of_theorem_1() {
        let chain = OwnedChain::three_partition(&[6, 6, 8, 6, 7, 7]).unwrap();
        assert_eq!((chain.device_bytes, chain.bandwidth_bytes_per_s), (60, 20));
        let list = |of: fn(&Layer) -> u64| chain.layers.iter().map(of).collect::<Vec<_>>();
        assert_eq!(list(|layer| layer.weight_bytes), [20, 0, 20, 0, 6, 6, 8, 6, 7, 7]);
        let seconds = |ns: Vec<u64>| ns.iter().map(|ns| ns / 1_000_000_000).collect::<Vec<_>>();
        let forward = seconds(list(|layer| layer.forward_ns));
        assert_eq!(forward, [0, 0, 0, 2, 0, 0, 0, 0, 0, 0]);
        let backward = seconds(list(|layer| layer.backward_ns));
        assert_eq!(backward, [0, 1, 0, 1, 0, 0, 0, 0, 0, 0]);
        assert_eq!(chain.graph().graph().unwrap().compute_ns(), 4_000_000_000);
    }

    #[test]
    fn forward_ops_that_write_an_activation_are_repeatable() {
        let layer = |activation_bytes| Layer { activation_bytes, ..Layer::default() };
        let chain = OwnedChain {
            name: "c".to_owned(),
            device_bytes: 1,
            bandwidth_bytes_per_s: 1,
            input_bytes: 1,
            layers: vec![layer(1), layer(1), layer(0)],
        };
        let repeatable: Vec<_> = chain.graph().ops.iter().map(|op| op.repeatable).collect();
        assert_eq!(repeatable, [true, true, false, false, false, false]);
    }

    #[test]
    fn numbers_that_make_no_instance_are_refused() {
        for numbers in [&[][..], &[1, 2], &[6, 6, 8, 6], &[1, 1, 1, 1, 1, 2], &[1, 1, 1], &[0; 3]] {
            assert_eq!(OwnedChain::three_partition(numbers), None, "{numbers:?}");
        }
        assert_eq!(OwnedChain::three_partition(&[u64::MAX, 1, 1]), None);
    }
}
