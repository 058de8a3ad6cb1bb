//! How to plan: a strategy of the core, swaps in size classes, or a search.

use crate::signals;
use indicatif::{ProgressBar, ProgressStyle};
use planner_core::OpId;
use planner_core::bounds::BoundOrder;
use planner_core::planner::{PlanningError, Repeats, Request, Strategy};
use search::{Progress, Watch, genetic, joint};
use spillway::placing::{self, Unplaced};
use spillway::planning;
use spillway::swapping::{self, Swap};
use spillway::units::time;
use std::sync::atomic::{AtomicBool, Ordering};
use workloads::{OwnedPlan, format};

/// How to plan.
#[derive(Clone, Debug)]
pub(crate) enum Method {
    /// A strategy of the core.
    Strategy(Strategy),
    /// Swaps in size classes.
    Swap(Swap),
    /// A search for an order.
    Joint(joint::JointSettings),
    /// The published search for an order and a division of memory.
    Published(genetic::Settings),
}

/// A plan, and why its objects are not fixed though that was wanted.
pub(crate) type Planned = (OwnedPlan, Option<Unplaced>);

impl From<spillway::Strategy> for Method {
    fn from(strategy: spillway::Strategy) -> Self {
        match strategy {
            spillway::Strategy::Core(strategy) => Self::Strategy(strategy),
            spillway::Strategy::Swap(swap) => Self::Swap(swap),
        }
    }
}

impl Method {
    /// The strategy whose least memory is this one's, and what takes it.
    pub(crate) fn of_core(&self) -> Option<Strategy> {
        match self {
            Self::Strategy(strategy) => Some(*strategy),
            Self::Joint(_) => Some(Strategy::Auto(planner_core::planner::Auto::default())),
            Self::Swap(_) | Self::Published(_) => None,
        }
    }

    /// The smallest budget with which there is a plan, and the op that needs it.
    pub(crate) fn min_feasible(&self, request: &Request<'_>) -> Result<(u64, OpId), PlanningError> {
        match (self, self.of_core()) {
            (_, Some(strategy)) => planning::min_feasible(request, strategy),
            (Self::Swap(swap), _) => Ok(swapping::min_feasible(request, swap)?),
            _ => Ok(swapping::min_feasible(request, &Swap::default())?),
        }
    }

    /// Plans, with fixed physical objects where that is wanted; no worse than `less` where
    /// more memory never makes a strategy slower.
    pub(crate) fn plan(
        &self,
        request: &Request<'_>,
        placed: bool,
        less: Option<&OwnedPlan>,
    ) -> Result<Planned, PlanningError> {
        let placed_by = |planner: &mut dyn FnMut(
            &Request<'_>,
        ) -> Result<OwnedPlan, PlanningError>| {
            match placed {
                true => placing::plan_by(request, planner),
                false => planner(request).map(|plan| (plan, None)),
            }
        };
        match self {
            Self::Strategy(strategy) if placed => placing::plan_with_more(request, *strategy, less),
            Self::Strategy(strategy) => {
                planning::plan_with_more(request, *strategy, less).map(|plan| (plan, None))
            }
            Self::Swap(swap) => placed_by(&mut |request| swapping::plan(request, swap)),
            Self::Joint(settings) => {
                let mut found: Option<joint::JointFound> = None;
                placed_by(&mut |request| match &found {
                    Some(found) => joint::plan_again(request, settings, found),
                    None => {
                        let mut settings = *settings;
                        settings.limit.bound_ns = match settings.repeats {
                            Repeats::Never => bound_ns(request),
                            Repeats::Allowed => bound_with_repeats_ns(request),
                        };
                        let searched = watched(settings.limit.seconds, |watch| {
                            joint::search(request, &settings, watch)
                        });
                        searched.map(|new| found.insert(new).plan.clone())
                    }
                })
            }
            Self::Published(settings) => {
                let mut found: Option<genetic::Found> = None;
                placed_by(&mut |request| match &found {
                    Some(found) => genetic::plan_again(request, settings, found),
                    None => {
                        let mut settings = *settings;
                        settings.limit.bound_ns = bound_ns(request);
                        let searched = watched(settings.limit.seconds, |watch| {
                            genetic::search(request, &settings, watch)
                        });
                        searched.map(|new| found.insert(new).plan.clone())
                    }
                })
            }
        }
    }
}

/// No order has a shorter period, with repeats or without.
fn bound_with_repeats_ns(request: &Request<'_>) -> u64 {
    let Request { graph, machine, budget_bytes } = *request;
    planning::lower_bound_repeats_ns(graph, machine, budget_bytes, BoundOrder::Any).unwrap_or(0)
}

/// No order has a shorter period if each op runs once.
fn bound_ns(request: &Request<'_>) -> u64 {
    let Request { graph, machine, budget_bytes } = *request;
    planning::lower_bound_ns(graph, machine, budget_bytes, BoundOrder::Any).unwrap_or(0)
}

/// Whether a search is under way, and whether it has been interrupted.
static SEARCHING: AtomicBool = AtomicBool::new(false);
static INTERRUPTED: AtomicBool = AtomicBool::new(false);

/// An interrupt by the user ends a search, which then returns the best plan so far. Another signal,
/// or one without a search, or the second one, ends the program with this status and leaves no
/// partial file.
pub(crate) fn interrupt(status: i32) {
    let keeps_best = status == signals::INTERRUPTED && SEARCHING.load(Ordering::Relaxed);
    if !keeps_best || INTERRUPTED.swap(true, Ordering::Relaxed) {
        format::stop_saving();
        std::process::exit(status);
    }
}

/// Searches with a progress bar if standard error is a terminal.
fn watched<T>(seconds: Option<f64>, search: impl FnOnce(&mut Watch<'_>) -> T) -> T {
    SEARCHING.store(true, Ordering::Relaxed);
    let bar = ProgressBar::new(seconds.map_or(0, |seconds| (seconds * 1000.0) as u64));
    let style = ProgressStyle::with_template("searching {bar:40} {elapsed} {msg}");
    // The template is a constant. Without it the bar only looks different.
    let bar = style.map_or_else(|_| bar.clone(), |style| bar.clone().with_style(style));
    let mut show = |progress: &Progress| {
        let Progress { seconds, rounds, evaluations, best_ns } = *progress;
        bar.set_position((seconds * 1000.0) as u64);
        let best = best_ns.map_or_else(|| "none".to_owned(), time);
        let rate = evaluations as f64 / seconds.max(1e-9);
        bar.set_message(format!(
            "best {best}, round {rounds}, {evaluations} judged ({rate:.0} a second)"
        ));
    };
    let found = search(&mut Watch { interrupted: &INTERRUPTED, progress: &mut show });
    bar.finish_and_clear();
    SEARCHING.store(false, Ordering::Relaxed);
    found
}
