//! Draws lines over the batch or another size.

use crate::Result;
use plotters::coord::Shift;
use plotters::prelude::*;
use std::path::Path;

pub(crate) const COLOURS: [RGBColor; 8] = [
    RGBColor(0, 0, 0),
    RGBColor(0, 114, 178),
    RGBColor(213, 94, 0),
    RGBColor(0, 158, 115),
    RGBColor(204, 121, 167),
    RGBColor(230, 159, 0),
    RGBColor(86, 180, 233),
    RGBColor(140, 140, 140),
];

/// One line of a panel.
pub(crate) struct Line {
    pub(crate) name: String,
    pub(crate) colour: RGBColor,
    pub(crate) dashed: bool,
    pub(crate) points: Vec<(f64, f64)>,
}

/// Axes with lines.
pub(crate) struct Panel {
    pub(crate) title: String,
    pub(crate) x: &'static str,
    pub(crate) y: &'static str,
    pub(crate) lines: Vec<Line>,
}

type Area<'a> = DrawingArea<SVGBackend<'a>, Shift>;

const KEY_WIDTH: u32 = 320;
const KEY_STEP: u32 = 22;

/// Draws panels row by row, under a key with the lines of the first panel.
pub(crate) fn draw(path: &Path, columns: usize, size: (u32, u32), panels: &[Panel]) -> Result<()> {
    let rows = panels.len().div_ceil(columns);
    let width = size.0 * columns as u32;
    let lines = panels.first().map_or(&[][..], |panel| &panel.lines);
    let per_row = (width / KEY_WIDTH).max(1) as usize;
    let key_height = KEY_STEP * lines.len().div_ceil(per_row) as u32 + 10;
    let root = SVGBackend::new(path, (width, key_height + size.1 * rows as u32));
    let root = root.into_drawing_area();
    root.fill(&WHITE)?;
    let (key, areas) = root.split_vertically(key_height);
    draw_key(&key, lines, per_row)?;
    for (area, panel) in areas.split_evenly((rows, columns)).iter().zip(panels) {
        draw_panel(area, panel)?;
    }
    root.present()?;
    Ok(())
}

fn draw_key(area: &Area<'_>, lines: &[Line], per_row: usize) -> Result<()> {
    for (at, line) in lines.iter().enumerate() {
        let x = (at % per_row) as i32 * KEY_WIDTH as i32 + 20;
        let y = (at / per_row) as i32 * KEY_STEP as i32 + 16;
        let stroke = line.colour.stroke_width(2);
        let spans = if line.dashed { vec![(0, 8), (12, 20), (24, 28)] } else { vec![(0, 28)] };
        for (from, to) in spans {
            area.draw(&PathElement::new([(x + from, y), (x + to, y)], stroke))?;
        }
        let text = ("sans-serif", 13).into_font().color(&BLACK);
        area.draw_text(&line.name, &text, (x + 36, y - 7))?;
    }
    Ok(())
}

fn draw_panel(area: &Area<'_>, panel: &Panel) -> Result<()> {
    let points = || panel.lines.iter().flat_map(|line| line.points.iter());
    let most_x = points().fold(0.0, |most: f64, point| most.max(point.0));
    let most_y = points().fold(0.0, |most: f64, point| most.max(point.1));
    let mut chart = ChartBuilder::on(area)
        .caption(&panel.title, ("sans-serif", 14))
        .margin(8)
        .x_label_area_size(34)
        .y_label_area_size(48)
        .build_cartesian_2d(0.0..most_x * 1.04, 0.0..most_y * 1.06)?;
    chart
        .configure_mesh()
        .disable_x_mesh()
        .light_line_style(TRANSPARENT)
        .x_desc(panel.x)
        .y_desc(panel.y)
        .x_labels(8)
        .y_labels(6)
        .x_label_formatter(&|x| format!("{x:.0}"))
        .y_label_formatter(&|y| if most_y < 8.0 { format!("{y:.1}") } else { format!("{y:.0}") })
        .draw()?;
    for line in &panel.lines {
        let points = line.points.iter().copied();
        let stroke = line.colour.stroke_width(2);
        if line.dashed {
            chart.draw_series(DashedLineSeries::new(points, 6, 4, stroke))?;
        } else {
            chart.draw_series(LineSeries::new(points, stroke).point_size(3))?;
        }
    }
    Ok(())
}
