//! Imports execution traces of PyTorch, with measured times if there is a Kineto trace.
//!
//! An execution trace (PyTorch's `ExecutionTraceObserver`, the format that MLCommons Chakra builds on) is the
//! tree of operators that ran, with their input and output tensors. It has neither times nor the lifetimes of
//! tensors beyond a step. A Kineto trace (the profiler's) has only times. [`import`] turns one iteration of
//! both into a graph:
//!
//! ```text
//! trace ──► window ──► ops + storage ──► kinds ──┐
//!                          └──► durations, or ───┴──► emit ──► OwnedGraph
//!              kineto (steps) ──► measured
//! ```
//!
//! The import marks ops that write the same bytes when they run again as repeatable, by their names and
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

/// The device whose memory is planned. An import ignores tensors on other devices.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Device {
    /// `cuda` with any number.
    Cuda,
    /// `cpu`, for traces of machines without an accelerator.
    Cpu,
}

impl Device {
    /// Returns whether PyTorch's name of a device (`cuda:0`, `cpu`) means this device.
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
    /// The `ProfilerStep#` annotation of the iteration; `None` if the iteration is the whole trace.
    pub step: Option<String>,
    /// The report on the Kineto trace; `None` without one.
    pub kineto: Option<KinetoReport>,
    /// The compiled regions. Their kernels are not in the trace, so they are not in the graph.
    pub compiled_regions: Option<Nodes>,
    /// The operators whose value the recorded program waited for, such as `item`.
    pub synchronisations: Option<Nodes>,
}

/// Counts that show how well a Kineto trace fits the execution trace.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KinetoReport {
    /// The kernels, fills and copies that the iteration launched; on a CPU, its operators.
    pub kernels: usize,
    /// The number of kernels that belong to an op.
    pub kernels_with_op: usize,
    /// The number of ops with a kernel. The other ops take no time.
    pub ops_with_kernel: usize,
}

/// Builds the graph of one iteration of an execution trace (JSON, not compressed). The iteration is the last
/// step that another step follows, or the whole trace if it has no marked steps. Times come from the Kineto
/// trace, or from a roofline without one.
///
/// # Errors
/// The position in a file or the node that is not valid, in one sentence.
pub fn import(
    trace: &[u8],
    kineto: Option<&[u8]>,
    device: Device,
    name: &str,
) -> Result<OwnedGraph, ImportError> {
    import_with_report(trace, kineto, device, name).map(|(graph, _)| graph)
}

/// Does the same as [`import`], and also returns a report.
///
/// # Errors
/// The errors of [`import`].
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

/// Returns the reason why a trace gives no ops on a device.
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
