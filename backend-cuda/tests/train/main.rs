//! The transformer of the example, smaller, on the emulated driver, which interprets the PTX of
//! its kernels: it computes what it should, and in a third of the memory it learns the same, bit
//! by bit.
#![cfg(target_os = "linux")]
#![allow(clippy::unwrap_used, reason = "what fails here fails the test")]

#[path = "../../examples/train-cuda/cublas.rs"]
mod cublas;
#[path = "../../examples/train-cuda/cublas_library.rs"]
mod cublas_library;
#[path = "../../examples/train-cuda/driver.rs"]
mod driver;
#[path = "../../examples/train-cuda/launcher.rs"]
mod launcher;
#[path = "../../examples/train-cuda/layers.rs"]
mod layers;
#[path = "../../examples/train-cuda/model.rs"]
mod model;
mod reference;
#[path = "../../examples/train-cuda/settings.rs"]
mod settings;
#[path = "../../examples/train-cuda/text.rs"]
mod text;
#[path = "../../examples/train-cuda/trainer.rs"]
mod trainer;
#[path = "../../examples/train-cuda/training.rs"]
mod training;
#[path = "../../examples/train-cuda/work.rs"]
mod work;

use backend_cuda::Cuda;
use emulated_cuda::Emulated;
use model::Model;
use planner_core::{Kind, Stream, TensorId};
use settings::Settings;
use std::path::PathBuf;
use std::sync::Once;
use text::{Text, scramble};
use trainer::Trainer;
use training::{Trained, Way};

/// Elements of each parameter whose gradient is compared.
const SAMPLED: u64 = 8;
/// Adam's constants, as in the source.
const BETAS: [f64; 2] = [0.9, 0.999];

/// The emulated driver, with small chunks for small models, and its path.
fn opened() -> (Emulated, PathBuf) {
    static SMALL_CHUNKS: Once = Once::new();
    let driver = Emulated::built_path();
    let emulated = Emulated::open(&driver).unwrap();
    SMALL_CHUNKS.call_once(|| emulated.resize(1 << 30, 4096));
    (emulated, driver)
}

/// The emulated driver, what trains on it, and what is trained.
fn set_up(settings: &[&str]) -> (Emulated, Trainer, Model) {
    let (emulated, driver) = opened();
    let text = Text::new();
    let settings = settings.iter().chain(&["machine=v100-pcie3"]).map(ToString::to_string);
    let settings = Settings::new(text.characters, settings).unwrap();
    let model = Model::new(settings.sizes);
    (emulated, Trainer::new(Cuda::load(Some(&driver)).unwrap(), text, settings).unwrap(), model)
}

fn in_core(trainer: &Trainer, model: &Model, iterations: u64) -> Trained {
    let (plan, _) = trainer.plan(model, trainer.in_core(model).unwrap()).unwrap();
    trainer.train(model, &plan, Way::Eager, iterations).unwrap()
}

/// The numbers of a state after training; its place among all states is by its number.
fn state(model: &Model, trained: &Trained, state: TensorId) -> Vec<f64> {
    let tensors = &model.graph.tensors[..state.index()];
    let place = tensors.iter().filter(|tensor| tensor.kind == Kind::State).count();
    numbers(&trained.states[place])
}

fn numbers(bytes: &[u8]) -> Vec<f64> {
    bytes.chunks_exact(4).map(|word| f64::from(bytemuck::pod_read_unaligned::<f32>(word))).collect()
}

fn assert_near(found: f64, expected: f64, error: f64, what: &str) {
    assert!((found - expected).abs() <= error, "{what}: {found}, and not {expected} ± {error}");
}

#[test]
fn gradients_and_updates_are_those_of_a_reference() {
    let settings = ["width=24", "layers=2", "heads=2", "context=20", "batch=2", "rate=0.01"];
    let (_, trainer, model) = set_up(&[&settings[..], &["matmul=own"]].concat());
    let Model { sizes, parameters, .. } = &model;
    let [one, two] = [1, 2].map(|iterations| in_core(&trainer, &model, iterations));
    let mut weights = Vec::new();
    for parameter in parameters {
        let mut bytes = vec![0; 4 * parameter.count as usize];
        model.fill(parameter.weights, 0, &mut bytes);
        weights.push(numbers(&bytes));
    }
    let batch = trainer.text.batch(1, sizes.batch, sizes.context);
    let loss = |weights: &[Vec<f64>]| reference::loss(sizes, weights, &batch);
    assert_near(one.losses[0].into(), loss(&weights), 1e-5, "the first loss");

    for (number, parameter) in parameters.iter().enumerate() {
        let name = &parameter.name;
        let [first, second] = parameter.moments.map(|moment| state(&model, &one, moment));
        let gradient: Vec<_> = first.iter().map(|moment| moment / (1.0 - BETAS[0])).collect();
        let most = gradient.iter().copied().map(f64::abs).fold(0.0, f64::max);
        assert!(most > 0.0, "{name} has a gradient");
        for sample in 0..SAMPLED {
            // The last as well, which is a bias where there are any.
            let drawn = scramble((number as u64) << 32 | sample) % parameter.count;
            let at = if sample == 0 { parameter.count - 1 } else { drawn } as usize;
            let (value, step) = (weights[number][at], 1e-5);
            let [less, more] = [value - step, value + step].map(|value| {
                weights[number][at] = value;
                loss(&weights)
            });
            weights[number][at] = value;
            let expected = (more - less) / (2.0 * step);
            assert_near(gradient[at], expected, 1e-4 * most, &format!("{name}[{at}]"));
            let square = (1.0 - BETAS[1]) * gradient[at].powi(2);
            assert_near(second[at], square, 1e-4 * square, &format!("{name}[{at}] squared"));
        }
        // Each step moves the weights by what Adam's definition says of its moments.
        let mut before = weights[number].clone();
        for (steps, trained) in [(1, &one), (2, &two)] {
            let [first, second] = parameter.moments.map(|moment| state(&model, trained, moment));
            let [mean, square] = BETAS.map(|beta| 1.0 - beta.powi(steps));
            let after = state(&model, trained, parameter.weights);
            for (at, (before, after)) in before.iter().zip(&after).enumerate() {
                let deviation = (second[at] / square).sqrt() + 1e-8;
                let step = f64::from(sizes.rate) * first[at] / mean / deviation;
                assert_near(*after, before - step, 1e-6, &format!("{name}[{at}] after {steps}"));
            }
            before = after;
        }
    }
}

