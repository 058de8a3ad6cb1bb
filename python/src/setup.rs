//! How long it takes to set up memory.

use crate::error::SessionError;
use backend_host::SetUpCosts;
use pyo3::prelude::*;

/// The time that this machine needs to set up the memory of a session on host memory, for
/// `Plan.with_setup_costs`.
#[pyclass(frozen, module = "spillway")]
pub(crate) struct SetupCosts {
    costs: SetUpCosts,
}

impl SetupCosts {
    pub(crate) const fn from(costs: SetUpCosts) -> Self {
        Self { costs }
    }

    pub(crate) const fn costs(&self) -> SetUpCosts {
        self.costs
    }
}

#[pymethods]
impl SetupCosts {
    #[new]
    const fn new(create_ns_per_page: u64, map_ns: u64, touch_ns_per_page: u64) -> Self {
        Self { costs: SetUpCosts { create_ns_per_page, map_ns, touch_ns_per_page } }
    }

    /// Measures the machine, which takes some milliseconds. Raises `SessionError`.
    #[staticmethod]
    fn measure(py: Python<'_>) -> PyResult<Self> {
        let costs = py.detach(SetUpCosts::measure);
        let costs = costs.map_err(|error| SessionError::new_err(error.to_string()))?;
        Ok(Self::from(costs))
    }

    /// Time to allocate a page of memory.
    #[getter]
    const fn create_ns_per_page(&self) -> u64 {
        self.costs.create_ns_per_page
    }

    /// Time to map a run of consecutive chunks.
    #[getter]
    const fn map_ns(&self) -> u64 {
        self.costs.map_ns
    }

    /// Time to touch a page for the first time in one of its mappings.
    #[getter]
    const fn touch_ns_per_page(&self) -> u64 {
        self.costs.touch_ns_per_page
    }

    fn __repr__(&self) -> String {
        let SetUpCosts { create_ns_per_page, map_ns, touch_ns_per_page } = self.costs;
        format!(
            "SetupCosts(create_ns_per_page={create_ns_per_page}, map_ns={map_ns}, \
             touch_ns_per_page={touch_ns_per_page})"
        )
    }
}
