//! Tables of the largest traffic, the longest stalls and the longest repeats.

use super::escape;
use super::search::Numbers;
use crate::course::{Course, Span};
use crate::names::Names;
use crate::proof::Proved;
use crate::units::{bytes, percent, time};
use planner_core::{Kind, Launched, OpId, Step, TensorId};
use workloads::Shown;

/// The most rows of a table.
const ROWS: usize = 15;

/// The traffic of one tensor in an iteration.
#[derive(Clone, Copy, Default)]
struct Traffic {
    upload_bytes: u64,
    download_bytes: u64,
}

impl Traffic {
    const fn sum_bytes(self) -> u64 {
        self.upload_bytes.saturating_add(self.download_bytes)
    }
}

/// Renders the tensors that move most.
pub(super) fn moved(proved: &Proved<'_>) -> String {
    let mut traffic = vec![Traffic::default(); proved.work.tensors.len()];
    for (step, &moved_bytes) in proved.verified.plan().steps.iter().zip(&proved.step_bytes) {
        match step {
            Step::Prefetch(part) => traffic[part.tensor.index()].upload_bytes += moved_bytes,
            Step::Offload(part) => traffic[part.tensor.index()].download_bytes += moved_bytes,
            Step::Launch(_) | Step::Host(_) | Step::Evict(_) => {}
        }
    }
    let mut moving: Vec<_> = traffic
        .iter()
        .enumerate()
        .filter(|(_, traffic)| traffic.sum_bytes() > 0)
        .map(|(at, &traffic)| (TensorId(at as u32), traffic))
        .collect();
    if moving.is_empty() {
        return "<p class=\"note\">Nothing moves.</p>".to_owned();
    }
    // Tensors with equal traffic stay in the order of their ids.
    moving.sort_by_key(|(_, traffic)| std::cmp::Reverse(traffic.sum_bytes()));
    let rows: String = moving.iter().take(ROWS).map(|&(id, t)| moved_row(proved, id, t)).collect();
    let all_bytes: u64 = moving.iter().map(|(_, traffic)| traffic.sum_bytes()).sum();
    let shown_bytes: u64 = moving.iter().take(ROWS).map(|(_, traffic)| traffic.sum_bytes()).sum();
    format!(
        "<table><tr><th>tensor</th><th>kind</th><th class=\"n\">size</th>\
         <th class=\"n\">upload</th><th class=\"n\">download</th></tr>\n{rows}</table>\n\
         <p class=\"note\">{} of {} tensors that move; {} of the traffic.</p>\n",
        moving.len().min(ROWS),
        moving.len(),
        escape(&percent(shown_bytes, all_bytes))
    )
}

fn moved_row(proved: &Proved<'_>, id: TensorId, traffic: Traffic) -> String {
    let tensor = proved.work.tensors[id.index()];
    let kind = match tensor.kind {
        Kind::State => "state",
        Kind::Input => "input",
        Kind::Temporary => "temporary",
        Kind::Output => "output",
    };
    format!(
        "<tr data-n=\"{}\"><td class=\"name\">{}</td><td>{kind}</td><td class=\"n\">{}</td>\
         <td class=\"n\">{}</td><td class=\"n\">{}</td></tr>\n",
        Numbers::of_tensor(proved, id),
        escape(&Shown::name(&proved.work.tensor_names[id.index()]).to_string()),
        bytes(tensor.bytes),
        bytes(traffic.upload_bytes),
        bytes(traffic.download_bytes)
    )
}

/// Renders the ops with the longest waits before them, and the awaited steps.
pub(super) fn stalls(proved: &Proved<'_>, course: &Course) -> String {
    let window = course.steady_iteration();
    let mut stalled: Vec<&Span> = course.stalled_within(&window).collect();
    if stalled.is_empty() {
        return "<p class=\"note\">Compute never waits.</p>".to_owned();
    }
    stalled.sort_by_key(|span| std::cmp::Reverse(span.idle_ns));
    let all_ns: u64 = stalled.iter().map(|span| span.idle_ns).sum();
    let steps = proved.verified.plan().steps;
    let names = Names::new(proved.work, steps);
    let row = |span: &&Span| {
        let numbers = Numbers::of_step(proved, span.step);
        let awaited = course.awaited(span).map(|awaited| names.brief(&steps[awaited.step]));
        format!(
            "<tr data-n=\"{numbers}\"><td class=\"name\">{}</td><td class=\"n\">{}</td>\
             <td class=\"name\">{}</td></tr>\n",
            escape(&names.brief(&steps[span.step])),
            time(span.idle_ns),
            escape(&awaited.unwrap_or_default())
        )
    };
    let rows: String = stalled.iter().take(ROWS).map(row).collect();
    let shown_ns: u64 = stalled.iter().take(ROWS).map(|span| span.idle_ns).sum();
    format!(
        "<table><tr><th>before</th><th class=\"n\">stall</th><th>waiting for</th></tr>\n{rows}\
         </table>\n<p class=\"note\">{} of {} ops that wait; {} of the {} of this iteration.</p>\n",
        stalled.len().min(ROWS),
        stalled.len(),
        escape(&percent(shown_ns, all_ns)),
        time(all_ns)
    )
}

/// Renders the ops with the longest repeats, or an empty text if there are no repeats.
pub(super) fn repeats(proved: &Proved<'_>) -> String {
    let graph = proved.verified.graph();
    let mut times = vec![0u64; graph.ops().len()];
    for step in proved.verified.plan().steps {
        if let Step::Launch(Launched { op, is_repeat: true }) = step {
            times[op.index()] += 1;
        }
    }
    let repeat_ns = |op: OpId| graph.op(op).time_ns.saturating_mul(times[op.index()]);
    let mut repeated: Vec<_> = graph.op_ids().filter(|op| times[op.index()] > 0).collect();
    if repeated.is_empty() {
        return String::new();
    }
    repeated.sort_by_key(|&op| std::cmp::Reverse(repeat_ns(op)));
    let row = |&op: &OpId| {
        format!(
            "<tr data-n=\"{}\"><td class=\"name\">{}</td><td class=\"n\">{}</td>\
             <td class=\"n\">{}</td></tr>\n",
            Numbers::of_op(op),
            escape(&Shown::name(&proved.work.op_names[op.index()]).to_string()),
            times[op.index()],
            time(repeat_ns(op))
        )
    };
    let rows: String = repeated.iter().take(ROWS).map(row).collect();
    let shown_ns: u64 = repeated.iter().take(ROWS).map(|&op| repeat_ns(op)).sum();
    let all_ns = proved.verified.plan().predicted.repeat_ns;
    format!(
        "<section><h2>Repeats</h2>\n<table><tr><th>op</th><th class=\"n\">repeats</th>\
         <th class=\"n\">time</th></tr>\n{rows}</table>\n\
         <p class=\"note\">{} of {} ops that run again; {} of the {} that this takes.</p></section>\n",
        repeated.len().min(ROWS),
        repeated.len(),
        escape(&percent(shown_ns, all_ns)),
        time(all_ns)
    )
}
