//! Device memory over time, stacked by content.

use super::{Canvas, LEFT, MEMORY_BOTTOM, MEMORY_TOP, RIGHT};
use crate::course::{Content, Course, Held};
use crate::units::bytes;
use std::fmt::Write;

/// The width of the pieces in which the curves have one level each.
const CURVE_STEP: f64 = 0.5;

/// The CSS class for the colour of a content.
pub(in crate::report) const fn class(content: Content) -> &'static str {
    match content {
        Content::Arena => "arena",
        Content::State => "state",
        Content::Input => "input",
        Content::Temporary => "temporary",
        Content::Workspace => "workspace",
        Content::Waste => "waste",
    }
}

pub(in crate::report) const fn label(content: Content) -> &'static str {
    match content {
        Content::Arena => "arena",
        Content::State => "states",
        Content::Input => "inputs",
        Content::Temporary => "temporaries",
        Content::Workspace => "workspaces",
        Content::Waste => "waste",
    }
}

impl Canvas<'_> {
    /// Draws the memory. Returns the most bytes of each content.
    pub(super) fn memory(&mut self, course: &Course) -> Vec<(Content, u64)> {
        let budget_bytes = self.proved.verified.plan().budget_bytes;
        let y = |held_bytes: u64| {
            let share = held_bytes as f64 / (budget_bytes.max(1) as f64 * 1.06);
            MEMORY_BOTTOM - (MEMORY_BOTTOM - MEMORY_TOP) * share
        };
        let top = MEMORY_TOP - 6.0;
        self.draw(format_args!("<text class=\"label\" x=\"0\" y=\"{top}\">memory</text>"));
        let most_held = self.areas(course, y);
        // The lines are at powers of two, which suit sizes in binary units. A line so near the budget that
        // the labels would overlap is left out.
        let step_bytes = (budget_bytes / 5).max(1).checked_next_power_of_two().unwrap_or(u64::MAX);
        let ticks = (0..=budget_bytes / step_bytes).map(|tick| tick * step_bytes);
        let ticks = ticks.filter(|tick_bytes| budget_bytes - tick_bytes > budget_bytes / 12);
        for tick_bytes in ticks.chain([budget_bytes]) {
            let (at, text_at, text_x) = (y(tick_bytes), y(tick_bytes) + 4.0, LEFT - 6.0);
            let class = if tick_bytes == budget_bytes { "budget" } else { "grid" };
            self.draw(format_args!(
                "<line class=\"{class}\" x1=\"{LEFT}\" x2=\"{RIGHT}\" y1=\"{at:.1}\" y2=\"{at:.1}\"/>"
            ));
            let value = bytes(tick_bytes);
            self.draw(format_args!(
                "<text class=\"right\" x=\"{text_x}\" y=\"{text_at:.1}\">{value}</text>"
            ));
        }
        most_held
    }

    /// Draws each area down to the bottom, the highest first, so that the next area covers its lower part.
    fn areas(&mut self, course: &Course, y: impl Fn(u64) -> f64) -> Vec<(Content, u64)> {
        let levels = self.levels(course);
        let held = course.held_within(&self.window);
        let right = self.x(self.window.end);
        let mut most_held = Vec::new();
        for (at, content) in Content::ALL.into_iter().enumerate().rev() {
            let most_bytes = held.iter().map(|(_, held)| held[content]).max().unwrap_or(0);
            if most_bytes == 0 {
                continue;
            }
            let below = &Content::ALL[..=at];
            let top = |held: &Held| y(below.iter().map(|&content| held[content]).sum());
            let (class, label, most) = (class(content), label(content), bytes(most_bytes));
            self.draw(format_args!(
                "<path class=\"m {class}\" d=\"{}\"><title>{label}, {most} at most</title></path>",
                outline(&levels, top, right)
            ));
            most_held.push((content, most_bytes));
        }
        most_held
    }

    /// Returns the start of each level and the memory held from there on. Changes within one narrow piece
    /// become one level, the most that is held there, so that the chart loses no peak.
    fn levels(&self, course: &Course) -> Vec<(f64, Held)> {
        let mut pieces: Vec<(f64, Held, Held)> = Vec::new();
        for (ns, held) in course.held_within(&self.window) {
            let x = self.x(ns);
            match pieces.last_mut() {
                Some((from, most, last)) if x - *from < CURVE_STEP => {
                    if held.sum_bytes() > most.sum_bytes() {
                        *most = held;
                    }
                    *last = held;
                }
                _ => pieces.push((x, held, held)),
            }
        }
        let both = |(from, most, last)| [(from, most), (from + CURVE_STEP, last)];
        pieces.into_iter().flat_map(both).collect()
    }
}

/// The outline of the area under a curve of steps.
fn outline(levels: &[(f64, Held)], top: impl Fn(&Held) -> f64, right: f64) -> String {
    let mut path = format!("M{LEFT} {MEMORY_BOTTOM}");
    let mut last = String::new();
    for (from, held) in levels {
        let y = format!("{:.1}", top(held));
        if y != last {
            // Writes to a string never fail.
            let _ = write!(path, "H{:.1}V{y}", from.min(right));
            last = y;
        }
    }
    path + &format!("H{right:.1}V{MEMORY_BOTTOM}Z")
}
