//! The three streams and the memory of one iteration, as an SVG image.

use super::escape;
use crate::course::{Course, Span};
use crate::names::Names;
use crate::proof::Proved;
use crate::units::{bytes, count, time};
use planner_core::{Launched, Step, Stream};
use std::fmt::Write;
use std::ops::Range;

const WIDTH: f64 = 1180.0;
/// Where the plot begins; left of it stand the labels.
const LEFT: f64 = 86.0;
const RIGHT: f64 = WIDTH - 10.0;
const LANE_TOP: f64 = 8.0;
const LANE_HEIGHT: f64 = 30.0;
const LANE_STEP: f64 = 40.0;
const MEMORY_TOP: f64 = 152.0;
const MEMORY_BOTTOM: f64 = 330.0;
const HEIGHT: f64 = 356.0;
/// Steps narrower than this are drawn together with their neighbours.
const NARROW: f64 = 1.0;
/// The memory curve has one level for each piece of this width.
const CURVE_STEP: f64 = 0.5;

/// What is drawn, and where.
struct Canvas<'c> {
    proved: &'c Proved<'c>,
    window: Range<u64>,
    svg: String,
}

/// One or more steps that are drawn as one.
struct Block<'b> {
    from: f64,
    to: f64,
    first: &'b Span,
    count: u64,
    busy_ns: u64,
    /// Of that, repeats.
    repeat_ns: u64,
}

/// The image.
pub(super) fn render(proved: &Proved<'_>, course: &Course) -> String {
    let window = course.steady_iteration();
    if window.is_empty() {
        return "<p class=\"note\">The iteration takes no time.</p>".to_owned();
    }
    let mut canvas = Canvas { proved, window, svg: String::new() };
    canvas.time_axis();
    for stream in Stream::ALL {
        canvas.lane(course, stream);
    }
    canvas.stalls(course);
    canvas.memory(course);
    format!(
        "<div class=\"scroll\"><svg viewBox=\"0 0 {WIDTH} {HEIGHT}\" role=\"img\" \
         aria-label=\"Timeline of one iteration\">\n{}</svg></div>\n\
         <p class=\"note\">Compute runs the ops, in purple those that run again; red is where it stalls. Below, the device memory \
         held, against the budget (dashed). Hold the pointer over a bar to see what it is.</p>\n",
        canvas.svg
    )
}

