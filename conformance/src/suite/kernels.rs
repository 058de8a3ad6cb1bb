//! Integrity kernels: every backend computes the same bytes, also from wrong bytes.

use super::Rig;
use super::failure::Outcome;
use super::rig::{A, B, C, COPY, D, INPUT, SMALL, UPDATE, WASTE};
use integrity::{Backend, value};
use planner_core::Stream;
use planner_core::backend::DeviceAddress;

/// After the states are filled, the value of each state lies in its slot.
pub fn states_lie_in_their_slots<T: Backend>(rig: &mut Rig<'_, T>) -> Outcome {
    rig.set_up()?;
    for state in [A, B, C, D] {
        let mut initial = vec![0; rig.bytes() as usize];
        value::initial_state(state, rig.bytes()).fill(0, &mut initial);
        rig.expect(rig.slot(state), &initial, "the slot of a state")?;
    }
    Ok(())
}

/// After the inputs of an iteration are filled, they lie in the slots of that iteration. The other
/// slots still hold the inputs of the iteration before.
pub fn inputs_take_their_slots_in_turn<T: Backend>(rig: &mut Rig<'_, T>) -> Outcome {
    rig.set_up()?;
    let mut before = rig.fill(rig.input_slot(0), 1)?;
    for iteration in 1..4 {
        rig.fill_inputs(iteration)?;
        let mut filled = vec![0; rig.bytes() as usize];
        value::input(INPUT, iteration, rig.bytes()).fill(0, &mut filled);
        rig.expect(rig.input_slot(iteration), &filled, "the slot of an input")?;
        rig.expect(rig.input_slot(iteration - 1), &before, "the input's other slot")?;
        before = filled;
    }
    Ok(())
}

/// An op reads every byte of every operand, in the op's order. If a byte is wrong, the result is
/// exactly what follows from this byte.
pub fn every_byte_counts<T: Backend>(rig: &mut Rig<'_, T>) -> Outcome {
    rig.set_up()?;
    let (chunk, bytes) = (rig.chunk_bytes(), rig.bytes());
    let (c, d) = (rig.scattered(3)?, rig.scattered(3)?);
    for wrong in [None, Some(0), Some(5), Some(chunk - 1), Some(chunk), Some(bytes - 1)] {
        let mut state = rig.fill(rig.slot(C), 1)?;
        let mut other = rig.fill(rig.slot(D), 2)?;
        if let Some(at) = wrong {
            state[at as usize] ^= 0x10;
            other[(bytes - 1 - at) as usize] ^= 1;
            rig.write(rig.slot(C), &state)?;
            rig.write(rig.slot(D), &other)?;
        }
        rig.put(rig.slot(C), c)?;
        rig.put(rig.slot(D), d)?;
        rig.launch(UPDATE, &[c, d], &[c])?;
        rig.finish(Stream::Compute)?;
        rig.get(c, rig.slot(A))?;
        let computed = rig.computed(UPDATE, &[&state, &other]);
        rig.expect(
            rig.slot(A),
            &computed,
            &format!("the bytes that follow from a wrong byte at {wrong:?}"),
        )?;
        rig.get(d, rig.slot(A))?;
        rig.expect(rig.slot(A), &other, "an operand that is only read")?;
    }
    Ok(())
}

/// An op writes only the ranges that the launch names. It leaves the rest of the last chunk alone,
/// except the word in which the tensor ends.
pub fn launches_leave_the_rest_alone<T: Backend>(rig: &mut Rig<'_, T>) -> Outcome {
    rig.set_up()?;
    let (from, to) = (rig.range(3)?, rig.range(3)?);
    let sent = rig.fill(rig.slot(A), 1)?;
    rig.put(rig.slot(A), from)?;
    let word_end = rig.bytes().next_multiple_of(4);
    let rest = 3 * rig.chunk_bytes() - word_end;
    let after = DeviceAddress(to.0 + word_end);
    let kept = rig.fill(rig.host(B, 0..rest), 2)?;
    rig.put(rig.host(B, 0..rest), after)?;
    rig.launch(COPY, &[from], &[to])?;
    rig.finish(Stream::Compute)?;
    rig.get(after, rig.host(C, 0..rest))?;
    rig.expect(rig.host(C, 0..rest), &kept, "the bytes after a tensor that was written")?;
    rig.get(from, rig.slot(D))?;
    rig.expect(rig.slot(D), &sent, "a tensor that was only read")
}

/// Tensors of one to nine bytes hold as much of their value as they can.
pub fn small_tensors_count_too<T: Backend>(rig: &mut Rig<'_, T>) -> Outcome {
    rig.set_up()?;
    for (op, small, bytes) in SMALL {
        let (one, from) = (rig.range(1)?, rig.range(3)?);
        let state = rig.fill(rig.slot(small), 1)?;
        let other = rig.fill(rig.slot(A), 2)?;
        rig.put(rig.slot(small), one)?;
        rig.put(rig.slot(A), from)?;
        rig.launch(op, &[one, from], &[one])?;
        rig.finish(Stream::Compute)?;
        rig.get(one, rig.slot(small))?;
        let computed = rig.computed(op, &[&state, &other]);
        rig.expect(rig.slot(small), &computed, &format!("a tensor of {bytes} bytes"))?;
    }
    Ok(())
}

/// An op uses its whole workspace and leaves nothing of the earlier contents, since plans give the
/// same memory to other tensors.
pub fn the_workspace_is_used<T: Backend>(rig: &mut Rig<'_, T>) -> Outcome {
    rig.set_up()?;
    let (from, to, space) = (rig.range(3)?, rig.range(3)?, rig.range(3)?);
    let sent = rig.fill(rig.slot(A), 1)?;
    rig.put(rig.slot(A), from)?;
    rig.launch_with(WASTE, &[from], &[to], Some(space))?;
    rig.finish(Stream::Compute)?;
    rig.get(to, rig.slot(B))?;
    rig.expect(
        rig.slot(B),
        &rig.computed(WASTE, &[&sent]),
        "the bytes that an op with a workspace writes",
    )?;
    rig.get(space, rig.slot(C))?;
    rig.expect(rig.slot(C), &rig.written(WASTE, 1, &[&sent]), "the workspace")
}
