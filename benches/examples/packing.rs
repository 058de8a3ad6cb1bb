//! How tightly items are packed by lifetime, and how fast.
//!
//! `packing [FOLDER]` packs the problems of a folder (files of MiniMalloc) with the default
//! effort and with a high one; then random items by the hundred thousand.

use planner_core::packing::{Item, default_steps};
use spillway_benches::problems;
use std::path::Path;

const HIGH_STEPS: u64 = 1 << 31;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    if let Some(folder) = std::env::args().nth(1) {
        folder_table(Path::new(&folder))?;
    }
    many_table();
    Ok(())
}

fn folder_table(folder: &Path) -> Result<(), Box<dyn std::error::Error>> {
    println!("| | items | load | | over capacity | over load | ms |");
    println!("|---|--:|--:|---|--:|--:|--:|");
    for problem in problems::read_folder(folder)? {
        let default = default_steps(problem.items.len());
        for (effort, steps) in [("first fit", 0), ("default", default), ("high", HIGH_STEPS)] {
            let (packing, took) = problems::pack(&problem.items, steps);
            println!(
                "| {} | {} | {} | {effort}: {} | {:.4} | {:.4} | {:.1} |",
                problem.name,
                problem.items.len(),
                packing.load_bytes,
                packing.height_bytes,
                packing.height_bytes as f64 / problem.capacity_bytes as f64,
                packing.height_bytes as f64 / packing.load_bytes as f64,
                took.as_secs_f64() * 1e3,
            );
        }
    }
    Ok(())
}

fn many_table() {
    println!("| random items | lives of at most | over load | ms |");
    println!("|--:|--:|--:|--:|");
    for (count, most_life) in [(100_000, 50), (100_000, 5_000), (100_000, 100_000)] {
        let mut seed = 1u64;
        let mut random = |below: u64| {
            seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            (seed >> 33) % below
        };
        let item = |first| {
            let last = first + random(most_life) as u32;
            Item { first, last, bytes: 256 * (1 + random(1000)) }
        };
        let items: Vec<Item> = (0..count).map(item).collect();
        let (packing, took) = problems::pack(&items, default_steps(items.len()));
        println!(
            "| {count} | {most_life} | {:.4} | {:.1} |",
            packing.height_bytes as f64 / packing.load_bytes as f64,
            took.as_secs_f64() * 1e3,
        );
    }
}
