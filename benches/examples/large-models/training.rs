//! A training step within the memory of a card.

use super::{Card, Done, GH200, LAPTOP, RTX_4090, RTX_5090, Ways, least_bytes};
use spillway::planning;
use spillway::units::bytes;
use std::fmt::Write;

const TOKENS: u64 = 8192;

/// A model on a card with at least this much host memory, and its budgets. The page adds the least
/// budget.
struct Row {
    billions: u64,
    card: Card,
    host_gb: u64,
    budgets_gib: &'static [u64],
}

const ROWS: [Row; 9] = [
    Row { billions: 1, card: LAPTOP, host_gb: 0, budgets_gib: &[4, 7] },
    Row { billions: 3, card: LAPTOP, host_gb: 0, budgets_gib: &[4, 7] },
    Row { billions: 8, card: RTX_4090, host_gb: 0, budgets_gib: &[4, 8, 16, 22] },
    Row { billions: 8, card: RTX_5090, host_gb: 0, budgets_gib: &[8, 16, 30] },
    Row { billions: 14, card: RTX_4090, host_gb: 0, budgets_gib: &[22] },
    Row { billions: 14, card: RTX_5090, host_gb: 0, budgets_gib: &[30] },
    Row { billions: 32, card: RTX_5090, host_gb: 768, budgets_gib: &[30] },
    Row { billions: 32, card: GH200, host_gb: 768, budgets_gib: &[80] },
    Row { billions: 70, card: GH200, host_gb: 1536, budgets_gib: &[80] },
];

/// Writes the largest budget of each model to the page, and the other budgets to the page of research.
pub(super) fn table(text: &mut String, research: &mut String) -> Done<()> {
    text.push_str(include_str!("training.md"));
    research.push_str(include_str!("less_memory.md"));
    for row in &ROWS {
        let Row { billions, card, host_gb, budgets_gib } = row;
        let machine = card.machine(*host_gb)?;
        let works =
            [false, true].map(|on_host| card.work(&format!("billions={billions}"), on_host));
        let [work, hosted] = works;
        let (work, hosted) = (work?, hosted?);
        let graph = work.graph()?;
        let in_core_bytes = planning::in_core_peak_bytes(&graph, &machine.machine)?;
        let least = [least_bytes(&work, &machine)?];
        let budgets = least.into_iter().chain(budgets_gib.iter().map(|gib| gib << 30));
        for (at, budget_bytes) in budgets.enumerate() {
            let ways = Ways::of([&work, &hosted], &machine, budget_bytes)?;
            let rate = |ns: Option<u64>| {
                ns.map_or_else(
                    || "–".to_owned(),
                    |ns| format!("{:.0}", TOKENS as f64 * 1e9 / ns as f64),
                )
            };
            let is_largest = at == budgets_gib.len();
            let label = match (at, *host_gb) {
                (1.., _) if !is_largest => " | | ".to_owned(),
                (_, 0) => format!("{billions} | {} | {}", card.machine, bytes(in_core_bytes)),
                (_, gb) => {
                    format!(
                        "{billions} | {}, host of {gb} GB | {}",
                        card.machine,
                        bytes(in_core_bytes)
                    )
                }
            };
            let over = |ns| ways.over_compute(ns);
            writeln!(
                if is_largest { &mut *text } else { &mut *research },
                "| {label} | {} | {} | {} | **{}** | {} | {} | {} | **{}** | {} |",
                bytes(budget_bytes),
                over(ways.streamed),
                over(ways.by_hand),
                over(ways.auto),
                over(ways.bound),
                rate(ways.auto),
                over(ways.zero_offload),
                over(ways.auto_with_host),
                rate(ways.auto_with_host),
            )?;
        }
    }
    Ok(())
}
