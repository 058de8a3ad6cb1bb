//! A plan as one self-contained page of HTML.

mod chart;
mod curve;
mod differences;
pub(crate) mod picture;
mod search;
mod tables;
mod text;

pub use text::{fitted, width_px};

use crate::course::{self, Course};
use crate::error::Error;
use crate::figures::{Context, Figures};
use crate::names::Names;
use crate::proof::Proved;
use crate::summary;
use crate::units::{bytes, percent, ratio, time};
use planner_core::PerStream;
use planner_core::bounds::BoundOrder;
use workloads::Shown;
use workloads::shown::is_hidden;

const STYLE: &str = include_str!("report/style.css");
/// The colours of both themes as variables, and the styles that use them. Each line is one rule.
const CHART_STYLE: &str = include_str!("report/chart.css");

/// Additional content of a report.
#[derive(Clone, Debug, Default)]
#[non_exhaustive]
pub struct Beside {
    /// The curve of the period over the budget: plans of the same work for the same machine by the same
    /// strategy, in any order. The report leaves the curve out if there are fewer than two plans.
    pub curve: Vec<Budgeted>,
    /// The measured times of the plan.
    pub actual: Option<Actual>,
}

impl Beside {
    /// Creates a report without additional content.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds the curve of the period over the budget.
    #[must_use]
    pub fn with_curve(self, curve: Vec<Budgeted>) -> Self {
        Self { curve, ..self }
    }

    /// Adds the measured times of the plan.
    #[must_use]
    pub fn with_actual(self, actual: impl Into<Option<Actual>>) -> Self {
        Self { actual: actual.into(), ..self }
    }
}

/// A budget, and the period of a plan for this budget.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Budgeted {
    /// The budget.
    pub budget_bytes: u64,
    /// The period.
    pub period_ns: u64,
}

impl Budgeted {
    /// Creates a point of the curve.
    #[must_use]
    pub const fn new(budget_bytes: u64, period_ns: u64) -> Self {
        Self { budget_bytes, period_ns }
    }
}

/// The times of the steps of a plan on a device, by the clock of the device. A stream runs one step after the
/// other: no step ends before it starts, or starts before the previous step ends.
#[derive(Clone, Debug, Default)]
#[non_exhaustive]
pub struct Actual {
    /// The name of the device.
    pub device: String,
    /// The number of iterations that ran before the first one in `steps_ns`.
    pub first_iteration: u64,
    /// The start and the end of each step of each stream in ns, one iteration after the other. Reports omit
    /// an iteration in which a step has no times.
    pub steps_ns: PerStream<Vec<[u64; 2]>>,
}

impl Actual {
    /// Creates the times of a run on a device with this name. This many iterations ran before the first one in
    /// `steps_ns`.
    pub fn new(
        device: impl Into<String>,
        first_iteration: u64,
        steps_ns: PerStream<Vec<[u64; 2]>>,
    ) -> Self {
        Self { device: device.into(), first_iteration, steps_ns }
    }
}

/// The measured iterations.
pub(crate) struct Measured<'m> {
    pub(crate) device: &'m str,
    pub(crate) course: Course,
}

impl<'m> Measured<'m> {
    /// Returns `None` if no iteration has times for all steps.
    ///
    /// # Errors
    /// [`Error::Measured`].
    pub(crate) fn of(proved: &Proved<'_>, actual: &'m Actual) -> Result<Option<Self>, Error> {
        let verified = &proved.verified;
        let names = Names::new(proved.work, verified.plan().steps);
        course::check_measured(&names, verified, actual).map_err(Error::Measured)?;
        let course = Course::measured(verified, actual);
        let is_any = !course.iteration_ends_ns.is_empty();
        Ok(is_any.then_some(Self { device: &actual.device, course }))
    }
}

