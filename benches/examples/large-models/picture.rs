//! The period over the budget for a training step of 8 billion parameters.

use super::{Done, RTX_4090, Ways};
use planner_core::Machine;
use plotters::coord::Shift;
use plotters::prelude::*;
use spillway::planning;
use std::path::Path;

/// Budgets up to the in-core need, on a device with enough memory.
const BUDGETS_GIB: [u64; 10] = [4, 6, 8, 12, 16, 22, 32, 48, 80, 112];

/// The range of the drawn periods, relative to compute.
const LEAST: f64 = 0.8;
const MOST: f64 = 3.0;

type Line = (&'static str, RGBColor, u32, fn(&Ways) -> Option<u64>);

const LINES: [Line; 5] = [
    ("checkpointing, streamed", RGBColor(204, 121, 167), 2, |ways| ways.streamed),
    ("checkpointing by hand", RGBColor(230, 159, 0), 2, |ways| ways.by_hand),
    ("auto", RGBColor(0, 114, 178), 4, |ways| ways.auto),
    ("updates on the host", RGBColor(213, 94, 0), 2, |ways| ways.zero_offload),
    ("auto, with the host", RGBColor(0, 158, 115), 4, |ways| ways.auto_with_host),
];

const BOUND: Line = ("bound", BLACK, 1, |ways| ways.bound);

/// Each budget in GiB, with its plans.
pub(super) fn curve() -> Done<Vec<(f64, Ways)>> {
    let card = RTX_4090.machine(0)?;
    let machine: Machine = card.machine.with_device_bytes(1 << 40);
    let machine = card.with_machine(machine);
    let work = RTX_4090.work("billions=8", false)?;
    let hosted = RTX_4090.work("billions=8", true)?;
    let graph = work.graph()?;
    let in_core_bytes = planning::in_core_peak_bytes(&graph, &machine.machine)?;
    let budgets = BUDGETS_GIB.iter().map(|gib| gib << 30).chain([in_core_bytes]);
    budgets
        .map(|budget_bytes| {
            let ways = Ways::of([&work, &hosted], &machine, budget_bytes)?;
            Ok((budget_bytes as f64 / f64::from(1u32 << 30), ways))
        })
        .collect()
}

pub(super) fn draw(path: &Path, curve: &[(f64, Ways)]) -> Done<()> {
    let mut svg = String::new();
    draw_curve(&SVGBackend::with_string(&mut svg, (960, 460)).into_drawing_area(), curve)?;
    Ok(std::fs::write(path, without_repeated_texts(&svg))?)
}

/// Removes repeated texts, because a logarithmic axis may name its last point twice.
fn without_repeated_texts(svg: &str) -> String {
    let mut last = "";
    let shown = svg.split_inclusive("</text>\n").map(|piece| {
        let (before, text) = piece.split_at(piece.rfind("<text ").unwrap_or(piece.len()));
        let is_repeated = text == core::mem::replace(&mut last, text);
        if is_repeated { before } else { piece }
    });
    shown.collect()
}

fn draw_curve(root: &DrawingArea<SVGBackend<'_>, Shift>, curve: &[(f64, Ways)]) -> Done<()> {
    root.fill(&WHITE)?;
    let (legend, panel) = root.split_vertically(56);
    for (at, (text, colour, width, _)) in LINES.into_iter().chain([BOUND]).enumerate() {
        let (x, y) = (70 + 290 * (at as i32 / 2), 18 + 20 * (at as i32 % 2));
        let stroke = colour.stroke_width(width);
        legend.draw(&PathElement::new([(x, y), (x + 28, y)], stroke))?;
        let font = ("sans-serif", 14).into_font().color(&BLACK);
        legend.draw_text(text, &font, (x + 36, y - 7))?;
    }
    let first = curve.first().ok_or("no budget")?.0;
    let last = curve.last().ok_or("no budget")?.0;
    let mut chart = ChartBuilder::on(&panel)
        .margin(8)
        .x_label_area_size(36)
        .y_label_area_size(52)
        .build_cartesian_2d((first..last).log_scale(), LEAST..MOST)?;
    chart
        .configure_mesh()
        .light_line_style(TRANSPARENT)
        .x_desc("device memory, GiB")
        .y_desc("period over compute")
        .x_label_formatter(&|gib| format!("{gib:.0}"))
        .draw()?;
    let points = |period_ns: fn(&Ways) -> Option<u64>| {
        curve.iter().filter_map(move |(gib, ways)| {
            let over = period_ns(ways)? as f64 / ways.compute_ns as f64;
            Some((*gib, over.min(MOST)))
        })
    };
    for (_, colour, width, period_ns) in LINES {
        let stroke = colour.stroke_width(width);
        let line = LineSeries::new(points(period_ns), stroke).point_size(width + 1);
        chart.draw_series(line)?;
    }
    let (_, colour, width, period_ns) = BOUND;
    chart.draw_series(DashedLineSeries::new(
        points(period_ns),
        6,
        4,
        colour.stroke_width(width),
    ))?;
    root.present()?;
    Ok(())
}
