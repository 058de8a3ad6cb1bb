//! The largest differences between measured iterations and the prediction.

use super::search::Numbers;
use super::{Measured, escape};
use crate::course::Course;
use crate::names::Names;
use crate::proof::Proved;
use crate::units::time;
use workloads::Shown;

/// Rows of the table.
const ROWS: usize = 15;

/// A step in one iteration, averaged over several iterations.
#[derive(Clone, Copy, Default)]
struct Mean {
    count: u64,
    busy_ns: u64,
    stall_ns: u64,
}

/// The predicted and the measured time of a step.
struct Difference {
    step: usize,
    is_stall: bool,
    predicted_ns: u64,
    measured_ns: u64,
}

impl Difference {
    const fn ns(&self) -> u64 {
        self.predicted_ns.abs_diff(self.measured_ns)
    }
}

/// Renders the table.
pub(super) fn render(proved: &Proved<'_>, course: &Course, measured: &Measured<'_>) -> String {
    let window = measured.course.steady_iteration();
    let (period_ns, predicted_ns) =
        (window.end - window.start, proved.verified.plan().predicted.period_ns);
    let all = differences(proved, course, &measured.course);
    let rows: String = all.iter().take(ROWS).map(|one| row(proved, one)).collect();
    let table = match all.len() {
        0 => "<p class=\"note\">Every step took as long as predicted.</p>\n".to_owned(),
        count => format!(
            "<table><tr><th>step</th><th class=\"n\">predicted</th><th class=\"n\">measured</th>\
             <th class=\"n\">difference</th></tr>\n{rows}</table>\n\
             <p class=\"note\">{} of {count} differences, on average over some iterations.</p>\n",
            count.min(ROWS)
        ),
    };
    format!(
        "<section><h2>Predicted and measured</h2>\n<p>On the {}, the iteration that is drawn took {}; {} \
         are predicted.</p>\n{table}</section>\n",
        escape(&Shown::name(measured.device).to_string()),
        time(period_ns),
        time(predicted_ns),
    )
}

fn row(proved: &Proved<'_>, difference: &Difference) -> String {
    let &Difference { step, is_stall, predicted_ns, measured_ns } = difference;
    let steps = proved.verified.plan().steps;
    let name = Names::new(proved.work, steps).brief(&steps[step]);
    let before = if is_stall { "stall before " } else { "" };
    let sign = if measured_ns < predicted_ns { '−' } else { '+' };
    format!(
        "<tr data-n=\"{}\"><td class=\"name\">{before}{}</td><td class=\"n\">{}</td>\
         <td class=\"n\">{}</td><td class=\"n\">{sign}{}</td></tr>\n",
        Numbers::of_step(proved, step),
        escape(&name),
        time(predicted_ns),
        time(measured_ns),
        time(difference.ns())
    )
}

/// Returns all steps and stalls whose measured time differs from the prediction, the largest difference
/// first.
fn differences(proved: &Proved<'_>, predicted: &Course, measured: &Course) -> Vec<Difference> {
    let steps = proved.verified.plan().steps.len();
    let (predicted, measured) = (means(predicted, steps), means(measured, steps));
    let mut all = Vec::new();
    for (step, (predicted, measured)) in predicted.iter().zip(&measured).enumerate() {
        if predicted.count == 0 || measured.count == 0 {
            continue;
        }
        let times = [
            (false, predicted.busy_ns, measured.busy_ns),
            (true, predicted.stall_ns, measured.stall_ns),
        ];
        all.extend(times.map(|(is_stall, predicted_ns, measured_ns)| Difference {
            step,
            is_stall,
            predicted_ns,
            measured_ns,
        }));
    }
    all.retain(|difference| difference.ns() > 0);
    // Equal differences stay in list order.
    all.sort_by_key(|difference| std::cmp::Reverse(difference.ns()));
    all
}

fn means(course: &Course, steps: usize) -> Vec<Mean> {
    let mut means = vec![Mean::default(); steps];
    for span in course.within(&course.steady_iterations()) {
        let mean = &mut means[span.step];
        mean.count += 1;
        mean.busy_ns += span.end_ns - span.start_ns;
        mean.stall_ns += if span.is_stalled() { span.idle_ns } else { 0 };
    }
    for mean in &mut means {
        let count = mean.count.max(1);
        (mean.busy_ns, mean.stall_ns) = (mean.busy_ns / count, mean.stall_ns / count);
    }
    means
}
