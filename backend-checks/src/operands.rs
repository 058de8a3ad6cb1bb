use crate::Refused;
use planner_core::Graph;
use planner_core::backend::{DeviceAddress, Launch};

/// Where the operands of a launch begin, each with its size in bytes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Operands {
    /// What the op reads, in its order.
    pub reads: Vec<(DeviceAddress, u64)>,
    /// What it writes, in its order, and its workspace after that.
    pub writes: Vec<(DeviceAddress, u64)>,
}

impl Operands {
    /// Whether a launch has an address for each operand, and for a workspace where the op
    /// wants one.
    ///
    /// # Errors
    /// [`Refused::Operands`].
    pub fn check(graph: &Graph<'_>, launch: &Launch<'_>) -> Result<(), Refused> {
        let wrong = Refused::Operands(launch.op);
        let op = graph.ops().get(launch.op.index()).ok_or(wrong)?;
        let fits = launch.reads.len() == graph.reads(launch.op).len()
            && launch.writes.len() == graph.writes(launch.op).len()
            && launch.workspace.is_some() == (op.workspace_bytes > 0);
        if fits { Ok(()) } else { Err(wrong) }
    }

    /// The operands of a launch. Whether they are mapped is for the backend to check.
    ///
    /// # Errors
    /// [`Refused::Operands`].
    pub fn new(graph: &Graph<'_>, launch: &Launch<'_>) -> Result<Self, Refused> {
        Self::check(graph, launch)?;
        let bytes = |&tensor| graph.tensor(tensor).bytes;
        let workspace_bytes = graph.op(launch.op).workspace_bytes;
        let workspace = launch.workspace.map(|at| (at, workspace_bytes));
        let reads = launch.reads.iter().zip(graph.reads(launch.op).iter().map(bytes));
        let writes = launch.writes.iter().zip(graph.writes(launch.op).iter().map(bytes));
        Ok(Self { reads: reads.collect(), writes: writes.chain(workspace).collect() })
    }
}
