//! The curve of the period over the budget, with the plan marked.

use super::chart::round_step;
use super::{Budgeted, escape};
use crate::figures::{Context, Figures};
use crate::units::{bytes, percent, ratio, time};
use std::fmt::Write;

const WIDTH: f64 = 760.0;
const HEIGHT: f64 = 250.0;
const LEFT: f64 = 66.0;
const RIGHT: f64 = WIDTH - 34.0;
const TOP: f64 = 16.0;
const BOTTOM: f64 = HEIGHT - 40.0;
/// The approximate number of gaps in the grid.
const LINES: u64 = 4;

/// The axes, from 0 to the largest budget, and from compute alone to the longest period.
struct Scale {
    most_bytes: f64,
    least_ns: f64,
    most_ns: f64,
}

impl Scale {
    fn x(&self, budget_bytes: u64) -> f64 {
        LEFT + (RIGHT - LEFT) * budget_bytes as f64 / self.most_bytes
    }

    fn y(&self, period_ns: u64) -> f64 {
        let share = (period_ns as f64 - self.least_ns) / (self.most_ns - self.least_ns);
        BOTTOM - (BOTTOM - TOP) * share
    }
}

/// Renders the section, or an empty text if there is no curve.
pub(super) fn render(curve: &[Budgeted], context: &Context, figures: &Figures) -> String {
    if curve.len() < 2 {
        return String::new();
    }
    let plan = Budgeted { budget_bytes: context.budget_bytes, period_ns: figures.period_ns };
    let mut points = curve.to_vec();
    points.push(plan);
    points.sort_by_key(|point| (point.budget_bytes, point.period_ns));
    points.dedup();
    let most = |of: fn(&Budgeted) -> u64| points.iter().map(of).max().unwrap_or(0).max(1) as f64;
    let (least_ns, most_ns) = (figures.compute_ns as f64, most(|point| point.period_ns));
    let scale = Scale {
        most_bytes: most(|point| point.budget_bytes),
        least_ns,
        // Leaves room above the longest period, and keeps a scale if all periods equal compute.
        most_ns: most_ns.max(least_ns + 1.0) + 0.05 * (most_ns - least_ns).max(0.0),
    };
    let mut svg = grid(&scale, context, figures);
    // Writes to a string never fail.
    let _ = write!(svg, "<path class=\"curve\" d=\"");
    for (at, point) in points.iter().enumerate() {
        let (x, y) = (scale.x(point.budget_bytes), scale.y(point.period_ns));
        let _ = write!(svg, "{}{x:.1} {y:.1}", if at == 0 { 'M' } else { 'L' });
    }
    svg += "\"/>\n";
    for point in &points {
        let (x, y) = (scale.x(point.budget_bytes), scale.y(point.period_ns));
        let (class, radius) = if *point == plan { ("point this", 6) } else { ("point", 4) };
        let title = escape(&title(point, context, figures));
        let _ = writeln!(
            svg,
            "<circle class=\"{class}\" cx=\"{x:.1}\" cy=\"{y:.1}\" r=\"{radius}\"><title>{title}</title></circle>"
        );
    }
    format!(
        "<section><h2>Other budgets</h2>\n<div class=\"scroll\"><svg class=\"narrow\" \
         viewBox=\"0 0 {WIDTH} {HEIGHT}\" role=\"img\" aria-label=\"Period over budget\">\n{svg}</svg></div>\n\
         <p class=\"note\">The period of plans by the same strategy, over their device memory; the large \
         point is this plan. The bottom line is compute alone.</p></section>\n"
    )
}

/// Draws lines at round shares of the memory needed in-core, and at round multiples of compute.
fn grid(scale: &Scale, context: &Context, figures: &Figures) -> String {
    let mut svg = String::new();
    let in_core_bytes = context.in_core_peak_bytes;
    // In thousandths, then in percent.
    let most_share = scale.most_bytes * 1000.0 / in_core_bytes.max(1) as f64;
    let step = round_step((most_share as u64 / (LINES + 1)).max(1));
    for share in (0..=most_share as u64).step_by(step as usize) {
        let budget_bytes = (in_core_bytes as f64 * share as f64 / 1000.0) as u64;
        let (x, below) = (scale.x(budget_bytes), BOTTOM + 16.0);
        // Writes to a string never fail.
        let _ = writeln!(
            svg,
            "<line class=\"grid\" x1=\"{x:.1}\" x2=\"{x:.1}\" y1=\"{TOP}\" y2=\"{BOTTOM}\"/>\
             <text class=\"mid\" x=\"{x:.1}\" y=\"{below}\">{}</text>\
             <text class=\"mid\" x=\"{x:.1}\" y=\"{}\">{}</text>",
            bytes(budget_bytes),
            below + 14.0,
            escape(&percent(budget_bytes, in_core_bytes)),
        );
    }
    // If the work has no compute time, the unit is a nanosecond.
    let unit_ns = figures.compute_ns.max(1000) as f64 / 1000.0;
    let [least, most] = [scale.least_ns, scale.most_ns].map(|ns| (ns / unit_ns) as u64);
    let step = round_step(((most - least) / LINES).max(1));
    let first = least.checked_next_multiple_of(step).unwrap_or(most);
    for thousandths in (first..=most).step_by(step as usize) {
        let period_ns = (thousandths as f64 * unit_ns) as u64;
        let y = scale.y(period_ns);
        let (label_x, label_y) = (LEFT - 6.0, y + 4.0);
        let times = ratio(period_ns, figures.compute_ns)
            .map_or_else(|| time(period_ns), |ratio| format!("{ratio:.2} ×"));
        let _ = writeln!(
            svg,
            "<line class=\"grid\" x1=\"{LEFT}\" x2=\"{RIGHT}\" y1=\"{y:.1}\" y2=\"{y:.1}\"/>\
             <text class=\"right\" x=\"{label_x}\" y=\"{label_y:.1}\">{times}</text>"
        );
    }
    svg
}

fn title(point: &Budgeted, context: &Context, figures: &Figures) -> String {
    let slower = ratio(point.period_ns, figures.compute_ns)
        .map_or_else(String::new, |ratio| format!(", {ratio:.2} × compute alone"));
    format!(
        "{} ({} of in-core): {}{slower}",
        bytes(point.budget_bytes),
        percent(point.budget_bytes, context.in_core_peak_bytes),
        time(point.period_ns)
    )
}