/// Renders the page.
pub(crate) fn render(
    proved: &Proved<'_>,
    course: &Course,
    context: &Context,
    curve: &[Budgeted],
    measured: Option<&Measured<'_>>,
) -> String {
    let figures = Figures::of(proved);
    let name = escape(&Shown::name(&context.graph).to_string());
    let chart = chart::render(proved, course, measured);
    let curve = curve::render(curve, context, &figures);
    let differences = measured.map(|measured| differences::render(proved, course, measured));
    let differences = differences.unwrap_or_default();
    let facts: String = summary::rows(context, &figures, proved.machine)
        .iter()
        .map(|(name, value)| format!("<tr><th>{name}</th><td>{}</td></tr>\n", escape(value)))
        .collect();
    let moved = tables::moved(proved);
    let stalls = tables::stalls(proved, course);
    let repeats = tables::repeats(proved);
    let (field, script) = (search::FIELD, search::script(proved));
    format!(
        "<!DOCTYPE html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\"/>\n\
         <meta name=\"viewport\" content=\"width=device-width, initial-scale=1\"/>\n\
         <title>{name} – Spillway</title>\n<style>\n{CHART_STYLE}{STYLE}</style>\n</head>\n<body>\n\
         <header><h1>{name}</h1>\n<p>{}</p></header>\n{}\
         <section><h2>One iteration, once under way</h2>\n{field}{chart}</section>\n{differences}\
         <section><h2>The plan</h2>\n<table class=\"facts\">{facts}</table></section>\n{curve}\
         <div class=\"columns\">\n<section><h2>Largest traffic</h2>\n{moved}</section>\n\
         <section><h2>Stalls</h2>\n{stalls}</section>\n{repeats}</div>\n{script}</body>\n</html>\n",
        escape(&subtitle(context)),
        tiles(context, &figures),
    )
}

fn subtitle(context: &Context) -> String {
    format!(
        "on {} with {} of device memory, strategy {}",
        Shown::name(&context.machine),
        bytes(context.budget_bytes),
        Shown::name(&context.strategy)
    )
}

/// The figures that matter most.
fn tiles(context: &Context, figures: &Figures) -> String {
    let Figures { period_ns, compute_ns, repeat_ns, stall_ns, .. } = *figures;
    let repeated = match figures.repeats {
        0 => String::new(),
        _ => format!(", {} of repeats", time(repeat_ns)),
    };
    let slower = ratio(period_ns, compute_ns);
    let slower = slower.map_or_else(|| "–".to_owned(), |ratio| format!("{ratio:.2} ×"));
    let bound = context.bound(figures);
    let order = match bound.order {
        BoundOrder::Given => "this order",
        BoundOrder::Any => "any order",
    };
    let distance_ns = period_ns.saturating_sub(bound.period_ns);
    let once = if bound.repeats { "" } else { ", each op once" };
    let moved_bytes = figures.h2d_bytes.saturating_add(figures.d2h_bytes);
    let tiles = [
        (slower, format!("compute alone, {}", time(compute_ns))),
        (time(period_ns), format!("an iteration, {} stalled{repeated}", time(stall_ns))),
        (percent(distance_ns, bound.period_ns), format!("above the lower bound for {order}{once}")),
        (
            percent(context.budget_bytes, context.in_core_peak_bytes),
            format!("of the {} needed in-core", bytes(context.in_core_peak_bytes)),
        ),
        (bytes(moved_bytes), "moved an iteration".to_owned()),
    ];
    let tile = |(value, label): &(String, String)| {
        format!("<div><b>{}</b><span>{}</span></div>\n", escape(value), escape(label))
    };
    format!("<section class=\"tiles\">\n{}</section>\n", tiles.iter().map(tile).collect::<String>())
}

/// Escapes text for HTML and SVG.
#[must_use]
pub fn escape(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '&' => out.push_str("&amp;"),
            '<' => out.push_str("&lt;"),
            '>' => out.push_str("&gt;"),
            '"' => out.push_str("&quot;"),
            c if is_hidden(c) => out.extend(c.escape_default()),
            c => out.push(c),
        }
    }
    out
}

#[cfg(test)]
mod tests {
    #[test]
    fn names_cannot_break_out_of_the_page() {
        let escaped = super::escape("<a href=\"x\">&\n");
        assert_eq!(escaped, "&lt;a href=&quot;x&quot;&gt;&amp;\\n");
    }
}
