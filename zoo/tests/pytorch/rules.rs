//! What an import makes of each situation, on traces written by hand.

use crate::recording::operators::*;
use crate::recording::{Argument, Layout, Trace, args, ops, t, tensors, times_ns};
use serde_json::json;

#[test]
fn wrappers_views_and_annotations_give_nothing() {
    let mut trace = Trace::new();
    trace.note("## forward ##", |trace| {
        let linear = "aten::linear(Tensor input, Tensor weight, Tensor? bias=None) -> Tensor";
        let inputs = args![t(1, [5, 8]), t(2, [6, 8]), t(3, [6])];
        trace.calling(linear, inputs, args![t(4, [5, 6])], |trace| {
            let transpose = "aten::t(Tensor(a) self) -> Tensor(a)";
            trace.call(transpose, args![t(2, [6, 8])], args![t(2, [8, 6]).object(9)]);
            let addmm = "aten::addmm(Tensor self, Tensor mat1, Tensor mat2) -> Tensor";
            let inputs = args![t(3, [6]), t(1, [5, 8]), t(2, [8, 6])];
            trace.calling(addmm, inputs, args![t(4, [5, 6])], |trace| {
                trace.call(EMPTY, args![json!([64])], args![t(5, [64]).elements_of(1)]);
            });
        });
    });
    trace.note_of("ReluBackward0", args![t(77, [3])], args![]);
    trace.note_of("MyFunction", args![t(4, [5, 6])], args![t(78, [3])]);
    add_(&mut trace, 3, 4);
    let graph = trace.import();
    assert_eq!(ops(&graph), ["addmm: s3 s1 s2 -> s4 (64)", "add_: s3 s4 -> s3"]);
    let expected = ["s3 state 40", "s1 input 160", "s2 input 192", "s4 temporary 120"];
    assert_eq!(tensors(&graph), expected);
}

#[test]
fn a_storage_id_is_used_again() {
    let mut trace = Trace::new();
    relu(&mut trace, 1, 2);
    add_(&mut trace, 1, 2);
    relu(&mut trace, 1, 2);
    // Part of its own input: the same tensor.
    trace.call(VIEW, args![t(2, [10]), json!([5, 2])], args![t(2, [5, 2])]);
    trace.call(EMPTY, args![json!([20])], args![t(1, [20])]);
    trace.call(RELU_, args![t(1, [20])], args![t(1, [20])]);
    relu(&mut trace, 2, 3);
    let graph = trace.import();
    let expected = [
        "relu: s1 -> s2",
        "add_: s1 s2 -> s1",
        "relu: s1 -> s2#2",
        "relu_: -> s1#2",
        "relu: s2#2 -> s3",
    ];
    assert_eq!(ops(&graph), expected);
    assert_eq!(tensors(&graph)[3], "s1#2 temporary 80");
}

#[test]
fn resize_is_an_allocation_when_it_moves() {
    let mut trace = Trace::new();
    let resize = "aten::resize_(Tensor(a!) self, SymInt[] size) -> Tensor(a!)";
    relu(&mut trace, 1, 2);
    trace.call(resize, args![t(2, [10]), json!([4])], args![t(2, [4])]);
    relu(&mut trace, 2, 3);
    trace.call(resize, args![t(2, [0]), json!([4])], args![t(2, [4])]);
    trace.call(RELU_, args![t(2, [4])], args![t(2, [4])]);
    let expected = ["relu: s1 -> s2", "relu: s2 -> s3", "relu_: -> s2#2"];
    assert_eq!(ops(&trace.import()), expected);
}

