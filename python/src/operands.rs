//! The arguments of a launch of an op.

use crate::memory::{Lent, MemoryRange};
use pyo3::prelude::*;
use pyo3::types::PyTuple;
use spillway::planner_core::backend::{DeviceRange, DeviceRanges, Launch};

/// The memory of a launch. It is kept for the next launch, which usually gets the same memory.
pub(crate) struct Operands {
    ranges: Vec<Option<DeviceRange>>,
    pub(crate) reads: Py<PyTuple>,
    pub(crate) writes: Py<PyTuple>,
    pub(crate) workspace: Option<Py<MemoryRange>>,
    pub(crate) lent: Lent,
}

impl Operands {
    pub(crate) fn new(py: Python<'_>, launch: &Launch<'_>) -> PyResult<Self> {
        let lent = Lent::new();
        let range = |at: DeviceRange| lent.range(py, at.address.0, at.bytes, None);
        Ok(Self {
            ranges: ranges(launch).collect(),
            reads: all(py, launch.reads, range)?,
            writes: all(py, launch.writes, range)?,
            workspace: launch.workspace.map(range).transpose()?,
            lent,
        })
    }

    /// Whether a launch gets this memory.
    pub(crate) fn are_those_of(&self, launch: &Launch<'_>) -> bool {
        ranges(launch).eq(self.ranges.iter().copied())
    }
}

fn ranges<'a>(launch: &Launch<'a>) -> impl Iterator<Item = Option<DeviceRange>> + use<'a> {
    launch.reads.iter().chain(launch.writes.iter()).chain([launch.workspace])
}

/// Returns operands as a tuple. An operand that a repeat leaves alone is None.
fn all(
    py: Python<'_>,
    ranges: DeviceRanges<'_>,
    range: impl Fn(DeviceRange) -> PyResult<Py<MemoryRange>>,
) -> PyResult<Py<PyTuple>> {
    let operands = ranges.iter().map(|at| at.map(&range).transpose());
    let operands: Vec<_> = operands.collect::<PyResult<_>>()?;
    Ok(PyTuple::new(py, operands)?.unbind())
}
