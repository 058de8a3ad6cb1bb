//! Stalls, and arrows to them from the steps that compute waits for.

use super::{Canvas, LANE_TOP};
use crate::course::{Course, Span};
use crate::report::escape;
use crate::units::time;
use std::ops::Range;

/// Stalls narrower than this have no arrow, which would hide them.
const NARROW: f64 = 3.0;
/// How far an arrow reaches into the bars at its ends.
const INSIDE: f64 = 6.0;

impl Canvas<'_> {
    /// Draws all stalls, then all arrows over them.
    pub(super) fn waits(&mut self, course: &Course) {
        let window = self.window.clone();
        for (within, span) in course.stalls_within(&window) {
            self.stall(course, &within, span);
        }
        for span in course.stalled_within(&window) {
            if let Some(awaited) = course.awaited(span) {
                self.arrow(awaited, span);
            }
        }
    }

    fn stall(&mut self, course: &Course, within: &Range<u64>, span: &Span) {
        let (from, to) = (self.x(within.start), self.x(within.end));
        let width = to - from;
        let reason = course.awaited(span).map_or_else(String::new, |awaited| {
            format!(", waiting for the {}", self.names().step(self.step(awaited)))
        });
        let title = escape(&format!("stall of {}{reason}", time(span.idle_ns)));
        let lane_height = self.lanes.height;
        self.draw(format_args!(
            "<rect class=\"b stall\" x=\"{from:.2}\" y=\"{LANE_TOP}\" width=\"{width:.2}\" \
             height=\"{lane_height}\"><title>{title}</title></rect>"
        ));
    }

    /// Draws an arrow just before the time at which the awaited bar and the stall both end.
    fn arrow(&mut self, awaited: &Span, span: &Span) {
        let x = |ns| self.x(ns);
        let stalled = x(span.start_ns) - x(span.start_ns - span.idle_ns);
        if stalled < NARROW {
            return;
        }
        let before = |width: f64| x(span.start_ns) - width.min(2.0 * INSIDE) / 2.0;
        let (tail, head) = (before(x(awaited.end_ns) - x(awaited.start_ns)), before(stalled));
        let from = self.lanes.top(awaited.stream) + INSIDE;
        let to = self.lanes.top(span.stream) + self.lanes.height - INSIDE;
        let title = escape(&format!(
            "the {} waits {} for the {}",
            self.names().step(self.step(span)),
            time(span.idle_ns),
            self.names().step(self.step(awaited))
        ));
        self.draw(format_args!(
            "<path class=\"wait\" d=\"M{tail:.1} {from} L{head:.1} {to} m-3 5 l3 -5 l3 5\">\
             <title>{title}</title></path>"
        ));
    }
}
