//! DenseNet-121, 169 and 201 as in torchvision: growth 32, bottlenecks of 128 channels, and 1000 classes.
//! Every layer reads the outputs of all earlier layers of its block.
//!
//! G. Huang, Z. Liu, L. van der Maaten, K. Weinberger: Densely connected convolutional
//! networks, 2017.

use super::Model;
use super::layers::Window;
use super::optimizer::Optimizer;
use super::spec::{Arguments, BATCH, HOST_GB_S, HOST_TFLOPS, IMAGE, MEMORY_GB_S, MODE, TFLOPS};
use super::tape::{FLOAT_BYTES, Tape, Value};

const GROWTH: u64 = 32;

/// 121 layers.
pub(super) const DENSENET121: Model = Model {
    name: "densenet121",
    about: "DenseNet-121, 7,978,856 parameters, SGD with momentum",
    parameters: &[BATCH, IMAGE, MODE, TFLOPS, MEMORY_GB_S, HOST_GB_S, HOST_TFLOPS],
    optimizer: Optimizer::Momentum,
    check: |_| Ok(()),
    build: |arguments, tape| densenet(arguments, tape, [6, 12, 24, 16]),
};

/// 169 layers.
pub(super) const DENSENET169: Model = Model {
    name: "densenet169",
    about: "DenseNet-169, 14,149,480 parameters, SGD with momentum",
    build: |arguments, tape| densenet(arguments, tape, [6, 12, 32, 32]),
    ..DENSENET121
};

/// 201 layers.
pub(super) const DENSENET201: Model = Model {
    name: "densenet201",
    about: "DenseNet-201, 20,013,928 parameters, SGD with momentum",
    build: |arguments, tape| densenet(arguments, tape, [6, 12, 48, 32]),
    ..DENSENET121
};

fn densenet(arguments: &Arguments, tape: &mut Tape, depths: [u64; 4]) {
    let (batch, side) = (arguments.get(&BATCH), arguments.get(&IMAGE));
    let images = tape.input("images", [batch, 3, side, side], FLOAT_BYTES);
    let x = tape.convolution("features.conv0", images, 64, Window::same(7, 2));
    let x = tape.batch_norm("features.norm0", x);
    let x = tape.relu("features.relu0", x);
    let mut x = tape.max_pool("features.pool0", x, Window::same(3, 2));
    for (block, depth) in (1..).zip(depths) {
        x = dense_block(tape, &format!("features.denseblock{block}"), x, depth);
        if block < depths.len() {
            x = transition(tape, &format!("features.transition{block}"), x);
        }
    }
    let x = tape.batch_norm("features.norm5", x);
    let x = tape.relu("relu", x);
    let x = tape.global_average_pool("avgpool", x);
    let scores = tape.linear("classifier", x, 1000);
    tape.learn_labels(scores);
}

/// Each layer reads the input and the outputs of the layers before it, and adds 32 channels.
fn dense_block(tape: &mut Tape, name: &str, x: Value, depth: u64) -> Value {
    let mut features = vec![x];
    for layer in 1..=depth {
        let name = format!("{name}.denselayer{layer}");
        let mut y = tape.concatenate(&format!("{name}.cat"), &features);
        for (number, channels, kernel) in [(1, 4 * GROWTH, 1), (2, GROWTH, 3)] {
            y = tape.batch_norm(&format!("{name}.norm{number}"), y);
            y = tape.relu(&format!("{name}.relu{number}"), y);
            let window = Window::same(kernel, 1);
            y = tape.convolution(&format!("{name}.conv{number}"), y, channels, window);
        }
        features.push(y);
    }
    tape.concatenate(&format!("{name}.cat"), &features)
}

/// Halves the channels, the height and the width.
fn transition(tape: &mut Tape, name: &str, x: Value) -> Value {
    let channels = x.shape[1] / 2;
    let x = tape.batch_norm(&format!("{name}.norm"), x);
    let x = tape.relu(&format!("{name}.relu"), x);
    let x = tape.convolution(&format!("{name}.conv"), x, channels, Window::same(1, 1));
    tape.average_pool(&format!("{name}.pool"), x, Window::padded(2, 2, 0))
}
