//! The predicted and the measured timeline in the format of Perfetto and Chrome's tracing page.

use crate::course::{Course, Span};
use crate::names::Names;
use crate::proof::Proved;
use crate::report::Measured;
use planner_core::{Launched, Step, Stream};
use serde::Serialize;
use std::borrow::Cow;
use std::ops::Range;
use workloads::{Shown, format};

#[derive(Serialize)]
struct Trace<'t> {
    #[serde(rename = "displayTimeUnit")]
    display_time_unit: &'static str,
    #[serde(rename = "traceEvents")]
    events: Vec<Event<'t>>,
}

/// One event. The phase determines its optional fields.
#[derive(Default, Serialize)]
struct Event<'t> {
    #[serde(rename = "ph")]
    phase: char,
    name: Cow<'t, str>,
    #[serde(rename = "cat", skip_serializing_if = "Option::is_none")]
    category: Option<&'static str>,
    /// The name of a colour in Chrome's tracing page. Perfetto derives the colour from the event's name.
    #[serde(rename = "cname", skip_serializing_if = "Option::is_none")]
    colour: Option<&'static str>,
    pid: u32,
    tid: u32,
    #[serde(rename = "ts", skip_serializing_if = "Option::is_none")]
    start_us: Option<f64>,
    #[serde(rename = "dur", skip_serializing_if = "Option::is_none")]
    duration_us: Option<f64>,
    /// The id of an arrow, equal at both ends.
    #[serde(rename = "id", skip_serializing_if = "Option::is_none")]
    arrow: Option<usize>,
    /// The binding of the end of an arrow.
    #[serde(rename = "bp", skip_serializing_if = "Option::is_none")]
    binds_to: Option<&'static str>,
    args: Details<'t>,
}

/// The details that a click on an event shows.
#[derive(Default, Serialize)]
struct Details<'t> {
    #[serde(skip_serializing_if = "Option::is_none")]
    name: Option<Cow<'t, str>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    sort_index: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    held: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    iteration: Option<usize>,
    #[serde(skip_serializing_if = "Option::is_none")]
    step: Option<usize>,
    #[serde(skip_serializing_if = "Option::is_none")]
    planned_ns: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    what: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    bytes: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    waited_ns: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    waited_for: Option<String>,
}

/// Renders four iterations in the steady state, with a track for each stream and one for memory. Stalls are
/// slices of the compute track. An arrow leads from the awaited step to the launch. Measured iterations have
/// separate tracks below.
pub(crate) fn render(
    proved: &Proved<'_>,
    course: &Course,
    measured: Option<&Measured<'_>>,
) -> Vec<u8> {
    let work = Shown::name(&proved.work.name);
    let title = format!("{work} on {}", Shown::name(&proved.machine.name));
    let window = course.steady_iterations();
    let mut events = Vec::new();
    let predicted =
        Process { pid: 1, proved, course, from_ns: window.start, planned_ns: Vec::new() };
    predicted.tracks(title, &mut events);
    for (ns, held) in course.held_within(&window) {
        let held = Some(held.sum_bytes() as f64 / f64::from(1 << 20));
        events.push(Event {
            phase: 'C',
            start_us: Some(micros(ns - window.start)),
            args: Details { held, ..Details::default() },
            ..predicted.label("device memory (MiB)", 0, "".into())
        });
    }
    if let Some(Measured { device, course }) = measured {
        let from_ns = course.steady_iterations().start;
        let mut planned_ns = vec![0; proved.verified.plan().steps.len()];
        for span in &predicted.course.spans {
            planned_ns[span.step] = span.end_ns - span.start_ns;
        }
        let process = Process { pid: 2, proved, course, from_ns, planned_ns };
        process.tracks(format!("{work}, measured on the {}", Shown::name(*device)), &mut events);
    }
    format::render(&Trace { display_time_unit: "ms", events })
}

/// Converts ns to the microseconds of the format.
fn micros(ns: u64) -> f64 {
    ns as f64 / 1e3
}

const fn track(stream: Stream) -> u32 {
    stream as u32 + 1
}

/// The predicted or the measured tracks of a plan.
struct Process<'p> {
    pid: u32,
    proved: &'p Proved<'p>,
    course: &'p Course,
    /// The time that is 0 in the trace.
    from_ns: u64,
    /// For measured steps, the predicted times by list position.
    planned_ns: Vec<u64>,
}

