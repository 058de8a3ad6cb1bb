//! ResNet-50 and ResNet-152 as in torchvision: bottleneck blocks with the stride in the 3x3 convolution
//! ("v1.5"), and 1000 classes.
//!
//! K. He, X. Zhang, S. Ren, J. Sun: Deep residual learning for image recognition, 2015.

use super::Model;
use super::layers::Window;
use super::optimizer::Optimizer;
use super::spec::{Arguments, BATCH, HOST_GB_S, HOST_TFLOPS, IMAGE, MEMORY_GB_S, MODE, TFLOPS};
use super::tape::{FLOAT_BYTES, Tape, Value};

/// 50 layers.
pub(super) const RESNET50: Model = Model {
    name: "resnet50",
    about: "ResNet-50 (v1.5), 25,557,032 parameters, SGD with momentum",
    parameters: &[BATCH, IMAGE, MODE, TFLOPS, MEMORY_GB_S, HOST_GB_S, HOST_TFLOPS],
    optimizer: Optimizer::Momentum,
    check: |_| Ok(()),
    build: |arguments, tape| resnet(arguments, tape, [3, 4, 6, 3]),
};

/// 152 layers.
pub(super) const RESNET152: Model = Model {
    name: "resnet152",
    about: "ResNet-152 (v1.5), 60,192,808 parameters, SGD with momentum",
    build: |arguments, tape| resnet(arguments, tape, [3, 8, 36, 3]),
    ..RESNET50
};

fn resnet(arguments: &Arguments, tape: &mut Tape, depths: [u64; 4]) {
    let (batch, side) = (arguments.get(&BATCH), arguments.get(&IMAGE));
    let images = tape.input("images", [batch, 3, side, side], FLOAT_BYTES);
    let x = tape.convolution("conv1", images, 64, Window::same(7, 2));
    let x = tape.batch_norm("bn1", x);
    let x = tape.relu("relu", x);
    let mut x = tape.max_pool("maxpool", x, Window::same(3, 2));
    for (stage, depth) in (1u64..).zip(depths) {
        for block in 0..depth {
            let stride = if stage > 1 && block == 0 { 2 } else { 1 };
            x = bottleneck(tape, &format!("layer{stage}.{block}"), x, 32 << stage, stride);
        }
    }
    let x = tape.global_average_pool("avgpool", x);
    let scores = tape.linear("fc", x, 1000);
    tape.learn_labels(scores);
}

/// Narrows to `width` channels, convolves, widens to four times `width`, and adds its input.
fn bottleneck(tape: &mut Tape, name: &str, x: Value, width: u64, stride: u64) -> Value {
    let mut y = x;
    let convolutions = [
        (width, Window::same(1, 1)),
        (width, Window::same(3, stride)),
        (4 * width, Window::same(1, 1)),
    ];
    for (number, (channels, window)) in (1..).zip(convolutions) {
        y = tape.convolution(&format!("{name}.conv{number}"), y, channels, window);
        y = tape.batch_norm(&format!("{name}.bn{number}"), y);
        if number < 3 {
            y = tape.relu(&format!("{name}.relu{number}"), y);
        }
    }
    let mut identity = x;
    if x.shape != y.shape {
        identity = tape.convolution(
            &format!("{name}.downsample.0"),
            x,
            4 * width,
            Window::same(1, stride),
        );
        identity = tape.batch_norm(&format!("{name}.downsample.1"), identity);
    }
    let sum = tape.add(&format!("{name}.add"), y, identity);
    tape.relu(&format!("{name}.relu3"), sum)
}