impl Canvas<'_> {
    fn draw(&mut self, arguments: std::fmt::Arguments<'_>) {
        // A string takes every write.
        let _ = self.svg.write_fmt(arguments);
        self.svg.push('\n');
    }

    fn x(&self, ns: u64) -> f64 {
        let length_ns = (self.window.end - self.window.start) as f64;
        let inside_ns = ns.clamp(self.window.start, self.window.end) - self.window.start;
        LEFT + (RIGHT - LEFT) * inside_ns as f64 / length_ns
    }

    fn time_axis(&mut self) {
        let length_ns = self.window.end - self.window.start;
        let step_ns = round_step(length_ns / 8);
        for tick in 0..=length_ns / step_ns {
            let x = self.x(self.window.start + tick * step_ns);
            self.draw(format_args!(
                "<line class=\"grid\" x1=\"{x:.1}\" x2=\"{x:.1}\" y1=\"{LANE_TOP}\" \
                 y2=\"{MEMORY_BOTTOM}\"/>"
            ));
            let y = MEMORY_BOTTOM + 16.0;
            let label = time(tick * step_ns);
            if x < RIGHT - 20.0 {
                self.draw(format_args!(
                    "<text class=\"mid\" x=\"{x:.1}\" y=\"{y}\">{label}</text>"
                ));
            }
        }
    }

    fn lane(&mut self, course: &Course, stream: Stream) {
        let y = LANE_TOP + LANE_STEP * f64::from(stream as u32);
        let (width, middle) = (RIGHT - LEFT, y + LANE_HEIGHT / 2.0 + 4.0);
        self.draw(format_args!(
            "<rect class=\"lane\" x=\"{LEFT}\" y=\"{y}\" width=\"{width}\" \
             height=\"{LANE_HEIGHT}\"/>\n<text class=\"label\" x=\"0\" y=\"{middle}\">{stream}</text>"
        ));
        for (at, block) in self.blocks(course, stream).iter().enumerate() {
            let Block { from, to, .. } = *block;
            // A bar of no width would not be seen at all.
            let width = (to - from).max(0.3);
            let odd = if at % 2 == 1 { " odd" } else { "" };
            let title = escape(&self.title(block));
            let class = match block.repeat_ns > block.busy_ns / 2 {
                true => "repeat".to_owned(),
                false => stream.to_string(),
            };
            self.draw(format_args!(
                "<rect class=\"b {class}{odd}\" x=\"{from:.2}\" y=\"{y}\" width=\"{width:.2}\" \
                 height=\"{LANE_HEIGHT}\"><title>{title}</title></rect>"
            ));
            let characters = ((to - from) / 6.0) as usize;
            if block.count == 1 && characters >= 6 {
                let (x, name) = ((from + to) / 2.0, self.names().of_step(self.step(block.first)));
                let name = escape(&shortened(&name.to_string(), characters));
                self.draw(format_args!(
                    "<text class=\"in\" x=\"{x:.1}\" y=\"{middle}\">{name}</text>"
                ));
            }
        }
    }

    fn blocks<'b>(&self, course: &'b Course, stream: Stream) -> Vec<Block<'b>> {
        let mut blocks: Vec<Block<'b>> = Vec::new();
        for span in course.within(&self.window).filter(|span| span.stream == stream) {
            let (from, to) = (self.x(span.start_ns), self.x(span.end_ns));
            let busy_ns = span.end_ns - span.start_ns;
            let repeat_ns = if self.is_repeat(span) { busy_ns } else { 0 };
            match blocks.last_mut() {
                Some(last)
                    if last.to - last.from < NARROW
                        && to - from < NARROW
                        && from - last.to < NARROW / 2.0 =>
                {
                    last.to = to;
                    last.count += 1;
                    last.busy_ns += busy_ns;
                    last.repeat_ns += repeat_ns;
                }
                _ => blocks.push(Block { from, to, first: span, count: 1, busy_ns, repeat_ns }),
            }
        }
        blocks
    }

    fn names(&self) -> Names<'_> {
        Names::new(self.proved.work, self.proved.verified.plan().steps)
    }

    fn step(&self, span: &Span) -> &Step {
        &self.proved.verified.plan().steps[span.step]
    }

    fn is_repeat(&self, span: &Span) -> bool {
        matches!(self.step(span), Step::Launch(Launched { is_repeat: true, .. }))
    }

    fn title(&self, block: &Block<'_>) -> String {
        let busy = time(block.busy_ns);
        if block.count > 1 {
            let repeated = match block.repeat_ns {
                0 => String::new(),
                repeat_ns => format!(", {} of repeats", time(repeat_ns)),
            };
            return format!("{} steps, {busy}{repeated}", count(block.count));
        }
        let step = self.names().step(self.step(block.first));
        match self.proved.step_bytes[block.first.step] {
            0 => format!("{step}, {busy}"),
            moved_bytes => format!("{step}, {busy}, {}", bytes(moved_bytes)),
        }
    }

    fn stalls(&mut self, course: &Course) {
        let steps = self.proved.verified.plan().steps;
        let names = Names::new(self.proved.work, steps);
        let window = self.window.clone();
        for span in course.stalled_within(&window) {
            let (from, to) = (self.x(span.start_ns - span.idle_ns), self.x(span.start_ns));
            let width = to - from;
            let reason = course.awaited(span).map_or_else(String::new, |awaited| {
                format!(", waiting for the {}", names.step(&steps[awaited.step]))
            });
            let title = escape(&format!("stall of {}{reason}", time(span.idle_ns)));
            self.draw(format_args!(
                "<rect class=\"b stall\" x=\"{from:.2}\" y=\"{LANE_TOP}\" width=\"{width:.2}\" \
                 height=\"{LANE_HEIGHT}\"><title>{title}</title></rect>"
            ));
        }
    }

    fn memory(&mut self, course: &Course) {
        let budget_bytes = self.proved.verified.plan().budget_bytes;
        let y = |held_bytes: u64| {
            let share = held_bytes as f64 / (budget_bytes.max(1) as f64 * 1.06);
            MEMORY_BOTTOM - (MEMORY_BOTTOM - MEMORY_TOP) * share
        };
        let top = MEMORY_TOP - 6.0;
        self.draw(format_args!("<text class=\"label\" x=\"0\" y=\"{top}\">memory</text>"));
        for quarter in 0..=4 {
            let tick_bytes = budget_bytes / 4 * quarter;
            let (at, text_at, text_x) = (y(tick_bytes), y(tick_bytes) + 4.0, LEFT - 6.0);
            let class = if quarter == 4 { "budget" } else { "grid" };
            self.draw(format_args!(
                "<line class=\"{class}\" x1=\"{LEFT}\" x2=\"{RIGHT}\" y1=\"{at:.1}\" y2=\"{at:.1}\"/>"
            ));
            let value = bytes(tick_bytes);
            self.draw(format_args!(
                "<text class=\"right\" x=\"{text_x}\" y=\"{text_at:.1}\">{value}</text>"
            ));
        }
        let edge = self.curve(course, y);
        self.draw(format_args!(
            "<path class=\"held\" d=\"M{LEFT} {MEMORY_BOTTOM} L{edge} L{RIGHT} {MEMORY_BOTTOM} Z\"/>\n\
             <path class=\"edge\" d=\"M{edge}\"/>"
        ));
    }

    /// The corners of the memory curve. What changes within a piece too narrow to be seen is
    /// drawn as the most that is held there, so that no peak is lost.
    fn curve(&self, course: &Course, y: impl Fn(u64) -> f64) -> String {
        let mut pieces: Vec<(f64, u64, u64)> = Vec::new();
        for (ns, held_bytes) in course.held_within(&self.window) {
            let x = self.x(ns);
            match pieces.last_mut() {
                Some((from, most, last)) if x - *from < CURVE_STEP => {
                    *most = (*most).max(held_bytes);
                    *last = held_bytes;
                }
                _ => pieces.push((x, held_bytes, held_bytes)),
            }
        }
        let mut corners = String::new();
        for (at, &(from, most, last)) in pieces.iter().enumerate() {
            let end = pieces.get(at + 1).map_or(RIGHT, |next| next.0);
            let narrow = if most == last { end } else { (from + CURVE_STEP).min(end) };
            for (from, to, y) in [(from, narrow, y(most)), (narrow, end, y(last))] {
                // A string takes every write.
                let _ = write!(corners, "{from:.1} {y:.1} {to:.1} {y:.1} ");
            }
        }
        corners
    }
}

/// 1, 2 or 5 times a power of ten, at least as large.
fn round_step(ns: u64) -> u64 {
    let mut power = 1u64;
    loop {
        for factor in [1, 2, 5] {
            let step = power.saturating_mul(factor);
            if step >= ns {
                return step;
            }
        }
        power = power.saturating_mul(10);
    }
}

/// The end of a long name says more than its start.
fn shortened(name: &str, characters: usize) -> String {
    let length = name.chars().count();
    if length <= characters {
        return name.to_owned();
    }
    let tail: String = name.chars().skip(length - characters.saturating_sub(1)).collect();
    format!("…{tail}")
}