impl<'p> Process<'p> {
    fn tracks(&self, title: String, events: &mut Vec<Event<'p>>) {
        let window = self.course.steady_iterations();
        let sorted = |position| Details { sort_index: Some(position), ..Details::default() };
        events.push(self.label("process_name", 0, title.into()));
        let args = sorted(self.pid);
        events.push(Event { args, ..self.label("process_sort_index", 0, "".into()) });
        for stream in self.proved.streams() {
            let (track, name) = (track(stream), stream.to_string());
            events.push(self.label("thread_name", track, name.into()));
            let args = sorted(track);
            events.push(Event { args, ..self.label("thread_sort_index", track, "".into()) });
        }
        let stalls = self.course.stalls_within(&window);
        let stalls = stalls.map(|(at, span)| ((at.start, at.end), self.stall(&at, span)));
        let steps = self.course.within(&window);
        let steps = steps.map(|span| ((span.start_ns, span.end_ns), self.slice(span)));
        // Readers may expect the slices of a track in the order of time.
        let mut slices: Vec<_> = stalls.chain(steps).collect();
        slices.sort_by_key(|&(at, _)| at);
        events.extend(slices.into_iter().map(|(_, slice)| slice));
        for (arrow, span) in self.course.stalled_within(&window).enumerate() {
            if let Some(awaited) = self.course.awaited(span) {
                events.extend(self.arrow_ends(arrow, awaited, span));
            }
        }
    }

    fn label(&self, what: &'static str, track: u32, name: Cow<'p, str>) -> Event<'p> {
        Event {
            phase: 'M',
            name: what.into(),
            pid: self.pid,
            tid: track,
            args: Details { name: Some(name), ..Details::default() },
            ..Event::default()
        }
    }

    /// Converts a time to the trace.
    fn at_us(&self, ns: u64) -> f64 {
        micros(ns.saturating_sub(self.from_ns))
    }

    fn names(&self) -> Names<'p> {
        Names::new(self.proved.work, self.steps())
    }

    fn steps(&self) -> &'p [Step] {
        self.proved.verified.plan().steps
    }

    /// Returns the stall before a launch, cut to the drawn window.
    fn stall(&self, within: &Range<u64>, span: &Span) -> Event<'p> {
        let (names, steps) = (self.names(), self.steps());
        Event {
            phase: 'X',
            name: "stall".into(),
            category: Some("stall"),
            colour: Some("terrible"),
            pid: self.pid,
            tid: track(Stream::Compute),
            start_us: Some(self.at_us(within.start)),
            duration_us: Some(micros(within.end - within.start)),
            args: Details {
                iteration: Some(span.iteration + 1),
                what: Some(format!("stall before the {}", names.step(&steps[span.step]))),
                waited_ns: Some(span.idle_ns),
                waited_for: self
                    .course
                    .awaited(span)
                    .map(|awaited| names.step(&steps[awaited.step])),
                ..Details::default()
            },
            ..Event::default()
        }
    }

    /// Returns an arrow from the end of one slice to the start of another. Its tail is just before the end,
    /// since viewers bind the tail to the slice that runs at that time.
    fn arrow_ends(&self, arrow: usize, from: &Span, to: &Span) -> [Event<'p>; 2] {
        let tail_ns = from.end_ns.saturating_sub(1).max(from.start_ns).max(self.from_ns);
        [('s', None, from.stream, tail_ns), ('f', Some("e"), to.stream, to.start_ns)].map(
            |(phase, binds_to, stream, ns)| Event {
                phase,
                name: "wait".into(),
                category: Some("wait"),
                pid: self.pid,
                tid: track(stream),
                start_us: Some(self.at_us(ns)),
                arrow: Some(arrow * 2 + self.pid as usize - 1),
                binds_to,
                ..Event::default()
            },
        )
    }

    fn slice(&self, span: &Span) -> Event<'p> {
        let (names, steps) = (self.names(), self.steps());
        let step = &steps[span.step];
        let moved_bytes = self.proved.step_bytes[span.step];
        // A slice that began before the window starts with the window.
        let start_ns = span.start_ns.max(self.from_ns);
        let is_repeat = matches!(step, Step::Launch(Launched { is_repeat: true, .. }));
        let category = match span.stream {
            Stream::Compute if is_repeat => "repeat",
            Stream::Compute => "compute",
            Stream::Upload => "upload",
            Stream::Download => "download",
            Stream::Host => "host",
            Stream::Network => "network",
        };
        let name = match step {
            Step::Launch(_) | Step::Host(_) => names.brief(step),
            _ => names.of_step(step).to_string(),
        };
        Event {
            phase: 'X',
            name: name.into(),
            category: Some(category),
            colour: is_repeat.then_some("olive"),
            pid: self.pid,
            tid: track(span.stream),
            start_us: Some(self.at_us(start_ns)),
            duration_us: Some(micros(span.end_ns - start_ns)),
            args: Details {
                iteration: Some(span.iteration + 1),
                planned_ns: self.planned_ns.get(span.step).copied(),
                step: Some(span.step),
                what: Some(names.step(step)),
                bytes: step.part().is_some().then_some(moved_bytes),
                waited_ns: span.awaited.map(|_| span.idle_ns),
                waited_for: self
                    .course
                    .awaited(span)
                    .map(|awaited| names.step(&steps[awaited.step])),
                ..Details::default()
            },
            ..Event::default()
        }
    }
}
