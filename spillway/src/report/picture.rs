//! One iteration as an SVG image of its own.

use super::chart::{Drawing, HEIGHT, LEFT, WIDTH, memory};
use super::{CHART_STYLE, escape, subtitle};
use crate::course::Course;
use crate::figures::{Context, Figures};
use crate::proof::Proved;
use crate::units::{bytes, ratio, time};
use workloads::Shown;

/// What stands above the drawing.
const HEADER: f64 = 56.0;
/// The legend below it.
const FOOTER: f64 = 34.0;
const MARGIN: f64 = 14.0;
/// The width of a character of the legend, about.
const CHARACTER: f64 = 5.9;

/// The image.
pub(crate) fn render(proved: &Proved<'_>, course: &Course, context: &Context) -> String {
    let figures = Figures::of(proved);
    let drawing = Drawing::of(proved, course, None);
    let (svg, most_held) = drawing.map_or_else(Default::default, |d| (d.svg, d.most_held));
    let streams = ["compute", "repeat", "stall", "upload", "download", "host"];
    let is_absent = |class| match class {
        "repeat" => figures.repeats == 0,
        "stall" => figures.stall_ns == 0,
        "host" => figures.on_host == 0,
        _ => false,
    };
    let present = streams.into_iter().filter(|&class| !is_absent(class));
    let mut entries: Vec<_> = present.map(|class| (class, class.to_owned())).collect();
    for (content, most_bytes) in most_held.into_iter().rev() {
        let label = format!("{} ≤ {}", memory::label(content), bytes(most_bytes));
        entries.push((memory::class(content), label));
    }
    let (width, height) = (WIDTH + 2.0 * MARGIN, HEADER + HEIGHT + FOOTER);
    let title = escape(&Shown::name(&context.graph).to_string());
    format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {width} {height}\" \
         width=\"{width}\" height=\"{height}\" role=\"img\" font-family=\"system-ui, sans-serif\" \
         font-size=\"11\">\n<title>{title} – Spillway</title>\n<style>\n{CHART_STYLE}\
         svg .card {{ fill: var(--card); }}\nsvg .title {{ fill: var(--text); font-size: 16px; \
         font-weight: 600; }}\nsvg .subtitle {{ font-size: 13px; }}\n</style>\n\
         <rect class=\"card\" width=\"100%\" height=\"100%\" rx=\"8\"/>\n\
         <g transform=\"translate({MARGIN} 0)\">\n<text class=\"title\" x=\"0\" y=\"26\">{title}</text>\n\
         <text class=\"subtitle\" x=\"0\" y=\"45\">{}</text>\n\
         <g transform=\"translate(0 {HEADER})\">\n{svg}</g>\n\
         <g transform=\"translate(0 {})\">\n{}</g>\n</g>\n</svg>\n",
        escape(&format!("{}; {}", subtitle(context), outcome(context, &figures))),
        HEADER + HEIGHT + 4.0,
        legend(&entries),
    )
}

/// What the plan comes to.
fn outcome(context: &Context, figures: &Figures) -> String {
    let slower = ratio(figures.period_ns, figures.compute_ns)
        .map_or_else(String::new, |ratio| format!(", {ratio:.2} × compute alone"));
    let needed = bytes(context.in_core_peak_bytes);
    format!("{needed} needed in-core; {} an iteration{slower}", time(figures.period_ns))
}

/// Coloured squares in a row, with what they stand for.
fn legend(entries: &[(&str, String)]) -> String {
    let mut x = LEFT;
    let entry = |(class, label): &(&str, String)| {
        let (at, text_at) = (x, x + 15.0);
        x = text_at + CHARACTER * label.chars().count() as f64 + 14.0;
        format!(
            "<rect class=\"{class}\" x=\"{at:.0}\" y=\"2\" width=\"10\" height=\"10\"/>\
             <text x=\"{text_at:.0}\" y=\"11\">{label}</text>\n"
        )
    };
    entries.iter().map(entry).collect()
}
