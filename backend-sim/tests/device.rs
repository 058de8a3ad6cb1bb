//! The simulated device alone: it refuses calls that a real device must not get, and it finds
//! mistakes that a real device would hide.
#![allow(clippy::unwrap_used, reason = "what fails here fails the test")]

mod common;

use backend_checks::Refused;
use backend_sim::{SimDevice, SimError, reference_digest};
use common::{Work, machine};
use integrity::value;
use planner_core::backend::{
    BackendError, Chunks, DeviceAddress, DeviceRanges, ErrorKind, HostRange, Launch, Paging, Point,
    Streams, Transfers,
};
use planner_core::{HostLayout, Kind, Machine, OpId, Stream, TensorId};

const STATE: TensorId = TensorId(0);
const INPUT: TensorId = TensorId(1);
const OP: OpId = OpId(0);
const CHUNK_BYTES: u64 = 4;

/// One op that updates a state of two chunks from an input of two chunks.
fn work() -> Work {
    let mut work = Work::default();
    let state = work.tensor(Kind::State, 7);
    let input = work.tensor(Kind::Input, 8);
    work.op(100, 0, &[state, input], &[state]);
    work
}

/// A range of bytes of a slot. The input's first slot, the state, and the input's second slot lie
/// one after the other.
fn range(tensor: TensorId, slot: u32, offset_bytes: u64, bytes: u64) -> HostRange {
    let start = match (tensor, slot) {
        (INPUT, 0) => 0,
        (INPUT, _) => 8 + 7,
        _ => 8,
    };
    HostRange { offset_bytes: start + offset_bytes, bytes }
}

fn create_host(device: &mut SimDevice) -> Result<(), SimError> {
    device.create_host(8 + 7 + 8)?;
    device.write_value(range(STATE, 0, 0, 7), STATE, value::initial_state(STATE, 7))
}

fn fill_input(device: &mut SimDevice, iteration: u64) -> Result<(), SimError> {
    let slot = range(INPUT, HostLayout::slot(iteration), 0, 8);
    device.write_value(slot, INPUT, value::input(INPUT, iteration, 8))
}

fn digest(device: &SimDevice) -> Result<u64, SimError> {
    let state = device.read_value(range(STATE, 0, 0, 7), STATE)?;
    Ok(integrity::digest([state].into_iter()))
}

/// Eight chunks; two ranges of two chunks each, mapped to the first four chunks.
fn set_up(device: &mut SimDevice) -> [DeviceAddress; 2] {
    create_host(device).unwrap();
    device.create(8).unwrap();
    [0, 2].map(|first| {
        let at = device.reserve(2).unwrap();
        device.map(at, Chunks { first, count: 2 }).unwrap();
        at
    })
}

fn launch(device: &mut SimDevice, [state, input]: [DeviceAddress; 2]) -> Result<(), SimError> {
    let work = work();
    let range = |at: DeviceAddress, tensor| [at.0, work.graph().tensor(TensorId(tensor)).bytes];
    let (reads, writes) = ([range(state, 0), range(input, 1)], [range(state, 0)]);
    let (reads, writes) = (DeviceRanges::new(&reads), DeviceRanges::new(&writes));
    device.launch(&work.graph(), &Launch::new(OP, reads, writes))
}

/// Runs the one iteration. `waits` says whether the launch and the download wait.
fn iterate(device: &mut SimDevice, waits: [bool; 2]) -> Result<u64, SimError> {
    let [state, input] = set_up(device);
    fill_input(device, 1)?;
    device.upload(range(STATE, 0, 0, 7), state)?;
    device.upload(range(INPUT, 1, 0, 8), input)?;
    let arrived = device.signal(Stream::Upload)?;
    if waits[0] {
        device.wait(Stream::Compute, arrived)?;
    }
    launch(device, [state, input])?;
    let ended = device.signal(Stream::Compute)?;
    if waits[1] {
        device.wait(Stream::Download, ended)?;
    }
    device.download(state, range(STATE, 0, 0, 7))?;
    let saved = device.signal(Stream::Download)?;
    for point in [arrived, ended, saved] {
        device.block_until(point)?;
    }
    digest(device)
}

