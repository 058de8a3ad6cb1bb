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
use workloads::placing::{self, Unplaced};
use workloads::{OwnedPlan, planning};

/// Names the library that is used as the driver, instead of the system's.
const DRIVER: &str = "SPILLWAY_CUDA_DRIVER";
/// Iterations from which the times of ops are taken.
const TIMED: u64 = 5;
/// The first losses are shown, and means of as many groups.
const SHOWN: usize = 8;

/// Where and how everything is trained.
struct Trainer {
    cuda: Cuda,
    text: Text,
    settings: Settings,
    machine: Machine,
}

/// Memory, and the strategy that is to do with it.
type Budget = (u64, Strategy);

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
    let trainer = Trainer { cuda, text, settings, machine };
    let need_bytes = trainer.in_core_bytes(&model)?;
    let parameters: u64 = model.parameters.iter().map(|parameter| parameter.count).sum();
    println!(
        "{:.3} million parameters; with Adam's moments {:.2} MiB; all in memory {:.2} MiB",
        parameters as f64 / 1e6,
        mib(12 * parameters),
        mib(need_bytes)
    );
    let budget_bytes = need_bytes * trainer.settings.budget_percent / 100;
    let spilled = (budget_bytes, Strategy::Auto(Auto::default()));
    let in_core = Some((need_bytes, Strategy::InCore)).filter(|_| need_bytes <= info.free_bytes);
    trainer.take_times(&mut model, in_core.unwrap_or(spilled))?;
    trainer.compare(&model, in_core, spilled)
}

impl Trainer {
    /// What training takes with everything resident.
    fn in_core_bytes(&self, model: &Model) -> Result<u64, Box<dyn Error>> {
        let graph = model.graph.graph()?;
        let request = Request { graph: &graph, machine: &self.machine, budget_bytes: 0 };
        Ok(planning::min_feasible(&request, Strategy::InCore)?.0)
    }

    fn plan(
        &self,
        model: &Model,
        (budget_bytes, strategy): Budget,
    ) -> Result<(OwnedPlan, Option<Unplaced>), Box<dyn Error>> {
        let graph = model.graph.graph()?;
        let request = Request { graph: &graph, machine: &self.machine, budget_bytes };
        Ok(placing::plan(&request, strategy)?)
    }

    fn run(
        &self,
        model: &Model,
        plan: &OwnedPlan,
        way: Way,
        iterations: u64,
    ) -> Result<Trained, Box<dyn Error>> {
        let Self { cuda, text, settings, machine } = self;
        let (products, chunk_bytes) = (settings.products, Some(machine.chunk_bytes));
        let options = Options { ordinal: settings.device, chunk_bytes };
        let bench = Bench { cuda, options, machine: *machine, model, text, products };
        train(&bench, plan, way, iterations)
    }

    /// Takes the time of each op, for the planner.
    fn take_times(&self, model: &mut Model, budget: Budget) -> Result<(), Box<dyn Error>> {
        let (plan, _) = self.plan(model, budget)?;
        let timed = self.run(model, &plan, Way::Timed, model.sizes.iterations.min(TIMED))?;
        println!("{} ops, with products by {}\n", model.ops.len(), timed.products);
        for (op, time_ns) in model.graph.ops.iter_mut().zip(timed.times_ns) {
            op.time_ns = time_ns;
        }
        Ok(())
    }

    /// Trains in each way; fails where one leaves other bits than the first.
    fn compare(
        &self,
        model: &Model,
        in_core: Option<Budget>,
        spilled: Budget,
    ) -> Result<(), Box<dyn Error>> {
        let mut ways = Vec::new();
        match in_core {
            Some(in_core) => ways.push(("in-core", self.plan(model, in_core)?.0, Way::Eager)),
            None => println!("In-core is not run, since it does not fit the device's free memory."),
        }
        let (plan, unplaced) = self.plan(model, spilled)?;
        ways.push(("spilled", plan.clone(), Way::Eager));
        match unplaced {
            None => ways.push(("spilled, as graphs", plan, Way::Graphs)),
            Some(reason) => println!("Spilled as graphs is not run: {reason}."),
        }
        println!(
            "| way | MiB | MiB up | MiB down | predicted | measured | iterations/s | map calls |"
        );
        println!("|---|--:|--:|--:|--:|--:|--:|--:|");
        let mut first: Option<Trained> = None;
        for (name, plan, way) in &ways {
            let trained = self.run(model, plan, *way, model.sizes.iterations)?;
            row(name, plan, &trained);
            match &first {
                None => first = Some(trained),
                Some(first) => {
                    if let Some(state) = trained.difference(first) {
                        return Err(format!("{name}: state {state} is not as at first").into());
                    }
                }
            }
        }
        let losses = first.map_or(Vec::new(), |first| first.losses);
        let group = losses.len().div_ceil(SHOWN);
        let means = losses.chunks(group).map(|some| some.iter().sum::<f32>() / some.len() as f32);
        println!("\nlosses {}", shown(losses.iter().copied().take(SHOWN)));
        println!("means of {group} each {}", shown(means));
        if ways.len() > 1 {
            println!("all losses, weights and moments are the same bit by bit");
        }
        Ok(())
    }
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
