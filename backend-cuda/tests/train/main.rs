//! The transformer of the example, smaller, on the emulated driver, which interprets the PTX of
//! its kernels: it computes what it should, and in a third of the memory it learns the same, bit
//! by bit.
#![cfg(target_os = "linux")]
#![allow(clippy::unwrap_used, reason = "what fails here fails the test")]

#[path = "../../examples/train-cuda/cublas.rs"]
mod cublas;
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
#[path = "../../examples/train-cuda/training.rs"]
mod training;
#[path = "../../examples/train-cuda/work.rs"]
mod work;

use backend_cuda::{Cuda, Options};
use emulated_cuda::Emulated;
use model::Model;
use planner_core::Machine;
use planner_core::planner::{Auto, Request, Strategy};
use settings::Settings;
use text::{Text, scramble};
use training::{Bench, Trained, Way, train};
use workloads::{OwnedPlan, placing, planning};

/// Elements of each parameter whose gradient is compared.
const SAMPLED: u64 = 8;
/// Adam's constants, as in the source.
const BETAS: [f64; 2] = [0.9, 0.999];

struct Work {
    emulated: Emulated,
    cuda: Cuda,
    machine: Machine,
    settings: Settings,
    text: Text,
    model: Model,
}

impl Work {
    fn new(settings: &[&str]) -> Self {
        let driver = Emulated::built_path();
        let emulated = Emulated::open(&driver).unwrap();
        let cuda = Cuda::load(Some(&driver)).unwrap();
        let text = Text::new();
        let settings = settings.iter().map(ToString::to_string);
        let settings = Settings::new(text.characters, settings).unwrap();
        let chunk_bytes = cuda.device(settings.device).unwrap().granularity_bytes;
        let machine = Machine { chunk_bytes, ..settings.machine };
        let model = Model::new(settings.sizes);
        Self { emulated, cuda, machine, settings, text, model }
    }

    /// A plan with everything resident, and what it takes.
    fn in_core(&self) -> (OwnedPlan, u64) {
        let graph = self.model.graph.graph().unwrap();
        let request = Request { graph: &graph, machine: &self.machine, budget_bytes: 0 };
        let (budget_bytes, _) = planning::min_feasible(&request, Strategy::InCore).unwrap();
        let request = Request { budget_bytes, ..request };
        (placing::plan(&request, Strategy::InCore).unwrap().0, budget_bytes)
    }

    fn train(&self, plan: &OwnedPlan, way: Way, iterations: u64) -> Trained {
        let Self { cuda, machine, settings, text, model, .. } = self;
        let options = Options { ordinal: 0, chunk_bytes: Some(machine.chunk_bytes) };
        let products = settings.products;
        let bench = Bench { cuda, options, machine: *machine, model, text, products };
        train(&bench, plan, way, iterations).unwrap()
    }

    /// The numbers of a state after training; its place among all states is by its number.
    fn state(&self, trained: &Trained, state: planner_core::TensorId) -> Vec<f64> {
        let tensors = &self.model.graph.tensors[..state.index()];
        let place =
            tensors.iter().filter(|tensor| tensor.kind == planner_core::Kind::State).count();
        numbers(&trained.states[place])
    }
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
    let work = Work::new(&[&settings[..], &["matmul=own"]].concat());
    let Model { sizes, parameters, .. } = &work.model;
    let (plan, _) = work.in_core();
    let [one, two] = [1, 2].map(|iterations| work.train(&plan, Way::Eager, iterations));
    let mut weights = Vec::new();
    for parameter in parameters {
        let mut bytes = vec![0; 4 * parameter.count as usize];
        work.model.fill(parameter.weights, 0, &mut bytes);
        weights.push(numbers(&bytes));
    }
    let batch = work.text.batch(1, sizes.batch, sizes.context);
    let loss = |weights: &[Vec<f64>]| reference::loss(sizes, weights, &batch);
    assert_near(one.losses[0].into(), loss(&weights), 1e-5, "the first loss");

    for (number, parameter) in parameters.iter().enumerate() {
        let name = &parameter.name;
        let [first, second] = parameter.moments.map(|moment| work.state(&one, moment));
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
            let [first, second] = parameter.moments.map(|moment| work.state(trained, moment));
            let [mean, square] = BETAS.map(|beta| 1.0 - beta.powi(steps));
            let after = work.state(trained, parameter.weights);
            for (at, (before, after)) in before.iter().zip(&after).enumerate() {
                let deviation = (second[at] / square).sqrt() + 1e-8;
                let step = f64::from(sizes.rate) * first[at] / mean / deviation;
                assert_near(*after, before - step, 1e-6, &format!("{name}[{at}] after {steps}"));
            }
            before = after;
        }
    }
}

/// Trains in-core and in a third of that, call by call and as graphs; what is left.
fn assert_the_same(work: &Work, iterations: u64) -> Trained {
    let (plan, need_bytes) = work.in_core();
    let timed = work.train(&plan, Way::Timed, iterations);
    assert!(timed.times_ns.iter().all(|&time_ns| time_ns > 0));
    let graph = work.model.graph.graph().unwrap();
    let budget_bytes = need_bytes * work.settings.budget_percent / 100;
    let request = Request { graph: &graph, machine: &work.machine, budget_bytes };
    let (plan, unplaced) = placing::plan(&request, Strategy::Auto(Auto::default())).unwrap();
    assert_eq!(unplaced, None);
    assert!(plan.predicted.peak_bytes <= need_bytes / 3 && plan.predicted.d2h_bytes > 0);
    work.emulated.delay_all();
    for way in [Way::Eager, Way::Graphs] {
        let spilled = work.train(&plan, way, iterations);
        assert_eq!(spilled.map_calls, 0);
        assert_eq!(spilled.difference(&timed), None, "{way:?}");
        assert!(spilled.predicted_ns.is_some() && !spilled.period.is_zero());
        assert_eq!(spilled.products, timed.products);
    }
    timed
}

#[test]
fn in_a_third_of_the_memory_it_learns_the_same() {
    let settings = ["width=32", "layers=3", "heads=2", "context=16", "batch=2", "rate=0.003"];
    let settings = [&settings[..], &["iterations=14", "budget=33%", "matmul=own"]].concat();
    let losses = assert_the_same(&Work::new(&settings), 14).losses;
    let [early, late] = [&losses[..4], &losses[10..]].map(|some| some.iter().sum::<f32>());
    assert!(late < 0.9 * early, "{losses:?}");
}

#[test]
fn so_it_does_with_products_by_a_library() {
    emulated_cublas::open(&Emulated::built_path().with_file_name("libemulated_cublas.so")).unwrap();
    let settings = ["width=24", "layers=2", "heads=3", "context=12", "batch=2", "rate=0.01"];
    let settings = [&settings[..], &["iterations=14", "budget=33%"]].concat();
    let work = |products| Work::new(&[&settings[..], &[products]].concat());
    let (own, library) = (work("matmul=own"), work("matmul=cublas"));
    let own = own.train(&own.in_core().0, Way::Eager, 14);
    let library = assert_the_same(&library, 14);
    assert_eq!([own.products, library.products], ["the kernel of this example", "cuBLAS"]);
    for (own, library) in own.losses.into_iter().zip(library.losses) {
        assert_near(library.into(), own.into(), 1e-4, "the loss by the library");
    }
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