#[test]
fn what_was_there_before_is_as_large_as_its_farthest_view() {
    let expand = "aten::expand(Tensor(a) self, SymInt[] size) -> Tensor(a)";
    let strided = "aten::as_strided(Tensor(a) self, SymInt[] size) -> Tensor(a)";
    let mut trace = Trace::new();
    relu(&mut trace, 1, 2);
    trace.call(VIEW, args![t(1, [10])], args![t(1, [3]).at(20)]);
    // What `expand` made claims 5000 elements, and so does a view of that.
    let wide = || t(1, [500, 10]).object(7);
    trace.calling(expand, args![t(1, [10])], args![wide()], |trace| {
        trace.call(strided, args![t(1, [10])], args![wide()]);
    });
    trace.call(VIEW, args![wide()], args![t(1, [5000]).object(8)]);
    trace.call(MUL, args![t(1, [5000]).object(8), t(2, [10])], args![t(3, [5000])]);
    // The same object number, for a tensor that is what it says.
    trace.call(MUL, args![t(2, [10]), t(2, [10])], args![t(4, [10]).object(7)]);
    trace.call(VIEW, args![t(4, [10]).object(7)], args![t(4, [50]).object(7)]);
    let graph = trace.import();
    assert_eq!(tensors(&graph)[0], "s1 state 92");
    assert_eq!(tensors(&graph)[3], "s4 temporary 40");
    assert_eq!(tensors(&graph)[2], "s3 temporary 20000");

    // Strides tell how far a view really reaches.
    let mut trace = Trace::new();
    let inputs = args![t(1, [3, 2]).strides(&[10, 1]), t(2, [3, 2]).strides(&[0, 1])];
    trace.call(MUL, inputs, args![t(3, [3, 2]).strides(&[2, 1])]);
    let nested = trace.json(Layout::Nested);
    let device = zoo::pytorch::Device::Cuda;
    let graph = zoo::pytorch::import(&nested, None, device, "strides").unwrap();
    assert_eq!(tensors(&graph), ["s1 state 88", "s2 state 8", "s3 temporary 24"]);

    // A copy into every other element leaves the rest.
    let mut trace = Trace::new();
    let every_other = || t(1, [10]).strides(&[2]);
    trace.call(COPY_, args![every_other(), t(2, [10])], args![every_other()]);
    let nested = trace.json(Layout::Nested);
    let graph = zoo::pytorch::import(&nested, None, device, "gaps").unwrap();
    assert_eq!(ops(&graph), ["copy_: s1 s2 -> s1"]);
}

#[test]
fn in_place_operators_read_and_copies_only_write() {
    let mut trace = Trace::new();
    add_(&mut trace, 1, 2);
    trace.call(COPY_, args![t(1, [10]), t(3, [10])], args![t(1, [10])]);
    trace.call(COPY_, args![t(1, [4]), t(3, [4])], args![t(1, [4])]);
    trace.call(MUL_OUT, args![t(2, [10]), t(3, [10]), t(1, [10])], args![t(1, [10])]);
    trace.call(MUL_OUT, args![t(2, [6]), t(3, [6]), t(1, [6]).at(4)], args![t(1, [6]).at(4)]);
    let expected = [
        "add_: s1 s2 -> s1",
        "copy_: s3 -> s1",
        "copy_: s1 s3 -> s1",
        "mul: s2 s3 -> s1",
        "mul: s2 s3 s1 -> s1",
    ];
    assert_eq!(ops(&trace.import()), expected);
}

#[test]
fn an_op_writes_what_no_op_inside_has_written() {
    let mut trace = Trace::new();
    let sum = "aten::sum(Tensor self) -> Tensor";
    // The inner one is given the result of the outer one.
    trace.calling(sum, args![t(1, [10])], args![t(2, [1])], |trace| {
        let out = "aten::sum.out(Tensor self, *, Tensor(a!) out) -> Tensor(a!)";
        trace.call(out, args![t(1, [10]), t(2, [1])], args![t(2, [1])]);
    });
    // Only one of two results comes from inside.
    let backward = "aten::two(Tensor self, Tensor other) -> (Tensor, Tensor)";
    let inputs = args![t(1, [10]), t(5, [10])];
    trace.calling(backward, inputs, args![t(3, [10]), t(4, [1])], |trace| {
        trace.call(EMPTY, args![json!([1])], args![t(4, [1])]);
        trace.call(sum, args![t(1, [10])], args![t(4, [1])]);
    });
    let expected = ["sum: s1 -> s2", "sum: s1 -> s4", "two: s1 s5 -> s3"];
    assert_eq!(ops(&trace.import()), expected);
    assert_eq!(trace.import().op_names[0], "sum@3");
}

