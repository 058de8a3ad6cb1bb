//! Draws the period over the budget, with one panel per work.

use crate::{BOUND, Measured};
use plotters::coord::Shift;
use plotters::prelude::*;
use std::error::Error;
use std::path::Path;

type Area<'a> = DrawingArea<SVGBackend<'a>, Shift>;

/// A colour per row, from the palette of Okabe and Ito, which colour-blind people can tell apart.
const COLOURS: [RGBColor; 5] = [
    RGBColor(213, 94, 0),
    RGBColor(230, 159, 0),
    RGBColor(204, 121, 167),
    RGBColor(0, 114, 178),
    RGBColor(0, 0, 0),
];
const COLUMNS: usize = 3;
const PANEL: (u32, u32) = (340, 300);
const KEY_HEIGHT: u32 = 40;
const KEY_STEP: usize = 190;
/// The start of the logarithmic axis, which shows the period without compute, relative to compute.
const LEAST: f64 = 0.001;

pub(crate) fn draw(path: &Path, budgets: &[u64], works: &[Measured]) -> Result<(), Box<dyn Error>> {
    let rows = works.len().div_ceil(COLUMNS);
    let size = (PANEL.0 * COLUMNS as u32, KEY_HEIGHT + PANEL.1 * rows as u32);
    let root = SVGBackend::new(path, size).into_drawing_area();
    root.fill(&WHITE)?;
    let (key, panels) = root.split_vertically(KEY_HEIGHT);
    for (at, (title, _)) in works.first().map_or(&[][..], |work| &work.rows).iter().enumerate() {
        let (x, colour) = ((20 + at * KEY_STEP) as i32, COLOURS[at % COLOURS.len()]);
        key.draw(&PathElement::new([(x, 20), (x + 28, 20)], colour.stroke_width(2)))?;
        let text = ("sans-serif", 12).into_font().color(&BLACK);
        key.draw_text(title.trim_matches('*'), &text, (x + 36, 14))?;
    }
    for (area, work) in panels.split_evenly((rows, COLUMNS)).iter().zip(works) {
        panel(area, budgets, work)?;
    }
    root.present()?;
    Ok(())
}

fn panel(area: &Area<'_>, budgets: &[u64], work: &Measured) -> Result<(), Box<dyn Error>> {
    let height = |over: f64| (over - 1.0).max(LEAST).log10();
    let periods = || work.rows.iter().flat_map(|(_, periods)| periods.iter().flatten());
    let most = periods().fold(2.0, |most: f64, &over| most.max(over));
    let least = budgets.iter().min().map_or(0.0, |&percent| percent as f64);
    let mut chart = ChartBuilder::on(area)
        .caption(&work.work, ("sans-serif", 14))
        .margin(8)
        // Room for half of the last label.
        .margin_right(20)
        .x_label_area_size(34)
        .y_label_area_size(48)
        .build_cartesian_2d(least - 3.0..100.0, LEAST.log10()..height(most) + 0.1)?;
    chart
        .configure_mesh()
        .disable_x_mesh()
        .light_line_style(TRANSPARENT)
        .x_desc("budget, % of in-core")
        .x_label_formatter(&|percent| format!("{percent:.0}"))
        .y_labels(8)
        .y_label_formatter(&|height| {
            let over = 10f64.powf(*height);
            if over < 0.02 { format!("{:.3}", 1.0 + over) } else { format!("{:.2}", 1.0 + over) }
        })
        .draw()?;
    for ((title, periods), colour) in work.rows.iter().zip(COLOURS) {
        let points = budgets.iter().zip(periods);
        let points = points.filter_map(|(&x, &over)| Some((x as f64, height(over?))));
        let stroke = colour.stroke_width(2);
        if *title == BOUND {
            chart.draw_series(DashedLineSeries::new(points.clone(), 6, 4, stroke))?;
            chart.draw_series(points.map(|point| Circle::new(point, 2, colour.filled())))?;
        } else {
            chart.draw_series(LineSeries::new(points, stroke).point_size(3))?;
        }
    }
    Ok(())
}
