//! Measured times, on traces written by hand.

use crate::recording::{Layout, Trace, args, t, times_ns};
use serde_json::{Value, json};
use workloads::OwnedGraph;
use zoo::pytorch::{Device, ImportError, KinetoReport, import_with_report};

/// Events of a Kineto trace in the making.
#[derive(Default)]
struct Events {
    events: Vec<Value>,
    launches: u64,
}

impl Events {
    /// An operator on a host thread, from and to a time in microseconds.
    fn operator(&mut self, name: &str, thread: u64, (from, to): (f64, f64)) {
        self.recorded(name, thread, (from, to), 0);
    }

    /// One that knows its number in the execution trace.
    fn recorded(&mut self, name: &str, thread: u64, (from, to): (f64, f64), record: u64) {
        self.events.push(json!({
            "ph": "X", "cat": "cpu_op", "name": name, "pid": 7, "tid": thread,
            "ts": from, "dur": to - from,
            "args": { "External id": 1, "Record function id": record },
        }));
    }

    /// Something of some microseconds on the device, launched at a time.
    fn kernel(&mut self, category: &str, thread: u64, at: f64, dur: f64) {
        self.launches += 1;
        let args = json!({ "correlation": self.launches, "stream": 7 });
        self.events.push(json!({
            "ph": "X", "cat": category, "name": "kernel", "pid": 0, "tid": 7,
            "ts": at + 3.0, "dur": dur, "args": args,
        }));
        self.events.push(json!({
            "ph": "X", "cat": "cuda_runtime", "name": "cudaLaunchKernel", "pid": 7,
            "tid": thread, "ts": at, "dur": 1, "args": args,
        }));
        self.events.push(json!({
            "ph": "s", "id": self.launches, "pid": 7, "tid": thread, "ts": at,
            "cat": "ac2g", "name": "ac2g",
        }));
    }

    fn json(&self) -> Vec<u8> {
        let mut events = self.events.clone();
        events.push(json!({
            "ph": "X", "cat": "Trace", "ts": 0, "dur": 9, "pid": "Spans",
            "tid": "PyTorch Profiler", "name": "PyTorch Profiler (0)", "args": { "Op count": 0 },
        }));
        let file = json!({ "schemaVersion": 1, "deviceProperties": [{}], "traceEvents": events });
        serde_json::to_vec(&file).unwrap()
    }
}

fn import(trace: &Trace, events: &Events) -> Result<(OwnedGraph, KinetoReport), ImportError> {
    let kineto = events.json();
    let of = |layout| {
        import_with_report(&trace.json(layout), Some(&kineto), Device::Cuda, "measured")
            .map(|(graph, report)| (graph, report.kineto.unwrap()))
    };
    assert_eq!(of(Layout::Flat).ok(), of(Layout::Nested).ok());
    of(Layout::Flat)
}

const RELU: &str = "aten::relu(Tensor self) -> Tensor";
const MUL: &str = "aten::mul(Tensor self, Tensor other) -> Tensor";

/// Nodes 2 to 5: `linear > relu` and `mul` on one thread, `relu` on another.
fn small() -> Trace {
    let mut trace = Trace::new();
    let linear = "aten::linear(Tensor self) -> Tensor";
    trace.calling(linear, args![t(1, [10])], args![t(2, [10])], |trace| {
        trace.call(RELU, args![t(1, [10])], args![t(2, [10])]);
    });
    trace.call(MUL, args![t(1, [10]), t(2, [10])], args![t(3, [10])]);
    trace.on_thread(2, |trace| trace.call(RELU, args![t(3, [10])], args![t(4, [10])]));
    trace
}

