//! Calls HiGHS: Huangfu and Hall, "Parallelizing the dual revised simplex method" (2018).

use crate::program::Program;
use highs::{RowProblem, Sense};

/// The solution method.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Method {
    /// Includes crossover to a vertex, whose dual values prove nearly its whole cost.
    InteriorPoint,
    Simplex,
}

/// The cost and the dual values of a solution, if the solver finds one. Neither is proved.
pub(crate) fn solve(program: &Program, method: Method) -> Option<(f64, Vec<f64>)> {
    let mut problem = RowProblem::default();
    let columns: Vec<_> = program
        .columns
        .iter()
        .map(|column| problem.add_column(column.cost, column.lower..=column.upper))
        .collect();
    for row in &program.rows {
        let terms = row.terms.iter().map(|&(column, factor)| (columns[column.0], factor));
        if row.exactly {
            problem.add_row(row.at_least..=row.at_least, terms);
        } else {
            problem.add_row(row.at_least.., terms);
        }
    }
    let mut model = problem.try_optimise(Sense::Minimise).ok()?;
    let solver = match method {
        Method::InteriorPoint => "ipm",
        Method::Simplex => "simplex",
    };
    model.try_set_option("solver", solver).ok()?;
    let solved = model.try_solve().ok()?;
    let duals = solved.get_solution().dual_rows().to_vec();
    let cost = solved.objective_value();
    (duals.len() == program.rows.len() && cost.is_finite()).then_some((cost, duals))
}