#[test]
fn an_op_reads_what_nothing_inside_has_read() {
    let mut trace = Trace::new();
    // On a CPU, the bias is copied into the result, to which the product is added.
    let addmm = "aten::addmm(Tensor self, Tensor mat1, Tensor mat2) -> Tensor";
    let inputs = args![t(1, [6]), t(2, [5, 8]), t(3, [8, 6])];
    trace.calling(addmm, inputs, args![t(4, [5, 6])], |trace| {
        trace.call(EMPTY, args![json!([5, 6])], args![t(4, [5, 6])]);
        let expand = "aten::expand(Tensor(a) self, SymInt[] size) -> Tensor(a)";
        trace.call(expand, args![t(1, [6])], args![t(1, [5, 6]).object(9)]);
        let copied = args![t(4, [5, 6]), t(1, [5, 6]).object(9)];
        trace.call(COPY_, copied, args![t(4, [5, 6])]);
        let resolve_conj = "aten::resolve_conj(Tensor(a) self) -> Tensor(a)";
        trace.call(resolve_conj, args![t(2, [5, 8])], args![t(2, [5, 8])]);
    });
    // The same into memory that is given.
    let addmm_out = "aten::addmm.out(Tensor self, Tensor mat1, Tensor mat2, *, Tensor(a!) out) \
        -> Tensor(a!)";
    let inputs = args![t(1, [6]), t(2, [5, 8]), t(3, [8, 6]), t(4, [5, 6])];
    trace.calling(addmm_out, inputs, args![t(4, [5, 6])], |trace| {
        trace.call(COPY_, args![t(4, [5, 6]), t(1, [5, 6])], args![t(4, [5, 6])]);
    });
    // The mean of what the operator itself has made.
    let mse_loss = "aten::mse_loss(Tensor self, Tensor target) -> Tensor";
    trace.calling(mse_loss, args![t(4, [5, 6]), t(5, [5, 6])], args![t(6, [1])], |trace| {
        trace.call(EMPTY, args![json!([5, 6])], args![t(7, [5, 6])]);
        let mean = "aten::mean.out(Tensor self, *, Tensor(a!) out) -> Tensor(a!)";
        trace.call(mean, args![t(7, [5, 6]), t(6, [1])], args![t(6, [1])]);
    });
    let expected = [
        "copy_: s1 -> s4",
        "addmm: s1 s2 s3 s4 -> s4",
        "copy_: s1 -> s4",
        "addmm: s1 s2 s3 s4 -> s4",
        "mean: -> s6",
        "mse_loss: s4 s5 s6 -> s6",
    ];
    assert_eq!(ops(&trace.import()), expected);
}

#[test]
fn shapes_and_numbers_are_read_by_no_op() {
    let mut trace = Trace::new();
    let one = |storage| args![t(storage, [10])];
    let inside = |trace: &mut Trace, to| {
        trace.call(EMPTY, args![json!([10])], one(to));
        trace.call(COPY_, args![t(to, [10]), t(1, [10])], one(to));
    };
    let rand_like = "aten::rand_like(Tensor self) -> Tensor";
    trace.calling(rand_like, one(2), one(3), |trace| inside(trace, 3));
    let type_as = "aten::type_as(Tensor self, Tensor other) -> Tensor";
    trace.calling(type_as, args![t(1, [10]), t(2, [10])], one(4), |trace| inside(trace, 4));
    // What `item` reads is a number for the operators beside it.
    let fill = "aten::masked_fill(Tensor self, Tensor value) -> Tensor";
    trace.calling(fill, args![t(1, [10]), t(6, [1])], one(5), |trace| {
        let item = "aten::item(Tensor self) -> Scalar";
        trace.call(item, args![t(6, [1])], args![json!(0.5)]);
        inside(trace, 5);
    });
    let expected = ["copy_: s1 -> s3", "copy_: s1 -> s4", "copy_: s1 -> s5"];
    assert_eq!(ops(&trace.import()), expected);
}

