//! A comparison as an SVG image: the period over the budget, both relative to in-core.

use super::grid::{Bound, Cell, Column, Grid};
use spillway::report::{escape, fitted, width_px};
use spillway::units::{bytes, percent, ratio, time};
use std::collections::HashSet;
use std::fmt::Write;
use workloads::Shown;

/// The least width. The legend may need more.
const WIDTH: f64 = 960.0;
const HEIGHT: f64 = 560.0;
const LEFT: f64 = 76.0;
const RIGHT: f64 = 740.0;
const TOP: f64 = 84.0;
const BOTTOM: f64 = 488.0;
const LEGEND: f64 = 766.0;
const LEGEND_STEP: f64 = 25.0;
/// The left edge of the legend's text, right of its lines.
const LEGEND_TEXT: f64 = LEGEND + 38.0;
const MARGIN: f64 = 14.0;
/// The text sizes of the title and of all other text.
const TITLE: f64 = 18.0;
const TEXT: f64 = 13.0;
/// The least distance between two ticks of the period.
const TICK_DISTANCE: f64 = 26.0;

/// A colour for each strategy. The first colours are the palette of Okabe and Ito, which
/// colour-blind people can tell apart, without its yellow, which is too pale for lines. The markers
/// tell lines apart without colour.
const COLOURS: [&str; 18] = [
    "#767676", "#e69f00", "#56b4e9", "#cc79a7", "#d55e00", "#009e73", "#0072b2", "#8c6d31",
    "#5254a3", "#ad494a", "#6b9a1f", "#17becf", "#7b4173", "#e377c2", "#393b79", "#3d3d3d",
    "#bd9e39", "#a6761d",
];

/// Markers in a square from -1 to 1.
const MARKERS: [&str; 7] = [
    "M-1 -1H1V1H-1Z",
    "M0 -1.3L1.2 .9H-1.2Z",
    "M0 -1.4L1.4 0L0 1.4L-1.4 0Z",
    "M0 1.3L1.2 -.9H-1.2Z",
    "M-1.2 -.5H-.5V-1.2H.5V-.5H1.2V.5H.5V1.2H-.5V.5H-1.2Z",
    "M-1.2 -.8L-.8 -1.2L0 -.4L.8 -1.2L1.2 -.8L.4 0L1.2 .8L.8 1.2L0 .4L-.8 1.2L-1.2 .8L-.4 0Z",
    "M-1.1 0A1.1 1.1 0 1 0 1.1 0A1.1 1.1 0 1 0 -1.1 0Z",
];

