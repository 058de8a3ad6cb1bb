//! An op on the host gets the bytes that its launch names, and reports failures.
#![allow(clippy::unwrap_used, reason = "what fails here fails the test")]

use backend_checks::{HostOp, HostRead, HostRun, Refused};
use planner_core::OpId;
use planner_core::backend::{HostLaunch, HostRanges};
use std::sync::{Arc, Mutex};

const OP: OpId = OpId(3);

fn made(
    reads: &[[u64; 2]],
    writes: &[[u64; 2]],
    work: impl FnMut(HostRun<'_>) -> Result<(), &'static str> + Send + 'static,
) -> Result<HostOp, Refused> {
    let (reads, writes) = (HostRanges::new(reads), HostRanges::new(writes));
    HostOp::new(&HostLaunch::new(OP, reads, writes), work)
}

#[test]
fn what_is_written_is_used_once() {
    let is_made = |reads: &[[u64; 2]], writes: &[[u64; 2]]| made(reads, writes, |_| Ok(())).is_ok();
    assert!(is_made(&[[0, 8], [4, 8]], &[[12, 4]]), "what is only read may overlap");
    assert!(is_made(&[[0, 8], [8, 8]], &[[8, 8]]), "an update in place");
    assert!(!is_made(&[[0, 8]], &[[4, 8]]), "a part of what is read is written");
    assert!(!is_made(&[[4, 8]], &[[0, 8]]), "a part of what is written is read");
    assert!(!is_made(&[], &[[0, 8], [7, 2]]), "two that are written overlap");
    assert!(!is_made(&[], &[[0, 8], [0, 8]]), "one range is written twice");
    assert!(!is_made(&[[2, 2]], &[[0, 8]]), "what is read lies in what is written");
    assert!(!is_made(&[[0, 20], [1, 2]], &[[15, 2]]), "what is read first ends last");
}

#[test]
fn operands_come_in_the_order_of_the_op() {
    let written = Arc::new(Mutex::new(Vec::new()));
    let seen = Arc::clone(&written);
    let mut op = made(&[[8, 8], [0, 8]], &[[16, 8], [8, 8]], move |run| {
        assert_eq!((run.op, run.iteration), (OP, 7));
        assert!(matches!(run.reads[..], [HostRead::InPlace(1), HostRead::Only(_)]));
        assert_eq!((run.read(0), run.read(1)), (&[2; 8][..], &[1; 8][..]));
        seen.lock().unwrap().extend(run.writes.iter().map(|bytes| bytes[0]));
        Ok(())
    })
    .unwrap();
    op.run(
        7,
        |range| if range.offset_bytes == 0 { &[1; 8] } else { &[9; 8] },
        |range| vec![if range.offset_bytes == 8 { 2 } else { 0 }; 8].leak(),
    )
    .unwrap();
    assert_eq!(*written.lock().unwrap(), [0, 2]);
}

#[test]
fn failures_and_panics_name_op_and_iteration() {
    let mut fails = made(&[], &[], |_| Err("no more numbers")).unwrap();
    let mut panics = made(&[], &[], |_| panic!("a bug")).unwrap();
    let said = |op: &mut HostOp| op.run(5, |_| &[], |_| &mut []).unwrap_err().to_string();
    assert_eq!(said(&mut fails), "op 3 failed on the host in iteration 5: no more numbers");
    assert_eq!(said(&mut panics), "op 3 failed on the host in iteration 5: it panicked: a bug");
}
