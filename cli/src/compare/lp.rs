//! The least period by linear programming, if the build includes it.

use super::grid::Column;
use crate::failure::Failure;
use planner_core::Graph;
use workloads::OwnedMachine;

/// The least period under each budget of plans that keep the order of the ops. `None` if a single
/// op needs more memory. Ignores pages, because plans may keep large tensors in the arena or in
/// slabs.
#[cfg(feature = "lp")]
pub(super) fn period_ns(
    graph: &Graph<'_>,
    machine: &OwnedMachine,
    budgets: &[Column],
) -> Result<Vec<Option<u64>>, Failure> {
    use lp_bound::{Error, Options};
    use std::time::Duration;

    let machine = &machine.machine;
    let bar = crate::progress::of_pieces("solving", budgets.len());
    bar.enable_steady_tick(Duration::from_secs(1));
    let bound_ns = |column: &Column| {
        bar.set_message(format!("for {}", column.budget));
        let bound = lp_bound::period_ns(graph, machine, column.budget_bytes, Options::default());
        bar.inc(1);
        match bound {
            Ok(bound) => Ok(Some(bound.period_ns)),
            Err(Error::Infeasible { .. }) => Ok(None),
            Err(error) => Err(Failure::cannot(format!("--bound lp: {error}"))),
        }
    };
    let bounds_ns = budgets.iter().map(bound_ns).collect();
    bar.finish_and_clear();
    bounds_ns
}

/// Fails, because the program is built without the linear program.
#[cfg(not(feature = "lp"))]
pub(super) fn period_ns(
    _: &Graph<'_>,
    _: &OwnedMachine,
    _: &[Column],
) -> Result<Vec<Option<u64>>, Failure> {
    Err(Failure::bad_input(
        "--bound lp: this program was built without the linear program; build it with \
         `lp-bound/with-highs cargo build --release --features lp` (with-highs fetches cmake and \
         libclang if they are missing)",
    ))
}
