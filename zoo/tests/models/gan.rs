//! A step of pix2pixHD: two updates, and what each leaves alone.

use super::{bytes_where, make, ops_where};
use planner_core::Kind;

/// Those of the authors' `networks.py`, by hand, for 36 channels in and 3 out. A convolution
/// has a weight for each pair of channels and pixel of its window, and a bias.
#[test]
fn networks_have_the_parameters_of_the_release() {
    let convolution = |inputs: u64, outputs: u64, pixels: u64| (inputs * pixels + 1) * outputs;
    let sizes = [(64, 128), (128, 256), (256, 512), (512, 1024)];
    let generator = convolution(36, 64, 49)
        + sizes.iter().map(|&(few, many)| convolution(few, many, 9)).sum::<u64>()
        + 18 * convolution(1024, 1024, 9)
        + sizes.iter().map(|&(few, many)| convolution(many, few, 9)).sum::<u64>()
        + convolution(64, 3, 49);
    assert_eq!(generator, 182_546_755);
    let discriminator = [(39, 64), (64, 128), (128, 256), (256, 512), (512, 1)];
    let discriminator = discriminator
        .iter()
        .map(|&(inputs, outputs)| convolution(inputs, outputs, 16))
        .sum::<u64>();
    // torchvision's VGG-16 has 14,714,688 parameters in its convolutions, two of 512 channels
    // more than here.
    let vgg = 14_714_688 - 2 * convolution(512, 512, 9);

    let graph = make("pix2pixhd");
    let count = |start: &str, end: &str| {
        bytes_where(&graph, |name, _| name.starts_with(start) && name.ends_with(end)) / 4
    };
    for moment in [".exp_avg", ".exp_avg_sq"] {
        assert_eq!(count("g.", moment), generator);
        assert_eq!(count("d.", moment), 2 * discriminator);
    }
    let frozen = |name: &str, kind| name.starts_with("vgg.") && kind == Kind::State;
    assert_eq!(bytes_where(&graph, frozen) / 4, vgg);
}

#[test]
fn discriminators_are_updated_before_they_judge_again() {
    let graph = make("pix2pixhd");
    let at = |name: &str| graph.op_names.iter().position(|op| op == name).unwrap();
    let order = [
        "g.tanh",
        "d.real.fine4",
        "d.fake.fine4",
        "d.fake.fine0.backward",
        "d.fine4.bias.adam",
        "g.fake.fine4",
        "vgg.fake.conv5_1",
        "vgg.fake.conv1_1.backward",
        "g.fake.fine0.backward",
        "g.first.backward",
        "g.last.bias.adam",
    ];
    assert!(order.map(at).is_sorted());
    // Ten convolutions, six instance norms, eight ReLUs and two losses.
    let undone =
        |start: &str| ops_where(&graph, |op| op.starts_with(start) && op.ends_with(".backward"));
    assert_eq!(["d.real", "d.fake", "g.real", "vgg.real"].map(undone), [26, 26, 0, 0]);
    // Nothing is computed for what is not updated.
    let wasted = |name: &str| {
        (name.starts_with("g.fake") || name.starts_with("vgg.")) && name.ends_with(".weight.grad")
    };
    assert!(!graph.tensor_names.iter().any(|name| wasted(name)));
}
