//! The module `spillway._core`: graphs, machines, plans, sessions, and the devices that run them.
//!
//! `spillway/__init__.py` exports the names of this module, and `spillway/_core.pyi` has their
//! types.

// pyo3 extracts arguments by value.
#![allow(clippy::needless_pass_by_value)]

mod cuda;
mod device;
mod error;
mod exit;
mod graph;
mod kernels;
mod machine;
mod memory;
mod operands;
mod plan;
mod session;
mod setup;
mod strategy;
mod streaming;
mod switch;
mod workspace;

/// Plans memory transfers for computations larger than the device.
#[pyo3::pymodule]
mod _core {
    #[pymodule_export]
    use crate::cuda::Cuda;
    #[pymodule_export]
    use crate::error::{
        BudgetError, DeviceError, Error, FormatError, GraphError, InfeasibleError,
        InvalidPlanError, PlanningError, SessionError, SwitchError,
    };
    #[pymodule_export]
    use crate::graph::Graph;
    #[pymodule_export]
    use crate::machine::Machine;
    #[pymodule_export]
    use crate::memory::MemoryRange;
    #[pymodule_export]
    use crate::plan::{Figures, Plan};
    #[pymodule_export]
    use crate::session::Session;
    #[pymodule_export]
    use crate::setup::SetupCosts;
    #[pymodule_export]
    use crate::streaming::{Layer, streaming_min_feasible_bytes, streaming_plan};
    #[pymodule_export]
    use crate::switch::SwitchFigures;
    #[pymodule_export]
    use crate::workspace::{begin_workspace, end_workspace};

    #[pymodule_init]
    fn init(module: &pyo3::Bound<'_, pyo3::types::PyModule>) -> pyo3::PyResult<()> {
        crate::exit::register(module.py())
    }
}