#[test]
fn kernels_go_to_the_op_around_their_launch() {
    let mut events = Events::default();
    events.recorded("aten::linear", 1, (10.0, 20.0), 502);
    events.recorded("aten::relu", 1, (12.0, 18.0), 503);
    events.recorded("aten::mul", 1, (30.0, 40.0), 504);
    events.recorded("aten::relu", 9, (12.0, 40.0), 505);
    events.recorded("aten::relu", 1, (50.0, 60.0), 999);
    events.recorded("aten::view", 1, (80.0, 90.0), 0);
    events.kernel("kernel", 1, 15.0, 2.5);
    // Not quite 1001 nanoseconds as a binary fraction.
    events.kernel("gpu_memset", 1, 16.0, 1.001);
    events.kernel("kernel", 9, 17.0, 4.0);
    // In `linear` alone, which is no op; in another step; outside of all; not recorded.
    events.kernel("kernel", 1, 19.0, 8.0);
    events.kernel("gpu_memcpy", 1, 55.0, 16.0);
    events.kernel("kernel", 1, 70.0, 32.0);
    events.kernel("kernel", 1, 85.0, 64.0);
    let (graph, report) = import(&small(), &events).unwrap();
    assert_eq!(times_ns(&graph), [3501, 0, 4000]);
    assert_eq!(report, KinetoReport { kernels: 4, kernels_with_op: 3, ops_with_kernel: 2 });
}

#[test]
fn a_launch_inside_something_that_is_no_op_counts_for_the_op_around_it() {
    let mut trace = Trace::new();
    trace.calling(RELU, args![t(1, [10])], args![t(2, [10])], |trace| {
        let view = "aten::view(Tensor(a) self) -> Tensor(a)";
        trace.call(view, args![t(1, [10])], args![t(1, [10])]);
    });
    let mut events = Events::default();
    events.recorded("aten::relu", 1, (10.0, 20.0), 502);
    events.recorded("aten::view", 1, (12.0, 18.0), 503);
    events.kernel("kernel", 1, 15.0, 2.0);
    assert_eq!(times_ns(&import(&trace, &events).unwrap().0), [2000]);
}

/// One step of [`small`] in a trace without numbers, its kernels of `dur` microseconds.
fn step(events: &mut Events, start: f64, dur: f64, whole: bool) {
    let span = |from, to| (start + from, start + to);
    // The outer one is listed later, and starts in the same microsecond.
    events.operator("aten::relu", 1, span(0.0, 8.0));
    events.operator("aten::linear", 1, span(0.0, 10.0));
    events.kernel("kernel", 1, start + 5.0, dur);
    events.operator("aten::mul", 1, span(20.0, 40.0));
    events.kernel("kernel", 1, start + 25.0, 2.0 * dur);
    if whole {
        events.operator("aten::relu", 9, span(30.0, 35.0));
        events.kernel("kernel", 9, start + 31.0, 4.0 * dur);
    }
}

#[test]
fn old_traces_match_by_name_in_the_last_complete_step() {
    let mut events = Events::default();
    step(&mut events, 1000.0, 1.0, true);
    step(&mut events, 2000.0, 2.0, true);
    step(&mut events, 3000.0, 3.0, false);
    let (graph, report) = import(&small(), &events).unwrap();
    assert_eq!(times_ns(&graph), [2000, 4000, 8000]);
    assert_eq!(report, KinetoReport { kernels: 3, kernels_with_op: 3, ops_with_kernel: 3 });

    let mut events = Events::default();
    step(&mut events, 1000.0, 1.0, false);
    assert!(matches!(import(&small(), &events), Err(ImportError::NoStepMatches)));
}

#[test]
fn traces_of_other_work_are_refused() {
    let mut events = Events::default();
    events.recorded("aten::relu", 1, (50.0, 60.0), 999);
    events.kernel("kernel", 1, 55.0, 2.5);
    let error = import(&small(), &events).unwrap_err();
    assert!(matches!(error, ImportError::NoKernelMatches));
    assert_eq!(
        error.to_string(),
        "no kernel of the Kineto trace was launched by an op of the execution trace"
    );
    assert!(matches!(import(&small(), &Events::default()), Err(ImportError::NoStepMatches)));
}

