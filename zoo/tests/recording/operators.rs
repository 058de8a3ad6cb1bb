//! Operators of PyTorch, and calls of them on tensors of ten elements.

use super::{Trace, args, t};
use serde_json::json;

pub(crate) const ADD_: &str =
    "aten::add_.Tensor(Tensor(a!) self, Tensor other, *, Scalar alpha=1) -> Tensor(a!)";
pub(crate) const COPY_: &str =
    "aten::copy_(Tensor(a!) self, Tensor src, bool non_blocking=False) -> Tensor(a!)";
pub(crate) const EMPTY: &str =
    "aten::empty.memory_format(SymInt[] size, *, Device? device=None) -> Tensor";
pub(crate) const FILL_: &str = "aten::fill_.Scalar(Tensor(a!) self, Scalar value) -> Tensor(a!)";
pub(crate) const MUL: &str = "aten::mul.Tensor(Tensor self, Tensor other) -> Tensor";
pub(crate) const MUL_OUT: &str =
    "aten::mul.out(Tensor self, Tensor other, *, Tensor(a!) out) -> Tensor(a!)";
pub(crate) const RELU: &str = "aten::relu(Tensor self) -> Tensor";
pub(crate) const RELU_: &str = "aten::relu_(Tensor(a!) self) -> Tensor(a!)";
pub(crate) const VIEW: &str = "aten::view(Tensor(a) self, SymInt[] size) -> Tensor(a)";
pub(crate) const ZERO_: &str = "aten::zero_(Tensor(a!) self) -> Tensor(a!)";

/// `relu` of one tensor into another.
pub(crate) fn relu(trace: &mut Trace, from: u64, to: u64) {
    trace.call(RELU, args![t(from, [10])], args![t(to, [10])]);
}

pub(crate) fn add_(trace: &mut Trace, to: u64, other: u64) {
    trace.call(ADD_, args![t(to, [10]), t(other, [10]), json!(1)], args![t(to, [10])]);
}

pub(crate) fn zero_(trace: &mut Trace, tensor: u64) {
    let of = || args![t(tensor, [10])];
    trace.calling(ZERO_, of(), of(), |trace| {
        trace.call(FILL_, args![t(tensor, [10]), json!(0)], of());
    });
}