#[test]
fn the_object_of_an_expanded_tensor_is_used_again() {
    let mut trace = Trace::new();
    let expand = "aten::expand(Tensor(a) self, SymInt[] size) -> Tensor(a)";
    trace.call(expand, args![t(1, [10])], args![t(1, [50, 10]).object(9)]);
    trace.call(RELU, args![t(2, [10]).object(9)], args![t(3, [10])]);
    assert_eq!(tensors(&trace.import()), ["s2 state 40", "s3 temporary 40"]);
}

#[test]
fn fills_inside_prepare_and_wrappers_only_fill() {
    let mut trace = Trace::new();
    let zeros = "aten::zeros(SymInt[] size, *, Device? device=None) -> Tensor";
    let ones_like = "aten::ones_like(Tensor self) -> Tensor";
    trace.calling(zeros, args![json!([10])], args![t(1, [10])], |trace| {
        trace.call(EMPTY, args![json!([10])], args![t(1, [10])]);
        zero_(trace, 1);
    });
    trace.calling(ones_like, args![t(1, [10])], args![t(2, [10])], |trace| {
        let empty_like = "aten::empty_like(Tensor self) -> Tensor";
        trace.calling(empty_like, args![t(1, [10])], args![t(2, [10])], |trace| {
            trace.call(EMPTY, args![json!([10])], args![t(2, [10])]);
        });
        trace.call(FILL_, args![t(2, [10]), json!(1)], args![t(2, [10])]);
    });
    let pool = "aten::max_pool2d_with_indices_backward(Tensor grad_output) -> Tensor";
    trace.calling(pool, args![t(1, [10])], args![t(3, [10])], |trace| zero_(trace, 3));
    let out = args![t(1, [10]), t(2, [10]), t(4, [10])];
    trace.calling(MUL_OUT, out, args![t(4, [10])], |trace| zero_(trace, 4));
    let expected = [
        "fill_: -> s1",
        "fill_: -> s2",
        "fill_: -> s3",
        "max_pool2d_with_indices_backward: s1 s3 -> s3",
        "fill_: -> s4",
        "mul: s1 s2 s4 -> s4",
    ];
    assert_eq!(ops(&trace.import()), expected);
}

#[test]
fn bookkeeping_gives_nothing() {
    let mut trace = Trace::new();
    relu(&mut trace, 1, 2);
    let one = || args![t(2, [10])];
    trace.call("aten::record_stream(Tensor(a!) self, Stream s) -> ()", one(), args![]);
    trace.call("aten::detach_(Tensor(a!) self) -> Tensor(a!)", one(), one());
    trace.call("aten::lift_fresh(Tensor(a) self) -> Tensor(a)", one(), one());
    trace.call("aten::set_(Tensor(a!) self) -> Tensor(a!)", one(), args![t(8, [10])]);
    let result_type = "aten::result_type.Scalar(Tensor tensor, Scalar other) -> ScalarType";
    trace.call(result_type, args![t(2, [10]), json!(2)], args![json!(6)]);
    // What `set_` points at was there already.
    relu(&mut trace, 8, 3);
    assert_eq!(ops(&trace.import()), ["relu: s1 -> s2", "relu: s8 -> s3"]);
}

#[test]
fn an_op_reads_what_is_left_inside_it() {
    let softmax = "aten::_softmax_backward_data(Tensor grad_output, Tensor output) -> Tensor";
    let inputs = || args![t(1, [10]), t(2, [10])];
    let mut trace = Trace::new();
    trace.calling(softmax, inputs(), args![t(4, [10])], |trace| {
        trace.call(MUL, inputs(), args![t(3, [10])]);
    });
    // Read inside already.
    trace.calling(softmax, inputs(), args![t(5, [10])], |trace| {
        trace.call(MUL, inputs(), args![t(3, [10])]);
        relu(trace, 3, 6);
        relu(trace, 6, 7);
    });
    let expected = [
        "mul: s1 s2 -> s3",
        "_softmax_backward_data: s1 s2 s3 -> s4",
        "mul: s1 s2 -> s3#2",
        "relu: s3#2 -> s6",
        "relu: s6 -> s7",
        "_softmax_backward_data: s1 s2 s7 -> s5",
    ];
    assert_eq!(ops(&trace.import()), expected);
}

