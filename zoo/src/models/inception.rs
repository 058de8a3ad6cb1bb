//! Inception-v4 with wider convolutions.
//!
//! C. Szegedy, S. Ioffe, V. Vanhoucke, A. Alemi: Inception-v4, Inception-ResNet and the impact of residual
//! connections on learning, 2016 (figures 3 to 9); widened as in SwapAdvisor (Huang et al., 2020, section
//! 6.1).

use super::Model;
use super::layers::{Kernel, Window};
use super::optimizer::Optimizer;
use super::spec::{
    Arguments, BATCH, HOST_GB_S, HOST_TFLOPS, IMAGE, MEMORY_GB_S, MODE, Parameter, TFLOPS,
};
use super::tape::{FLOAT_BYTES, Tape, Value};
use super::wide_resnet::WIDEN;

const SIDE: Parameter = Parameter { default: "299", ..IMAGE };

/// Inception-v4, in which copies concatenate all branches.
pub(super) const INCEPTION4: Model = Model {
    name: "inception4",
    about: "Inception-v4, widened, convolutions fused with normalizations, plain SGD",
    parameters: &[BATCH, WIDEN, SIDE, MODE, TFLOPS, MEMORY_GB_S, HOST_GB_S, HOST_TFLOPS],
    optimizer: Optimizer::Plain,
    check: |_| Ok(()),
    build: inception,
};

/// A branch: channels and kernel of each convolution.
type Branch<'b> = &'b [(u64, Kernel)];

const ONE: Kernel = Kernel::square(1, 1);
const THREE: Kernel = Kernel::square(3, 1);
const HALVING: Kernel = Kernel::square(3, 2).valid();
const HALVING_POOL: Window = Window::padded(3, 2, 0);

struct Network<'t> {
    tape: &'t mut Tape,
    widen: u64,
}

fn inception(arguments: &Arguments, tape: &mut Tape) {
    let [batch, widen, side] = [BATCH, WIDEN, SIDE].map(|parameter| arguments.get(&parameter));
    let images = tape.input("images", [batch, 3, side, side], FLOAT_BYTES);
    let mut network = Network { tape, widen };
    let mut x = network.stem(images);
    for cell in 0..4 {
        x = network.a(&format!("a{cell}"), x);
    }
    x = network.reduce(
        "reduction_a",
        x,
        &[&[(384, HALVING)], &[(192, ONE), (224, THREE), (256, HALVING)]],
    );
    for cell in 0..7 {
        x = network.b(&format!("b{cell}"), x);
    }
    let long = [(256, ONE), (256, row(7)), (320, column(7)), (320, HALVING)];
    x = network.reduce("reduction_b", x, &[&[(192, ONE), (192, HALVING)], &long]);
    for cell in 0..3 {
        x = network.c(&format!("c{cell}"), x);
    }
    let x = tape.global_average_pool("avgpool", x);
    let scores = tape.linear("fc", x, 1000);
    tape.learn_labels(scores);
}

const fn row(width: u64) -> Kernel {
    Kernel::rectangle(1, width)
}

const fn column(height: u64) -> Kernel {
    Kernel::rectangle(height, 1)
}

impl Network<'_> {
    fn branch(&mut self, name: &str, x: Value, convolutions: Branch<'_>) -> Value {
        (0..).zip(convolutions).fold(x, |x, (number, &(channels, kernel))| {
            self.tape.unit(&format!("{name}.{number}"), x, channels * self.widen, kernel)
        })
    }

    /// Runs each branch from the same input, and concatenates their outputs with `beside`.
    fn cell(&mut self, name: &str, x: Value, beside: Vec<Value>, branches: &[Branch<'_>]) -> Value {
        let mut parts = beside;
        for (number, branch) in branches.iter().enumerate() {
            parts.push(self.branch(&format!("{name}.{number}"), x, branch));
        }
        self.tape.concatenate(&format!("{name}.cat"), &parts)
    }

    /// An average pooling, and a 1x1 convolution.
    fn pooled(&mut self, name: &str, x: Value, channels: u64) -> Vec<Value> {
        let pool = self.tape.average_pool(&format!("{name}.pool"), x, Window::same(3, 1));
        vec![self.branch(&format!("{name}.pooled"), pool, &[(channels, ONE)])]
    }

    fn reduce(&mut self, name: &str, x: Value, branches: &[Branch<'_>]) -> Value {
        let pool = self.tape.max_pool(&format!("{name}.pool"), x, HALVING_POOL);
        self.cell(name, x, vec![pool], branches)
    }

    fn stem(&mut self, images: Value) -> Value {
        let x = self.branch("stem", images, &[(32, HALVING), (32, THREE.valid()), (64, THREE)]);
        let x = self.reduce("stem1", x, &[&[(96, HALVING)]]);
        let short = [(64, ONE), (96, THREE.valid())];
        let long = [(64, ONE), (64, column(7)), (64, row(7)), (96, THREE.valid())];
        let x = self.cell("stem2", x, Vec::new(), &[&short, &long]);
        self.reduce("stem3", x, &[&[(192, HALVING)]])
    }

    fn a(&mut self, name: &str, x: Value) -> Value {
        let pooled = self.pooled(name, x, 96);
        let branches: [Branch<'_>; 3] =
            [&[(96, ONE)], &[(64, ONE), (96, THREE)], &[(64, ONE), (96, THREE), (96, THREE)]];
        self.cell(name, x, pooled, &branches)
    }

    fn b(&mut self, name: &str, x: Value) -> Value {
        let pooled = self.pooled(name, x, 128);
        let long = [(192, ONE), (192, row(7)), (224, column(7)), (224, row(7)), (256, column(7))];
        let short = [(192, ONE), (224, row(7)), (256, column(7))];
        self.cell(name, x, pooled, &[&[(384, ONE)], &short, &long])
    }

    /// Two of the branches split in two at their ends.
    fn c(&mut self, name: &str, x: Value) -> Value {
        let mut parts = self.pooled(name, x, 256);
        parts.push(self.branch(&format!("{name}.0"), x, &[(256, ONE)]));
        let long = [(384, ONE), (448, row(3)), (512, column(3))];
        for (number, branch) in [(1, &long[..1]), (2, &long[..])] {
            let y = self.branch(&format!("{name}.{number}"), x, branch);
            for (end, kernel) in [("row", row(3)), ("column", column(3))] {
                parts.push(self.branch(&format!("{name}.{number}.{end}"), y, &[(256, kernel)]));
            }
        }
        self.tape.concatenate(&format!("{name}.cat"), &parts)
    }
}
