//! A linear program under construction, and the bound that dual values prove for it.

/// The position of a variable.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Column(pub(crate) usize);

/// One variable: its cost and its limits, all finite.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Variable {
    pub(crate) cost: f64,
    pub(crate) lower: f64,
    pub(crate) upper: f64,
}

/// One constraint: the sum of its terms is at least a number, or equal to it.
#[derive(Clone, Debug)]
pub(crate) struct Row {
    pub(crate) at_least: f64,
    pub(crate) exactly: bool,
    pub(crate) terms: Vec<(Column, f64)>,
}

/// A program that minimises the cost, subject to the rows.
#[derive(Clone, Debug, Default)]
pub(crate) struct Program {
    pub(crate) columns: Vec<Variable>,
    pub(crate) rows: Vec<Row>,
}

impl Program {
    pub(crate) fn column(&mut self, cost: f64, lower: f64, upper: f64) -> Column {
        self.columns.push(Variable { cost, lower, upper });
        Column(self.columns.len() - 1)
    }

    pub(crate) fn at_least(&mut self, bound: f64, terms: Vec<(Column, f64)>) {
        self.rows.push(Row { at_least: bound, exactly: false, terms });
    }

    pub(crate) fn exactly(&mut self, value: f64, terms: Vec<(Column, f64)>) {
        self.rows.push(Row { at_least: value, exactly: true, terms });
    }

    /// Returns a lower bound on the cost of all solutions. Any dual values prove a valid bound, by
    /// weak duality over variables with finite limits, after Neumaier and Shcherbina, "Safe bounds
    /// in linear and mixed-integer linear programming" (2004). The bound is reduced by a margin for
    /// the rounding of the sums in this function.
    pub(crate) fn proved_cost(&self, duals: &[f64]) -> f64 {
        let mut reduced: Vec<f64> = self.columns.iter().map(|column| column.cost).collect();
        let mut size: Vec<f64> = reduced.iter().map(|cost| cost.abs()).collect();
        let (mut proved, mut magnitude) = (0.0, 0.0);
        for (row, &dual) in self.rows.iter().zip(duals) {
            let dual = if row.exactly { dual } else { dual.max(0.0) };
            proved += dual * row.at_least;
            magnitude += (dual * row.at_least).abs();
            for &(column, factor) in &row.terms {
                reduced[column.0] -= dual * factor;
                size[column.0] += (dual * factor).abs();
            }
        }
        for ((column, &reduced), &size) in self.columns.iter().zip(&reduced).zip(&size) {
            let term = (reduced * column.lower).min(reduced * column.upper);
            proved += term;
            magnitude += size * column.lower.abs().max(column.upper.abs()) * TERM_ROUNDING;
            magnitude += term.abs();
        }
        let terms = (self.rows.len() + self.columns.len()) as f64;
        proved - magnitude * terms * f64::EPSILON
    }
}

/// The margin for the rounding of a reduced cost, relative to the margin for the long sums.
const TERM_ROUNDING: f64 = 1e-3;