#[test]
fn workspace_is_what_nothing_else_touches() {
    let mut trace = Trace::new();
    let op = "aten::work(Tensor self) -> Tensor";
    trace.call(EMPTY, args![json!([99])], args![t(9, [99])]);
    trace.calling(op, args![t(1, [10])], args![t(2, [10])], |trace| {
        trace.call(EMPTY, args![json!([8])], args![t(5, [8])]);
        let new_empty = "aten::new_empty(Tensor self, SymInt[] size) -> Tensor";
        trace.calling(new_empty, args![t(1, [10])], args![t(6, [3])], |trace| {
            trace.call(EMPTY, args![json!([3])], args![t(6, [3])]);
        });
        trace.call(EMPTY, args![json!([0])], args![t(7, [0])]);
        trace.call(EMPTY, args![json!([10])], args![t(2, [10])]);
        // What `clone` is about to return is not memory beside what it allocates for that.
        let clone = "aten::clone(Tensor self) -> Tensor";
        trace.calling(clone, args![t(1, [10])], args![t(7, [10])], |trace| {
            trace.call(EMPTY, args![json!([10])], args![t(7, [10])]);
            trace.call(COPY_, args![t(7, [10]), t(1, [10])], args![t(7, [10])]);
        });
    });
    // An allocation that a later op is given is none; reading it reads nothing.
    trace.calling(op, args![t(1, [10])], args![t(3, [10])], |trace| {
        trace.call(EMPTY, args![json!([10])], args![t(8, [10])]);
    });
    trace.call(MUL, args![t(3, [10]), t(8, [10])], args![t(4, [10])]);
    let expected = ["copy_: s1 -> s7", "work: s1 s7 -> s2 (44)", "work: s1 -> s3", "mul: s3 -> s4"];
    assert_eq!(ops(&trace.import()), expected);
}

#[test]
fn an_allocation_that_nobody_wrote_is_what_its_storage_holds() {
    let mut trace = Trace::new();
    trace.call(EMPTY, args![json!([20])], args![t(2, [20])]);
    relu(&mut trace, 1, 2);
    relu(&mut trace, 1, 2);
    let expected = ["s1 state 40", "s2 temporary 80", "s2#2 temporary 40"];
    assert_eq!(tensors(&trace.import()), expected);
}

#[test]
fn running_statistics_are_written_in_training() {
    let norm = "aten::cudnn_batch_norm(Tensor input, Tensor weight, Tensor? bias, \
        Tensor? running_mean, Tensor? running_var, bool training, float eps) -> (Tensor, Tensor)";
    let outer = norm.replace("cudnn_batch_norm", "batch_norm");
    let of = |training: bool| {
        let mut trace = Trace::new();
        let inputs = || {
            let statistics = [t(4, [10]), t(5, [10])].map(Argument::from);
            let mut inputs = args![t(1, [100]), t(2, [10]), json!("<None>")];
            inputs.extend(statistics);
            inputs.extend(args![json!(training), json!(1e-5)]);
            inputs
        };
        trace.calling(&outer, inputs(), args![t(6, [100])], |trace| {
            trace.calling(norm, inputs(), args![t(6, [100]), t(7, [10])], |trace| {
                trace.call(EMPTY, args![json!([100])], args![t(6, [100])]);
                trace.call(VIEW, args![t(2, [10])], args![t(2, [10])]);
                trace.call(EMPTY, args![json!([10])], args![t(7, [10])]);
            });
        });
        ops(&trace.import())
    };
    assert_eq!(of(true), ["cudnn_batch_norm: s1 s2 s4 s5 -> s4 s5 s6 s7"]);
    assert_eq!(of(false), ["cudnn_batch_norm: s1 s2 s4 s5 -> s6 s7"]);
}

