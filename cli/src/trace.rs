//! The predicted timeline in the format that Perfetto and Chrome's tracing page open.

use crate::course::{Course, Span};
use crate::failure::Failure;
use crate::names::Names;
use crate::proof::Proved;
use crate::work::Setting;
use planner_core::{Step, Stream};
use serde_json::{Value, json};

const PROCESS: u32 = 1;

/// Four iterations in the steady state: a track for each stream, and one for memory.
pub(crate) fn render(
    setting: Setting<'_>,
    proved: &Proved<'_>,
    course: &Course,
) -> Result<Vec<u8>, Failure> {
    let window = course.steady_iterations();
    let title = format!("{} on {}", setting.work.name, setting.machine.name);
    let mut events = vec![metadata("process_name", 0, &title)];
    for stream in Stream::ALL {
        events.push(metadata("thread_name", track(stream), &stream.to_string()));
        events.push(json!({
            "ph": "M", "name": "thread_sort_index", "pid": PROCESS, "tid": track(stream),
            "args": { "sort_index": track(stream) },
        }));
    }
    let spans = course.within(&window);
    events.extend(spans.map(|span| slice(setting, proved, span, window.start)));
    for (ns, bytes) in course.held_within(&window) {
        events.push(json!({
            "ph": "C", "name": "device memory (MiB)", "pid": PROCESS,
            "ts": micros(ns - window.start),
            "args": { "held": bytes as f64 / f64::from(1 << 20) },
        }));
    }
    let budget_bytes = proved.verified.plan().budget_bytes;
    let trace = json!({
        "traceEvents": events,
        "displayTimeUnit": "ms",
        "otherData": {
            "graph": setting.work.name, "machine": setting.machine.name,
            "budget_bytes": budget_bytes,
        },
    });
    serde_json::to_vec(&trace).map_err(|error| Failure::cannot(error.to_string()))
}

fn track(stream: Stream) -> u32 {
    stream as u32 + 1
}

/// The format counts in microseconds.
fn micros(ns: u64) -> f64 {
    ns as f64 / 1e3
}

fn metadata(name: &str, track: u32, value: &str) -> Value {
    json!({ "ph": "M", "name": name, "pid": PROCESS, "tid": track, "args": { "name": value } })
}

fn slice(setting: Setting<'_>, proved: &Proved<'_>, span: &Span, from_ns: u64) -> Value {
    let steps = proved.verified.plan().steps;
    let names = Names::new(setting.work, steps);
    let (work, step) = (setting.work, &steps[span.step]);
    let name = match step {
        Step::Launch(op) => &work.op_names[op.index()],
        Step::Prefetch(part) | Step::Offload(part) | Step::Evict(part) => {
            &work.tensor_names[part.tensor.index()]
        }
    };
    let mut arguments = json!({
        "step": span.step, "iteration": span.lap + 1, "what": names.step(step),
    });
    if span.stream != Stream::Compute {
        arguments["bytes"] = proved.step_bytes[span.step].into();
    }
    if let Some(awaited) = span.awaited {
        arguments["waited_ns"] = span.idle_ns.into();
        arguments["waited_for"] = names.step(&steps[awaited]).into();
    }
    // What began before the window is cut off at its start.
    let start_ns = span.start_ns.max(from_ns);
    json!({
        "ph": "X", "name": name, "pid": PROCESS, "tid": track(span.stream),
        "ts": micros(start_ns - from_ns), "dur": micros(span.end_ns - start_ns),
        "args": arguments,
    })
}
