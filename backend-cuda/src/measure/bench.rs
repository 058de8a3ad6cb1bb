//! A device to measure on, with memory of its own.

use crate::{Cuda, CudaDevice, Options, Unavailable};
use planner_core::graph::Op;
use planner_core::{Graph, Kind, Scratch, Stream, Tensor, TensorId};

/// Opens a device for a tensor of some bytes, with its kernels loaded, and measures there.
pub(super) fn on<T>(
    cuda: &Cuda,
    options: &Options,
    bytes: u64,
    measure: impl FnOnce(CudaDevice<'_>) -> Result<T, Unavailable>,
) -> Result<T, Unavailable> {
    let tensors = [Tensor { bytes, kind: Kind::Temporary }];
    let ops = [Op { time_ns: 1, workspace_bytes: 0, first_operand: 0, reads: 0, writes: 1 }];
    let mut memory = [0; 8];
    let graph = Graph::new(&tensors, &ops, &[TensorId(0)], &mut Scratch::new(&mut memory));
    let graph = graph.map_err(|error| Unavailable(error.to_string()))?;
    let mut device = cuda.open(options, graph, Box::new(|_, _, _| ()))?;
    device.occupy(Stream::Compute, 1)?;
    device.wait_idle()?;
    measure(device)
}
