//! A token of a model that is larger than the card.

use super::{AUTO, Card, Done, LAPTOP, RTX_4090, RTX_5090, auto, period_ns};
use planner_core::planner::{Host, Strategy};
use std::fmt::Write;
use zoo::models;

/// A model on a card within some memory, with the host's arithmetic speed.
struct Row {
    billions: u64,
    card: Card,
    budget_gib: u64,
    host_tflops: &'static str,
}

const ROWS: [Row; 7] = [
    Row { billions: 14, card: LAPTOP, budget_gib: 7, host_tflops: "0.5" },
    Row { billions: 32, card: LAPTOP, budget_gib: 7, host_tflops: "0.5" },
    Row { billions: 32, card: RTX_4090, budget_gib: 12, host_tflops: "2" },
    Row { billions: 70, card: LAPTOP, budget_gib: 7, host_tflops: "0.5" },
    Row { billions: 70, card: RTX_4090, budget_gib: 12, host_tflops: "2" },
    Row { billions: 70, card: RTX_4090, budget_gib: 22, host_tflops: "2" },
    Row { billions: 70, card: RTX_5090, budget_gib: 30, host_tflops: "2" },
];

pub(super) fn table(text: &mut String) -> Done<()> {
    text.push_str(include_str!("tokens.md"));
    for Row { billions, card, budget_gib, host_tflops } in &ROWS {
        let machine = card.machine(0)?;
        let spec = format!("billions={billions},mode=token,bits=4.5,host_tflops={host_tflops}");
        let spec = format!("llama:{spec},{},host_gb_s={}", card.speeds, card.host_gb_s);
        let work = models::generate(&spec)?;
        let budget_bytes = budget_gib << 30;
        let period_ns = |strategy| period_ns(&work, &machine, budget_bytes, strategy);
        let ms = |ns: Option<u64>| {
            ns.map_or_else(|| "–".to_owned(), |ns| format!("{:.0}", ns as f64 / 1e6))
        };
        let auto_ns = period_ns(AUTO)?;
        writeln!(
            text,
            "| {billions} | {} | {budget_gib} GiB | {} | {} | {} | **{}** | {} |",
            card.machine,
            ms(period_ns(Strategy::Fit)?),
            ms(period_ns(auto(Host::Never))?),
            ms(period_ns(Strategy::Split)?),
            ms(auto_ns),
            auto_ns.map_or_else(|| "–".to_owned(), |ns| format!("{:.1}", 1e9 / ns as f64)),
        )?;
    }
    Ok(())
}
