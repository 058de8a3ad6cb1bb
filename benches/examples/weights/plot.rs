//! Period over compute: by bandwidth, and by memory.

use super::{Done, Outcome, Study};
use plotters::coord::Shift;
use plotters::prelude::*;
use std::path::Path;

type Area<'a> = DrawingArea<SVGBackend<'a>, Shift>;
type Line = (&'static str, RGBColor, fn(&Outcome) -> u64);

const LINES: [Line; 5] = [
    ("layer-to-layer", RGBColor(204, 121, 167), |o| o.layer_to_layer),
    ("greedy, undiscounted", RGBColor(230, 159, 0), |o| o.undiscounted),
    ("greedy", RGBColor(213, 94, 0), |o| o.published),
    ("weights", RGBColor(0, 114, 178), |o| o.whole),
    ("auto, in parts", RGBColor(0, 158, 115), |o| o.parts),
];

pub(super) fn draw(
    path: &Path,
    studies: &[(&str, Vec<Study>)],
    (name, sweep): (&str, &[(u64, Outcome)]),
) -> Done<()> {
    let root = SVGBackend::new(path, (960, 340)).into_drawing_area();
    root.fill(&WHITE)?;
    let (legend, panels) = root.split_vertically(40);
    for (x, (text, colour, _)) in (70..).step_by(170).zip(LINES) {
        legend.draw(&PathElement::new([(x, 24), (x + 28, 24)], colour.stroke_width(2)))?;
        legend.draw_text(text, &("sans-serif", 14).into_font().color(&BLACK), (x + 36, 17))?;
    }
    let panels = panels.split_evenly((1, studies.len() + 1));
    for (panel, (name, study)) in panels.iter().zip(studies) {
        let points: Vec<_> = study.iter().map(|(at, outcome, _)| (*at, outcome)).collect();
        draw_panel(panel, (name, "GB/s", 7.0), &points)?;
    }
    let points: Vec<_> = sweep.iter().map(|(at, outcome)| (*at as f64 / 1e9, outcome)).collect();
    draw_panel(&panels[studies.len()], (&format!("{name}, 12 GB/s"), "GB", 1.6), &points)?;
    root.present()?;
    Ok(())
}

fn draw_panel(
    area: &Area<'_>,
    (title, unit, most): (&str, &str, f64),
    points: &[(f64, &Outcome)],
) -> Done<()> {
    let last = points.iter().map(|(at, _)| *at).fold(0.0, f64::max);
    let first = points.iter().map(|(at, _)| *at).fold(last, f64::min);
    let mut chart = ChartBuilder::on(area)
        .caption(title, ("sans-serif", 13))
        .margin(8)
        .x_label_area_size(32)
        .y_label_area_size(40)
        .build_cartesian_2d(first..last, 1.0..most)?;
    chart
        .configure_mesh()
        .disable_x_mesh()
        .light_line_style(TRANSPARENT)
        .x_desc(unit)
        .x_labels(7)
        .y_labels(6)
        .draw()?;
    for (_, colour, period_ns) in LINES {
        let over = |outcome: &Outcome| period_ns(outcome) as f64 / outcome.sum as f64;
        let line = points.iter().map(|(at, outcome)| (*at, over(outcome).min(most)));
        chart.draw_series(LineSeries::new(line, colour.stroke_width(2)).point_size(2))?;
    }
    Ok(())
}