/// Trains with all of the memory and with a third of it, call by call and as graphs. Returns the trained
/// model. `repeats`: whether the plan is known to launch ops again.
fn assert_the_same(settings: &[&str], repeats: bool) -> Trained {
    let (emulated, trainer, model) = set_up(settings);
    let (need_bytes, _) = trainer.in_core(&model).unwrap();
    // Plans are made without these times, and so are the same in each run.
    let timed = trainer.take_times(&mut model.clone()).unwrap();
    assert!(timed.times_ns.iter().all(|&time_ns| time_ns > 0));
    let (ways, others) = trainer.ways(&model).unwrap();
    assert_eq!((ways.len(), others.len()), (3, 0), "{others:?}");
    emulated.delay_all();
    let train = |way: &trainer::Planned| {
        let trained = trainer.train(&model, &way.plan, way.way, model.sizes.iterations).unwrap();
        assert!(trained.predicted_ns.is_some() && !trained.period.is_zero());
        assert_eq!(trained.map_calls, 0);
        trained
    };
    let in_core = train(&ways[0]);
    for way in &ways[1..] {
        let predicted = way.plan.predicted;
        assert!(predicted.peak_bytes <= need_bytes / 3 && predicted.d2h_bytes > 0);
        assert!(!repeats || predicted.repeat_ns > 0, "{}: no op is repeated", way.name);
        assert_eq!(train(way).difference(&in_core), None, "{}", way.name);
    }
    in_core
}

#[test]
fn in_a_third_of_the_memory_it_learns_the_same() {
    let settings = ["width=32", "layers=3", "heads=2", "context=24", "batch=3", "rate=0.003"];
    let settings = [&settings[..], &["iterations=16", "budget=33%", "matmul=own"]].concat();
    let losses = assert_the_same(&settings, true).losses;
    assert_eq!(losses.len(), 16);
    let [early, late] = [&losses[..4], &losses[12..]].map(|some| some.iter().sum::<f32>());
    assert!(late < 0.9 * early, "{losses:?}");
}

#[test]
fn so_it_does_with_products_by_a_library() {
    emulated_cublas::open(&Emulated::built_path().with_file_name("libemulated_cublas.so")).unwrap();
    let settings = ["width=24", "layers=2", "heads=3", "context=12", "batch=2", "rate=0.01"];
    let settings = [&settings[..], &["iterations=16", "budget=33%"]].concat();
    let (_, trainer, model) = set_up(&[&settings[..], &["matmul=own"]].concat());
    let own = in_core(&trainer, &model, 16);
    let library = assert_the_same(&[&settings[..], &["matmul=cublas"]].concat(), false);
    assert_eq!(own.products, "the kernel of this example");
    assert!(library.products.starts_with("cuBLAS 0.1.0 ("), "{}", library.products);
    for (own, library) in own.losses.into_iter().zip(library.losses) {
        assert_near(library.into(), own.into(), 1e-4, "the loss by the library");
    }
}

