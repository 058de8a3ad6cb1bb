//! What switches from plan to plan cost.

use pyo3::prelude::*;
use spillway::core::switch::SwitchPrediction;

/// What a switch from one plan to another costs.
#[pyclass(frozen, eq, get_all, module = "spillway")]
#[derive(PartialEq)]
pub(crate) struct PredictedSwitch {
    /// Bytes of states that stay on the device.
    kept_bytes: u64,
    /// Bytes copied to the device, of states and of inputs.
    h2d_bytes: u64,
    /// Bytes copied to the host.
    d2h_bytes: u64,
    /// Time of all copies.
    time_ns: u64,
}

impl From<SwitchPrediction> for PredictedSwitch {
    fn from(predicted: SwitchPrediction) -> Self {
        let SwitchPrediction { kept_bytes, h2d_bytes, d2h_bytes, time_ns } = predicted;
        Self { kept_bytes, h2d_bytes, d2h_bytes, time_ns }
    }
}

#[pymethods]
impl PredictedSwitch {
    fn __repr__(&self) -> String {
        let Self { kept_bytes, h2d_bytes, d2h_bytes, time_ns } = self;
        format!(
            "PredictedSwitch(kept_bytes={kept_bytes}, h2d_bytes={h2d_bytes}, \
             d2h_bytes={d2h_bytes}, time_ns={time_ns})"
        )
    }
}
