//! How parameters are updated, one op a parameter, at the end of the step.

use super::tape::{FLOAT_BYTES, Tape, Value, elements};
use planner_core::Kind;

/// The rule of the update, with what it keeps of each parameter beside it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Optimizer {
    /// Stochastic gradient descent with momentum.
    Momentum,
    /// D. Kingma, J. Ba: Adam: a method for stochastic optimization, 2015.
    Adam,
}

impl Optimizer {
    /// The name of the op, and of the states that are as large as the parameter.
    const fn names(self) -> (&'static str, &'static [&'static str]) {
        match self {
            Self::Momentum => ("sgd", &["momentum"]),
            Self::Adam => ("adam", &["exp_avg", "exp_avg_sq"]),
        }
    }

    /// Updates a parameter in place.
    pub(super) fn update(self, tape: &mut Tape, name: &str, parameter: Value) {
        let (op, states) = self.names();
        let bytes = elements(&parameter.shape).saturating_mul(FLOAT_BYTES);
        let gradient = tape.take_gradient(parameter);
        let mut updated = vec![tape.at(parameter)];
        for state in states {
            updated.push(tape.tensor(format!("{name}.{state}"), bytes, Kind::State));
        }
        let reads: Vec<_> = std::iter::once(gradient).chain(updated.iter().copied()).collect();
        tape.op(format!("{name}.{op}"), 0, &reads, &updated);
    }
}
