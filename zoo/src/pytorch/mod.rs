//! Imports execution traces of PyTorch, with measured times if there is a Kineto trace.
//!
//! An execution trace (PyTorch's `ExecutionTraceObserver`, the format that MLCommons Chakra
//! builds on) is the tree of operators that ran, with the tensors each was given and returned;
//! it knows neither times nor which tensors outlive a step. A Kineto trace (the profiler's)
//! knows times only. [`import`] makes one iteration of the two into a graph:
//!
//! ```text
//! trace ──► window ──► ops + storage ──► kinds ──┐
//!                          └──► durations, or ───┴──► emit ──► OwnedGraph
//!              kineto (steps) ──► measured
//! ```
//!
//! Ops that write the same bytes when they run again are marked as repeatable, by their names and
//! declarations (`docs/models.md`).
//!
//! Sources: <https://github.com/pytorch/pytorch>, `torch/csrc/profiler/standalone/`;
//! <https://github.com/mlcommons/chakra>; <https://github.com/pytorch/kineto>.

mod constants;
mod durations;
mod emit;
mod error;
mod kinds;
mod kineto;
mod measured;
mod operands;
mod ops;
mod repeats;
mod role;
mod schema;
mod steps;
mod storage;
mod trace;
mod value;
mod warnings;
mod window;

pub use error::{ImportError, Source};
use planner_core::GraphError;
pub use warnings::Nodes;
use workloads::OwnedGraph;

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
    fn holds(self, device: &str) -> bool {
        let name = match self {
            Self::Cuda => "cuda",
            Self::Cpu => "cpu",
        };
        device.split(':').next() == Some(name)
    }
}

/// Facts that an import reports in addition to the graph.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Report {
    /// The `ProfilerStep#` annotation of the iteration; nothing when it is the whole trace.
    pub step: Option<String>,
    /// How the Kineto trace fits; nothing without one.
    pub kineto: Option<KinetoReport>,
    /// Compiled regions: their kernels are not in the trace, and so not in the graph.
    pub compiled_regions: Option<Nodes>,
    /// Operators whose value the recorded program waited for: `item` and the like.
    pub synchronisations: Option<Nodes>,
}

/// How well a Kineto trace fits the execution trace.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KinetoReport {
    /// Kernels, fills and copies that the iteration launched; on a CPU, its operators.
    pub kernels: usize,
    /// Those that belong to an op.
    pub kernels_with_op: usize,
    /// Ops that any of them belongs to. The others take no time.
    pub ops_with_kernel: usize,
}

/// Builds the graph of one iteration of an execution trace (JSON, not compressed): of the last
/// step that another follows, or of everything where no steps are marked. Times are those of
/// the Kineto trace, or a roofline's without one.
///
/// # Errors
/// The position in a file or the node that makes no sense, in one sentence.
pub fn import(
    trace: &[u8],
    kineto: Option<&[u8]>,
    device: Device,
    name: &str,
) -> Result<OwnedGraph, ImportError> {
    import_with_report(trace, kineto, device, name).map(|(graph, _)| graph)
}

/// Does the same as [`import`], and also reports what it found.
///
/// # Errors
/// As [`import`].
pub fn import_with_report(
    trace: &[u8],
    kineto: Option<&[u8]>,
    device: Device,
    name: &str,
) -> Result<(OwnedGraph, Report), ImportError> {
    let window = window::Window::cut(trace::read(trace, device)?)?;
    let (ops, storages) = ops::find(&window);
    let mut report = Report {
        step: window.step.clone(),
        kineto: None,
        compiled_regions: warnings::compiled_regions(&window),
        synchronisations: warnings::synchronisations(&window),
    };
    if ops.is_empty() {
        return Err(without_ops(trace, device, &window, report.compiled_regions));
    }
    let op_ns = match kineto {
        None => durations::estimate_ns(&window, &ops),
        Some(kineto) => {
            let measured = measured::measure(&window, &ops, &kineto::read(kineto)?, device)?;
            report.kineto = Some(KinetoReport {
                kernels: measured.kernels,
                kernels_with_op: measured.kernels_with_op,
                ops_with_kernel: measured.ops_with_kernel,
            });
            measured.op_ns
        }
    };
    let constants = constants::constants(&window);
    let kinds = kinds::kinds(&storages.tensors, &ops, &constants, device);
    let graph = emit::emit(name, &window, &ops, &op_ns, &storages.tensors, &kinds)?;
    Ok((graph, report))
}

/// Why a trace gives no ops on a device.
fn without_ops(
    trace: &[u8],
    device: Device,
    window: &window::Window,
    compiled: Option<Nodes>,
) -> ImportError {
    let has_tensors =
        |nodes: &[trace::Node]| nodes.iter().any(|node| !value::views(&node.inputs).is_empty());
    let cpu = || trace::read(trace, Device::Cpu);
    if device == Device::Cuda
        && !has_tensors(&window.nodes)
        && cpu().is_ok_and(|nodes| has_tensors(&nodes))
    {
        return ImportError::OnlyCpu;
    }
    match compiled {
        Some(region) => ImportError::Compiled(region.first),
        None => ImportError::Graph(GraphError::NoOps),
    }
}
