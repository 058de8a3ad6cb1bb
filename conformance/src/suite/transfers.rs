//! [`Transfers`](planner_core::backend::Transfers): what is copied arrives, whole and where it belongs.

use super::Rig;
use super::failure::{Outcome, ensure};
use super::rig::{A, B, C};
use integrity::{Backend, value};
use planner_core::backend::{DeviceAddress, Paging};

/// When `create_host` returns, every state's value lies in its room.
pub fn states_lie_in_their_rooms<T: Backend>(rig: &mut Rig<'_, T>) -> Outcome {
    rig.set_up()?;
    for state in [A, B, C] {
        let mut initial = vec![0; rig.bytes() as usize];
        value::initial_state(state, rig.bytes()).fill(0, &mut initial);
        rig.expect(rig.room(state), &initial, "the room of a state")?;
    }
    Ok(())
}

/// What is uploaded and downloaded again has not changed, over several chunks that are not
/// neighbours.
pub fn bytes_return_as_they_were<T: Backend>(rig: &mut Rig<'_, T>) -> Outcome {
    rig.set_up()?;
    let sent = rig.fill(rig.room(A), 1)?;
    let at = rig.range(3)?;
    rig.put(rig.room(A), at)?;
    rig.get(at, rig.room(B))?;
    rig.expect(rig.room(B), &sent, "what was sent and fetched")
}

/// A copy moves just the bytes that it names: one byte, odd numbers of bytes at odd places,
/// and bytes on both sides of a border between chunks. Their neighbours stay as they were.
pub fn copies_of_any_size_and_place<T: Backend>(rig: &mut Rig<'_, T>) -> Outcome {
    rig.set_up()?;
    let (chunk, bytes) = (rig.chunk_bytes(), rig.bytes());
    let at = rig.range(3)?;
    let cases = [
        0..1,
        1..2,
        3..8,
        chunk - 1..chunk,
        chunk - 1..chunk + 1,
        chunk..chunk + 1,
        chunk - 3..2 * chunk + 2,
        bytes - 1..bytes,
    ];
    for (seed, range) in (1..).zip(cases) {
        let case = |what: &str| format!("bytes {range:?} of {what}");
        let mut device = rig.fill(rig.room(A), 2 * seed)?;
        rig.put(rig.room(A), at)?;
        let sent = rig.fill(rig.room(B), 2 * seed + 1)?;
        let place = range.start as usize..range.end as usize;
        rig.put(rig.host(B, range.clone()), DeviceAddress(at.0 + range.start))?;
        device[place.clone()].copy_from_slice(&sent[place.clone()]);
        rig.get(at, rig.room(A))?;
        rig.expect(rig.room(A), &device, &case("an upload"))?;

        let mut host = rig.fill(rig.room(C), 1000 + seed)?;
        rig.get(DeviceAddress(at.0 + range.start), rig.host(C, range.clone()))?;
        host[place.clone()].copy_from_slice(&device[place]);
        rig.expect(rig.room(C), &host, &case("a download"))?;
    }
    ensure!(chunk == rig.device().chunk_bytes(), "the size of chunks has changed");
    Ok(())
}