#[test]
fn foreach_is_an_op_per_position() {
    let add = "aten::_foreach_add_.List(Tensor(a!)[] self, Tensor[] other) -> ()";
    let norm = "aten::_foreach_norm(Tensor[] self) -> Tensor[]";
    let lists = || args![[t(1, [2000]), t(2, [10])], [t(3, [2000]), t(4, [10])]];
    let mut trace = Trace::new();
    trace.call(add, lists(), args![]);
    trace.call(norm, args![[t(1, [2000]), t(2, [10])]], args![[t(5, [1]), t(6, [1])]]);
    // The slow path: an operator for each position has done it already.
    trace.calling(add, lists(), args![], |trace| add_(trace, 2, 4));
    trace.calling(add, lists(), args![], |trace| {
        trace.call(EMPTY, args![json!([4])], args![t(9, [4])]);
    });
    let graph = trace.import();
    let expected = [
        "_foreach_add_.0: s1 s3 -> s1",
        "_foreach_add_.1: s2 s4 -> s2",
        "_foreach_norm.0: s1 -> s5",
        "_foreach_norm.1: s2 -> s6",
        "add_: s2 s4 -> s2",
        "_foreach_add_.0: s1 s3 -> s1",
        "_foreach_add_.0: s1 s3 -> s1 (16)",
        "_foreach_add_.1: s2 s4 -> s2",
    ];
    assert_eq!(ops(&graph), expected);
    // 24000 bytes at 800 a nanosecond, and 1; the launch once.
    assert_eq!(times_ns(&graph), [5031, 1, 5011, 1, 5000, 5031, 5031, 1]);
}

#[test]
fn a_fused_optimizer_is_an_op_per_parameter() {
    let adamw = "aten::_fused_adamw_(Tensor(a!)[] self, Tensor(b!)[] grads, Tensor(c!)[] exp_avgs, \
        Tensor(d!)[] max_exp_avg_sqs, Tensor[] state_steps, *, float lr, Tensor? found_inf) -> ()";
    let list = |at| [t(at, [2000]), t(at + 1, [10])];
    let steps = [t(7, [1]), t(8, [1])];
    let mut trace = Trace::new();
    let inputs = args![list(1), list(3), list(5), [], steps, json!(0.1), t(9, [1])];
    trace.call(adamw, inputs, args![]);
    // Not on lists of tensors.
    let norm = "aten::_fused_rms_norm(Tensor input, int[] normalized_shape, Tensor weight) \
        -> (Tensor, Tensor)";
    let inputs = args![t(1, [20, 100]), json!([20, 100]), t(2, [10])];
    trace.call(norm, inputs, args![t(10, [2000]), t(11, [20])]);
    let graph = trace.import();
    let expected = [
        "_fused_adamw_.0: s1 s3 s5 s7 s9 -> s1 s3 s5",
        "_fused_adamw_.1: s2 s4 s6 s8 s9 -> s2 s4 s6",
        "_fused_rms_norm: s1 s2 -> s10 s11",
    ];
    assert_eq!(ops(&graph), expected);
}

#[test]
fn collectives_are_one_op() {
    let reduce = "c10d::allreduce_(Tensor[] tensors, int timeout) -> (Tensor[], Work)";
    let exchange = "c10d::alltoall_base_(Tensor output, Tensor input, int timeout) -> Work";
    let mut trace = Trace::new();
    relu(&mut trace, 1, 2);
    let lists = || args![[t(2, [10]), t(3, [10])], json!(-1)];
    trace.calling(reduce, lists(), args![[t(2, [10]), t(3, [10])]], |trace| {
        trace.note_of("nccl:all_reduce", args![t(2, [10])], args![]);
        add_(trace, 2, 3);
    });
    trace.call(exchange, args![t(4, [10]), t(2, [10]), json!(-1)], args![]);
    trace.call(exchange, args![t(4, [5]), t(2, [10]), json!(-1)], args![]);
    // A barrier is given memory that nobody wrote.
    trace.call(EMPTY, args![json!([1])], args![t(5, [1])]);
    trace.call("c10d::barrier(Tensor tensor) -> Work", args![t(5, [1])], args![]);
    let graph = trace.import();
    let expected = [
        "relu: s1 -> s2",
        "allreduce_: s2 s3 -> s2 s3",
        "alltoall_base_: s2 -> s4",
        "alltoall_base_: s4 s2 -> s4",
    ];
    assert_eq!(ops(&graph), expected);
}

