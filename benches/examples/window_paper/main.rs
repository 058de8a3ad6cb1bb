//! The experiments of Hayakawa & Narihira, "Out-of-core training for extremely large-scale
//! neural networks with adaptive window-based scheduling", in the simulator.
//!
//! `window_paper table1|chunks|budgets|networks [FOLDER]` runs one experiment and writes its tables
//! and its picture to the folder.

mod budgets;
mod calibration;
mod chart;
mod chunks;
mod markdown;
mod networks;
mod table1;
mod ways;
mod work;

use std::error::Error;
use std::path::PathBuf;

type Result<T> = std::result::Result<T, Box<dyn Error>>;

const USAGE: &str = "usage: window_paper table1|chunks|budgets|networks [FOLDER]";

fn main() -> Result<()> {
    let mut arguments = std::env::args().skip(1);
    let experiment = arguments.next().ok_or(USAGE)?;
    let folder =
        PathBuf::from(arguments.next().unwrap_or_else(|| "docs/research/window-paper".to_owned()));
    std::fs::create_dir_all(&folder)?;
    match &experiment[..] {
        "table1" => table1::write(&folder),
        "chunks" => chunks::write(&folder),
        "budgets" => budgets::write(&folder),
        "networks" => networks::write(&folder),
        _ => Err(USAGE.into()),
    }
}
