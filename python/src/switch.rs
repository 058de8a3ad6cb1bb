//! The costs of switches between plans.

use pyo3::prelude::*;
use spillway::SwitchFigures as Figures;

/// The cost of a switch from one plan to another.
#[pyclass(frozen, eq, get_all, module = "spillway")]
#[derive(PartialEq)]
pub(crate) struct SwitchFigures {
    /// Bytes of states that stay on the device.
    kept_bytes: u64,
    /// Bytes copied to the device, of states and of inputs.
    h2d_bytes: u64,
    /// Bytes copied to the host.
    d2h_bytes: u64,
    /// Time of all copies.
    time_ns: u64,
    /// Time to map and unmap memory, before the copies. Before a run, the most that this time can
    /// be.
    mapping_ns: u64,
}

impl From<Figures> for SwitchFigures {
    fn from(figures: Figures) -> Self {
        let Figures { kept_bytes, h2d_bytes, d2h_bytes, time_ns, mapping_ns, .. } = figures;
        Self { kept_bytes, h2d_bytes, d2h_bytes, time_ns, mapping_ns }
    }
}

#[pymethods]
impl SwitchFigures {
    fn __repr__(&self) -> String {
        let Self { kept_bytes, h2d_bytes, d2h_bytes, time_ns, mapping_ns } = self;
        format!(
            "SwitchFigures(kept_bytes={kept_bytes}, h2d_bytes={h2d_bytes}, \
             d2h_bytes={d2h_bytes}, time_ns={time_ns}, mapping_ns={mapping_ns})"
        )
    }
}
