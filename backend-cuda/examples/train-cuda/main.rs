//! Trains a transformer on a CUDA device, once with all memory that it needs and then with a
//! quarter of it, call by call and as CUDA graphs; and compares losses, weights and Adam's
//! moments bit by bit. `backend-cuda/train` runs it, and PyTorch beside it.
//!
//! | setting | by default |
//! |---|---|
//! | `width` `layers` `heads` `context` `batch` | 1024, 24, 16, 512, 8: 303 million parameters, and 13 GiB of weights, moments and activations |
//! | `iterations` `rate` | 32, 0.0003 |
//! | `budget` | 25 % of the in-core memory |
//! | `matmul` | cuBLAS, if it is found; `own` or `cublas` |
//! | `machine` `device` | measured at the start (a machine file or a built-in machine replaces the links); the first device |

mod cublas;
mod cublas_library;
mod driver;
mod launcher;
mod layers;
mod model;
mod settings;
mod text;
mod trainer;
mod training;
mod work;

use backend_cuda::Cuda;
use model::Model;
use settings::Settings;
use std::error::Error;
use std::path::PathBuf;
use text::Text;
use trainer::{Planned, Trainer};
use training::Trained;

/// Names the library that is used as the driver, instead of the system's.
const DRIVER: &str = "SPILLWAY_CUDA_DRIVER";
/// The first losses are shown, and means of as many groups.
const SHOWN: usize = 8;

fn main() -> Result<(), Box<dyn Error>> {
    let text = Text::new();
    let settings = Settings::new(text.characters, std::env::args().skip(1))?;
    let driver = std::env::var_os(DRIVER).filter(|path| !path.is_empty()).map(PathBuf::from);
    let trainer = Trainer::new(Cuda::load(driver.as_deref())?, text, settings)?;
    println!("{}, driver {}", trainer.info.name, trainer.info.driver);
    let mut model = Model::new(trainer.settings.sizes);
    let parameters: u64 = model.parameters.iter().map(|parameter| parameter.count).sum();
    println!(
        "{:.3} million parameters; with Adam's moments {:.2} MiB; all in memory {:.2} MiB",
        parameters as f64 / 1e6,
        mib(12 * parameters),
        mib(trainer.in_core(&model)?.0)
    );
    let timed = trainer.take_times(&mut model)?;
    println!("{} ops, with products by {}\n", model.ops.len(), timed.products);
    compare(&trainer, &model)
}

/// Trains in each way; fails where one leaves other bits than the first.
fn compare(trainer: &Trainer, model: &Model) -> Result<(), Box<dyn Error>> {
    let (ways, others) = trainer.ways(model)?;
    for reason in others {
        println!("{reason}\n");
    }
    println!("| way | MiB | MiB up | MiB down | predicted | measured | iterations/s | map calls |");
    println!("|---|--:|--:|--:|--:|--:|--:|--:|");
    let mut first: Option<Trained> = None;
    for planned in &ways {
        let trained = trainer.train(model, &planned.plan, planned.way, model.sizes.iterations)?;
        row(planned, &trained);
        let Some(first) = &first else {
            first = Some(trained);
            continue;
        };
        if let Some(state) = trained.difference(first) {
            return Err(format!("{}: state {state} is not as at first", planned.name).into());
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

fn shown(losses: impl Iterator<Item = f32>) -> String {
    losses.map(|loss| format!("{loss:.6}")).collect::<Vec<_>>().join(" ")
}

fn mib(bytes: u64) -> f64 {
    bytes as f64 / f64::from(1 << 20)
}

fn row(Planned { name, plan, .. }: &Planned, trained: &Trained) {
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
