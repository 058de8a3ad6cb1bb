//! The settings of the knobs of inference servers, with tensors in one piece. Heuristics place layers of
//! different sizes, and sometimes these settings give better places.

use super::list::{MOST_ITERATIONS, STEPS, period_ns};
use super::streamed::Layers;
use crate::{placing, planning};
use planner_core::planner::{Groups, PlanningError, Request, Strategy};
use planner_core::{Graph, Machine};
use std::collections::HashSet;
use std::iter;
use workloads::OwnedPlan;

/// The most layers for which all settings are tried, which takes a few milliseconds.
const FEW: usize = 24;

/// The number of settings that are placed although their plans in pages are a little longer than the best
/// plan.
const NEAR: usize = 16;

/// Returns `best`, or a shorter plan by a setting of the knobs. Tries no settings for layers of one size, or
/// for a plan as short as the bound.
pub(super) fn shorter(
    mut best: OwnedPlan,
    layers: &Layers,
    graph: &Graph<'_>,
    machine: &Machine,
    least_ns: u64,
) -> Result<OwnedPlan, PlanningError> {
    let is_tried = layers.len() <= FEW && layers.shapes().len() > 1;
    let settings = Groups::settings(layers.len()).map(Strategy::Groups);
    let strategies = iter::once(Strategy::Fit).chain(settings).filter(|_| is_tried);
    let request = Request { graph, machine, budget_bytes: layers.bare_budget_bytes() };
    let (mut near, mut buffers) = (NEAR, planning::Buffers::default());
    // Many settings have the same plan.
    let mut seen = HashSet::new();
    for strategy in strategies {
        if period_ns(&best) <= least_ns {
            break;
        }
        let paged = match buffers.plan(&request, strategy) {
            Err(PlanningError::Infeasible { .. }) => continue,
            paged => paged?,
        };
        if !seen.insert((paged.predicted.period_ns, paged.predicted.h2d_bytes, paged.steps.len())) {
            continue;
        }
        let (paged_ns, best_ns) = (paged.predicted.period_ns, period_ns(&best));
        // With tensors in one piece, lists became up to 3 % shorter.
        let is_near = paged_ns >= best_ns && near > 0 && paged_ns - paged_ns / 16 < best_ns;
        near -= usize::from(is_near);
        if paged_ns < best_ns || is_near {
            let placed = in_one_piece(graph, machine, &OwnedPlan::from(&paged));
            best =
                iter::once(best).chain(placed).min_by_key(period_ns).ok_or(PlanningError::Stuck)?;
        }
    }
    Ok(best)
}

/// Returns a plan with the first or the last layers on the device, as many as fit, and the others on the
/// host.
pub(super) fn split(
    graph: &Graph<'_>,
    machine: &Machine,
    budget_bytes: u64,
) -> Result<Option<OwnedPlan>, PlanningError> {
    let request = Request { graph, machine, budget_bytes };
    match planning::plan(&request, Strategy::Split) {
        Err(PlanningError::Infeasible { .. }) => Ok(None),
        paged => Ok(in_one_piece(graph, machine, &paged?)),
    }
}

/// Returns the shortest plan in which each tensor lies in one piece, if there is one.
fn in_one_piece(graph: &Graph<'_>, machine: &Machine, paged: &OwnedPlan) -> Option<OwnedPlan> {
    let placed = (1..=MOST_ITERATIONS).filter_map(|iterations| {
        placing::place_contiguously(graph, machine, paged, iterations, STEPS).ok()
    });
    placed.min_by_key(period_ns)
}
