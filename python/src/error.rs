//! Exceptions: `Error`, and a subclass for each reason.

use pyo3::exceptions::{PyException, PyMemoryError};
use pyo3::prelude::*;
use spillway::OwnedGraph;

/// Defines an exception, a subclass of `Error`.
macro_rules! exceptions {
    ($($name:ident: $about:literal),+ $(,)?) => {
        $(pyo3::create_exception!(spillway, $name, Error, $about);)+
    };
}

pyo3::create_exception!(spillway, Error, PyException, "Base of all exceptions of this package.");
exceptions! {
    GraphError: "The graph is malformed.",
    BudgetError: "The value is not a budget.",
    InfeasibleError: "The budget is too small. `op` names the op that needs more, `min_feasible_bytes` is \
        the smallest budget with which the strategy can plan, `budget_bytes` the one that was given.",
    PlanningError: "There is no plan for another reason, or no such strategy or setting.",
    InvalidPlanError: "A plan is not safe, has a wrong prediction, or belongs to another graph or machine.",
    FormatError: "The bytes are not a file of the expected format, or the values of a machine are wrong.",
    DeviceError: "There is no such device, or its driver refuses a call.",
    SessionError: "A session cannot start or continue, or does not have the requested value.",
    SwitchError: "There is no switch from one plan to another: the states of their graphs differ, or \
        the session has too little memory.",
}

/// The exception for an error of the planner.
pub(crate) fn of_planner(py: Python<'_>, graph: &OwnedGraph, error: &spillway::Error) -> PyErr {
    let message = error.to_string();
    match error {
        spillway::Error::Graph { .. } => GraphError::new_err(message),
        spillway::Error::Budget(_) => BudgetError::new_err(message),
        spillway::Error::Infeasible { budget_bytes, min_feasible_bytes, op, .. } => {
            let error = InfeasibleError::new_err(message);
            let value = error.value(py);
            let op = graph.op_names.get(op.index());
            let set = value
                .setattr("budget_bytes", budget_bytes)
                .and_then(|()| value.setattr("min_feasible_bytes", min_feasible_bytes))
                .and_then(|()| value.setattr("op", op));
            set.map_or_else(|failed| failed, |()| error)
        }
        spillway::Error::Invalid { .. }
        | spillway::Error::OtherGraph { .. }
        | spillway::Error::OtherMachine { .. } => InvalidPlanError::new_err(message),
        spillway::Error::States(_) | spillway::Error::Switch(_) => SwitchError::new_err(message),
        spillway::Error::File(_) => FormatError::new_err(message),
        spillway::Error::OutOfMemory(_) => PyMemoryError::new_err(message),
        _ => PlanningError::new_err(message),
    }
}
