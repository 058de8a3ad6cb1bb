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
#[derive(Default, Serialize)]
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
    /// The same at both ends of an arrow.
    #[serde(rename = "id", skip_serializing_if = "Option::is_none")]
    arrow: Option<usize>,
    /// What the end of an arrow binds to.
    #[serde(rename = "bp", skip_serializing_if = "Option::is_none")]
    binds_to: Option<&'static str>,
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

/// Four iterations in the steady state: a track for each stream, and one for memory. Stalls are
/// slices of the compute track; an arrow leads from what was waited for to the launch.
pub(crate) fn render(proved: &Proved<'_>, course: &Course) -> Vec<u8> {
    let window = course.steady_iterations();
    let title =
        format!("{} on {}", Shown::name(&proved.work.name), Shown::name(&proved.machine.name));
    let streams = Stream::ALL.map(|stream| (track(stream), stream.to_string()));
    let mut events = vec![label("process_name", 0, &title)];
    for (track, stream) in &streams {
        events.push(label("thread_name", *track, stream));
        let args = Details { sort_index: Some(*track), ..Details::default() };
        events.push(Event { args, ..label("thread_sort_index", *track, stream) });
    }
    for span in course.within(&window) {
        if span.is_stalled() {
            events.push(stall(proved, course, span, window.start));
        }
        events.push(slice(proved, course, span, window.start));
    }
    for (arrow, span) in course.stalled_within(&window).enumerate() {
        if let Some(awaited) = course.awaited(span) {
            events.extend(arrow_ends(arrow, awaited, span, window.start));
        }
    }
    for (ns, held) in course.held_within(&window) {
        let held = Some(held.sum_bytes() as f64 / f64::from(1 << 20));
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
        pid: PROCESS,
        tid: track,
        args: Details { name: Some(name.into()), ..Details::default() },
        ..Event::default()
    }
}

const fn track(stream: Stream) -> u32 {
    stream as u32 + 1
}

/// The time before a launch in which compute waits.
fn stall<'t>(proved: &Proved<'t>, course: &Course, span: &Span, from_ns: u64) -> Event<'t> {
    let steps = proved.verified.plan().steps;
    let names = Names::new(proved.work, steps);
    let start_ns = (span.start_ns - span.idle_ns).max(from_ns);
    Event {
        phase: 'X',
        name: "stall".into(),
        category: Some("stall"),
        colour: Some("terrible"),
        pid: PROCESS,
        tid: track(Stream::Compute),
        start_us: Some(micros(start_ns - from_ns)),
        duration_us: Some(micros(span.start_ns - start_ns)),
        args: Details {
            iteration: Some(span.iteration + 1),
            what: Some(format!("stall before the {}", names.step(&steps[span.step]))),
            waited_ns: Some(span.idle_ns),
            waited_for: course.awaited(span).map(|awaited| names.step(&steps[awaited.step])),
            ..Details::default()
        },
        ..Event::default()
    }
}

/// An arrow from the end of one slice to the start of another. Its tail is put just before that
/// end, since viewers bind it to the slice that runs at its time.
fn arrow_ends<'t>(arrow: usize, from: &Span, to: &Span, from_ns: u64) -> [Event<'t>; 2] {
    let tail_ns = from.end_ns.saturating_sub(1).max(from.start_ns).max(from_ns);
    [('s', None, from.stream, tail_ns), ('f', Some("e"), to.stream, to.start_ns)].map(
        |(phase, binds_to, stream, ns)| Event {
            phase,
            name: "wait".into(),
            category: Some("wait"),
            pid: PROCESS,
            tid: track(stream),
            start_us: Some(micros(ns - from_ns)),
            arrow: Some(arrow),
            binds_to,
            ..Event::default()
        },
    )
}

fn slice<'t>(proved: &Proved<'t>, course: &Course, span: &Span, from_ns: u64) -> Event<'t> {
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
        tid: track(span.stream),
        start_us: Some(micros(start_ns - from_ns)),
        duration_us: Some(micros(span.end_ns - start_ns)),
        args: Details {
            iteration: Some(span.iteration + 1),
            step: Some(span.step),
            what: Some(names.step(step)),
            bytes: (span.stream != Stream::Compute).then_some(moved_bytes),
            waited_ns: span.awaited.map(|_| span.idle_ns),
            waited_for: course.awaited(span).map(|awaited| names.step(&steps[awaited.step])),
            ..Details::default()
        },
        ..Event::default()
    }
}