#[test]
fn an_iteration_by_hand_gives_the_reference() {
    let work = work();
    let reference = reference_digest(&work.graph(), 1);
    assert_ne!(reference, reference_digest(&work.graph(), 0));
    let mut device = SimDevice::new(machine(CHUNK_BYTES));
    assert_eq!(iterate(&mut device, [true; 2]), Ok(reference));
    assert_eq!(device.iteration_ends_ns(), [5 + 15 + 100]);
    for seed in 0..100 {
        let mut device = SimDevice::adversarial(machine(CHUNK_BYTES), seed);
        assert_eq!(iterate(&mut device, [true; 2]), Ok(reference));
    }
}

#[test]
fn a_missing_wait_is_seen_within_ten_seeds() {
    let work = work();
    let reference = reference_digest(&work.graph(), 1);
    for waits in [[false, true], [true, false]] {
        let caught = (0..10).any(|seed| {
            let mut device = SimDevice::adversarial(machine(CHUNK_BYTES), seed);
            iterate(&mut device, waits) != Ok(reference)
        });
        assert!(caught, "{waits:?}");
    }
}

#[test]
fn real_bytes_give_the_same_digest_and_a_forgiving_device_a_wrong_one() {
    let work = work();
    let reference = reference_digest(&work.graph(), 1);
    let device = || SimDevice::new(machine(CHUNK_BYTES)).with_bytes();
    assert_eq!(iterate(&mut device(), [true; 2]), Ok(reference));
    let run = |seed, waits| {
        let device = SimDevice::adversarial(machine(CHUNK_BYTES), seed);
        iterate(&mut device.with_bytes().forgiving(), waits).unwrap()
    };
    assert!((0..20).all(|seed| run(seed, [true; 2]) == reference));
    assert!((0..20).any(|seed| run(seed, [false, true]) != reference));
    let mut shadow = SimDevice::new(machine(CHUNK_BYTES));
    create_host(&mut shadow).unwrap();
    assert_eq!(shadow.read_host(0, &mut [0]), Err(SimError::NoBytes));
    assert_eq!(shadow.write_host(0, &[0]), Err(SimError::NoBytes));
}

#[test]
fn copies_that_overlap_in_time_and_place_race() {
    let races = (0..100).any(|seed| {
        let mut device = SimDevice::adversarial(machine(CHUNK_BYTES), seed);
        let [state, _] = set_up(&mut device);
        device.upload(range(STATE, 0, 0, 7), state).unwrap();
        device.signal(Stream::Upload).unwrap();
        device.download(state, range(STATE, 0, 0, 7)).unwrap();
        let saved = device.signal(Stream::Download).unwrap();
        matches!(device.block_until(saved), Err(SimError::Race { .. }))
    });
    assert!(races);
}

#[test]
fn reads_must_find_the_right_bytes_of_one_version() {
    let point = Point { stream: Stream::Compute, value: 1 };
    let at_byte =
        |tensor, offset_bytes| SimError::WrongContent { work: point, op: OP, tensor, offset_bytes };
    let mixed =
        SimError::MixedVersions { work: point, op: OP, tensor: INPUT, offset_bytes: CHUNK_BYTES };
    // The uploads to the two chunks of each range, and the expected result of the launch.
    let whole = [range(STATE, 0, 0, 4), range(STATE, 0, 4, 3)];
    let cases = [
        (whole, [range(INPUT, 1, 0, 4), range(INPUT, 1, 4, 4)], Ok(())),
        (whole, [range(INPUT, 1, 0, 4), range(INPUT, 1, 4, 3)], Err(at_byte(INPUT, 7))),
        (whole, [range(INPUT, 1, 0, 4), range(INPUT, 1, 0, 4)], Err(at_byte(INPUT, 4))),
        (whole, [range(INPUT, 1, 0, 4), range(STATE, 0, 4, 3)], Err(at_byte(INPUT, 4))),
        (whole, [range(INPUT, 1, 1, 4), range(INPUT, 1, 4, 4)], Err(at_byte(INPUT, 0))),
        (whole, [range(INPUT, 1, 0, 4), range(INPUT, 0, 4, 4)], Err(mixed)),
    ];
    for (state, input, expected) in cases {
        let mut device = SimDevice::new(machine(CHUNK_BYTES));
        let addresses = set_up(&mut device);
        fill_input(&mut device, 1).unwrap();
        fill_input(&mut device, 2).unwrap();
        for (from, to) in [state, input].into_iter().zip(addresses) {
            device.upload(from[0], to).unwrap();
            device.upload(from[1], DeviceAddress(to.0 + CHUNK_BYTES)).unwrap();
        }
        assert_eq!(launch(&mut device, addresses), expected);
        // Once work has failed, everything else fails too.
        assert_eq!(device.signal(Stream::Upload).err(), expected.err());
    }
}