#[test]
fn the_library_is_found_inside_of_pythons_packages() {
    let (_, driver) = opened();
    let stand_in = driver.with_file_name("libemulated_cublas.so");
    let folder = std::env::temp_dir().join(format!("spillway-wheels-{}", std::process::id()));
    let [old, new] = ["cublas/lib", "cu13/lib"].map(|wheel| folder.join("nvidia").join(wheel));
    for (folder, file) in [(&old, "libcublas.so.12"), (&new, "libcublas.so.13")] {
        std::fs::create_dir_all(folder).unwrap();
        std::fs::copy(&stand_in, folder.join(file)).unwrap();
    }
    let device = Cuda::load(Some(&driver)).unwrap().open(&backend_cuda::Options::default());
    let mut device = device.unwrap();
    let stream = device.raw_stream(Stream::Compute).unwrap();
    let found = |folders: &[PathBuf]| cublas::Blas::new(stream, folders).unwrap();
    let newest = found(&[old.clone(), new.clone()]).name().to_owned();
    let path = new.join("libcublas.so.13");
    assert_eq!(newest, format!("cuBLAS 0.1.0 ({})", path.display()));
    let beside = folder.join("beside");
    std::fs::create_dir(&beside).unwrap();
    std::fs::copy(&stand_in, beside.join("libcublas.so.13")).unwrap();
    for folder in [&beside, &new] {
        let name = found(std::slice::from_ref(folder)).name().to_owned();
        let path = folder.join("libcublas.so.13");
        assert_eq!(name, format!("cuBLAS 0.1.0 ({})", path.display()), "two of one name are open");
    }
    let other = found(std::slice::from_ref(&old)).name().to_owned();
    assert!(other.ends_with("libcublas.so.12)"), "{other}");
    let broken = folder.join("broken");
    std::fs::create_dir(&broken).unwrap();
    std::fs::write(broken.join("libcublas.so.13"), "no library").unwrap();
    let other = found(&[broken, old]).name().to_owned();
    assert!(other.ends_with("libcublas.so.12)"), "one that cannot be opened: {other}");
    std::fs::remove_dir_all(&folder).unwrap();
}

/// The example takes no code as an enumeration, in which it might not be.
#[test]
fn codes_of_newer_drivers_are_errors_here_too() {
    let (emulated, driver) = opened();
    let device = Cuda::load(Some(&driver)).unwrap().open(&backend_cuda::Options::default());
    let mut device = device.unwrap();
    let stream = device.raw_stream(Stream::Compute).unwrap();
    let load = |products| {
        let (words, works) =
            (|error: Box<dyn std::error::Error>| error.to_string(), [].into_iter());
        launcher::Launcher::new(stream, products, works).map_err(words)
    };
    emulated.inject("cuModuleLoadData", 4242);
    let error = load(launcher::Products::Own).unwrap_err();
    assert_eq!(error, "cuModuleLoadData: error 4242 of the driver, which has no name");
    load(launcher::Products::Own).unwrap();
    let stand_in = driver.with_file_name("libemulated_cublas.so");
    let folder = std::env::temp_dir().join(format!("spillway-codes-{}", std::process::id()));
    std::fs::create_dir(&folder).unwrap();
    std::fs::copy(stand_in, folder.join("libcublas.so.13")).unwrap();
    let open = || cublas::Blas::new(stream, std::slice::from_ref(&folder));
    emulated.inject("cuMemAlloc_v2", 4242);
    let error = open().unwrap_err();
    assert_eq!(error, "cuMemAlloc: error 4242 of the driver, which has no name");
    open().unwrap();
    std::fs::remove_dir_all(&folder).unwrap();
}

#[test]
fn products_say_why_there_is_no_library() {
    let (emulated, driver) = opened();
    let device = Cuda::load(Some(&driver)).unwrap().open(&backend_cuda::Options::default());
    let mut device = device.unwrap();
    let stream = device.raw_stream(Stream::Compute).unwrap();
    let load = |products| {
        // The library's workspace, if there is a library.
        emulated.inject("cuMemAlloc_v2", 2);
        launcher::Launcher::new(stream, products, std::iter::empty())
    };
    let either = load(launcher::Products::Either).unwrap();
    let products = either.products();
    assert!(products.starts_with("the kernel of this example, since there is no cuBLAS: "));
    let wanted = load(launcher::Products::Cublas).unwrap_err().to_string();
    assert!(wanted.starts_with("there is no cuBLAS: "), "{wanted}");
    assert!(wanted.len() > 30 && products.len() > 60, "{wanted}, {products}");
}

#[test]
fn a_machine_from_a_file_is_taken_as_it_is() {
    let file = std::env::temp_dir().join(format!("spillway-{}.machine.json", std::process::id()));
    let mut machine = workloads::machines::builtin("v100-pcie3").unwrap();
    machine.machine = machine.machine.with_host_bytes(12_345_678).with_device_bytes(1 << 24);
    std::fs::write(&file, workloads::format::write_machine(&machine)).unwrap();
    let (_, driver) = opened();
    let text = Text::new();
    let settings = [format!("machine={}", file.display())].into_iter();
    let settings = Settings::new(text.characters, settings).unwrap();
    std::fs::remove_file(&file).unwrap();
    let trainer = Trainer::new(Cuda::load(Some(&driver)).unwrap(), text, settings).unwrap();
    assert_eq!(trainer.machine, machine.machine);
}

#[test]
fn settings_that_cannot_be_are_refused() {
    for wrong in ["width", "width=0", "width=30 heads=4", "layers=x", "wide=2", "matmul=best"] {
        let settings = wrong.split(' ').map(ToOwned::to_owned);
        assert!(Settings::new(80, settings).is_err(), "{wrong}");
    }
    let large = ["context=1000000".to_owned()].into_iter();
    assert!(Settings::new(80, large).unwrap_err().to_string().contains("more than the kernels"));
}
