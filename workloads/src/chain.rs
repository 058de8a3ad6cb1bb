//! Chains of layers: the model of weight offloading (Beaumont, Eyraud-Dubois, Shilova & Zhao,
//! Weight Offloading Strategies for Training Large DNN Models, section 3).

use crate::{OwnedGraph, OwnedMachine};
use planner_core::{Kind, Machine, TensorId};

/// A layer: it runs forward once and backward once an iteration.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Layer {
    /// Time of the op forward.
    pub forward_ns: u64,
    /// Time of the op backward.
    pub backward_ns: u64,
    /// The weight, which is updated backward; 0 where there is none.
    pub weight_bytes: u64,
    /// What the layer hands on; 0 where that is nothing.
    pub activation_bytes: u64,
}

/// Layers that run forward in their order, then backward, on a machine of their own.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct OwnedChain {
    /// Name of the chain, of its graph and of its machine.
    pub name: String,
    /// Device memory.
    pub device_bytes: u64,
    /// Speed of the link, each way.
    pub bandwidth_bytes_per_s: u64,
    /// What the first layer reads; 0 where that is nothing.
    pub input_bytes: u64,
    /// The layers.
    pub layers: Vec<Layer>,
}

impl OwnedChain {
    /// The chain as a graph: `F1`, `F2`, … and back to `B1`.
    ///
    /// `Fi` reads the weight `wi` and `a(i-1)`, and writes `ai`. `Bi` reads those three and
    /// writes `wi` and `a(i-1)`, whose place the gradient takes; its workspace is the weight's
    /// gradient. What has no bytes has no tensor.
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
                (number, layer, [weight, std::mem::replace(&mut before, after), after])
            })
            .collect();
        let present =
            |tensors: &[Option<TensorId>]| tensors.iter().flatten().copied().collect::<Vec<_>>();
        for (number, layer, operands) in &layers {
            let (reads, writes) = (present(&operands[..2]), present(&operands[2..]));
            graph.push_op(format!("F{number}"), layer.forward_ns, 0, &reads, &writes);
        }
        for (number, layer, operands) in layers.iter().rev() {
            let (reads, writes) = (present(operands), present(&operands[..2]));
            let time_ns = layer.backward_ns;
            graph.push_op(format!("B{number}"), time_ns, layer.weight_bytes, &reads, &writes);
        }
        graph
    }

    /// The machine that the chain brings: sizes are exact, transfers have no latency, and the
    /// host has room for everything.
    #[must_use]
    pub fn machine(&self) -> OwnedMachine {
        let machine = Machine {
            device_bytes: self.device_bytes,
            host_bytes: u64::MAX,
            chunk_bytes: 1,
            h2d_bytes_per_s: self.bandwidth_bytes_per_s,
            d2h_bytes_per_s: self.bandwidth_bytes_per_s,
            transfer_latency_ns: 0,
            map_ns_per_chunk: 0,
            unmap_ns_per_chunk: 0,
        };
        OwnedMachine { name: self.name.clone(), machine }
    }
}
