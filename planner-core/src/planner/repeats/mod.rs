//! Repeats: values that are dropped after a use and computed again before the next use, instead of
//! staying on the device or moving.
//!
//! A gap of a value may be closed in three ways. One covering problem ([`cover`]) chooses among
//! them by price: memory at each op, time on each link, and time on the compute stream. The choice
//! becomes a list of launches with some ops more than once ([`unroll`]), which is planned as any
//! other list.

mod climb;
mod cover;
mod judged;
pub(super) mod rounds;
pub(super) mod search;
pub(super) mod segments;
mod unroll;
mod values;

use super::choice;
use super::densities::Densities;
use super::gaps::Gaps;
use super::heap::Heap;
use super::host_memory::HostMemory;
use super::load::Load;
use super::memory::Memory;
use super::moves::Moves;
use super::pressure::Pressure;
use super::request::Task;
use crate::scratch::{Limits, OutOfScratch, Scratch, larger, total};
use cover::Cover;

pub(super) use cover::Dropped;
pub(super) use unroll::{Outcome, Unrolled, scratch_words as unroll_words, unroll};
pub(super) use values::Values;

/// The prices by which gaps are chosen.
#[derive(Clone, Copy, Debug)]
pub(super) struct Prices {
    /// The price of a nanosecond of compute, if a nanosecond of a link under full pressure costs
    /// 255.
    pub(super) compute_price: u64,
    /// The percentage by which a full link raises the cost of one more transfer at that time.
    pub(super) load_percent: u64,
    /// The host memory that moved values may take.
    pub(super) host_bytes: u64,
}

/// Words of scratch that [`launches`] needs.
pub(super) const fn scratch_words(limits: &Limits) -> usize {
    total([
        Values::scratch_words(limits),
        Dropped::scratch_words(limits),
        larger(
            choice::scratch_words(limits).saturating_add(cover::scratch_words(limits)),
            unroll::scratch_words(limits),
        ),
    ])
}

/// Chooses repeats by these prices and writes the list of launches. Returns the number of launches,
/// or `None` if it finds no choice.
pub(super) fn launches(
    task: &Task<'_>,
    memory: &Memory<'_>,
    gaps: &mut Gaps<'_>,
    used: &Pressure<'_>,
    Prices { compute_price, load_percent, host_bytes }: Prices,
    lists: Unrolled<'_>,
    scratch: &mut Scratch<'_>,
) -> Result<Option<usize>, OutOfScratch> {
    let mut scratch = scratch.reborrow();
    let mut values = Values::new(task.sequence, gaps, &mut scratch)?;
    let mut dropped = Dropped::new(gaps.len(), &mut scratch)?;
    {
        let mut scratch = scratch.reborrow();
        gaps.clear();
        let slack = gaps.slack(task, memory, 0, &mut scratch)?;
        let densities = Densities::new(task, memory, used, &slack, &mut scratch)?;
        let heap = Heap::new(gaps.len().saturating_mul(2), &mut scratch)?;
        let load = Some(Load::new(task.sequence, load_percent, &mut scratch)?);
        let host = HostMemory::within(host_bytes, task, memory, &mut scratch)?;
        let moves = Moves { densities, gaps, slack, load, host };
        let (values, dropped) = (&mut values, &mut dropped);
        let mut cover = Cover { moves, values, dropped, heap, compute_price };
        cover.cover();
        cover.give_back();
    }
    match unroll(task.sequence, gaps, memory, &values, &dropped, lists, &mut scratch)? {
        Outcome::Written(launches) => Ok(Some(launches)),
        Outcome::Lost(_) | Outcome::TooLong => Ok(None),
    }
}
