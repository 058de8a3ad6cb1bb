//! An op on the host stream and the bytes that it gets when it runs.

use crate::Refused;
use planner_core::OpId;
use planner_core::backend::{HostLaunch, HostRange};
use std::any::Any;
use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};

/// One run of an op on the host, with the ranges of the host block that it alone uses meanwhile.
#[derive(Debug)]
pub struct HostRun<'a> {
    /// The op.
    pub op: OpId,
    /// The iteration, counted as in [`HostLaunch::iteration`]. If a backend captures work and
    /// replays it, this is the iteration that runs now.
    pub iteration: u64,
    /// The tensors that the op reads, in the op's order.
    pub reads: Vec<HostRead<'a>>,
    /// The tensors that the op writes, in the op's order. A tensor that is updated in place holds
    /// its old value.
    pub writes: Vec<&'a mut [u8]>,
}

/// A tensor that an op on the host reads.
#[derive(Debug)]
pub enum HostRead<'a> {
    /// The op only reads the tensor.
    Only(&'a [u8]),
    /// The op updates the tensor in place: its position in [`HostRun::writes`].
    InPlace(usize),
}

impl HostRun<'_> {
    /// The bytes of the tensor that the op reads at a position, also if it is updated in place.
    ///
    /// # Panics
    /// If the op reads fewer tensors.
    #[must_use]
    pub fn read(&self, position: usize) -> &[u8] {
        match self.reads[position] {
            HostRead::Only(bytes) => bytes,
            HostRead::InPlace(position) => self.writes[position],
        }
    }
}

/// Why an op on the host failed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HostFailure {
    /// The op.
    pub op: OpId,
    /// The iteration, counted as in [`HostRun::iteration`].
    pub iteration: u64,
    /// The message of the op's work.
    pub reason: String,
}

impl fmt::Display for HostFailure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { op, iteration, reason } = self;
        write!(f, "{op} failed on the host in iteration {iteration}: {reason}")
    }
}

impl std::error::Error for HostFailure {}

type Work = dyn FnMut(HostRun<'_>) -> Result<(), String> + Send;

/// An op on the host stream: ranges of the host block, and the embedder's work on them. No written
/// range overlaps another range, except that the op may update a range in place.
pub struct HostOp {
    op: OpId,
    reads: Vec<HostRange>,
    writes: Vec<HostRange>,
    work: Box<Work>,
}

impl fmt::Debug for HostOp {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("HostOp").field("op", &self.op).finish_non_exhaustive()
    }
}

impl HostOp {
    /// Takes the ranges that a launch names. The backend checks that they are in the host block.
    /// O(n log n) in operands.
    ///
    /// # Errors
    /// [`Refused::Operands`]: a range that the op writes overlaps another range. The op may read
    /// and write the same range.
    pub fn new<E: fmt::Display>(
        launch: &HostLaunch<'_>,
        mut work: impl FnMut(HostRun<'_>) -> Result<(), E> + Send + 'static,
    ) -> Result<Self, Refused> {
        let (reads, writes): (Vec<_>, Vec<_>) =
            (launch.reads.iter().collect(), launch.writes.iter().collect());
        if !are_apart(&reads, &writes) {
            return Err(Refused::Operands(launch.op));
        }
        let work = Box::new(move |run: HostRun<'_>| work(run).map_err(|error| error.to_string()));
        Ok(Self { op: launch.op, reads, writes, work })
    }

    /// Runs the work. `read` and `write` return the bytes of a range. No range that is passed to
    /// `write` overlaps another range.
    ///
    /// # Errors
    /// If the work fails or panics.
    pub fn run<'a>(
        &mut self,
        iteration: u64,
        read: impl Fn(HostRange) -> &'a [u8],
        write: impl Fn(HostRange) -> &'a mut [u8],
    ) -> Result<(), HostFailure> {
        let op = self.op;
        let written = |range: &HostRange| self.writes.iter().position(|write| write == range);
        let reads = self.reads.iter().map(|range| {
            written(range).map_or_else(|| HostRead::Only(read(*range)), HostRead::InPlace)
        });
        let run = HostRun {
            op,
            iteration,
            reads: reads.collect(),
            writes: self.writes.iter().map(|&range| write(range)).collect(),
        };
        HostFailure::catch(op, iteration, || (self.work)(run))
    }
}

impl HostFailure {
    /// Runs the work of an op in an iteration. A panic counts as a failure, after which the device
    /// starts no more work.
    ///
    /// # Errors
    /// If the work fails or panics.
    pub fn catch(
        op: OpId,
        iteration: u64,
        work: impl FnOnce() -> Result<(), String>,
    ) -> Result<(), Self> {
        let reason = match catch_unwind(AssertUnwindSafe(work)) {
            Ok(Ok(())) => return Ok(()),
            Ok(Err(reason)) => reason,
            Err(panic) => panic_text(&*panic),
        };
        Err(Self { op, iteration, reason })
    }
}

/// Whether no written range overlaps another range. A read range may equal a written one.
fn are_apart(reads: &[HostRange], writes: &[HostRange]) -> bool {
    let only_read = reads.iter().filter(|read| !writes.contains(read)).map(|range| (range, false));
    let mut ranges: Vec<_> = writes.iter().map(|range| (range, true)).chain(only_read).collect();
    ranges.sort_unstable_by_key(|(range, _)| range.offset_bytes);
    // The furthest end so far of the written ranges, and of all ranges.
    let (mut written_end, mut end) = (0, 0);
    ranges.into_iter().all(|(range, is_written)| {
        let is_apart = range.offset_bytes >= if is_written { end } else { written_end };
        let range_end = range.offset_bytes.saturating_add(range.bytes);
        end = end.max(range_end);
        if is_written {
            written_end = written_end.max(range_end);
        }
        is_apart
    })
}

fn panic_text(panic: &(dyn Any + Send)) -> String {
    let text = panic.downcast_ref::<&str>().copied();
    let text = text.or_else(|| panic.downcast_ref::<String>().map(String::as_str));
    format!("it panicked: {}", text.unwrap_or("without a message"))
}