#[test]
fn no_more_than_64_threads_match_by_name() {
    for threads in [64, 65] {
        let (mut trace, mut events) = (Trace::new(), Events::default());
        for thread in 1..=threads {
            let relu = "aten::relu_(Tensor(a!) self) -> Tensor(a!)";
            trace.on_thread(thread, |trace| {
                trace.call(relu, args![t(thread, [8])], args![t(thread, [8])]);
            });
            events.operator("aten::relu_", thread, (thread as f64, 100.0));
        }
        events.kernel("kernel", 64, 70.0, 2.5);
        match import(&trace, &events) {
            Ok((graph, _)) => assert_eq!((threads, times_ns(&graph).iter().sum()), (64, 2500_u64)),
            Err(error) => {
                let expected = "the execution trace has operators on 65 threads, and without \
                                record ids in the Kineto trace at most 64 can be matched";
                assert_eq!(error.to_string(), expected);
            }
        }
    }
}

#[test]
fn a_foreach_is_split_by_bytes() {
    let mut trace = Trace::new();
    let add = "aten::_foreach_add_(Tensor(a!)[] self, Tensor[] other) -> ()";
    let lists = args![[t(1, [300]), t(2, [100])], [t(3, [300]), t(4, [100])]];
    trace.call(add, lists, args![]);
    let mut events = Events::default();
    events.recorded("aten::_foreach_add_", 1, (10.0, 20.0), 502);
    events.kernel("kernel", 1, 15.0, 0.5);
    events.kernel("kernel", 1, 16.0, 0.501);
    let (graph, report) = import(&trace, &events).unwrap();
    assert_eq!(times_ns(&graph), [1001 * 3 / 4, 1001 / 4]);
    assert_eq!(report, KinetoReport { kernels: 2, kernels_with_op: 2, ops_with_kernel: 2 });
}

#[test]
fn on_a_cpu_operators_take_the_time() {
    let of = |storage| t(storage, [10]).on("cpu");
    let mut trace = Trace::new();
    let addmm = "aten::addmm(Tensor self, Tensor mat1) -> Tensor";
    trace.calling(addmm, args![of(1), of(2)], args![of(3)], |trace| {
        trace.call("aten::expand(Tensor(a) self) -> Tensor(a)", args![of(1)], args![of(1)]);
        let copy = "aten::copy_(Tensor(a!) self, Tensor src) -> Tensor(a!)";
        trace.call(copy, args![of(3), of(1)], args![of(3)]);
    });
    trace.on_thread(2, |trace| trace.call(RELU, args![of(3)], args![of(4)]));
    let kineto = |record: u64, launches: bool| {
        let mut events = Events::default();
        let number = |id| if record == 0 { 0 } else { record + id };
        events.recorded("aten::addmm", 1, (10.0, 20.0), number(2));
        events.recorded("aten::expand", 1, (11.0, 13.0), number(3));
        events.recorded("aten::copy_", 1, (13.0, 17.5), number(4));
        // On another thread, at the same time.
        events.recorded("aten::relu", 2, (12.0, 40.25), number(5));
        if launches {
            events.kernel("kernel", 1, 14.0, 100.0);
        }
        events.json()
    };
    let import = |kineto: &[u8]| {
        let trace = trace.json(Layout::Nested);
        import_with_report(&trace, Some(kineto), Device::Cpu, "measured")
    };
    for (record, launches) in [(500, false), (500, true), (0, false)] {
        let (graph, report) = import(&kineto(record, launches)).unwrap();
        // The copy; the product with the view inside it; the rest.
        assert_eq!(times_ns(&graph), [4500, 5500, 28250]);
        let fit = KinetoReport { kernels: 4, kernels_with_op: 4, ops_with_kernel: 3 };
        assert_eq!(report.kineto, Some(fit));
    }
    assert!(matches!(import(&kineto(900, true)), Err(ImportError::NoStepMatches)));
}