#[test]
fn a_chunk_under_two_addresses_is_one_chunk() {
    let mut device = SimDevice::new(machine(CHUNK_BYTES));
    let [state, input] = set_up(&mut device);
    let alias = device.reserve(2).unwrap();
    device.map(alias, Chunks { first: 0, count: 2 }).unwrap();
    fill_input(&mut device, 1).unwrap();
    device.upload(range(STATE, 0, 0, 7), alias).unwrap();
    device.upload(range(INPUT, 1, 0, 8), input).unwrap();
    assert_eq!(launch(&mut device, [state, input]), Ok(()));
    assert_eq!(device.counters().chunks_mapped, 6);
    // Reads of shared bytes may overlap. Writes may not.
    let work = Point { stream: Stream::Compute, value: 1 };
    assert_eq!(
        launch(&mut device, [state, alias]),
        Err(SimError::Race { work, other: work }),
        "the op writes its state, which lies under its input"
    );
}

#[test]
fn a_chunk_counts_once_however_often_it_is_mapped() {
    let mut device = SimDevice::new(machine(CHUNK_BYTES));
    set_up(&mut device);
    let alias = device.reserve(2).unwrap();
    device.map(alias, Chunks { first: 0, count: 2 }).unwrap();
    assert_eq!(device.counters().peak_chunks, 4);
    device.unmap(alias, 2).unwrap();
    device.map(alias, Chunks { first: 6, count: 2 }).unwrap();
    assert_eq!(device.counters().peak_chunks, 6);
}

#[test]
fn a_copy_of_garbage_leaves_garbage() {
    let mut device = SimDevice::new(machine(CHUNK_BYTES));
    let addresses = set_up(&mut device);
    fill_input(&mut device, 1).unwrap();
    device.upload(range(STATE, 0, 0, 7), addresses[0]).unwrap();
    device.upload(range(INPUT, 1, 0, 8), addresses[1]).unwrap();
    device.upload(range(INPUT, 0, 0, 8), addresses[1]).unwrap();
    let work = Point { stream: Stream::Compute, value: 1 };
    let error = SimError::WrongContent { work, op: OP, tensor: INPUT, offset_bytes: 0 };
    assert_eq!(launch(&mut device, addresses), Err(error));
}

#[test]
fn mapping_mistakes_are_errors() {
    let mut device = SimDevice::new(machine(CHUNK_BYTES));
    let too_many = device.create(1 << 40).unwrap_err();
    assert_eq!(too_many.kind(), ErrorKind::OutOfDeviceMemory);
    let [state, input] = set_up(&mut device);
    let chunks = |first, count| Chunks { first, count };
    let at = |offset| DeviceAddress(state.0 + offset);
    assert_eq!(device.create(1), Err(Refused::CreatedTwice.into()));
    assert_eq!(device.map(state, chunks(4, 2)), Err(Refused::AlreadyMapped(state).into()));
    assert_eq!(device.unmap(state, 1), Err(Refused::PartOfMapping(state).into()));
    assert_eq!(device.unmap(at(4), 1), Err(Refused::PartOfMapping(at(4)).into()));
    assert_eq!(device.unmap(at(1), 1), Err(Refused::NotReserved(at(1)).into()));
    assert_eq!(device.unmap(state, 3), Err(Refused::NotReserved(state).into()));
    assert_eq!(device.unmap(state, 2), Ok(()));
    assert_eq!(device.unmap(state, 2), Err(Refused::NotMapped(state).into()));
    assert_eq!(device.map(state, chunks(7, 2)), Err(Refused::UnknownChunk(8).into()));
    assert_eq!(device.map(at(8), chunks(4, 1)), Err(Refused::NotReserved(at(8)).into()));
    assert_eq!(device.map(state, chunks(4, 1)), Ok(()));
    assert_eq!(device.map(at(4), chunks(6, 1)), Ok(()));
    assert_eq!(device.unmap(state, 2), Ok(()), "two whole mappings that follow each other");
    let unmapped =
        SimError::Unmapped { work: Point { stream: Stream::Compute, value: 1 }, at: state };
    assert_eq!(launch(&mut device, [state, input]), Err(unmapped));
    assert_eq!(device.reserve(u64::MAX), Err(SimError::AddressSpace { chunks: u64::MAX }));
}

