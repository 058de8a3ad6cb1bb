//! Checks of a launch: a range for each operand, and a workspace if the op has one.

use crate::Refused;
use planner_core::Graph;
use planner_core::backend::{HostLaunch, Launch};

/// Checks that a launch has a range of the right size for each operand and for the op's workspace.
/// A repeat needs an op that can be repeated, and has no range for an operand that a repeat leaves
/// alone. The backend checks that the addresses are mapped. O(reads times writes).
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
        && launch.workspace.map_or(0, |workspace| workspace.bytes) == op.workspace_bytes;
    let mut operands =
        reads.iter().zip(launch.reads.iter()).chain(writes.iter().zip(launch.writes.iter()));
    let fits = operands.all(|(&tensor, range)| {
        let bytes = range.map_or(0, |range| range.bytes);
        let is_left_alone = graph.leaves_alone(launch.launched(), tensor);
        bytes == if is_left_alone { 0 } else { graph.tensor(tensor).bytes }
    });
    if has_all && fits { Ok(()) } else { Err(wrong) }
}

/// Checks that an op may run on the host, and that its launch has a range of the right size for
/// each operand, with one range for both ends of an update in place. Returns the op's time on the
/// host in nanoseconds. The backend checks that the ranges are in the host block. O(reads times
/// writes).
///
/// # Errors
/// [`Refused::NotOnHost`] and [`Refused::Operands`].
pub fn check_host_launch(graph: &Graph<'_>, launch: &HostLaunch<'_>) -> Result<u64, Refused> {
    let wrong = Refused::Operands(launch.op);
    let op = graph.ops().get(launch.op.index()).ok_or(wrong)?;
    let host_ns = op.host_ns.ok_or(Refused::NotOnHost(launch.op))?;
    let (reads, writes) = (graph.reads(launch.op), graph.writes(launch.op));
    let has_all = launch.reads.len() == reads.len() && launch.writes.len() == writes.len();
    let of_reads = || reads.iter().zip(launch.reads.iter());
    let mut operands = of_reads().chain(writes.iter().zip(launch.writes.iter()));
    let fits = operands.all(|(&tensor, range)| {
        let mut in_place = of_reads().filter(|&(&read, _)| read == tensor);
        graph.tensor(tensor).bytes == range.bytes && in_place.all(|(_, read)| read == range)
    });
    if has_all && fits { Ok(host_ns) } else { Err(wrong) }
}
