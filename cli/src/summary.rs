//! The summary of a plan on one screen.

use crate::figures::Figures;
use spillway::summary::rows;
use spillway::units::bytes;
use std::fmt::Write;
use workloads::{OwnedMachine, Shown};

/// The summary of a plan.
pub(crate) fn of(figures: &Figures, machine: &OwnedMachine) -> String {
    let context = &figures.context;
    let mut text = format!(
        "{}\n  on {} with {} of device memory, strategy {}\n\n",
        Shown::name(&context.graph),
        Shown::name(&context.machine),
        bytes(context.budget_bytes),
        Shown::name(&context.strategy)
    );
    let rows = figures.planned.map(|planned| rows(context, &planned, machine));
    for (name, value) in rows.unwrap_or_default() {
        // Writing to a string does not fail.
        let _ = writeln!(text, "  {name:<10}{value}");
    }
    text
}
