//! Compares budgets with the memory that runs take, with contiguous blocks and with pages (Hayakawa
//! & Narihira, figure 3), on a V100 with NVLink. Writes tables and an image.
//!
//! `fragmentation SVG`

use planner_core::planner::{Lms, Strategy, Window};
use plotters::coord::Shift;
use plotters::prelude::*;
use spillway_benches::fragmentation::{Largest, Manager, largest_budget};
use std::error::Error;
use workloads::machines;
use zoo::models;

const STEP_BYTES: u64 = 128 << 20;

const MANAGERS: [(&str, Manager); 3] = [
    ("best fit", Manager::BestFit),
    ("size classes", Manager::SizeClasses),
    ("pages of 2 MiB", Manager::Pages(2 << 20)),
];

/// The published strategy, which also copies values that the host already holds.
const WINDOW: Strategy = Strategy::Window(Window::new().with_published(true));
const LMS: Strategy = Strategy::Lms(Lms::new());

/// A model, its batches, and a strategy: a row of the image.
type Row = (&'static str, &'static [u64], &'static str, Strategy);

const RESNET_BATCHES: &[u64] = &[128, 190, 256, 512, 928, 1120, 1248, 1440];
const DRAWN: [Row; 3] = [
    ("resnet50", RESNET_BATCHES, "window", WINDOW),
    ("resnet50", RESNET_BATCHES, "on-demand", Strategy::OnDemand),
    ("deeplabv3plus", &[8, 12, 16, 24, 32, 40, 48], "on-demand", Strategy::OnDemand),
];

const STRATEGIES: [(&str, Strategy); 5] = [
    ("window", WINDOW),
    ("on-demand", Strategy::OnDemand),
    ("fit", Strategy::Fit),
    ("vdnn", Strategy::Vdnn),
    ("lms", LMS),
];
const WORKS: [(&str, u64); 4] =
    [("resnet50", 928), ("densenet121", 400), ("deeplabv3plus", 24), ("pix2pixhd", 12)];

/// One work with one strategy and one manager.
#[derive(Clone, Copy)]
struct Cell {
    batch: u64,
    compute_ns: u64,
    largest: Option<Largest>,
}

fn main() -> Result<(), Box<dyn Error>> {
    let path = std::env::args().nth(1).ok_or("usage: fragmentation SVG")?;
    let mut rows = Vec::new();
    for (model, batches, name, strategy) in DRAWN {
        head(&format!("`{model}`, `{name}`: batch"));
        let mut columns: [Vec<Cell>; MANAGERS.len()] = Default::default();
        for &batch in batches {
            let cells = cells(model, batch, strategy)?;
            line(&batch.to_string(), &cells);
            columns.iter_mut().zip(cells).for_each(|(column, cell)| column.push(cell));
        }
        rows.push((format!("{model}, {name}"), columns));
    }
    head("work, strategy");
    for (model, batch) in WORKS {
        for (name, strategy) in STRATEGIES {
            line(&format!("`{model}:batch={batch}`, `{name}`"), &cells(model, batch, strategy)?);
        }
    }
    draw(&path, &rows)
}

fn cells(model: &str, batch: u64, strategy: Strategy) -> Result<Vec<Cell>, Box<dyn Error>> {
    let machine = machines::builtin("v100-nvlink").ok_or("no such machine")?.machine;
    let owned = models::generate(&format!("{model}:batch={batch}"))?;
    let graph = owned.graph()?;
    let cell = |(_, manager)| {
        let largest = largest_budget(&graph, &machine, strategy, manager, STEP_BYTES)?;
        Ok(Cell { batch, compute_ns: graph.compute_ns(), largest })
    };
    MANAGERS.into_iter().map(cell).collect()
}

fn gib(bytes: u64) -> f64 {
    bytes as f64 / (1u64 << 30) as f64
}

/// The head of a table. For each manager: the largest budget, the device memory that a run takes
/// with it, the segments per iteration, and the period over compute.
fn head(name: &str) {
    print!("\n| {name} |");
    MANAGERS.iter().for_each(|(name, _)| print!(" {name}, GiB | segments | period |"));
    println!("\n|---|{}", "--:|".repeat(3 * MANAGERS.len()));
}

fn line(name: &str, cells: &[Cell]) {
    print!("| {name} |");
    for cell in cells {
        let Some(largest) = cell.largest else {
            print!(" – | | |");
            continue;
        };
        let period = largest.period_ns as f64 / cell.compute_ns as f64;
        let (budget, taken) = (gib(largest.budget_bytes), gib(largest.taken_bytes));
        print!(" {budget:.2} / {taken:.2} | {} | {period:.3} |", largest.segments_per_iteration);
    }
    println!();
}

const BUDGET: RGBColor = RGBColor(0, 114, 178);
const TAKEN: RGBColor = RGBColor(0, 158, 115);
const DEVICE: RGBColor = RGBColor(213, 94, 0);

fn draw(path: &str, rows: &[(String, [Vec<Cell>; MANAGERS.len()])]) -> Result<(), Box<dyn Error>> {
    let root = SVGBackend::new(path, (960, 240 * rows.len() as u32 + 40)).into_drawing_area();
    root.fill(&WHITE)?;
    let (legend, panels) = root.split_vertically(40);
    key(&legend)?;
    let panels = panels.split_evenly((rows.len(), MANAGERS.len()));
    let columns = rows.iter().flat_map(|(name, columns)| columns.iter().map(move |c| (name, c)));
    for ((panel, (name, cells)), (manager, _)) in
        panels.iter().zip(columns).zip(MANAGERS.iter().cycle())
    {
        draw_panel(panel, &format!("{name}: {manager}"), cells)?;
    }
    root.present()?;
    Ok(())
}

type Area<'a> = DrawingArea<SVGBackend<'a>, Shift>;

fn key(area: &Area<'_>) -> Result<(), Box<dyn Error>> {
    for (x, colour, text) in [
        (70, BUDGET, "largest budget with which a run fits"),
        (370, TAKEN, "memory taken with it"),
        (590, DEVICE, "memory of the device"),
    ] {
        area.draw(&PathElement::new([(x, 24), (x + 28, 24)], colour.stroke_width(2)))?;
        area.draw_text(text, &("sans-serif", 14).into_font().color(&BLACK), (x + 36, 17))?;
    }
    Ok(())
}

fn draw_panel(area: &Area<'_>, title: &str, cells: &[Cell]) -> Result<(), Box<dyn Error>> {
    let most = cells.iter().map(|cell| cell.batch).max().unwrap_or(1);
    let mut chart = ChartBuilder::on(area)
        .caption(title, ("sans-serif", 13))
        .margin(8)
        .x_label_area_size(32)
        .y_label_area_size(40)
        .build_cartesian_2d(0..most + most / 16, 0.0..17.5)?;
    chart
        .configure_mesh()
        .disable_x_mesh()
        .light_line_style(TRANSPARENT)
        .x_desc("batch")
        .y_desc("GiB")
        .x_labels(6)
        .y_labels(5)
        .y_label_formatter(&|gib| format!("{gib:.0}"))
        .draw()?;
    let found = || cells.iter().filter_map(|cell| Some((cell.batch, cell.largest?)));
    let device = [(0, 16.0), (most + most / 16, 16.0)];
    chart.draw_series(DashedLineSeries::new(device, 6, 4, DEVICE.stroke_width(2)))?;
    let budgets = found().map(|(batch, largest)| (batch, gib(largest.budget_bytes)));
    chart.draw_series(LineSeries::new(budgets, BUDGET.stroke_width(2)).point_size(3))?;
    let taken = found().map(|(batch, largest)| (batch, gib(largest.taken_bytes)));
    chart.draw_series(LineSeries::new(taken, TAKEN.stroke_width(2)).point_size(3))?;
    Ok(())
}
