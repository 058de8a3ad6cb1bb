//! The streams and the memory of one iteration, as an SVG image.

pub(super) mod memory;
mod waits;

use super::search::Numbers;
use super::{Measured, escape, width_px};
use crate::course::{Content, Course, Span};
use crate::names::Names;
use crate::proof::Proved;
use crate::units::{bytes, count, time};
use planner_core::{Launched, Step, Stream};
use std::fmt::Write;
use std::ops::Range;

pub(super) const WIDTH: f64 = 1180.0;
/// The left end of the plot. The labels are to the left of it.
pub(super) const LEFT: f64 = 86.0;
const RIGHT: f64 = WIDTH - 10.0;
const LANE_TOP: f64 = 8.0;
const MEMORY_TOP: f64 = 170.0;
const MEMORY_BOTTOM: f64 = 348.0;
pub(super) const HEIGHT: f64 = 374.0;
/// The gap between predicted steps and the measured steps below them.
const ACTUAL_GAP: f64 = 2.0;
const ACTUAL_HEIGHT: f64 = 9.0;
/// The font size of names in bars, and the least width of a bar with a name.
const NAME: f64 = 10.0;
const NAMED: f64 = 36.0;
/// Steps narrower than this share one bar with their neighbours.
const NARROW: f64 = 1.0;

/// The positions of the streams, one below the other.
#[derive(Clone, Copy)]
struct Lanes {
    height: f64,
    step: f64,
}

impl Lanes {
    /// Fits all lanes above the memory.
    fn of(proved: &Proved<'_>) -> Self {
        match proved.streams().count() {
            ..=3 => Self { height: 30.0, step: 46.0 },
            _ => Self { height: 26.0, step: 39.0 },
        }
    }

    fn top(self, stream: Stream) -> f64 {
        LANE_TOP + self.step * f64::from(stream as u32)
    }
}

/// The image under construction, and its scale.
struct Canvas<'c> {
    proved: &'c Proved<'c>,
    window: Range<u64>,
    /// The time from left to right, at least the length of the window.
    length_ns: u64,
    lanes: Lanes,
    svg: String,
}

/// One or more steps in one bar.
struct Block<'b> {
    from: f64,
    to: f64,
    first: &'b Span,
    count: u64,
    busy_ns: u64,
    /// The part of this time that repeats take.
    repeat_ns: u64,
    numbers: Numbers,
}

/// The drawing of a plan, without its size and colours.
pub(super) struct Drawing {
    /// The elements of the image, which has [`WIDTH`] by [`HEIGHT`] units.
    pub(super) svg: String,
    /// The most bytes of each content in device memory, from the top of the stack to the bottom.
    pub(super) most_held: Vec<(Content, u64)>,
}

impl Drawing {
    /// Draws one iteration in the steady state. Returns `None` if it takes no time.
    pub(super) fn of(
        proved: &Proved<'_>,
        course: &Course,
        measured: Option<&Measured<'_>>,
    ) -> Option<Self> {
        let window = course.steady_iteration();
        if window.is_empty() {
            return None;
        }
        let actual = measured.map_or(0..0, |measured| measured.course.steady_iteration());
        let length_ns = (window.end - window.start).max(actual.end - actual.start);
        let lanes = Lanes::of(proved);
        let mut canvas = Canvas { proved, window, length_ns, lanes, svg: String::new() };
        canvas.time_axis();
        for stream in proved.streams() {
            canvas.lane(course, stream);
        }
        canvas.waits(course);
        let most_held = canvas.memory(course);
        if let Some(measured) = measured {
            canvas.window = actual;
            for stream in proved.streams() {
                let y = lanes.top(stream) + lanes.height + ACTUAL_GAP;
                canvas.bars(&measured.course, stream, y, ACTUAL_HEIGHT);
            }
        }
        Some(Self { svg: canvas.svg, most_held })
    }
}