#[test]
fn the_last_step_that_another_follows() {
    let mut trace = Trace::new();
    for step in 4..7 {
        trace.note(&format!("ProfilerStep#{step}"), |trace| {
            relu(trace, 1, step);
            // The backward pass runs on a thread of its own.
            trace.on_thread(2, |trace| add_(trace, 1, step));
        });
    }
    assert_eq!(ops(&trace.import()), ["relu: s1 -> s5", "add_: s1 s5 -> s1"]);
    let (_, report) = zoo::pytorch::import_with_report(
        &trace.json(Layout::Flat),
        None,
        zoo::pytorch::Device::Cuda,
        "steps",
    )
    .unwrap();
    assert_eq!(report.step.as_deref(), Some("ProfilerStep#5"));

    let mut trace = Trace::new();
    relu(&mut trace, 1, 2);
    trace.note("ProfilerStep#1", |trace| relu(trace, 2, 3));
    assert_eq!(ops(&trace.import()), ["relu: s1 -> s2", "relu: s2 -> s3"]);
}

#[test]
fn only_tensors_of_the_device_exist() {
    let mut trace = Trace::new();
    trace.call(MUL, args![t(1, [10]), t(2, [1]).on("cpu")], args![t(3, [10])]);
    trace.call(MUL, args![t(2, [1]).on("cpu"), t(4, [1]).on("cpu")], args![t(5, [1]).on("cpu")]);
    trace.call(MUL, args![t(1, [10]), t(6, [0])], args![t(7, [10]).on("cuda:1")]);
    assert_eq!(ops(&trace.import()), ["mul: s1 -> s3", "mul: s1 -> s7"]);
    let device = zoo::pytorch::Device::Cpu;
    let json = trace.json(Layout::Nested);
    let graph = zoo::pytorch::import(&json, None, device, "cpu").unwrap();
    assert_eq!(ops(&graph), ["mul: s2 s4 -> s5"]);
}

#[test]
fn estimated_times() {
    let mut trace = Trace::new();
    let big = |storage| t(storage, [1000, 2000]);
    // 2 * 1000 * 2000 * 3000 flops at 14000 a nanosecond.
    let mm = "aten::mm(Tensor self, Tensor mat2) -> Tensor";
    trace.call(mm, args![big(1), t(2, [2000, 3000])], args![t(3, [1000, 3000])]);
    let addmm = "aten::addmm(Tensor self, Tensor mat1, Tensor mat2) -> Tensor";
    trace.call(addmm, args![t(4, [3000]), big(1), t(2, [2000, 3000])], args![t(3, [1000, 3000])]);
    let bmm = "aten::bmm(Tensor self, Tensor mat2) -> Tensor";
    let batch = args![t(5, [7, 100, 200]), t(6, [7, 200, 300])];
    trace.call(bmm, batch, args![t(7, [7, 100, 300])]);
    // 2 * 64000 results * 3 * 3 * 16 weights a result.
    let conv = "aten::cudnn_convolution(Tensor self, Tensor weight, int groups) -> Tensor";
    let (image, weight) = (|| t(8, [1, 16, 40, 50]), || t(9, [32, 16, 3, 3]));
    trace.call(conv, args![image(), weight(), json!(1)], args![t(10, [1, 32, 40, 50])]);
    let back = "aten::convolution_backward(Tensor grad_output, Tensor input, Tensor weight, \
        bool[3] output_mask) -> (Tensor, Tensor, Tensor)";
    let inputs = args![t(10, [1, 32, 40, 50]), image(), weight(), json!([true, true, false])];
    trace.call(back, inputs, args![t(11, [1, 16, 40, 50]), t(12, [32, 16, 3, 3])]);
    // 8 MB read and written, and 8 MB only written: 800 bytes a nanosecond.
    trace.call(RELU_, args![big(1)], args![big(1)]);
    trace.call(COPY_, args![big(1), t(4, [1])], args![big(1)]);
    // There is nothing to read yet.
    trace.call(EMPTY, args![json!([2_000_000])], args![big(16)]);
    trace.call(RELU_, args![big(16)], args![big(16)]);
    // A lookup of two rows.
    let embedding = "aten::embedding(Tensor weight, Tensor indices) -> Tensor";
    let inputs = || args![big(13), t(14, [2]).elements_of(8)];
    trace.calling(embedding, inputs(), args![t(15, [2, 2000])], |trace| {
        let select = "aten::index_select(Tensor self, int dim, Tensor index) -> Tensor";
        let inputs = args![big(13), json!(0), t(14, [2]).elements_of(8)];
        trace.call(select, inputs, args![t(15, [2, 2000])]);
    });
    let expected = [
        5000 + 12_000_000_000 / 14_000,
        5000 + 12_000_000_000 / 14_000,
        5000 + 84_000_000 / 14_000,
        5000 + 2 * 64_000 * 144 / 14_000,
        5000 + 2 * 2 * 64_000 * 144 / 14_000,
        5000 + 16_000_000 / 800,
        5000 + 8_000_004 / 800,
        5000 + 8_000_000 / 800,
        5000 + 32_000 / 800,
    ];
    assert_eq!(times_ns(&trace.import()), expected);
}

