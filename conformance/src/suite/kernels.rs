//! Integrity kernels: every backend computes the same, also from wrong bytes.

use super::Rig;
use super::failure::Outcome;
use super::rig::{A, B, C, COPY, D, SMALL, UPDATE, WASTE};
use integrity::Backend;
use planner_core::Stream;
use planner_core::backend::DeviceAddress;

/// An op reads every byte of every operand, in the op's order: whichever is wrong, what it
/// writes is just what follows from that.
pub fn every_byte_counts<T: Backend>(rig: &mut Rig<'_, T>) -> Outcome {
    rig.set_up()?;
    let (chunk, bytes) = (rig.chunk_bytes(), rig.bytes());
    let (c, d) = (rig.scattered(3)?, rig.scattered(3)?);
    for wrong in [None, Some(0), Some(5), Some(chunk - 1), Some(chunk), Some(bytes - 1)] {
        let mut state = rig.fill(rig.room(C), 1)?;
        let mut other = rig.fill(rig.room(D), 2)?;
        if let Some(at) = wrong {
            state[at as usize] ^= 0x10;
            other[(bytes - 1 - at) as usize] ^= 1;
            rig.write(rig.room(C), &state)?;
            rig.write(rig.room(D), &other)?;
        }
        rig.put(rig.room(C), c)?;
        rig.put(rig.room(D), d)?;
        rig.launch(UPDATE, &[c, d], &[c])?;
        rig.finish(Stream::Compute)?;
        rig.get(c, rig.room(A))?;
        let computed = rig.computed(UPDATE, &[&state, &other]);
        rig.expect(
            rig.room(A),
            &computed,
            &format!("what follows from a wrong byte at {wrong:?}"),
        )?;
        rig.get(d, rig.room(A))?;
        rig.expect(rig.room(A), &other, "an operand that is only read")?;
    }
    Ok(())
}

/// An op writes what the launch names and nothing else: not the rest of the last chunk, but
/// for the word in which the tensor ends.
pub fn launches_leave_the_rest_alone<T: Backend>(rig: &mut Rig<'_, T>) -> Outcome {
    rig.set_up()?;
    let (from, to) = (rig.range(3)?, rig.range(3)?);
    let sent = rig.fill(rig.room(A), 1)?;
    rig.put(rig.room(A), from)?;
    let word_end = rig.bytes().next_multiple_of(4);
    let rest = 3 * rig.chunk_bytes() - word_end;
    let behind = DeviceAddress(to.0 + word_end);
    let kept = rig.fill(rig.host(B, 0..rest), 2)?;
    rig.put(rig.host(B, 0..rest), behind)?;
    rig.launch(COPY, &[from], &[to])?;
    rig.finish(Stream::Compute)?;
    rig.get(behind, rig.host(C, 0..rest))?;
    rig.expect(rig.host(C, 0..rest), &kept, "what lies behind a tensor that was written")?;
    rig.get(from, rig.room(D))?;
    rig.expect(rig.room(D), &sent, "a tensor that was only read")
}

/// Tensors of one to nine bytes hold as much of their value as they can.
pub fn small_tensors_count_too<T: Backend>(rig: &mut Rig<'_, T>) -> Outcome {
    rig.set_up()?;
    for (op, small, bytes) in SMALL {
        let (one, from) = (rig.range(1)?, rig.range(3)?);
        let state = rig.fill(rig.room(small), 1)?;
        let other = rig.fill(rig.room(A), 2)?;
        rig.put(rig.room(small), one)?;
        rig.put(rig.room(A), from)?;
        rig.launch(op, &[one, from], &[one])?;
        rig.finish(Stream::Compute)?;
        rig.get(one, rig.room(small))?;
        let computed = rig.computed(op, &[&state, &other]);
        rig.expect(rig.room(small), &computed, &format!("a tensor of {bytes} bytes"))?;
    }
    Ok(())
}

/// An op uses all of its workspace and leaves nothing of what was there: plans give the same
/// memory to others.
pub fn the_workspace_is_used<T: Backend>(rig: &mut Rig<'_, T>) -> Outcome {
    rig.set_up()?;
    let (from, to, space) = (rig.range(3)?, rig.range(3)?, rig.range(3)?);
    let sent = rig.fill(rig.room(A), 1)?;
    rig.put(rig.room(A), from)?;
    rig.launch_with(WASTE, &[from], &[to], Some(space))?;
    rig.finish(Stream::Compute)?;
    rig.get(to, rig.room(B))?;
    rig.expect(rig.room(B), &rig.computed(WASTE, &[&sent]), "what an op with a workspace writes")?;
    rig.get(space, rig.room(C))?;
    rig.expect(rig.room(C), &rig.wasted(WASTE, &[&sent]), "the workspace")
}