/// Renders the image as a part of the page.
pub(super) fn render(
    proved: &Proved<'_>,
    course: &Course,
    measured: Option<&Measured<'_>>,
) -> String {
    let Some(Drawing { svg, most_held }) = Drawing::of(proved, course, measured) else {
        return "<p class=\"note\">The iteration takes no time.</p>".to_owned();
    };
    let legend = |&(content, most_bytes): &(Content, u64)| {
        let (class, label) = (memory::class(content), memory::label(content));
        let most = bytes(most_bytes);
        format!(
            "<li><svg viewBox=\"0 0 10 10\"><rect class=\"{class}\" width=\"10\" \
             height=\"10\"/></svg>{label}, {most} at most</li>\n"
        )
    };
    let legend: String = most_held.iter().map(legend).collect();
    let actual = match measured {
        Some(_) => {
            " The narrow bars below each stream are an iteration as it ran, on the same scale."
        }
        None => "",
    };
    format!(
        "<div class=\"scroll\"><svg viewBox=\"0 0 {WIDTH} {HEIGHT}\" role=\"img\" \
         aria-label=\"Timeline of one iteration\">\n{svg}</svg></div>\n\
         <ul class=\"legend\">\n{legend}</ul>\n\
         <p class=\"note\">Compute runs the ops, in purple those that run again; red is where it stalls. \
         An arrow leads to a stall from the step that compute waits for; the shortest stalls have none.{actual} \
         Below, the device memory held, against the budget (dashed). Hold the pointer over anything to \
         see what it is.</p>\n"
    )
}

impl Canvas<'_> {
    fn draw(&mut self, arguments: std::fmt::Arguments<'_>) {
        // Writes to a string never fail.
        let _ = self.svg.write_fmt(arguments);
        self.svg.push('\n');
    }

    fn x(&self, ns: u64) -> f64 {
        let inside_ns = ns.clamp(self.window.start, self.window.end) - self.window.start;
        LEFT + (RIGHT - LEFT) * inside_ns as f64 / self.length_ns as f64
    }

    fn time_axis(&mut self) {
        let step_ns = round_step(self.length_ns / 8);
        for tick in 0..=self.length_ns / step_ns {
            let share = (tick * step_ns) as f64 / self.length_ns as f64;
            let x = LEFT + (RIGHT - LEFT) * share;
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
        let (y, lane_height) = (self.lanes.top(stream), self.lanes.height);
        let (width, middle) = (RIGHT - LEFT, y + lane_height / 2.0 + 4.0);
        self.draw(format_args!(
            "<rect class=\"lane\" x=\"{LEFT}\" y=\"{y}\" width=\"{width}\" \
             height=\"{lane_height}\"/>\n<text class=\"label\" x=\"0\" y=\"{middle}\">{stream}</text>"
        ));
        self.bars(course, stream, y, lane_height);
    }

    /// Draws the steps of a stream, with their names if the bars are high enough.
    fn bars(&mut self, course: &Course, stream: Stream, y: f64, height: f64) {
        for (at, block) in self.blocks(course, stream).iter().enumerate() {
            let Block { from, to, .. } = *block;
            // A bar without width would be invisible.
            let width = (to - from).max(0.3);
            let odd = if at % 2 == 1 { " odd" } else { "" };
            let (title, numbers) = (escape(&self.title(block)), &block.numbers);
            let class = match block.repeat_ns > block.busy_ns / 2 {
                true => "repeat".to_owned(),
                false => stream.to_string(),
            };
            self.draw(format_args!(
                "<rect class=\"b {class}{odd}\" data-n=\"{numbers}\" x=\"{from:.2}\" y=\"{y}\" \
                 width=\"{width:.2}\" height=\"{height}\"><title>{title}</title></rect>"
            ));
            if block.count == 1 && width >= NAMED && height >= self.lanes.height {
                let middle = y + height / 2.0 + 4.0;
                let (x, name) = ((from + to) / 2.0, self.names().of_step(self.step(block.first)));
                let name = escape(&shortened(&name.to_string(), width));
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
            let numbers = Numbers::of_step(self.proved, span.step);
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
                    last.numbers.extend(numbers);
                }
                _ => {
                    let (first, count) = (span, 1);
                    blocks.push(Block { from, to, first, count, busy_ns, repeat_ns, numbers });
                }
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
}

/// Rounds up to 1, 2 or 5 times a power of ten.
pub(super) fn round_step(ns: u64) -> u64 {
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

/// Cuts off the start of a long name, since the end says more.
fn shortened(name: &str, most_px: f64) -> String {
    let fits = |text: &str| width_px(text, NAME, false) <= most_px;
    if fits(name) {
        return name.to_owned();
    }
    let ends = name.char_indices().map(|(at, _)| format!("…{}", &name[at..]));
    ends.skip(1).find(|end| fits(end)).unwrap_or_default()
}
