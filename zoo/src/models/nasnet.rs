//! NASNet-A with more repeated cells.
//!
//! B. Zoph, V. Vasudevan, J. Shlens, Q. Le: Learning transferable architectures for scalable
//! image recognition, 2018 (figures 2 and 4); SwapAdvisor repeats the normal cells 3 x 25
//! times (Huang et al., 2020, section 6.1). ReLUs that come before a convolution are part of
//! its op.

use super::Model;
use super::layers::{Kernel, Window};
use super::optimizer::Optimizer;
use super::spec::{
    Arguments, BATCH, Domain, HOST_GB_S, HOST_TFLOPS, IMAGE, MEMORY_GB_S, MODE, Parameter, TFLOPS,
};
use super::tape::{FLOAT_BYTES, Tape, Value};

const REPEATS: Parameter = Parameter {
    name: "repeats",
    default: "6",
    domain: Domain::Count(1 << 8),
    about: "normal cells in a row",
};
const FILTERS: Parameter = Parameter {
    name: "filters",
    default: "168",
    domain: Domain::Count(1 << 12),
    about: "channels of the first normal cells; a multiple of 4",
};

/// NASNet-A, by default 6 @ 4032 on small images.
pub(super) const NASNET: Model = Model {
    name: "nasnet",
    about: "NASNet-A, convolutions fused with normalizations, plain SGD",
    parameters: &[
        BATCH,
        REPEATS,
        FILTERS,
        IMAGE,
        MODE,
        TFLOPS,
        MEMORY_GB_S,
        HOST_GB_S,
        HOST_TFLOPS,
    ],
    optimizer: Optimizer::Plain,
    check: |_| Ok(()),
    build: nasnet,
};

fn nasnet(arguments: &Arguments, tape: &mut Tape) {
    let [batch, repeats, filters, side] =
        [BATCH, REPEATS, FILTERS, IMAGE].map(|parameter| arguments.get(&parameter));
    let images = tape.input("images", [batch, 3, side, side], FLOAT_BYTES);
    let stem = tape.unit("stem", images, 96, Kernel::square(3, 2).valid().linear());
    let quarter = (filters / 4).max(1);
    let first = reduction(tape, "stem1", stem, stem, quarter);
    let second = reduction(tape, "stem2", first, stem, 2 * quarter);
    let (mut before, mut x) = (first, second);
    for stage in 0..3 {
        let filters = filters << stage;
        if stage > 0 {
            (before, x) = (x, reduction(tape, &format!("reduction{stage}"), x, before, filters));
        }
        for cell in 0..repeats {
            let name = format!("cell{stage}.{cell}");
            (before, x) = (x, normal(tape, &name, x, before, filters));
        }
    }
    let x = tape.global_average_pool("avgpool", x);
    let scores = tape.linear("fc", x, 1000);
    tape.learn_labels(scores);
}

/// The state of a cell. Both of its inputs have the same channels and the same size.
struct Cell<'t> {
    tape: &'t mut Tape,
    name: String,
    filters: u64,
}

impl Cell<'_> {
    fn new<'t>(
        tape: &'t mut Tape,
        name: &str,
        (x, before): (Value, Value),
        filters: u64,
    ) -> (Cell<'t>, Value, Value) {
        let shrinks = if before.shape[2] > x.shape[2] { 2 } else { 1 };
        let squeeze = |stride| Kernel::square(1, stride).linear();
        let h = tape.unit(&format!("{name}.x"), x, filters, squeeze(1));
        let p = tape.unit(&format!("{name}.before"), before, filters, squeeze(shrinks));
        (Cell { tape, name: name.to_owned(), filters }, h, p)
    }

    fn named(&self, part: &str) -> String {
        format!("{}.{part}", self.name)
    }

    /// Two separable convolutions, one after the other.
    fn separable(&mut self, part: &str, x: Value, side: u64, stride: u64) -> Value {
        let [first, second] = ["a", "b"].map(|end| format!("{}.{end}", self.named(part)));
        let kernel = Kernel::square(side, stride).separable();
        let y = self.tape.unit(&first, x, self.filters, kernel);
        let kernel = Kernel::square(side, 1).separable().linear();
        self.tape.unit(&second, y, self.filters, kernel)
    }

    fn mean(&mut self, part: &str, x: Value, stride: u64) -> Value {
        self.tape.average_pool(&self.named(part), x, Window::same(3, stride))
    }

    fn most(&mut self, part: &str, x: Value) -> Value {
        self.tape.max_pool(&self.named(part), x, Window::same(3, 2))
    }

    fn add(&mut self, part: &str, x: Value, y: Value) -> Value {
        self.tape.add(&self.named(part), x, y)
    }
}

fn normal(tape: &mut Tape, name: &str, x: Value, before: Value, filters: u64) -> Value {
    let (mut cell, h, p) = Cell::new(tape, name, (x, before), filters);
    let (one, other) = (cell.separable("1h", h, 5, 1), cell.separable("1p", p, 3, 1));
    let first = cell.add("1", one, other);
    let (one, other) = (cell.separable("2a", p, 5, 1), cell.separable("2b", p, 3, 1));
    let second = cell.add("2", one, other);
    let mean = cell.mean("3h", h, 1);
    let third = cell.add("3", mean, p);
    let (one, other) = (cell.mean("4a", p, 1), cell.mean("4b", p, 1));
    let fourth = cell.add("4", one, other);
    let one = cell.separable("5h", h, 3, 1);
    let fifth = cell.add("5", one, h);
    let parts = [p, first, second, third, fourth, fifth];
    tape.concatenate(&format!("{name}.cat"), &parts)
}

fn reduction(tape: &mut Tape, name: &str, x: Value, before: Value, filters: u64) -> Value {
    let (mut cell, h, p) = Cell::new(tape, name, (x, before), filters);
    let (one, other) = (cell.separable("1h", h, 5, 2), cell.separable("1p", p, 7, 2));
    let first = cell.add("1", one, other);
    let (one, other) = (cell.most("2h", h), cell.separable("2p", p, 7, 2));
    let second = cell.add("2", one, other);
    let (one, other) = (cell.mean("3h", h, 2), cell.separable("3p", p, 5, 2));
    let third = cell.add("3", one, other);
    let mean = cell.mean("4a", first, 1);
    let fourth = cell.add("4", mean, second);
    let (one, other) = (cell.separable("5a", first, 3, 1), cell.most("5h", h));
    let fifth = cell.add("5", one, other);
    tape.concatenate(&format!("{name}.cat"), &[second, third, fourth, fifth])
}
