//! [`Paging`]: chunks, ranges, and what is mapped where.

use super::Rig;
use super::failure::Outcome;
use super::rig::{A, B};
use integrity::Backend;
use planner_core::backend::{Chunks, Paging};

/// A chunk holds what was last written to it, also when it has been unmapped and mapped
/// elsewhere.
pub fn chunks_keep_what_is_written<T: Backend>(rig: &mut Rig<'_, T>) -> Outcome {
    rig.set_up()?;
    let chunk = rig.chunk_bytes();
    let sent = rig.fill(rig.host(A, 0..2 * chunk), 1)?;
    let at = rig.range(2)?;
    rig.put(rig.host(A, 0..2 * chunk), at)?;
    rig.device().unmap(at, 2)?;
    let second = rig.mapped(Chunks { first: 1, count: 1 })?;
    let first = rig.mapped(Chunks { first: 0, count: 1 })?;
    rig.get(first, rig.host(B, 0..chunk))?;
    rig.get(second, rig.host(B, chunk..2 * chunk))?;
    rig.expect(rig.host(B, 0..2 * chunk), &sent, "two chunks that were mapped anew")
}

/// One chunk may be mapped at several addresses: what is written through one is read through
/// the other, once a point orders the two.
pub fn what_is_mapped_twice_is_one_chunk<T: Backend>(rig: &mut Rig<'_, T>) -> Outcome {
    rig.set_up()?;
    let chunk = rig.chunk_bytes();
    let one = rig.range(2)?;
    let other = rig.mapped(Chunks { first: 1, count: 1 })?;
    let mut sent = rig.fill(rig.host(A, 0..2 * chunk), 1)?;
    rig.put(rig.host(A, 0..2 * chunk), one)?;
    let anew = rig.fill(rig.host(B, 0..chunk), 2)?;
    rig.put(rig.host(B, 0..chunk), other)?;
    sent[chunk as usize..].copy_from_slice(&anew);
    rig.get(one, rig.host(A, 0..2 * chunk))?;
    rig.expect(rig.host(A, 0..2 * chunk), &sent, "a chunk that was written under its other address")
}
