//! A launch must bring a range for each operand.
#![allow(clippy::unwrap_used, reason = "what fails here fails the test")]

use backend_checks::{Refused, check_launch};
use planner_core::backend::{DeviceAddress, DeviceRange, DeviceRanges, Launch};
use planner_core::{Graph, Kind, Op, OpId, Scratch, Tensor, TensorId};

/// Repeatable: updates a state in place, and writes a temporary in a workspace.
const NORM: OpId = OpId(0);
/// Reads the temporary and updates the state.
const UPDATE: OpId = OpId(1);

const TENSORS: [Tensor; 2] = [Tensor::new(8, Kind::State), Tensor::new(8, Kind::Temporary)];
const OPS: [Op; 2] = [
    Op::new(1).with_workspace_bytes(8).with_reads(1).with_writes(2).with_repeatable(true),
    Op::new(1).with_first_operand(3).with_reads(2).with_writes(1),
];
const OPERANDS: [TensorId; 6] =
    [TensorId(0), TensorId(0), TensorId(1), TensorId(1), TensorId(0), TensorId(0)];

fn checked(
    op: OpId,
    is_repeat: bool,
    reads: &[u64],
    writes: &[u64],
    workspace: Option<u64>,
) -> Result<(), Refused> {
    let [reads, writes] = [reads, writes].map(|addresses| with_bytes(addresses, 8));
    checked_ranges(op, is_repeat, &reads, &writes, workspace.map(|address| [address, 8]))
}

fn with_bytes(addresses: &[u64], bytes: u64) -> Vec<[u64; 2]> {
    // The address 0 stands for an operand that a repeat leaves alone.
    addresses.iter().map(|&address| [address, if address == 0 { 0 } else { bytes }]).collect()
}

fn checked_ranges(
    op: OpId,
    is_repeat: bool,
    reads: &[[u64; 2]],
    writes: &[[u64; 2]],
    workspace: Option<[u64; 2]>,
) -> Result<(), Refused> {
    let mut memory = vec![0; Graph::scratch_words(TENSORS.len())];
    let graph = Graph::new(&TENSORS, &OPS, &OPERANDS, &mut Scratch::new(&mut memory)).unwrap();
    let (reads, writes) = (DeviceRanges::new(reads), DeviceRanges::new(writes));
    let workspace =
        workspace.map(|[address, bytes]| DeviceRange { address: DeviceAddress(address), bytes });
    let mut launch = Launch::new(op, reads, writes);
    (launch.is_repeat, launch.workspace) = (is_repeat, workspace);
    check_launch(&graph, &launch)
}

#[test]
fn a_launch_brings_what_its_op_has() {
    assert_eq!(checked(NORM, false, &[64], &[64, 128], Some(192)), Ok(()));
    let refused = Err(Refused::Operands(NORM));
    assert_eq!(checked(NORM, false, &[], &[64, 128], Some(192)), refused);
    assert_eq!(checked(NORM, false, &[64], &[64], Some(192)), refused);
    assert_eq!(checked(NORM, false, &[64], &[64, 128], None), refused);
    assert_eq!(checked(UPDATE, false, &[64, 0], &[0], Some(0)), Err(Refused::Operands(UPDATE)));
    assert_eq!(checked(OpId(2), false, &[], &[], None), Err(Refused::Operands(OpId(2))));
}

#[test]
fn ranges_have_the_sizes_of_tensors() {
    let sizes = |read, written, temporary, workspace| {
        let writes = [[64, written], [128, temporary]];
        checked_ranges(NORM, false, &[[64, read]], &writes, Some([192, workspace]))
    };
    assert_eq!(sizes(8, 8, 8, 8), Ok(()));
    for found in [sizes(7, 8, 8, 8), sizes(8, 9, 8, 8), sizes(8, 8, 0, 8), sizes(8, 8, 8, 16)] {
        assert_eq!(found, Err(Refused::Operands(NORM)));
    }
}

#[test]
fn a_repeat_brings_nothing_that_it_leaves_alone() {
    assert_eq!(checked(NORM, true, &[0], &[0, 128], Some(192)), Ok(()));
    for (read, written) in [(64, 0), (0, 64)] {
        let found = checked(NORM, true, &[read], &[written, 128], Some(192));
        assert_eq!(found, Err(Refused::Operands(NORM)), "{read} {written}");
    }
}

#[test]
fn only_repeatable_ops_are_repeated() {
    let refused = checked(UPDATE, true, &[128, 0], &[0], None).unwrap_err();
    assert_eq!(refused, Refused::NotRepeatable(UPDATE));
    assert_eq!(refused.to_string(), "op 1 is launched as a repeat, but it is not repeatable");
}