/// The ops that may run again.
fn repeatable(trace: &Trace) -> Vec<String> {
    let graph = trace.import();
    let ops = graph.ops.iter().zip(&graph.op_names);
    let repeatable = ops.filter(|(op, _)| op.repeatable);
    repeatable.filter_map(|(_, name)| name.split('@').next()).map(str::to_owned).collect()
}

#[test]
fn ops_that_draw_numbers_or_exchange_data_do_not_run_again() {
    let unary = |trace: &mut Trace, schema: &str, to: u64| {
        trace.call(schema, args![t(1, [10])], args![t(to, [10])]);
    };
    let mut trace = Trace::new();
    relu(&mut trace, 1, 2);
    for (at, schema) in (10..).zip([
        "aten::native_dropout(Tensor input, float p, bool? train) -> (Tensor, Tensor)",
        "aten::rand_like(Tensor self) -> Tensor",
        "aten::sample(Tensor self, *, Generator? generator=None) -> Tensor",
        "aten::attention(Tensor query, float dropout_p=0.0) -> Tensor",
        "mine::relu(Tensor self) -> Tensor",
        "c10d::scatter(Tensor self) -> Tensor",
        "nccl::all_reduce(Tensor self) -> Tensor",
        // The kept elements are given.
        "aten::native_dropout_backward(Tensor grad, Tensor mask, float scale) -> Tensor",
    ]) {
        unary(&mut trace, schema, at);
    }
    let bernoulli_ = "aten::bernoulli_(Tensor(a!) self, float p) -> Tensor(a!)";
    trace.call(bernoulli_, args![t(2, [10]), json!(0.5)], args![t(2, [10])]);
    trace.call(RELU_, args![t(2, [10])], args![t(2, [10])]);
    assert_eq!(repeatable(&trace), ["relu", "native_dropout_backward", "relu_"]);
}

#[test]
fn a_copy_from_elsewhere_does_not_run_again() {
    let mut trace = Trace::new();
    for (to, from) in [(2, t(1, [10]).on("cpu")), (3, t(2, [10]))] {
        trace.call(EMPTY, args![json!([10])], args![t(to, [10])]);
        trace.call(COPY_, args![t(to, [10]), from], args![t(to, [10])]);
    }
    assert_eq!(ops(&trace.import()), ["copy_: -> s2", "copy_: s2 -> s3"]);
    let marks: Vec<_> = trace.import().ops.iter().map(|op| op.repeatable).collect();
    assert_eq!(marks, [false, true]);
}

#[test]
fn of_ops_that_update_states_only_batch_norms_run_again() {
    let mut trace = Trace::new();
    for (at, name) in (5..).zip(["native_batch_norm", "observe"]) {
        let schema =
            format!("aten::{name}(Tensor input, Tensor(a!) running_mean, bool training) -> Tensor");
        let inputs = args![t(1, [10]), t(2, [4]), json!(true)];
        trace.call(&schema, inputs, args![t(at, [10])]);
    }
    add_(&mut trace, 2, 3);
    let graph = trace.import();
    let expected =
        ["native_batch_norm: s1 s2 -> s2 s5", "observe: s1 s2 -> s2 s6", "add_: s2 s3 -> s2"];
    assert_eq!(ops(&graph), expected);
    assert_eq!(repeatable(&trace), ["native_batch_norm"]);
}
