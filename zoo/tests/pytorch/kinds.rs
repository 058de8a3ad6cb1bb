//! Which tensors are states, inputs and temporaries, on traces written by hand.

use crate::recording::operators::*;
use crate::recording::{Layout, Trace, args, ops, t, tensors};
use serde_json::json;

#[test]
fn kinds_of_what_was_there_before() {
    let mut trace = Trace::new();
    // Zeroed gradient: overwritten before it is read.
    zero_(&mut trace, 1);
    add_(&mut trace, 1, 2);
    // A bucket: filled piece by piece, then read.
    trace.call(MUL_OUT, args![t(2, [6]), t(2, [6]), t(3, [6])], args![t(3, [6])]);
    trace.call(MUL_OUT, args![t(2, [4]), t(2, [4]), t(3, [4]).at(6)], args![t(3, [4]).at(6)]);
    relu(&mut trace, 3, 4);
    // Read before it is full.
    trace.call(COPY_, args![t(5, [6]), t(2, [6])], args![t(5, [6])]);
    trace.call(RELU, args![t(5, [6])], args![t(6, [6])]);
    trace.call(COPY_, args![t(5, [4]).at(6), t(2, [4])], args![t(5, [4]).at(6)]);
    // Masks are no inputs.
    trace.call(MUL, args![t(2, [10]), t(7, [10]).elements_of(1)], args![t(8, [10])]);
    add_(&mut trace, 9, 8);
    // One-byte elements once, but not always.
    trace.call(VIEW, args![t(10, [40]).elements_of(1)], args![t(10, [40]).elements_of(1)]);
    relu(&mut trace, 10, 11);
    let graph = trace.import();
    let expected = [
        "s1 temporary 40",
        "s2 input 40",
        "s3 temporary 40",
        "s4 temporary 40",
        "s5 state 40",
        "s6 temporary 24",
        "s7 state 10",
        "s8 temporary 40",
        "s9 state 40",
        "s10 input 40",
        "s11 temporary 40",
    ];
    assert_eq!(tensors(&graph), expected);
    let of_bucket = ["mul: s2 -> s3", "mul: s2 s3 -> s3", "relu: s3 -> s4"];
    assert_eq!(ops(&graph)[2..5], of_bucket);
}

#[test]
fn without_training_everything_from_before_is_state() {
    let mut trace = Trace::new();
    trace.call(MUL, args![t(1, [10]), t(2, [10])], args![t(3, [10])]);
    let expected = ["s1 state 40", "s2 state 40", "s3 temporary 40"];
    assert_eq!(tensors(&trace.import()), expected);
}

#[test]
fn what_several_steps_read_and_none_writes_is_state() {
    let kinds_of = |steps: std::ops::Range<u64>| {
        let mut trace = Trace::new();
        // What is read before the first step says nothing.
        relu(&mut trace, 18, 20);
        for step in steps {
            trace.note(&format!("ProfilerStep#{step}"), |trace| {
                // A frozen weight, and a weight that is trained.
                trace.call(MUL, args![t(1, [10]), t(2, [10])], args![t(3, [10])]);
                add_(trace, 2, 3);
                // Each step but the window has read another batch here.
                if step != 2 {
                    trace.call(EMPTY, args![json!([10])], args![t(4, [10])]);
                    relu(trace, 3, 4);
                    // Changed between the steps.
                    add_(trace, 5, 3);
                }
                relu(trace, 4, 7);
                relu(trace, 5, 8);
                // Read in each step, and allocated anew in this one, or read in this one alone.
                relu(trace, 17, 9);
                if step == 2 {
                    trace.call(EMPTY, args![json!([10])], args![t(17, [10])]);
                    relu(trace, 3, 17);
                    relu(trace, 18, 9);
                }
                // A benchmark's only batch.
                let linear = "aten::linear(Tensor input, Tensor weight) -> Tensor";
                trace.call(linear, args![t(15, [10]), t(1, [10])], args![t(16, [10])]);
                // A batch of this step alone, at an address that is used again.
                relu(trace, 10 + step, 9);
                trace.call(MUL, args![t(6, [10]), t(3, [10])], args![t(13, [10])]);
                trace.call(EMPTY, args![json!([10])], args![t(6, [10])]);
                relu(trace, 3, 6);
            });
        }
        let graph = trace.import();
        let inputs = tensors(&graph).into_iter().filter(|line| line.contains("input"));
        inputs.map(|line| line.split(' ').next().unwrap().to_owned()).collect::<Vec<_>>()
    };
    assert_eq!(kinds_of(2..4), ["s4", "s5", "s17", "s18", "s15", "s12", "s6"]);
    assert_eq!(kinds_of(1..4), ["s4", "s5", "s17", "s18", "s15", "s12", "s6"]);
    // Nothing follows: one step is all there is.
    assert_eq!(kinds_of(2..3), ["s18", "s1", "s4", "s5", "s17", "s15", "s12", "s6"]);
}

#[test]
fn numbers_on_a_cpu_are_states() {
    let number = || t(2, [1]).elements_of(8).on("cpu");
    let batch = |storage| t(storage, [10]).on("cpu");
    let mut trace = Trace::new();
    trace.call(MUL, args![batch(1), number()], args![batch(3)]);
    trace.call(ADD_, args![batch(4), batch(3), json!(1)], args![batch(4)]);
    let device = zoo::pytorch::Device::Cpu;
    let json = trace.json(Layout::Nested);
    let graph = zoo::pytorch::import(&json, None, device, "numbers").unwrap();
    assert_eq!(tensors(&graph), ["s1 input 40", "s2 state 8", "s3 temporary 40", "s4 state 40"]);
}

#[test]
fn optimizer_state_is_born_as_state() {
    let zeros_like = "aten::zeros_like(Tensor self) -> Tensor";
    let birth = |trace: &mut Trace, storage| {
        trace.calling(zeros_like, args![t(1, [10])], args![t(storage, [10])], |trace| {
            trace.call(EMPTY, args![json!([10])], args![t(storage, [10])]);
            zero_(trace, storage);
        });
    };
    let mut trace = Trace::new();
    birth(&mut trace, 2);
    add_(&mut trace, 1, 2);
    trace.note("Optimizer.step#Adam.step", |trace| {
        birth(trace, 3);
        add_(trace, 3, 1);
    });
    let graph = trace.import();
    assert_eq!(ops(&graph), ["fill_: -> s2", "add_: s1 s2 -> s1", "add_: s3 s1 -> s3"]);
    assert_eq!(tensors(&graph), ["s2 temporary 40", "s1 state 40", "s3 state 40"]);
}
