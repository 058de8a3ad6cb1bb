//! The copies of a switch between two plans in one slab, for runtimes that map nothing.

use crate::addresses::Addresses;
use crate::error::Error;
use crate::plan::Plan;
use crate::switching::{self, Ahead, SwitchFigures};
use planner_core::TensorId;
use planner_core::executor::SetUp;
use planner_core::machine::Direction;
use planner_core::placement::Holder;
use planner_core::switch::{Held, Memory, SwitchStep, TensorBytes};

/// The copies of a runtime between the last iteration of one plan and the first iteration of another.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct SlabSwitch {
    /// The size of the slab: the larger of the two plans' sizes.
    pub slab_bytes: u64,
    /// The copies in order. Downloads run on one stream, and uploads on another.
    pub copies: Vec<SlabCopy>,
    /// The cost of the switch.
    pub figures: SwitchFigures,
}

/// A copy between the slab and the host's copy of a tensor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct SlabCopy {
    /// The direction of the copy.
    pub direction: Direction,
    /// Whether the copy waits for all copies before it in the list. Only uploads wait.
    pub waits: bool,
    /// The tensor, by its id in the graph of the second plan.
    pub tensor: TensorId,
    /// The first byte in the tensor.
    pub first_byte: u64,
    /// The offset of the first byte in the slab.
    pub offset_bytes: u64,
    /// The number of bytes.
    pub bytes: u64,
}

impl SlabSwitch {
    pub(crate) fn between(from: &Plan, iterations: u64, to: &Plan) -> Result<Self, Error> {
        switching::ahead(from, iterations, to, Memory::Slab, |ahead| {
            let Ahead { holding, to, states, planned } = ahead;
            let (old, new) = (Addresses::of(holding.verified())?, Addresses::of(to)?);
            let mut to_ids = vec![None; holding.verified().graph().tensors().len()];
            for pair in *states {
                to_ids[pair.from.index()] = Some(pair.to);
            }
            let leaving =
                holding.entries().iter().filter_map(|&Held { tensor, first_byte, at, .. }| {
                    to_ids[tensor.index()].map(|tensor| (tensor, first_byte, at))
                });
            let arriving = new.at_start().iter().filter_map(|run| match run.holder {
                Holder::Tensor(tensor) => Some((tensor, run.first_byte, run.offset_bytes)),
                Holder::Workspace(_) => None,
            });
            let (leaving, arriving) = (Rows::new(leaving), Rows::new(arriving));
            let mut is_behind = false;
            let copied = planned.steps.iter().filter_map(|step| match *step {
                SwitchStep::Keep(_) | SwitchStep::Evict(_) => None,
                SwitchStep::Offload(bytes) => Some((Direction::DeviceToHost, &leaving, bytes)),
                SwitchStep::Prefetch(bytes) => Some((Direction::HostToDevice, &arriving, bytes)),
            });
            let copies =
                copied.map(|(direction, rows, TensorBytes { tensor, first_byte, bytes })| {
                    let is_download = direction == Direction::DeviceToHost;
                    let waits = !is_download && is_behind;
                    is_behind = is_download;
                    // The switch is proved: each copy is within a row.
                    let offset_bytes =
                        rows.offset_of(tensor, first_byte).ok_or(Error::NotPlaced)?;
                    Ok(SlabCopy { direction, waits, tensor, first_byte, offset_bytes, bytes })
                });
            let copies = copies.collect::<Result<_, Error>>()?;
            let slab_bytes = old.slab_bytes().max(new.slab_bytes());
            let figures = SwitchFigures::new(planned.predicted, SetUp::default(), to.machine());
            Ok(Self { slab_bytes, copies, figures })
        })
    }
}

/// The parts of tensors in the slab, sorted: the tensor, the first byte in it, and the offset in the slab.
struct Rows(Vec<(TensorId, u64, u64)>);

impl Rows {
    fn new(rows: impl IntoIterator<Item = (TensorId, u64, u64)>) -> Self {
        let mut rows: Vec<_> = rows.into_iter().collect();
        rows.sort_unstable();
        Self(rows)
    }

    /// Returns the offset of a byte. It lies in the last row that begins at or before it.
    fn offset_of(&self, tensor: TensorId, byte: u64) -> Option<u64> {
        let Self(rows) = self;
        let after = rows.partition_point(|&(other, first, _)| (other, first) <= (tensor, byte));
        let &(_, first_byte, offset_bytes) = rows.get(after.checked_sub(1)?)?;
        Some(offset_bytes + (byte - first_byte))
    }
}
