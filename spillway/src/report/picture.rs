//! One iteration as a separate SVG image.

use super::chart::{Drawing, HEIGHT, LEFT, WIDTH, memory};
use super::{CHART_STYLE, escape, fitted, subtitle, width_px};
use crate::course::Course;
use crate::figures::{Context, Figures};
use crate::proof::Proved;
use crate::units::{bytes, ratio, time};
use workloads::Shown;

/// The height of the header above the drawing.
const HEADER: f64 = 56.0;
/// The height of the space below the drawing, without the rows of the legend.
const FOOTER: f64 = 16.0;
const LEGEND_ROW: f64 = 18.0;
const MARGIN: f64 = 14.0;
/// The font sizes of the title, of the line below it, and of all other text.
const TITLE: f64 = 16.0;
const SUBTITLE: f64 = 13.0;
const TEXT: f64 = 11.0;

/// Renders the image.
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
    let (legend, rows) = legend(&entries);
    let (width, height) = (WIDTH + 2.0 * MARGIN, HEADER + HEIGHT + FOOTER + rows * LEGEND_ROW);
    let title = Shown::name(&context.graph).to_string();
    let subtitle = format!("{}; {}", subtitle(context), outcome(context, &figures));
    format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {width} {height}\" \
         width=\"{width}\" height=\"{height}\" role=\"img\" font-family=\"system-ui, sans-serif\" \
         font-size=\"{TEXT}\">\n<title>{title} – Spillway</title>\n<style>\n{style}</style>\n\
         <rect class=\"card\" width=\"100%\" height=\"100%\" rx=\"8\"/>\n\
         <g transform=\"translate({MARGIN} 0)\">\n<text class=\"title\" x=\"0\" y=\"26\">{shown}</text>\n\
         <text class=\"subtitle\" x=\"0\" y=\"45\">{below}</text>\n\
         <g transform=\"translate(0 {HEADER})\">\n{svg}</g>\n\
         <g transform=\"translate(0 {})\">\n{legend}</g>\n</g>\n</svg>\n",
        HEADER + HEIGHT + 4.0,
        title = escape(&title),
        style = style(),
        shown = escape(&fitted(&title, TITLE, true, WIDTH)),
        below = escape(&fitted(&subtitle, SUBTITLE, false, WIDTH)),
    )
}

/// The rules of the chart and the additional rules of a picture, with the colours of the light theme in place
/// of variables: only browsers support variables.
fn style() -> String {
    let rules: String = CHART_STYLE
        .lines()
        .filter(|line| line.starts_with("svg "))
        .map(|line| format!("{line}\n"))
        .collect();
    let own = format!(
        "svg .card {{ fill: var(--card); }}\nsvg .title {{ fill: var(--text); font-size: {TITLE}px; \
         font-weight: 600; }}\nsvg .subtitle {{ font-size: {SUBTITLE}px; }}\n"
    );
    let light = CHART_STYLE.split('}').next().unwrap_or_default();
    let colours = light.split(['{', ';']).filter_map(|declared| {
        let (name, colour) = declared.trim().split_once(": ")?;
        Some((format!("var({name})"), colour))
    });
    colours.fold(rules + &own, |rules, (variable, colour)| rules.replace(&variable, colour))
}

/// The line with the result of the plan.
fn outcome(context: &Context, figures: &Figures) -> String {
    let slower = ratio(figures.period_ns, figures.compute_ns)
        .map_or_else(String::new, |ratio| format!(", {ratio:.2} × compute alone"));
    let needed = bytes(context.in_core_peak_bytes);
    format!("{needed} needed in-core; {} an iteration{slower}", time(figures.period_ns))
}

/// Returns the coloured squares of the legend with their labels, and the number of their rows.
fn legend(entries: &[(&str, String)]) -> (String, f64) {
    let (mut x, mut row) = (LEFT, 0.0);
    let entry = |(class, label): &(&str, String)| {
        let width = 15.0 + width_px(label, TEXT, false);
        if x + width > WIDTH && x > LEFT {
            (x, row) = (LEFT, row + 1.0);
        }
        let (at, top, text_at) = (x, 2.0 + row * LEGEND_ROW, x + 15.0);
        let baseline = top + 9.0;
        x += width + 14.0;
        format!(
            "<rect class=\"{class}\" x=\"{at:.0}\" y=\"{top}\" width=\"10\" height=\"10\"/>\
             <text x=\"{text_at:.0}\" y=\"{baseline}\">{label}</text>\n"
        )
    };
    let svg = entries.iter().map(entry).collect();
    (svg, row + 1.0)
}
