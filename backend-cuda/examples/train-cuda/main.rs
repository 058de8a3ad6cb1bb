//! Trains a transformer on a CUDA device, once with all memory that it needs and then with a
//! quarter of it, call by call and as CUDA graphs; and compares losses, weights and Adam's
//! moments bit by bit. `backend-cuda/train` runs it, and PyTorch beside it.

mod cublas;
mod launcher;
mod layers;
mod model;
mod settings;
mod text;
mod training;
mod work;

use backend_cuda::{Cuda, Options};
use model::Model;
use planner_core::Machine;
use planner_core::planner::{Auto, Request, Strategy};
use settings::Settings;
use std::error::Error;
use std::path::PathBuf;
use text::Text;
use training::{Bench, Trained, Way, train};
use workloads::{OwnedPlan, placing, planning};

/// Names the library that is used as the driver, instead of the system's.
const DRIVER: &str = "SPILLWAY_CUDA_DRIVER";
/// Iterations from which the times of ops are taken.
const TIMED: u64 = 5;
/// The first losses are shown, and means of as many groups.
const SHOWN: usize = 8;

fn main() -> Result<(), Box<dyn Error>> {
    let text = Text::new();
    let settings = Settings::new(text.characters, std::env::args().skip(1))?;
    let driver = std::env::var_os(DRIVER).filter(|path| !path.is_empty()).map(PathBuf::from);
    let cuda = Cuda::load(driver.as_deref())?;
    let info = cuda.device(settings.device)?;
    println!("{}, driver {}", info.name, info.driver);
    let machine = Machine {
        device_bytes: info.free_bytes,
        host_bytes: info.host_bytes,
        chunk_bytes: info.granularity_bytes,
        ..settings.machine
    };
    let mut model = Model::new(settings.sizes);
    let options = Options { ordinal: settings.device, chunk_bytes: Some(machine.chunk_bytes) };
    let iterations = settings.sizes.iterations;
    let run = |model: &Model, (plan, way), iterations| {
        let products = settings.products;
        let bench = Bench { cuda: &cuda, options, machine, model, text: &text, products };
        train(&bench, plan, way, iterations)
    };

    let (plan, need_bytes) = in_core(&model, &machine)?;
    let states: u64 = model.parameters.iter().map(|parameter| parameter.count).sum();
    println!(
        "{:.3} million parameters; with Adam's moments {:.2} MiB; all in memory {:.2} MiB",
        states as f64 / 1e6,
        mib(12 * states),
        mib(need_bytes)
    );
    if need_bytes > info.free_bytes {
        return Err(
            format!("in-core it does not fit the device's {} bytes", info.free_bytes).into()
        );
    }
    let timed = run(&model, (&plan, Way::Timed), iterations.min(TIMED))?;
    println!("{} ops, with products by {}\n", model.ops.len(), timed.products);
    for (op, time_ns) in model.graph.ops.iter_mut().zip(timed.times_ns) {
        op.time_ns = time_ns;
    }
    let (in_core, _) = in_core(&model, &machine)?;
    let budget_bytes = need_bytes * settings.budget_percent / 100;
    let graph = model.graph.graph()?;
    let request = Request { graph: &graph, machine: &machine, budget_bytes };
    let (spilled, unplaced) = placing::plan(&request, Strategy::Auto(Auto::default()))?;

    println!("| way | MiB | MiB up | MiB down | predicted | measured | iterations/s | map calls |");
    println!("|---|--:|--:|--:|--:|--:|--:|--:|");
    let expected = run(&model, (&in_core, Way::Eager), iterations)?;
    row("in-core", &in_core, &expected);
    let mut ways = vec![("spilled", Way::Eager)];
    match unplaced {
        None => ways.push(("spilled, as graphs", Way::Graphs)),
        Some(reason) => println!("| spilled, as graphs | not run: {reason} |"),
    }
    for (name, way) in ways {
        let trained = run(&model, (&spilled, way), iterations)?;
        row(name, &spilled, &trained);
        if let Some(state) = trained.difference(&expected) {
            return Err(format!("{name}: state {state} is not that of the run in-core").into());
        }
    }
    let group = expected.losses.len().div_ceil(SHOWN);
    let means =
        expected.losses.chunks(group).map(|some| some.iter().sum::<f32>() / some.len() as f32);
    println!("\nlosses {}", shown(expected.losses.iter().copied().take(SHOWN)));
    println!("means of {group} each {}", shown(means));
    println!("all {iterations} losses, all weights and moments are the same bit by bit");
    Ok(())
}

/// A plan with everything resident, and what it takes.
fn in_core(model: &Model, machine: &Machine) -> Result<(OwnedPlan, u64), Box<dyn Error>> {
    let graph = model.graph.graph()?;
    let request = Request { graph: &graph, machine, budget_bytes: 0 };
    let (budget_bytes, _) = planning::min_feasible(&request, Strategy::InCore)?;
    let (plan, _) = placing::plan(&Request { budget_bytes, ..request }, Strategy::InCore)?;
    Ok((plan, budget_bytes))
}

fn shown(losses: impl Iterator<Item = f32>) -> String {
    losses.map(|loss| format!("{loss:.6}")).collect::<Vec<_>>().join(" ")
}

fn mib(bytes: u64) -> f64 {
    bytes as f64 / f64::from(1 << 20)
}

fn row(name: &str, plan: &OwnedPlan, trained: &Trained) {
    let predicted = plan.predicted;
    let expected = match trained.predicted_ns {
        Some(ns) => format!("{:.3} ms", ns as f64 / 1e6),
        None => "unknown".to_owned(),
    };
    println!(
        "| {name} | {:.2} | {:.2} | {:.2} | {expected} | {:.3} ms | {:.2} | {} |",
        mib(predicted.peak_bytes),
        mib(predicted.h2d_bytes),
        mib(predicted.d2h_bytes),
        trained.period.as_secs_f64() * 1e3,
        1.0 / trained.period.as_secs_f64(),
        trained.map_calls
    );
}
