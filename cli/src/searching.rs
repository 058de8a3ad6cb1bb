//! The progress bar of a search, and an interrupt that ends the search with its best plan.

use crate::{progress, signals};
use spillway::strategy::{Planner, Progress, Watch};
use spillway::units::time;
use spillway::{Error, Plan, Prepared};
use std::sync::atomic::{AtomicBool, Ordering};
use workloads::format;

/// Whether a search is running, and whether the user has interrupted it.
static SEARCHING: AtomicBool = AtomicBool::new(false);
static INTERRUPTED: AtomicBool = AtomicBool::new(false);

/// Handles a signal. The first interrupt during a search ends the search, which then returns its
/// best plan. Every other signal ends the program with this status and leaves no partial file.
pub(crate) fn interrupt(status: i32) {
    let keeps_best = status == signals::INTERRUPTED && SEARCHING.load(Ordering::Relaxed);
    if !keeps_best || INTERRUPTED.swap(true, Ordering::Relaxed) {
        format::stop_saving();
        std::process::exit(status);
    }
}

/// Plans, with a progress bar if the strategy searches and standard error is a terminal.
pub(crate) fn plan(prepared: &mut Prepared) -> Result<Plan, Error> {
    let Some(limit) = prepared.strategy().limit() else {
        return prepared.plan(&mut Watch::default());
    };
    SEARCHING.store(true, Ordering::Relaxed);
    let length_ms = limit.seconds.map_or(0, |seconds| (seconds * 1000.0) as u64);
    let bar = progress::bar(length_ms, "searching {bar:40} {elapsed} {msg}");
    let mut show = |progress: &Progress| {
        let Progress { seconds, rounds, evaluations, best_ns, .. } = *progress;
        bar.set_position((seconds * 1000.0) as u64);
        let best = best_ns.map_or_else(|| "none".to_owned(), time);
        let rate = evaluations as f64 / seconds.max(1e-9);
        bar.set_message(format!(
            "best {best}, round {rounds}, {evaluations} plans evaluated ({rate:.0} a second)"
        ));
    };
    let mut watch = Watch::default();
    watch.interrupted = Some(&INTERRUPTED);
    watch.progress = Some(&mut show);
    let planned = prepared.plan(&mut watch);
    bar.finish_and_clear();
    SEARCHING.store(false, Ordering::Relaxed);
    planned
}