#[test]
fn what_enqueued_work_uses_stays() {
    let mut device = SimDevice::adversarial(machine(CHUNK_BYTES), 0);
    let [_, input] = set_up(&mut device);
    fill_input(&mut device, 1).unwrap();
    device.upload(range(INPUT, 1, 0, 8), input).unwrap();
    let work = Point { stream: Stream::Upload, value: 1 };
    assert_eq!(device.unmap(input, 2), Err(SimError::UnmappedInUse { at: input, work }));
    assert_eq!(fill_input(&mut device, 2), Ok(()), "the other slot");
    assert_eq!(
        fill_input(&mut device, 3),
        Err(SimError::HostInUse { range: range(INPUT, 1, 0, 8), work })
    );
    let arrived = device.signal(Stream::Upload).unwrap();
    device.block_until(arrived).unwrap();
    assert_eq!(device.unmap(input, 2), Ok(()));
    assert_eq!(fill_input(&mut device, 3), Ok(()));
}

#[test]
fn the_device_may_be_ahead_of_the_host() {
    let mut device = SimDevice::adversarial(machine(CHUNK_BYTES), 0);
    let [state, _] = set_up(&mut device);
    device.upload(range(STATE, 0, 0, 7), state).unwrap();
    let arrived = device.signal(Stream::Upload).unwrap();
    assert!((0..100).any(|_| device.reached(arrived).unwrap()));
}

#[test]
fn a_point_must_be_signalled_before_it_is_awaited() {
    let mut device = SimDevice::new(machine(CHUNK_BYTES));
    let point = Point { stream: Stream::Upload, value: 1 };
    assert_eq!(device.wait(Stream::Compute, point), Err(Refused::Unsignalled(point).into()));
    assert_eq!(device.reached(point), Err(Refused::Unsignalled(point).into()));
    assert_eq!(device.block_until(point), Err(Refused::Unsignalled(point).into()));
    assert_eq!(device.signal(Stream::Upload), Ok(point));
    assert_eq!(device.reached(point), Ok(true));
}

#[test]
fn the_host_has_one_block() {
    let mut device = SimDevice::new(machine(CHUNK_BYTES));
    assert_eq!(fill_input(&mut device, 1), Err(Refused::NoHostRange(range(INPUT, 1, 0, 8)).into()));
    let [state, _] = set_up(&mut device);
    assert_eq!(create_host(&mut device), Err(Refused::HostCreatedTwice.into()));
    for bad in [range(STATE, 0, 0, 0), range(INPUT, 1, 4, 5), range(INPUT, 1, 8, 1)] {
        assert_eq!(device.upload(bad, state), Err(Refused::NoHostRange(bad).into()));
        assert_eq!(device.download(state, bad), Err(Refused::NoHostRange(bad).into()));
    }
}

#[test]
fn a_torn_host_copy_has_no_digest() {
    let mut device = SimDevice::new(machine(CHUNK_BYTES));
    let [state, input] = set_up(&mut device);
    fill_input(&mut device, 1).unwrap();
    device.upload(range(STATE, 0, 0, 7), state).unwrap();
    device.upload(range(INPUT, 1, 0, 8), input).unwrap();
    launch(&mut device, [state, input]).unwrap();
    device.download(state, range(STATE, 0, 0, 4)).unwrap();
    assert_eq!(digest(&device), Err(SimError::HostCopy { tensor: STATE, offset_bytes: 4 }));
}

#[test]
fn mapping_costs_host_time_and_blocking_waits_for_the_device() {
    let machine =
        Machine::new((*machine(CHUNK_BYTES)).with_map_ns_per_chunk(7).with_unmap_ns_per_chunk(3))
            .unwrap();
    let mut device = SimDevice::new(machine);
    let [state, input] = set_up(&mut device);
    assert_eq!(device.host_ns(), 4 * 7);
    device.upload(range(STATE, 0, 0, 7), state).unwrap();
    let arrived = device.signal(Stream::Upload).unwrap();
    device.unmap(input, 2).unwrap();
    assert_eq!(device.host_ns(), 4 * 7 + 2 * 3);
    assert_eq!(device.reached(arrived), Ok(false));
    device.block_until(arrived).unwrap();
    assert_eq!(device.host_ns(), 4 * 7 + 5 + 7, "it started before the unmapping");
    assert_eq!(device.reached(arrived), Ok(true));
}
