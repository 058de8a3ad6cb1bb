//! What an import says beside the graph, on traces written by hand.

use crate::recording::{Argument, Layout, Tensor, Trace, args, t};
use serde_json::json;
use zoo::pytorch::{Device, ImportError, Nodes, Report, import_with_report};

const COPY_: &str =
    "aten::copy_(Tensor(a!) self, Tensor src, bool non_blocking=False) -> Tensor(a!)";
const ITEM: &str = "aten::item(Tensor self) -> Scalar";
const RELU: &str = "aten::relu(Tensor self) -> Tensor";

fn relu(trace: &mut Trace, device: &'static str) {
    trace.call(RELU, args![t(1, [10]).on(device)], args![t(2, [10]).on(device)]);
}

/// The report of an import for CUDA, the same from both layouts.
fn report(trace: &Trace) -> Report {
    let of = |layout| import_with_report(&trace.json(layout), None, Device::Cuda, "w").unwrap().1;
    assert_eq!(of(Layout::Flat), of(Layout::Nested));
    of(Layout::Flat)
}

fn error(trace: &Trace, device: Device) -> ImportError {
    import_with_report(&trace.json(Layout::Nested), None, device, "w").unwrap_err()
}

#[test]
fn operators_that_the_host_waits_for_are_counted() {
    let mut trace = Trace::new();
    relu(&mut trace, "cuda:0");
    assert_eq!(report(&trace).synchronisations, None);
    let item = |trace: &mut Trace, tensor: Tensor| {
        let number = || args![json!(0.5)];
        trace.calling(ITEM, args![tensor.clone()], number(), |trace| {
            let inner = "aten::_local_scalar_dense(Tensor self) -> Scalar";
            trace.call(inner, args![tensor], number());
        });
    };
    // The host has these: a step count, and what it copies to the device or lets the device copy.
    item(&mut trace, t(3, [1]).on("cpu"));
    let copy = |trace: &mut Trace, to: Tensor, from: Tensor, later: bool| {
        trace.call(COPY_, args![to.clone(), from, json!(later)], args![to]);
    };
    copy(&mut trace, t(2, [10]), t(4, [10]).on("cpu"), false);
    copy(&mut trace, t(4, [10]).on("cpu"), t(2, [10]), true);
    copy(&mut trace, t(2, [10]), t(1, [10]), false);
    // An annotation of the name.
    trace.note_of("item", args![t(1, [1])], args![]);
    assert_eq!(report(&trace).synchronisations, None);

    item(&mut trace, t(2, [1]));
    let first = |count| Some(Nodes { count, first: "item@9".to_owned() });
    assert_eq!(report(&trace).synchronisations, first(1));
    item(&mut trace, t(2, [1]));
    copy(&mut trace, t(4, [10]).on("cpu"), t(2, [10]), false);
    trace.call("aten::nonzero(Tensor self) -> Tensor", args![t(1, [10])], args![t(5, [3])]);
    assert_eq!(report(&trace).synchronisations, first(4));
}

#[test]
fn compiled_regions_are_counted() {
    let mut trace = Trace::new();
    trace.note("Torch-Compiled Region: 0/0", |trace| {
        trace.note("CompiledFunction", |trace| {
            trace.note("## Call CompiledFxGraph abc ##", |trace| relu(trace, "cuda:0"));
        });
    });
    trace.note("CompiledFunctionBackward", |trace| {
        trace.note("## Call CompiledFxGraph def ##", |_| {});
    });
    let first = "Torch-Compiled Region: 0/0@2".to_owned();
    assert_eq!(report(&trace).compiled_regions, Some(Nodes { count: 2, first }));
    let mut trace = Trace::new();
    relu(&mut trace, "cuda:0");
    assert_eq!(report(&trace), Report::default());
}

#[test]
fn what_is_compiled_as_a_whole_has_no_ops() {
    let mut trace = Trace::new();
    trace.note("Torch-Compiled Region: 0/0", |_| {});
    let error = error(&trace, Device::Cuda);
    assert!(matches!(error, ImportError::Compiled(_)));
    assert_eq!(
        error.to_string(),
        "the trace has no ops: Torch-Compiled Region: 0/0@2 is compiled, and its kernels are not \
         in the trace"
    );
}

#[test]
fn a_trace_of_a_cpu_is_known() {
    let mut trace = Trace::new();
    relu(&mut trace, "cpu");
    assert!(import_with_report(&trace.json(Layout::Flat), None, Device::Cpu, "w").is_ok());
    let of_cpu = error(&trace, Device::Cuda);
    assert!(matches!(of_cpu, ImportError::OnlyCpu));
    assert_eq!(of_cpu.to_string(), "the trace has tensors only on the CPU");
    // Compiled, and on a CPU alone too.
    let mut trace = Trace::new();
    let inputs = args![t(1, [10]).on("cpu")];
    trace.note_of("Torch-Compiled Region: 0/0", inputs, args![]);
    assert!(matches!(error(&trace, Device::Cuda), ImportError::OnlyCpu));
    assert!(matches!(error(&trace, Device::Cpu), ImportError::Compiled(_)));
    // Nothing at all.
    let without: Vec<Argument> = args![json!(1)];
    let mut trace = Trace::new();
    trace.call(RELU, without.clone(), without);
    assert!(matches!(error(&trace, Device::Cuda), ImportError::Graph(_)));
    // Nothing but a view.
    let mut trace = Trace::new();
    let view = || args![t(1, [10]).on("cpu")];
    trace.call("aten::view(Tensor(a) self) -> Tensor(a)", view(), view());
    assert!(matches!(error(&trace, Device::Cpu), ImportError::Graph(_)));
    // Nothing on a CPU.
    let mut trace = Trace::new();
    relu(&mut trace, "cuda:0");
    assert!(matches!(error(&trace, Device::Cpu), ImportError::Graph(_)));
}
