//! DeepLabv3+ on Xception-65 with output stride 16, as in the example of Neural Network Libraries and the
//! authors' release. It has atrous convolutions in the last block, spatial pyramid pooling at rates 6, 12 and
//! 18, a decoder that joins features of stride 4, and 21 classes.
//!
//! L. Chen, Y. Zhu, G. Papandreou, F. Schroff, H. Adam: Encoder-decoder with atrous separable
//! convolution for semantic image segmentation, 2018.

use super::Model;
use super::layers::Window;
use super::optimizer::Optimizer;
use super::spec::{
    Arguments, BATCH, HOST_GB_S, HOST_TFLOPS, IMAGE, MEMORY_GB_S, MODE, Parameter, TFLOPS,
};
use super::tape::{FLOAT_BYTES, Tape, Value};

const CROP: Parameter = Parameter { default: "513", ..IMAGE };
const CROPS: Parameter = Parameter { default: "4", ..BATCH };

/// Channels of the pyramid and of the decoder.
const DEPTH: u64 = 256;

/// DeepLabv3+ with all parameters trained.
pub(super) const DEEPLABV3PLUS: Model = Model {
    name: "deeplabv3plus",
    about: "DeepLabv3+ on Xception-65, 41,055,413 parameters, SGD with momentum",
    parameters: &[CROPS, CROP, MODE, TFLOPS, MEMORY_GB_S, HOST_GB_S, HOST_TFLOPS],
    optimizer: Optimizer::Momentum,
    check: |_| Ok(()),
    build: deeplab,
};

fn deeplab(arguments: &Arguments, tape: &mut Tape) {
    let (batch, side) = (arguments.get(&CROPS), arguments.get(&CROP));
    let images = tape.input("images", [batch, 3, side, side], FLOAT_BYTES);
    let (x, early) = xception(tape, images);
    let x = pyramid(tape, x);
    let x = tape.resize("decoder.upsample1", x, early.shape);
    let early = convolve(tape, "decoder.feature_projection", early, 48, Window::same(1, 1));
    let mut x = tape.concatenate("decoder.cat", &[x, early]);
    for number in 0..2 {
        let name = format!("decoder.conv{number}");
        x = separable(tape, &name, x, DEPTH, Window::same(3, 1), true);
        x = tape.relu(&format!("{name}.relu"), x);
    }
    let x = tape.biased_convolution("decoder.logits", x, 21, Window::same(1, 1));
    let scores = tape.resize("decoder.upsample2", x, images.shape);
    tape.learn_labels(scores);
}

/// Returns the features and earlier features of stride 4, both before the ReLU.
fn xception(tape: &mut Tape, images: Value) -> (Value, Value) {
    let x = convolve(tape, "entry.1", images, 32, Window::same(3, 2));
    let x = convolve(tape, "entry.2", x, 64, Window::same(3, 1));
    let (x, _) = block(tape, "entry.block1", x, [128; 3], 2);
    let (x, early) = block(tape, "entry.block2", x, [256; 3], 2);
    let (mut x, _) = block(tape, "entry.block3", x, [728; 3], 2);
    for unit in 1..=16 {
        let name = format!("middle.unit{unit}");
        let (y, _) = unit_of_three(tape, &name, x, [728; 3], 1);
        x = tape.add(&format!("{name}.add"), y, x);
    }
    let (mut x, _) = block(tape, "exit.block1", x, [728, 1024, 1024], 1);
    for (number, channels) in (1..).zip([1536, 1536, 2048]) {
        let name = format!("exit.block2.separable{number}");
        x = separable(tape, &name, x, channels, Window::atrous(3, 2), true);
        x = tape.relu(&format!("{name}.relu"), x);
    }
    (x, early)
}

/// Three separable convolutions, with a parallel 1x1 convolution.
fn block(tape: &mut Tape, name: &str, x: Value, channels: [u64; 3], stride: u64) -> (Value, Value) {
    let (y, second) = unit_of_three(tape, name, x, channels, stride);
    let shortcut = format!("{name}.shortcut");
    let identity = tape.convolution(&shortcut, x, channels[2], Window::same(1, stride));
    let identity = tape.batch_norm(&format!("{shortcut}.bn"), identity);
    (tape.add(&format!("{name}.add"), y, identity), second)
}

/// Three separable convolutions, each after a ReLU. The last one has the stride. Also returns the output of
/// the second one.
fn unit_of_three(
    tape: &mut Tape,
    name: &str,
    x: Value,
    channels: [u64; 3],
    stride: u64,
) -> (Value, Value) {
    let separable_name = |number| format!("{name}.separable{number}");
    let mut y = tape.activation(&format!("{name}.relu"), x);
    y = separable(tape, &separable_name(1), y, channels[0], Window::same(3, 1), false);
    y = tape.relu(&format!("{}.relu", separable_name(1)), y);
    let second = separable(tape, &separable_name(2), y, channels[1], Window::same(3, 1), false);
    y = tape.activation(&format!("{}.relu", separable_name(2)), second);
    y = separable(tape, &separable_name(3), y, channels[2], Window::same(3, stride), false);
    (y, second)
}

/// A depthwise convolution and a 1x1 convolution, each with a batch norm.
fn separable(
    tape: &mut Tape,
    name: &str,
    x: Value,
    channels: u64,
    window: Window,
    rectify_between: bool,
) -> Value {
    let (depthwise, pointwise) = (format!("{name}.depthwise"), format!("{name}.pointwise"));
    let x = tape.depthwise(&depthwise, x, window);
    let mut x = tape.batch_norm(&format!("{depthwise}.bn"), x);
    if rectify_between {
        x = tape.relu(&format!("{depthwise}.relu"), x);
    }
    let x = tape.convolution(&pointwise, x, channels, Window::same(1, 1));
    tape.batch_norm(&format!("{pointwise}.bn"), x)
}

/// A convolution, a batch norm and a ReLU.
fn convolve(tape: &mut Tape, name: &str, x: Value, channels: u64, window: Window) -> Value {
    let x = tape.convolution(name, x, channels, window);
    let x = tape.batch_norm(&format!("{name}.bn"), x);
    tape.relu(&format!("{name}.relu"), x)
}

/// Atrous spatial pyramid pooling.
fn pyramid(tape: &mut Tape, x: Value) -> Value {
    let image = tape.global_average_pool("aspp.image", x);
    let image = convolve(tape, "aspp.image_pooling", image, DEPTH, Window::same(1, 1));
    let image = tape.resize("aspp.image_resize", image, x.shape);
    let mut parts = vec![image, convolve(tape, "aspp.0", x, DEPTH, Window::same(1, 1))];
    for (number, rate) in (1..).zip([6, 12, 18]) {
        let name = format!("aspp.{number}");
        let y = separable(tape, &name, x, DEPTH, Window::atrous(3, rate), true);
        parts.push(tape.relu(&format!("{name}.relu"), y));
    }
    let x = tape.concatenate("aspp.cat", &parts);
    convolve(tape, "aspp.projection", x, DEPTH, Window::same(1, 1))
}
