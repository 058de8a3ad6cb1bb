//! pix2pixHD at 512 x 1024: the global generator, two discriminators at two scales, and a perceptual loss.
//! The networks come from the authors' release, and the step from the example of Neural Network Libraries: it
//! updates the discriminators first, runs them again, and updates the generator. It leaves out the gradients
//! that this second update does not use: the gradients of the discriminators, and of their features of the
//! real images.
//!
//! T. Wang, M. Liu, J. Zhu, A. Tao, J. Kautz, B. Catanzaro: High-resolution image synthesis
//! and semantic manipulation with conditional GANs, 2018.

use super::Model;
use super::layers::{Filter, Window};
use super::optimizer::Optimizer;
use super::spec::{Arguments, BATCH, HOST_GB_S, HOST_TFLOPS, MEMORY_GB_S, MODE, Parameter, TFLOPS};
use super::tape::{FLOAT_BYTES, Tape, Value};

const IMAGES: Parameter = Parameter { default: "1", about: "images of 512 x 1024", ..BATCH };
const HEIGHT: u64 = 512;
const WIDTH: u64 = 1024;

/// Kinds of objects in the label maps of Cityscapes.
const LABELS: u64 = 35;

/// The convolutions of VGG-16 up to the first one of the last block: the channels and the number.
const VGG16: [(u64, u64); 5] = [(64, 2), (128, 2), (256, 3), (512, 3), (512, 1)];

/// pix2pixHD without the local enhancer, which is for twice the size.
pub(super) const PIX2PIXHD: Model = Model {
    name: "pix2pixhd",
    about: "pix2pixHD, global generator of 182,546,755 parameters and discriminators of \
            5,603,202, Adam",
    parameters: &[IMAGES, MODE, TFLOPS, MEMORY_GB_S, HOST_GB_S, HOST_TFLOPS],
    optimizer: Optimizer::Adam,
    check: |_| Ok(()),
    build: pix2pixhd,
};

/// The layers of a discriminator: the channels and the stride. The last one gives the scores.
const LAYERS: [(u64, u64); 5] = [(64, 2), (128, 2), (256, 2), (512, 1), (1, 1)];
const VERDICT: usize = LAYERS.len() - 1;

/// The two discriminators: one sees images of half the size.
const SCALES: [&str; 2] = ["coarse", "fine"];

/// The weights of each discriminator.
type Discriminators = [Vec<Filter>; 2];

fn pix2pixhd(arguments: &Arguments, tape: &mut Tape) {
    let batch = arguments.get(&IMAGES);
    let [labels, instances] = ["labels", "instances"]
        .map(|name| tape.input(name, [batch, 1, HEIGHT, WIDTH], FLOAT_BYTES));
    let kinds = tape.output("one_hot.out".to_owned(), [batch, LABELS, HEIGHT, WIDTH], &[]);
    tape.op("one_hot".to_owned(), 0, &[tape.at(labels)], &[tape.at(kinds)]);
    let edges = tape.output("edges.out".to_owned(), [batch, 1, HEIGHT, WIDTH], &[]);
    tape.op("edges".to_owned(), 0, &[tape.at(instances)], &[tape.at(edges)]);
    let scene = tape.concatenate("scene", &[kinds, edges]);
    let fake = generate(tape, scene);
    if !tape.training() {
        return;
    }
    let generator = tape.set_aside();
    let real = tape.input("images", [batch, 3, HEIGHT, WIDTH], FLOAT_BYTES);
    let filters = discriminators(tape, scene.shape[1] + 3);
    learn_to_discriminate(tape, &filters, scene, real, fake.detached());
    tape.step();

    tape.resume(generator);
    let filters = filters.map(|scale| scale.into_iter().map(Filter::detached).collect());
    learn_to_generate(tape, &filters, scene, real, fake);
}

/// The generator: nine residual blocks at a sixteenth of the size.
fn generate(tape: &mut Tape, scene: Value) -> Value {
    let x = tape.reflect("g.first.pad", scene, 3);
    let x = tape.biased_convolution("g.first", x, 64, Window::padded(7, 1, 0));
    let mut x = normalize(tape, "g.first", x);
    for number in 1..=4 {
        let name = format!("g.down{number}");
        x = tape.biased_convolution(&name, x, 2 * x.shape[1], Window::same(3, 2));
        x = normalize(tape, &name, x);
    }
    for number in 1..=9 {
        x = residual(tape, &format!("g.block{number}"), x);
    }
    for number in 1..=4 {
        let name = format!("g.up{number}");
        x = tape.doubling(&name, x, x.shape[1] / 2);
        x = normalize(tape, &name, x);
    }
    let x = tape.reflect("g.last.pad", x, 3);
    let x = tape.biased_convolution("g.last", x, 3, Window::padded(7, 1, 0));
    tape.activation("g.tanh", x)
}

/// An instance norm and a ReLU.
fn normalize(tape: &mut Tape, name: &str, x: Value) -> Value {
    let x = tape.instance_norm(&format!("{name}.norm"), x);
    tape.relu(&format!("{name}.relu"), x)
}

