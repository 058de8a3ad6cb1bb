//! A plan on one page of HTML that needs nothing from elsewhere.

mod chart;
mod tables;

use crate::course::Course;
use crate::figures::Figures;
use crate::proof::Proved;
use crate::summary;
use crate::units::{bytes, percent, ratio, time};
use crate::work::Setting;
use planner_core::bounds::Order;
use workloads::Shown;
use workloads::shown::is_hidden;

const STYLE: &str = include_str!("report/style.css");

/// The page.
pub(crate) fn render(
    setting: Setting<'_>,
    proved: &Proved<'_>,
    course: &Course,
    figures: &Figures,
) -> String {
    let name = escape(&Shown::name(&figures.graph).to_string());
    let chart = chart::render(setting, proved, course);
    let facts: String = summary::rows(figures, &setting.machine.machine)
        .iter()
        .map(|(name, value)| format!("<tr><th>{name}</th><td>{}</td></tr>\n", escape(value)))
        .collect();
    let moved = tables::moved(setting, proved);
    let stalls = tables::stalls(setting, proved, course);
    format!(
        "<!DOCTYPE html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n\
         <meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n\
         <title>{name} – Spillway</title>\n<style>\n{STYLE}</style>\n</head>\n<body>\n\
         <header><h1>{name}</h1>\n<p>{}</p></header>\n{}\
         <section><h2>One iteration, once under way</h2>\n{chart}</section>\n\
         <section><h2>The plan</h2>\n<table class=\"facts\">{facts}</table></section>\n\
         <div class=\"columns\">\n<section><h2>Largest traffic</h2>\n{moved}</section>\n\
         <section><h2>Stalls</h2>\n{stalls}</section>\n</div>\n</body>\n</html>\n",
        escape(&subtitle(figures)),
        tiles(figures),
    )
}

fn subtitle(figures: &Figures) -> String {
    format!(
        "on {} with {} of device memory, strategy {}",
        Shown::name(&figures.machine),
        bytes(figures.budget_bytes),
        Shown::name(&figures.strategy)
    )
}

/// The figures that matter most.
fn tiles(figures: &Figures) -> String {
    let planned = &figures.planned;
    let period_ns = planned.period_ns.unwrap_or(0);
    let slower = ratio(period_ns, figures.compute_ns);
    let slower = slower.map_or_else(|| "–".to_owned(), |ratio| format!("{ratio:.2} ×"));
    let above = match figures.lower_bound_order {
        Order::Given => "above the lower bound for this order",
        Order::Any => "above the lower bound for any order",
    };
    let above_ns = period_ns.saturating_sub(figures.lower_bound_ns);
    let moved_bytes = planned.h2d_bytes.unwrap_or(0).saturating_add(planned.d2h_bytes.unwrap_or(0));
    let tiles = [
        (slower, format!("compute alone, {}", time(figures.compute_ns))),
        (time(period_ns), format!("an iteration, {} stalled", time(planned.stall_ns.unwrap_or(0)))),
        (percent(above_ns, figures.lower_bound_ns), above.to_owned()),
        (
            percent(figures.budget_bytes, figures.in_core_peak_bytes),
            format!("of the {} needed in-core", bytes(figures.in_core_peak_bytes)),
        ),
        (bytes(moved_bytes), "moved an iteration".to_owned()),
    ];
    let tile = |(value, label): &(String, String)| {
        format!("<div><b>{}</b><span>{}</span></div>\n", escape(value), escape(label))
    };
    format!("<section class=\"tiles\">\n{}</section>\n", tiles.iter().map(tile).collect::<String>())
}

/// Text as HTML and SVG show it.
pub(crate) fn escape(text: &str) -> String {
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