const STYLE: &str = "\
svg { font: 13px system-ui, sans-serif; font-variant-numeric: tabular-nums; }
text { fill: #4a5463; }
.title { font-size: 18px; font-weight: 600; fill: #1c2430; }
.name { fill: #1c2430; }
.mid { text-anchor: middle; }
.end { text-anchor: end; }
.grid { stroke: #e6e9ee; }
.one { stroke: #9aa3b0; }
.line { fill: none; stroke-width: 2; stroke-linejoin: round; }
.over { stroke-dasharray: 7 7; }
.auto { stroke-width: 3.5; }
.bound { fill: none; stroke: #1c2430; stroke-width: 2; stroke-dasharray: 7 5; }
.marker { stroke: #fff; stroke-width: .25; }";

/// Positions in the image. The axis of the period is logarithmic.
struct Scale {
    most_share: f64,
    least_ratio: f64,
    most_ratio: f64,
    base_ns: u64,
    in_core_peak_bytes: u64,
}

/// How a strategy is drawn.
#[derive(Clone, Copy)]
struct Style {
    /// Its position among the strategies.
    at: usize,
    /// Whether its line covers a part of another line. Dashes then let the other line show.
    covers: bool,
}

/// A budget and the period under it.
#[derive(Clone, Copy)]
struct Point {
    budget_bytes: u64,
    period_ns: u64,
}

/// The image.
pub(super) fn render(grid: &Grid) -> String {
    let scale = Scale::of(grid);
    let mut body = scale.axes();
    let mut legend = TOP + 8.0;
    // The last bound is the best one.
    if let Some(bound) = grid.bounds.last() {
        body += &scale.bound(grid, bound, legend);
        legend += LEGEND_STEP;
    }
    let mut lines = String::new();
    let mut drawn = HashSet::new();
    for (at, (name, cells)) in grid.strategies().enumerate() {
        let covers = scale.segments(cells).fold(false, |any, new| !drawn.insert(new) | any);
        lines += &scale.strategy(name, cells, Style { at, covers }, legend);
        legend += LEGEND_STEP;
    }
    let width = width(grid);
    let height = HEIGHT.max(legend);
    let title = Shown::name(&grid.graph).to_string();
    let in_core =
        grid.in_core_period_ns.map_or_else(String::new, |ns| format!(" and {}", time(ns)));
    let subtitle = format!(
        "on {}; in-core {}{in_core} an iteration; bound: each op once",
        Shown::name(&grid.machine),
        bytes(grid.in_core_peak_bytes)
    );
    let most_px = width - LEFT - MARGIN;
    format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {width} {height}\" \
         width=\"{width}\" height=\"{height}\" role=\"img\">\n<title>{} – Spillway</title>\n\
         <style>\n{STYLE}\n</style>\n<rect width=\"100%\" height=\"100%\" fill=\"#fff\"/>\n\
         <text class=\"title\" x=\"{LEFT}\" y=\"34\">{}</text>\n\
         <text x=\"{LEFT}\" y=\"56\">{}</text>\n{body}{lines}</svg>\n",
        escape(&title),
        escape(&fitted(&title, TITLE, true, most_px)),
        escape(&fitted(&subtitle, TEXT, false, most_px)),
    )
}

/// The width that the legend's text needs, at least [`WIDTH`].
fn width(grid: &Grid) -> f64 {
    let strategies = grid.strategies().map(|(name, cells)| name.to_owned() + &note(cells));
    let bound = grid.bounds.last().map(|bound| bound.name.to_owned());
    let widths = strategies.chain(bound).map(|text| width_px(&text, TEXT, false));
    widths.map(|text_px| (LEGEND_TEXT + text_px + MARGIN).ceil()).fold(WIDTH, f64::max)
}

/// The periods of a strategy, from the smallest budget to the largest.
fn points(cells: &[Cell]) -> Vec<Point> {
    let point = |cell: &Cell| {
        let period_ns = cell.figures.period_ns()?;
        Some(Point { budget_bytes: cell.figures.context.budget_bytes, period_ns })
    };
    sorted(cells.iter().filter_map(point).collect())
}

fn bound_points(grid: &Grid, bound: &Bound) -> Vec<Point> {
    let columns = grid.budgets.iter().zip(&bound.period_ns);
    let point = |(column, &period_ns): (&Column, &Option<u64>)| {
        Some(Point { budget_bytes: column.budget_bytes, period_ns: period_ns? })
    };
    sorted(columns.filter_map(point).collect())
}

fn sorted(mut points: Vec<Point>) -> Vec<Point> {
    points.sort_by_key(|point| point.budget_bytes);
    points
}

impl Scale {
    fn of(grid: &Grid) -> Self {
        let base_ns = grid.in_core_period_ns.unwrap_or(grid.compute_ns).max(1);
        let mut scale = Self {
            most_share: 1.0,
            least_ratio: 1.0,
            most_ratio: 1.1,
            base_ns,
            in_core_peak_bytes: grid.in_core_peak_bytes,
        };
        let plans = grid.strategies().flat_map(|(_, cells)| points(cells));
        let bounds = grid.bounds.iter().flat_map(|bound| bound_points(grid, bound));
        for point in plans.chain(bounds) {
            scale.most_share = scale.most_share.max(scale.share(point));
            let ratio = scale.ratio(point);
            scale.least_ratio = scale.least_ratio.min(ratio);
            scale.most_ratio = scale.most_ratio.max(ratio);
        }
        scale
    }

    fn share(&self, point: Point) -> f64 {
        ratio(point.budget_bytes, self.in_core_peak_bytes).unwrap_or(1.0)
    }

    /// Positive, because the axis takes its logarithm.
    fn ratio(&self, point: Point) -> f64 {
        (point.period_ns as f64 / self.base_ns as f64).max(1e-3)
    }

    fn x(&self, share: f64) -> f64 {
        LEFT + (RIGHT - LEFT) * share / (self.most_share * 1.03)
    }

    fn y(&self, ratio: f64) -> f64 {
        let height = (self.most_ratio / self.least_ratio).ln() * 1.06;
        BOTTOM - 8.0 - (BOTTOM - 8.0 - TOP) * (ratio / self.least_ratio).ln() / height
    }

    fn axes(&self) -> String {
        let mut svg = String::new();
        let mut step = 0.1;
        while self.most_share / step > 11.0 {
            step *= 2.0;
        }
        let mut share = 0.0;
        while share <= self.most_share * 1.03 {
            let (x, label) = (self.x(share), BOTTOM + 20.0);
            // Writing to a string does not fail.
            let _ = writeln!(
                svg,
                "<path class=\"grid\" d=\"M{x:.1} {TOP}V{BOTTOM}\"/>\
                 <text class=\"mid\" x=\"{x:.1}\" y=\"{label}\">{:.0} %</text>",
                share * 100.0
            );
            share += step;
        }
        // The first tick is 1.
        for (at, ratio) in self.ticks().into_iter().enumerate() {
            let (y, right) = (self.y(ratio), LEFT - 8.0);
            let class = if at == 0 { "one" } else { "grid" };
            let label = y + 4.5;
            let _ = writeln!(
                svg,
                "<path class=\"{class}\" d=\"M{LEFT} {y:.1}H{RIGHT}\"/>\
                 <text class=\"end\" x=\"{right}\" y=\"{label:.1}\">{ratio} ×</text>"
            );
        }
        let (middle, below) = ((LEFT + RIGHT) / 2.0, BOTTOM + 46.0);
        let _ = writeln!(
            svg,
            "<text class=\"mid\" x=\"{middle}\" y=\"{below}\">device memory, of what in-core \
             needs</text>\n<text x=\"{LEFT}\" y=\"{:.1}\">period, relative to in-core</text>",
            TOP - 8.0
        );
        svg
    }

    /// Round ratios that fit the axis at a sufficient distance from each other. 1 is always one.
    fn ticks(&self) -> Vec<f64> {
        const ROUND: [f64; 12] = [1.0, 2.0, 5.0, 1.5, 3.0, 7.0, 1.2, 4.0, 1.1, 2.5, 1.05, 6.0];
        let mut ticks: Vec<f64> = Vec::new();
        for power in [1.0, 10.0, 100.0, 1000.0, 10_000.0] {
            for tick in ROUND.map(|round| round * power) {
                let y = self.y(tick);
                let apart = ticks.iter().all(|&other| (self.y(other) - y).abs() >= TICK_DISTANCE);
                if apart && y >= TOP {
                    ticks.push(tick);
                }
            }
        }
        ticks
    }

    /// The straight parts of a strategy's line, as SVG paths.
    fn segments(&self, cells: &[Cell]) -> impl Iterator<Item = String> {
        let points = points(cells);
        let parts: Vec<_> = points.windows(2).map(|part| self.path(part)).collect();
        parts.into_iter()
    }

    /// A line through points, as an SVG path.
    fn path(&self, points: &[Point]) -> String {
        let mut path = String::new();
        for (at, &point) in points.iter().enumerate() {
            let (x, y) = (self.x(self.share(point)), self.y(self.ratio(point)));
            let _ = write!(path, "{}{x:.1} {y:.1}", if at == 0 { 'M' } else { 'L' });
        }
        path
    }

    fn bound(&self, grid: &Grid, bound: &Bound, legend: f64) -> String {
        let path = self.path(&bound_points(grid, bound));
        let (to, text, baseline) = (LEGEND + 28.0, LEGEND_TEXT, legend + 4.5);
        format!(
            "<path class=\"bound\" d=\"{path}\"/>\
             <path class=\"bound\" d=\"M{LEGEND} {legend}H{to}\"/>\
             <text class=\"name\" x=\"{text}\" y=\"{baseline}\">{}</text>\n",
            escape(bound.name)
        )
    }

    fn strategy(&self, name: &str, cells: &[Cell], style: Style, legend: f64) -> String {
        let Style { at, covers } = style;
        let (colour, marker) = (COLOURS[at % COLOURS.len()], MARKERS[at % MARKERS.len()]);
        let points = points(cells);
        let width = if name == "auto" { "line auto" } else { "line" };
        let class = if covers { format!("{width} over") } else { width.to_owned() };
        let (to, middle, text) = (LEGEND + 28.0, LEGEND + 14.0, LEGEND_TEXT);
        let mut svg = format!(
            "<g stroke=\"{colour}\" fill=\"{colour}\"><path class=\"{class}\" d=\"{}\"/>\
             <path class=\"{width}\" d=\"M{LEGEND} {legend}H{to}\"/>\
             <path class=\"marker\" transform=\"translate({middle} {legend})scale(5)\" \
             d=\"{marker}\"/>",
            self.path(&points)
        );
        for &point in &points {
            let (x, y) = (self.x(self.share(point)), self.y(self.ratio(point)));
            let title = format!(
                "{name} with {} ({}): {:.3} × in-core, {}",
                bytes(point.budget_bytes),
                percent(point.budget_bytes, self.in_core_peak_bytes),
                self.ratio(point),
                time(point.period_ns)
            );
            let _ = write!(
                svg,
                "<path class=\"marker\" transform=\"translate({x:.1} {y:.1})scale(5)\" \
                 d=\"{marker}\"><title>{}</title></path>",
                escape(&title)
            );
        }
        let _ = writeln!(
            svg,
            "</g><text class=\"name\" x=\"{text}\" y=\"{}\">{}</text>",
            legend + 4.5,
            escape(&(name.to_owned() + &note(cells)))
        );
        svg
    }
}

/// The legend's note about budgets without a plan.
fn note(cells: &[Cell]) -> String {
    let Some(lacking) = cells.iter().find(|cell| cell.figures.planned.is_none()) else {
        return String::new();
    };
    let context = &lacking.figures.context;
    match context.min_feasible_bytes {
        Some(least) if least > context.budget_bytes => {
            format!(" (from {})", percent(least, context.in_core_peak_bytes))
        }
        _ => " (not everywhere)".to_owned(),
    }
}
