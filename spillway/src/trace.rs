//! The predicted timeline in the format that Perfetto and Chrome's tracing page open.

use crate::course::{Course, Span};
use crate::names::Names;
use crate::proof::Proved;
use planner_core::{Launched, Step, Stream};
use serde::Serialize;
use std::borrow::Cow;
use workloads::{Shown, format};

const PROCESS: u32 = 1;

#[derive(Serialize)]
struct Trace<'t> {
    #[serde(rename = "displayTimeUnit")]
    display_time_unit: &'static str,
    #[serde(rename = "traceEvents")]
    events: Vec<Event<'t>>,
}

/// One event; which of the optional fields there are depends on the phase.
#[derive(Serialize)]
struct Event<'t> {
    #[serde(rename = "ph")]
    phase: char,
    name: Cow<'t, str>,
    #[serde(rename = "cat", skip_serializing_if = "Option::is_none")]
    category: Option<&'static str>,
    /// The name of a colour in Chrome's tracing page. Perfetto takes one from the event's name.
    #[serde(rename = "cname", skip_serializing_if = "Option::is_none")]
    colour: Option<&'static str>,
    pid: u32,
    tid: u32,
    #[serde(rename = "ts", skip_serializing_if = "Option::is_none")]
    start_us: Option<f64>,
    #[serde(rename = "dur", skip_serializing_if = "Option::is_none")]
    duration_us: Option<f64>,
    args: Details<'t>,
}

/// What a click on an event shows.
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
    what: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    bytes: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    waited_ns: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    waited_for: Option<String>,
}

/// Four iterations in the steady state: a track for each stream, and one for memory.
pub(crate) fn render(proved: &Proved<'_>, course: &Course) -> Vec<u8> {
    let window = course.steady_iterations();
    let title =
        format!("{} on {}", Shown::name(&proved.work.name), Shown::name(&proved.machine.name));
    let streams = Stream::ALL.map(|stream| (stream as u32 + 1, stream.to_string()));
    let mut events = vec![label("process_name", 0, &title)];
    for (track, stream) in &streams {
        events.push(label("thread_name", *track, stream));
        let args = Details { sort_index: Some(*track), ..Details::default() };
        events.push(Event { args, ..label("thread_sort_index", *track, stream) });
    }
    let spans = course.within(&window);
    events.extend(spans.map(|span| slice(proved, span, window.start)));
    for (ns, bytes) in course.held_within(&window) {
        let held = Some(bytes as f64 / f64::from(1 << 20));
        events.push(Event {
            phase: 'C',
            start_us: Some(micros(ns - window.start)),
            args: Details { held, ..Details::default() },
            ..label("device memory (MiB)", 0, "")
        });
    }
    format::render(&Trace { display_time_unit: "ms", events })
}

/// The format counts in microseconds.
fn micros(ns: u64) -> f64 {
    ns as f64 / 1e3
}

fn label<'t>(what: &'static str, track: u32, name: &'t str) -> Event<'t> {
    Event {
        phase: 'M',
        name: what.into(),
        category: None,
        colour: None,
        pid: PROCESS,
        tid: track,
        start_us: None,
        duration_us: None,
        args: Details { name: Some(name.into()), ..Details::default() },
    }
}

fn slice<'t>(proved: &Proved<'t>, span: &Span, from_ns: u64) -> Event<'t> {
    let steps = proved.verified.plan().steps;
    let names = Names::new(proved.work, steps);
    let step = &steps[span.step];
    let moved_bytes = proved.step_bytes[span.step];
    // What began before the window is cut off at its start.
    let start_ns = span.start_ns.max(from_ns);
    let is_repeat = matches!(step, Step::Launch(Launched { is_repeat: true, .. }));
    let category = match span.stream {
        Stream::Compute if is_repeat => "repeat",
        Stream::Compute => "compute",
        Stream::Upload => "upload",
        Stream::Download => "download",
    };
    let name = match step {
        Step::Launch(_) => names.brief(step),
        _ => names.of_step(step).to_string(),
    };
    Event {
        phase: 'X',
        name: name.into(),
        category: Some(category),
        colour: is_repeat.then_some("olive"),
        pid: PROCESS,
        tid: span.stream as u32 + 1,
        start_us: Some(micros(start_ns - from_ns)),
        duration_us: Some(micros(span.end_ns - start_ns)),
        args: Details {
            iteration: Some(span.iteration + 1),
            step: Some(span.step),
            what: Some(names.step(step)),
            bytes: (span.stream != Stream::Compute).then_some(moved_bytes),
            waited_ns: span.awaited.map(|_| span.idle_ns),
            waited_for: span.awaited.map(|awaited| names.step(&steps[awaited])),
            ..Details::default()
        },
    }
}
