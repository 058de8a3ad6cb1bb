//! The update of parameters at the end of the step, with one op for one or a few parameters.

use super::tape::{FLOAT_BYTES, Tape, Value, elements};
use planner_core::Kind;

/// The rule of the update, and the states that it keeps for each parameter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Optimizer {
    /// Stochastic gradient descent.
    Plain,
    /// Stochastic gradient descent with momentum.
    Momentum,
    /// D. Kingma, J. Ba: Adam: a method for stochastic optimization, 2015.
    Adam,
}

impl Optimizer {
    /// Returns the names of the op and of its states, which are as large as the parameter.
    const fn names(self) -> (&'static str, &'static [&'static str]) {
        match self {
            Self::Plain => ("sgd", &[]),
            Self::Momentum => ("sgd", &["momentum"]),
            Self::Adam => ("adam", &["exp_avg", "exp_avg_sq"]),
        }
    }

    /// Updates parameters in place, all in one op.
    pub(super) fn update(self, tape: &mut Tape, name: &str, parameters: &[(String, Value)]) {
        let (op, states) = self.names();
        let mut reads = Vec::new();
        let mut updated = Vec::new();
        for (name, parameter) in parameters {
            reads.push(tape.take_gradient(*parameter));
            updated.push(tape.at(*parameter));
            let bytes = elements(&parameter.shape).saturating_mul(FLOAT_BYTES);
            for state in states {
                updated.push(tape.tensor(format!("{name}.{state}"), bytes, Kind::State));
            }
        }
        reads.extend_from_slice(&updated);
        tape.update(format!("{name}.{op}"), &reads, &updated);
    }
}