fn residual(tape: &mut Tape, name: &str, x: Value) -> Value {
    let mut y = x;
    for number in 1..=2 {
        let name = format!("{name}.conv{number}");
        y = tape.reflect(&format!("{name}.pad"), y, 1);
        y = tape.biased_convolution(&name, y, x.shape[1], Window::padded(3, 1, 0));
        y = tape.instance_norm(&format!("{name}.norm"), y);
        if number == 1 {
            y = tape.relu(&format!("{name}.relu"), y);
        }
    }
    tape.add(&format!("{name}.add"), y, x)
}

fn discriminators(tape: &mut Tape, channels: u64) -> Discriminators {
    SCALES.map(|scale| {
        let mut inputs = channels;
        let filters = LAYERS.iter().enumerate().map(|(number, &(channels, stride))| {
            let (name, window) = (format!("d.{scale}{number}"), Window::padded(4, stride, 2));
            let filter = tape.biased_filter(&name, channels, inputs, window);
            inputs = channels;
            filter
        });
        filters.collect()
    })
}

/// Returns the features of the first layers of each discriminator for an image of the scene.
fn discriminate(
    tape: &mut Tape,
    name: &str,
    (filters, depth): (&Discriminators, usize),
    scene: Value,
    image: Value,
) -> [Vec<Value>; 2] {
    let fine = tape.concatenate(&format!("{name}.cat"), &[scene, image]);
    let coarse = tape.average_pool(&format!("{name}.pool"), fine, Window::same(3, 2));
    let [coarse_filters, fine_filters] = filters;
    let scales = [(SCALES[0], coarse, coarse_filters), (SCALES[1], fine, fine_filters)];
    scales.map(|(scale, mut x, filters)| {
        let layers = filters.iter().take(depth).enumerate().map(|(number, &filter)| {
            let name = format!("{name}.{scale}{number}");
            x = tape.convolve(&name, x, filter);
            if (1..VERDICT).contains(&number) {
                x = tape.instance_norm(&format!("{name}.norm"), x);
            }
            if number < VERDICT {
                x = tape.relu(&format!("{name}.leaky_relu"), x);
            }
            x
        });
        layers.collect()
    })
}

/// The loss of the discriminators: to tell real images from generated ones.
fn learn_to_discriminate(
    tape: &mut Tape,
    filters: &Discriminators,
    scene: Value,
    real: Value,
    fake: Value,
) {
    let mut losses = Vec::new();
    for (name, image) in [("d.real", real), ("d.fake", fake)] {
        let seen = discriminate(tape, name, (filters, LAYERS.len()), scene, image);
        for (scale, seen) in SCALES.into_iter().zip(seen) {
            losses.push(tape.square_loss(&format!("{name}.{scale}.loss"), seen[VERDICT]));
        }
    }
    let loss = tape.sum_losses("d.loss", &losses);
    tape.minimize("d.loss", loss);
}

/// The loss of the generator: to deceive the discriminators, and to match the real image in the layers of the
/// discriminators and of VGG-16.
fn learn_to_generate(
    tape: &mut Tape,
    filters: &Discriminators,
    scene: Value,
    real: Value,
    fake: Value,
) {
    let mut losses = Vec::new();
    let seen_real = discriminate(tape, "g.real", (filters, VERDICT), scene, real);
    let seen_fake = discriminate(tape, "g.fake", (filters, LAYERS.len()), scene, fake);
    for ((scale, real), fake) in SCALES.into_iter().zip(seen_real).zip(seen_fake) {
        losses.push(tape.square_loss(&format!("g.{scale}.loss"), fake[VERDICT]));
        for (number, (&real, &fake)) in real.iter().zip(&fake).enumerate() {
            losses.push(tape.absolute_loss(&format!("g.{scale}{number}.match"), fake, real));
        }
    }
    let filters = vgg16(tape);
    let seen_real = look(tape, "vgg.real", &filters, real);
    let seen_fake = look(tape, "vgg.fake", &filters, fake);
    for (block, (real, fake)) in (1..).zip(seen_real.into_iter().zip(seen_fake)) {
        losses.push(tape.absolute_loss(&format!("vgg.match{block}"), fake, real));
    }
    let loss = tape.sum_losses("g.loss", &losses);
    tape.minimize("g.loss", loss);
}

/// The weights of VGG-16 by block. They are not trained.
fn vgg16(tape: &mut Tape) -> Vec<Vec<Filter>> {
    let mut inputs = 3;
    let blocks = (1..).zip(VGG16).map(|(block, (channels, layers))| {
        let filters = (1..=layers).map(|layer| {
            let name = format!("vgg.conv{block}_{layer}");
            let filter = tape.frozen_filter(&name, channels, inputs, Window::same(3, 1));
            inputs = channels;
            filter
        });
        filters.collect()
    });
    blocks.collect()
}

/// Returns the features of the first layer of each block of VGG-16 for an image.
fn look(tape: &mut Tape, name: &str, blocks: &[Vec<Filter>], image: Value) -> Vec<Value> {
    let mut x = image;
    let mut seen = Vec::new();
    for (block, filters) in (1..).zip(blocks) {
        if block > 1 {
            x = tape.max_pool(&format!("{name}.pool{block}"), x, Window::padded(2, 2, 0));
        }
        for (layer, &filter) in (1..).zip(filters) {
            let name = format!("{name}.conv{block}_{layer}");
            x = tape.convolve(&name, x, filter);
            x = tape.relu(&format!("{name}.relu"), x);
            if layer == 1 {
                seen.push(x);
            }
        }
    }
    seen
}
