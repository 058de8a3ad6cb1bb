//! Measures the height and the time of packing items by lifetime. Writes
//! `docs/research/packing.md`.
//!
//! `packing PAGE [FOLDER]`. The folder holds problems in the format of MiniMalloc. It defaults to
//! `../shared/data/minimalloc` beside the checkout.

use planner_core::packing::{Item, Packing, default_steps};
use spillway_benches::problems::{self, Problem, RECORDED};
use std::error::Error;
use std::fmt::Write;
use std::path::Path;
use std::time::Duration;

const HIGH_STEPS: u64 = 1 << 31;

fn main() -> Result<(), Box<dyn Error>> {
    let mut arguments = std::env::args().skip(1);
    let page = arguments.next().ok_or("usage: packing PAGE [FOLDER]")?;
    let folder = arguments.next().unwrap_or_else(|| RECORDED.to_owned());
    if !Path::new(&folder).is_dir() {
        return Err(format!("{folder}: there is no such folder of problems").into());
    }
    let mut text = include_str!("packing.md").to_owned();
    recorded(&mut text, &problems::read_folder(Path::new(&folder))?)?;
    many(&mut text)?;
    std::fs::write(&page, text).map_err(|error| format!("{page}: {error}"))?;
    Ok(())
}

/// The height of a packing over `of_bytes` and over the load, for the page.
fn ratios(packing: Packing, of_bytes: u64) -> String {
    let over = |bytes: u64| packing.height_bytes as f64 / bytes as f64;
    format!("{:.4} | {:.4}", over(of_bytes), over(packing.load_bytes))
}

fn ms(took: Duration) -> f64 {
    took.as_secs_f64() * 1e3
}

fn recorded(text: &mut String, problems: &[Problem]) -> std::fmt::Result {
    writeln!(text, "\n## The challenging problems of MiniMalloc\n")?;
    writeln!(text, "Each of the eleven is known to fit into 1,048,576.\n")?;
    write!(text, "| problem | items | load | first fit, of capacity | default, of capacity | ")?;
    writeln!(text, "of load | ms | high, of capacity | of load | ms |")?;
    writeln!(text, "|---|{}", "--:|".repeat(9))?;
    for Problem { name, capacity_bytes, items } in problems {
        let [first_fit, default, high] =
            [0, default_steps(items.len()), HIGH_STEPS].map(|steps| problems::pack(items, steps));
        let capacity_bytes = *capacity_bytes;
        writeln!(
            text,
            "| {name} | {} | {:.4} | {:.4} | {} | {:.1} | {} | {:.1} |",
            items.len(),
            first_fit.0.load_bytes as f64 / capacity_bytes as f64,
            first_fit.0.height_bytes as f64 / capacity_bytes as f64,
            ratios(default.0, capacity_bytes),
            ms(default.1),
            ratios(high.0, capacity_bytes),
            ms(high.1),
        )?;
    }
    Ok(())
}

/// Packs more items than the search takes.
fn many(text: &mut String) -> std::fmt::Result {
    const COUNT: u32 = 100_000;
    writeln!(text, "\n## Many items\n")?;
    writeln!(text, "100,000 random items, one beginning at each instant, with default effort.\n")?;
    writeln!(text, "| longest life | of load | ms |\n|--:|--:|--:|")?;
    for most_life in [50, 5_000, 100_000] {
        let mut random = problems::random(1);
        let item = |first| Item {
            first,
            last: first + random(most_life) as u32,
            bytes: 256 * (1 + random(1000)),
        };
        let items: Vec<Item> = (0..COUNT).map(item).collect();
        let (packing, took) = problems::pack(&items, default_steps(items.len()));
        let over = packing.height_bytes as f64 / packing.load_bytes as f64;
        writeln!(text, "| {most_life} | {over:.4} | {:.1} |", ms(took))?;
    }
    Ok(())
}
