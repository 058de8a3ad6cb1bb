//! A search for ops and tensors by name. The page holds each name once. Drawn elements refer to names by
//! number, ops first, then tensors.

use crate::proof::Proved;
use planner_core::{Launched, OpId, Step, TensorId};
use std::collections::BTreeSet;
use std::fmt;
use workloads::{Shown, format};

const SCRIPT: &str = include_str!("search.js");

/// The numbers of the ops and tensors of a drawn element.
#[derive(Debug)]
pub(super) struct Numbers(BTreeSet<usize>);

impl Numbers {
    pub(super) fn of_op(op: OpId) -> Self {
        Self([op.index()].into())
    }

    pub(super) fn of_tensor(proved: &Proved<'_>, tensor: TensorId) -> Self {
        Self([proved.work.op_names.len() + tensor.index()].into())
    }

    /// Returns the numbers of the step at a list position. A launch has all tensors that it reads or writes.
    pub(super) fn of_step(proved: &Proved<'_>, step: usize) -> Self {
        match proved.verified.plan().steps[step] {
            Step::Prefetch(part) | Step::Offload(part) | Step::Evict(part) => {
                Self::of_tensor(proved, part.tensor)
            }
            Step::Host(op) => Self::of_launch(proved, Launched::first(op)),
            Step::Launch(launched) => Self::of_launch(proved, launched),
        }
    }

    fn of_launch(proved: &Proved<'_>, launched: Launched) -> Self {
        let mut numbers = Self::of_op(launched.op);
        for tensor in proved.verified.graph().operands_by(launched) {
            numbers.extend(Self::of_tensor(proved, tensor));
        }
        numbers
    }

    pub(super) fn extend(&mut self, others: Self) {
        self.0.extend(others.0);
    }
}

/// Writes the numbers separated by spaces.
impl fmt::Display for Numbers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (at, number) in self.0.iter().enumerate() {
            let space = if at == 0 { "" } else { " " };
            write!(f, "{space}{number}")?;
        }
        Ok(())
    }
}

/// The search field. It stays hidden without scripts.
pub(super) const FIELD: &str = "<p id=\"search\" hidden=\"\"><label>Find an op or a tensor \
    <input id=\"find\" type=\"search\" autocomplete=\"off\"/></label> \
    <output id=\"found\"></output></p>\n";

/// The names and the script. Escapes the names, so that no name can end its element.
pub(super) fn script(proved: &Proved<'_>) -> String {
    let names = proved.work.op_names.iter().chain(&proved.work.tensor_names);
    let names: Vec<_> = names.map(|name| Shown::name(name).to_string()).collect();
    let names = String::from_utf8_lossy(&format::render(&names))
        .replace('<', "\\u003c")
        .replace('>', "\\u003e")
        .replace('&', "\\u0026");
    format!(
        "<script id=\"names\" type=\"application/json\">{names}</script>\n\
         <script>\n{SCRIPT}</script>\n"
    )
}
