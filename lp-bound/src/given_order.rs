//! A lower bound on the period in the given order.

use crate::model::{Model, UNIT};
use crate::program::Program;
use crate::solver::{Method, solve};
use crate::spans::Spans;
use core::fmt;
use planner_core::bounds::{self, BoundOrder};
use planner_core::scratch::{Limits, OutOfScratch, Scratch};
use planner_core::{Graph, Machine, OpId};

/// The plans for which the bound holds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Options {
    /// Count pages, not bytes. The bound is higher and holds only for plans that keep large
    /// inputs, temporaries and workspaces on pages. Without pages it holds for every plan.
    pub pages: Option<Pages>,
}

/// The pages, and the tensors that lie on them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pages {
    /// The size of a page.
    pub page_bytes: u64,
    /// The smallest tensor that lies on pages of its own.
    pub least_bytes: u64,
}

impl Pages {
    /// Pages are chunks, and all tensors of at least a chunk lie in pools of chunks. The bound does
    /// not hold for plans with slabs, or with such tensors in the arena.
    #[must_use]
    pub fn of(machine: &Machine) -> Self {
        Self { page_bytes: machine.chunk_bytes, least_bytes: machine.chunk_bytes }
    }
}

/// A bound on the period, with the figures of its linear program.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Bound {
    /// The bound: no plan for which it holds has a shorter period.
    pub period_ns: u64,
    /// The solver's own bound, rounded down. It is not proved, and is higher by the proof's loss.
    pub solver_ns: u64,
    /// The number of variables of the linear program.
    pub columns: usize,
    /// The number of constraints of the linear program.
    pub rows: usize,
}

/// Why there is no bound.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Error {
    /// The size of a page is zero.
    NoPage,
    /// The graph has collectives, which run beside the other launches.
    Collectives,
    /// No plan fits, because one op alone needs more than the budget.
    Infeasible {
        /// The op.
        op: OpId,
        /// The size of its operands and its workspace.
        needed_bytes: u64,
    },
    /// HiGHS refused the program or found no solution.
    Solver,
    /// The working memory is too small.
    Scratch(OutOfScratch),
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NoPage => write!(f, "page_bytes is zero"),
            Self::Collectives => {
                write!(f, "the linear program cannot describe a graph with collectives")
            }
            Self::Infeasible { op, needed_bytes } => {
                write!(f, "no plan fits: {op} alone needs {needed_bytes} bytes")
            }
            Self::Solver => write!(f, "HiGHS found no solution of the linear program"),
            Self::Scratch(error) => error.fmt(f),
        }
    }
}

impl core::error::Error for Error {}

/// The largest loss of the proof against the solver's bound, relative to the period. Above it, the
/// next method is tried.
const LOSS: f64 = 1e-6;

/// Returns a period that no plan can beat if it keeps the given order and runs each op once: the
/// better of the linear program and [`bounds::period_ns`].
///
/// # Errors
/// The budget is too small for one op, the page size is zero, the graph has collectives, or the
/// solver fails.
pub fn period_ns(
    graph: &Graph<'_>,
    machine: &Machine,
    budget_bytes: u64,
    options: Options,
) -> Result<Bound, Error> {
    if graph.has_collectives() {
        return Err(Error::Collectives);
    }
    // The arena and the pools consist of whole chunks, so a plan cannot use the rest of its budget.
    let budget_bytes = match options.pages {
        Some(Pages { page_bytes: 0, .. }) => return Err(Error::NoPage),
        Some(_) => budget_bytes - budget_bytes % machine.chunk_bytes,
        None => budget_bytes,
    };
    let spans = Spans::new(graph, options);
    if let Some((op, needed_bytes)) = spans.does_not_fit(budget_bytes) {
        return Err(Error::Infeasible { op, needed_bytes });
    }
    let Model { program, most_stall } = Model::new(graph, machine, budget_bytes, &spans);
    let bound = bound(graph, &program, most_stall)?;
    let cheap_ns = with_scratch(graph, |scratch| {
        bounds::period_ns(graph, machine, budget_bytes, BoundOrder::Given, scratch)
    })?;
    Ok(Bound { period_ns: bound.period_ns.max(cheap_ns), ..bound })
}

/// Solves a program whose cost is the period without the compute time. The program models only
/// plans with a cost of at most `most`.
pub(crate) fn bound(graph: &Graph<'_>, program: &Program, most: f64) -> Result<Bound, Error> {
    let compute = graph.compute_ns() as f64 / UNIT;
    let cost = cost(program, most, compute).ok_or(Error::Solver)?;
    let period_ns = |cost: f64| graph.compute_ns().saturating_add((cost * UNIT) as u64);
    Ok(Bound {
        period_ns: period_ns(cost.proved - 1.0 / UNIT),
        solver_ns: period_ns(cost.solver),
        columns: program.columns.len(),
        rows: program.rows.len(),
    })
}

/// The least cost of a program, in the program's units.
#[derive(Clone, Copy, Debug)]
struct Cost {
    proved: f64,
    solver: f64,
}

/// Tries the interior point method first, because it is by far the fastest. If its proof loses too
/// much, tries the simplex method.
fn cost(program: &Program, most: f64, compute: f64) -> Option<Cost> {
    let mut best: Option<Cost> = None;
    for method in [Method::InteriorPoint, Method::Simplex] {
        let Some((solver, duals)) = solve(program, method) else { continue };
        let proved = program.proved_cost(&duals).min(most);
        if best.is_none_or(|best| proved > best.proved) {
            best = Some(Cost { proved, solver });
        }
        if proved > solver - LOSS * (compute + solver) {
            break;
        }
    }
    best
}

/// Calls a bound of `planner-core` with working memory.
pub(crate) fn with_scratch(
    graph: &Graph<'_>,
    cheap_ns: impl FnOnce(&mut Scratch<'_>) -> Result<u64, OutOfScratch>,
) -> Result<u64, Error> {
    let limits = Limits {
        ops: graph.ops().len(),
        operands: graph.operands().len(),
        tensors: graph.tensors().len(),
        steps: 0,
        pieces: graph.tensors().len(),
        pools: 1,
        ..Limits::default()
    };
    let mut memory = vec![0; bounds::scratch_words(&limits)];
    cheap_ns(&mut Scratch::new(&mut memory)).map_err(Error::Scratch)
}
