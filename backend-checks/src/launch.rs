//! What a launch brings: addresses for all operands, and a workspace if the op has one.

use crate::Refused;
use planner_core::Graph;
use planner_core::backend::{DeviceAddress, Launch};

/// Checks that a launch has an address for each operand, a workspace where the op wants one,
/// and, where it is a repeat, a repeatable op and the address 0 for what the repeat leaves alone.
/// Whether addresses are mapped is for the backend to check. O(reads times writes).
///
/// # Errors
/// [`Refused::Operands`] and [`Refused::NotRepeatable`].
pub fn check_launch(graph: &Graph<'_>, launch: &Launch<'_>) -> Result<(), Refused> {
    let wrong = Refused::Operands(launch.op);
    let op = graph.ops().get(launch.op.index()).ok_or(wrong)?;
    if launch.is_repeat && !op.repeatable {
        return Err(Refused::NotRepeatable(launch.op));
    }
    let (reads, writes) = (graph.reads(launch.op), graph.writes(launch.op));
    let has_all = launch.reads.len() == reads.len()
        && launch.writes.len() == writes.len()
        && launch.workspace.is_some() == (op.workspace_bytes > 0);
    let mut operands =
        reads.iter().zip(launch.reads.iter()).chain(writes.iter().zip(launch.writes.iter()));
    let leaves_alone = operands.all(|(&tensor, at)| {
        at == DeviceAddress(0) || !graph.leaves_alone(launch.launched(), tensor)
    });
    if has_all && leaves_alone { Ok(()) } else { Err(wrong) }
}
