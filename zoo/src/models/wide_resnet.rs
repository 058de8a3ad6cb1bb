//! ResNet-152 with wider convolutions, on images of ImageNet's size.
//!
//! S. Zagoruyko, N. Komodakis: Wide residual networks, 2016; as in SwapAdvisor (Huang et al., 2020, section
//! 6.1), which multiplies the channels of every convolution.

use super::Model;
use super::layers::{Kernel, Window};
use super::optimizer::Optimizer;
use super::spec::{
    Arguments, BATCH, Domain, HOST_GB_S, HOST_TFLOPS, IMAGE, MEMORY_GB_S, MODE, Parameter, TFLOPS,
};
use super::tape::{FLOAT_BYTES, Tape, Value};

/// The factor on the number of channels.
pub(super) const WIDEN: Parameter = Parameter {
    name: "widen",
    default: "4",
    domain: Domain::Count(1 << 6),
    about: "times the channels",
};

/// 152 layers.
pub(super) const WRESNET152: Model = Model {
    name: "wresnet152",
    about: "wide ResNet-152, convolutions fused with normalizations, plain SGD",
    parameters: &[BATCH, WIDEN, IMAGE, MODE, TFLOPS, MEMORY_GB_S, HOST_GB_S, HOST_TFLOPS],
    optimizer: Optimizer::Plain,
    check: |_| Ok(()),
    build: wide_resnet,
};

fn wide_resnet(arguments: &Arguments, tape: &mut Tape) {
    let [batch, widen, side] = [BATCH, WIDEN, IMAGE].map(|parameter| arguments.get(&parameter));
    let images = tape.input("images", [batch, 3, side, side], FLOAT_BYTES);
    let x = tape.unit("conv1", images, 64 * widen, Kernel::square(7, 2));
    let mut x = tape.max_pool("maxpool", x, Window::same(3, 2));
    for (stage, depth) in (1u64..).zip([3, 8, 36, 3]) {
        for block in 0..depth {
            let stride = if stage > 1 && block == 0 { 2 } else { 1 };
            let width = (32 << stage) * widen;
            x = bottleneck(tape, &format!("layer{stage}.{block}"), x, width, stride);
        }
    }
    let x = tape.global_average_pool("avgpool", x);
    let scores = tape.linear("fc", x, 1000);
    tape.learn_labels(scores);
}

/// Narrows to `width` channels, convolves, widens to four times `width`, and adds its input.
fn bottleneck(tape: &mut Tape, name: &str, x: Value, width: u64, stride: u64) -> Value {
    let y = tape.unit(&format!("{name}.1"), x, width, Kernel::square(1, 1));
    let y = tape.unit(&format!("{name}.2"), y, width, Kernel::square(3, stride));
    let y = tape.unit(&format!("{name}.3"), y, 4 * width, Kernel::square(1, 1).linear());
    let mut identity = x;
    if x.shape != y.shape {
        let kernel = Kernel::square(1, stride).linear();
        identity = tape.unit(&format!("{name}.downsample"), x, 4 * width, kernel);
    }
    tape.add_relu(&format!("{name}.add"), y, identity)
}
