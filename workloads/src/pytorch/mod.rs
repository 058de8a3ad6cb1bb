//! Execution traces of PyTorch.
//!
//! An execution trace (PyTorch's `ExecutionTraceObserver`, the format that MLCommons Chakra
//! builds on) is the tree of operators that ran, with the tensors each was given and returned;
//! it knows neither times nor which tensors outlive a step. [`import`] makes one iteration of it
//! into a graph:
//!
//! ```text
//! trace ──► window ──► ops + storage ──► kinds ──┐
//!                          └──► durations ───────┴──► emit ──► OwnedGraph
//! ```
//!
//! Sources: <https://github.com/pytorch/pytorch>, `torch/csrc/profiler/standalone/`;
//! <https://github.com/mlcommons/chakra>.

mod durations;
mod emit;
mod error;
mod kinds;
mod operands;
mod ops;
mod role;
mod schema;
mod storage;
mod trace;
mod value;
mod window;

use crate::OwnedGraph;
pub use error::ImportError;

/// The device whose memory is planned. Tensors elsewhere do not exist for an import.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Device {
    /// `cuda`, whatever its number.
    Cuda,
    /// `cpu`: for traces of machines without an accelerator.
    Cpu,
}

impl Device {
    /// Whether PyTorch's name of a device (`cuda:0`, `cpu`) means this one.
    fn holds(self, place: &str) -> bool {
        let name = match self {
            Self::Cuda => "cuda",
            Self::Cpu => "cpu",
        };
        place.split(':').next() == Some(name)
    }
}

/// What an import found beside the graph.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Report {
    /// The `ProfilerStep#` annotation of the iteration; nothing when it is the whole trace.
    pub step: Option<String>,
}

/// Makes a graph of one iteration of an execution trace (JSON, not compressed): of the last
/// step that another follows, or of everything where no steps are marked. Times are a
/// roofline's.
///
/// # Errors
/// The place in a file or the node that makes no sense, in one sentence.
pub fn import(trace: &[u8], device: Device, name: &str) -> Result<OwnedGraph, ImportError> {
    import_with_report(trace, device, name).map(|(graph, _)| graph)
}

/// [`import`], and what it found out on the way.
///
/// # Errors
/// As [`import`].
pub fn import_with_report(
    trace: &[u8],
    device: Device,
    name: &str,
) -> Result<(OwnedGraph, Report), ImportError> {
    let window = window::Window::cut(trace::read(trace, device)?)?;
    let (ops, storages) = ops::find(&window);
    let report = Report { step: window.step.clone() };
    let op_ns = durations::estimate_ns(&window, &ops);
    let kinds = kinds::kinds(&storages.tensors, &ops);
    let graph = emit::emit(name, &window, &ops, &op_ns, &storages.tensors, &kinds)?;
    Ok((graph, report))
}
