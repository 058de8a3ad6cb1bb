//! Calls that take plain numbers and arrays.

use super::call_with_scratch;
use crate::case::Files;
use crate::fault::{Fault, returns};
use crate::graphs::{Arrays, arrays};
use crate::numbers::{numbers, numbers_u32, numbers_usize};
use backend_checks::{AddressMap, Refused, Unavailable, check_launch};
use planner_core::backend::{
    Chunks, DeviceAddress, DeviceRange, DeviceRanges, HostRange, Launch, Point,
};
use planner_core::machine::{Direction, transmission_ns};
use planner_core::packing::{self, Item};
use planner_core::pieces::Pieces;
use planner_core::placement;
use planner_core::plan::Placements;
use planner_core::planner::swap::{self, Classes};
use planner_core::planner::{self, list_schedule_words};
use planner_core::scratch::words;
use planner_core::{
    Graph, HostLayout, Limits, Machine, MachineParameters, OpId, Stream, bounds, executor,
    footprint, lower, timeline, verify,
};
use proptest::array::uniform8;
use proptest::collection::vec;
use proptest::prelude::*;

/// What such calls are made with.
#[derive(Clone, Debug)]
pub struct Input {
    arrays: Arrays,
    items: Vec<Item>,
    effort: u64,
    /// How many of the items get an offset.
    offsets: usize,
    permille: usize,
    limits: Limits,
    numbers: [u64; 8],
    /// Calls of an address map: which, with an address, a first chunk and a count.
    map_calls: Vec<(usize, u64, u64, u64)>,
}

/// Any input.
pub fn inputs() -> impl Strategy<Value = Input> {
    let item = (numbers_u32(), numbers_u32(), numbers()).prop_map(|(first, last, bytes)| Item {
        first,
        last,
        bytes,
    });
    let packing = (vec(item, 0..=12), 0..=1u64 << 18, 0..=14usize);
    let limits = uniform8(numbers_usize()).prop_map(
        |[ops, operands, tensors, steps, pieces, pools, iterations, objects]| Limits {
            ops,
            operands,
            tensors,
            steps,
            pieces,
            pools,
            iterations,
            objects,
        },
    );
    let permille = prop_oneof![Just(1000usize), 0..=1000usize];
    let map_calls = vec((0..5usize, numbers(), numbers(), numbers()), 0..=8);
    let rest = (uniform8(numbers()), map_calls);
    (arrays(), packing, permille, limits, rest).prop_map(
        |(arrays, (items, effort, offsets), permille, limits, (numbers, map_calls))| Input {
            arrays,
            items,
            effort,
            offsets,
            permille,
            limits,
            numbers,
            map_calls,
        },
    )
}

/// All of the input in words.
#[must_use]
pub fn files(input: &Input) -> Files {
    vec![("input.txt", format!("{input:#?}").into_bytes())]
}

/// Makes all calls.
///
/// # Errors
/// The first that does not return.
pub fn check(input: &Input) -> Result<(), Fault> {
    check_graph(input)?;
    let mut offsets = vec![7; input.offsets];
    call_with_scratch(
        "packing::pack",
        packing::scratch_words(input.offsets),
        input.permille,
        |scratch| packing::pack(input.items.iter().copied(), input.effort, &mut offsets, scratch),
    )?;
    check_machine(&input.numbers)?;
    check_address_map(input)?;
    check_words(&input.numbers)?;
    check_sizes(&input.limits)
}

fn check_graph(input: &Input) -> Result<(), Fault> {
    let Arrays { tensors, ops, operands } = &input.arrays;
    let words = Graph::scratch_words(tensors.len());
    let [one, two, three, ..] = input.numbers;
    call_with_scratch("Graph::new", words, input.permille, |scratch| {
        let graph = Graph::new(tensors, ops, operands, scratch)?;
        for op in graph.op_ids() {
            let _ = (graph.op(op), graph.reads(op), graph.writes(op), graph.operands_of(op));
            let ranges = [[one, two], [two, three], [three, one]];
            let reads = DeviceRanges::new(&ranges[..(one % 4) as usize]);
            let writes = DeviceRanges::new(&ranges[..(two % 4) as usize]);
            for op in [OpId(two as u32), op] {
                let mut launch = Launch::new(op, reads, writes);
                (launch.is_repeat, launch.iteration) = (two % 3 == 0, three);
                launch.workspace = (three % 2 == 0)
                    .then_some(DeviceRange { address: DeviceAddress(one), bytes: two });
                let _ = check_launch(&graph, &launch);
            }
            graph.touches(op).for_each(|tensor| assert!(graph.tensor(tensor).bytes > 0));
        }
        Ok::<_, planner_core::GraphError>(graph.compute_ns())
    })?;
    let ranges = [[one, two]];
    let ranges = DeviceRanges::new(&ranges);
    let _ = (ranges.len(), ranges.is_empty(), ranges.get(three as usize));
    Ok(())
}

/// A size of working memory.
type Size = fn(&Limits) -> usize;

fn check_sizes(limits: &Limits) -> Result<(), Fault> {
    let sizes: [(&str, Size); 21] = [
        ("Graph::scratch_words", |it| Graph::scratch_words(it.tensors)),
        ("bounds::scratch_words", bounds::scratch_words),
        ("executor::scratch_words", |it| executor::scratch_words(it, it.objects)),
        ("footprint::scratch_words", footprint::scratch_words),
        ("HostLayout::scratch_words", HostLayout::scratch_words),
        ("lower::scratch_words", lower::scratch_words),
        ("packing::scratch_words", |it| packing::scratch_words(it.tensors)),
        ("packing::default_steps", |it| packing::default_steps(it.tensors) as usize),
        ("Pieces::scratch_words", Pieces::scratch_words),
        ("placement::scratch_words", placement::scratch_words),
        ("placement::contiguous_scratch_words", placement::contiguous_scratch_words),
        ("placement::addresses_scratch_words", placement::addresses_scratch_words),
        ("planner::scratch_words", planner::scratch_words),
        ("Limits::max_steps", Limits::max_steps),
        ("list_schedule_words", list_schedule_words),
        ("swap::scratch_words", swap::scratch_words),
        ("Classes::needs_scratch_words", Classes::needs_scratch_words),
        ("timeline::scratch_words", timeline::scratch_words),
        ("verify::scratch_words", verify::scratch_words),
        ("Limits::entries", Limits::entries),
        ("words", |it| words::<[u64; 3]>(it.steps)),
    ];
    sizes.iter().try_for_each(|(name, size)| returns(name, || size(limits)).map(|_| ()))
}

fn check_machine(numbers: &[u64; 8]) -> Result<(), Fault> {
    let [device_bytes, host_bytes, chunk_bytes, one, two, three, four, five] = *numbers;
    let parameters = MachineParameters::new()
        .with_device_bytes(device_bytes)
        .with_host_bytes(host_bytes)
        .with_chunk_bytes(chunk_bytes)
        .with_h2d_bytes_per_s(one)
        .with_d2h_bytes_per_s(two)
        .with_transfer_latency_ns(three)
        .with_map_ns_per_chunk(four)
        .with_unmap_ns_per_chunk(five);
    let machine = returns("Machine::new", || {
        Machine::new(parameters).map_err(|error| error.to_string()).ok()
    })?;
    for &number in numbers {
        if let Some(machine) = machine {
            returns("Machine", || {
                let machine = machine.with_device_bytes(number).with_host_bytes(number);
                let ways = [Direction::HostToDevice, Direction::DeviceToHost];
                let times = ways.map(|way| machine.transfer_ns(way, number));
                (times, machine.round_up_to_chunks(number))
            })?;
        }
        returns("transmission_ns", || transmission_ns(number, one))?;
    }
    let (objects, ends) = (&numbers[..4], numbers.map(|number| number as u32));
    let table = Placements { iterations: ends[0], objects, ends: &ends };
    for allocation in 0..10 {
        returns("Placements::of", || table.of(allocation))?;
    }
    returns("Placements::of", || table.of(u32::MAX))?;
    Ok(())
}

fn check_address_map(input: &Input) -> Result<(), Fault> {
    returns("AddressMap", || {
        let mut map = AddressMap::new(input.numbers[0]);
        for &(call, at, first, count) in &input.map_calls {
            let (at, chunks) = (DeviceAddress(at), Chunks { first, count });
            match call {
                0 => {
                    if map.check_create().is_ok() {
                        map.create(count);
                    }
                }
                1 => map.reserve(at, count, ()),
                2 => {
                    if map.check_map(at, chunks).is_ok() {
                        map.map(at, chunks);
                    }
                }
                3 => {
                    if map.check_unmap(at, count).is_ok() {
                        map.unmap(at, count);
                    }
                }
                _ => {
                    let _ = (map.check_mapped(at, count), map.physical(at, count));
                }
            }
            let _ = (map.begins(at), map.bytes(count), map.chunk_bytes(), map.mappings().count());
        }
    })
}

/// Errors in words.
fn check_words(&[one, two, three, ..]: &[u64; 8]) -> Result<(), Fault> {
    let at = DeviceAddress(one);
    let range = HostRange { offset_bytes: two, bytes: three };
    let refused = [
        Refused::CreatedTwice,
        Refused::NotReserved(at),
        Refused::UnknownChunk(two),
        Refused::AlreadyMapped(at),
        Refused::NotMapped(at),
        Refused::PartOfMapping(at),
        Refused::Unsignalled(Point { stream: Stream::Compute, value: one }),
        Refused::Unawaited(Point { stream: Stream::Compute, value: one }),
        Refused::HostCreatedTwice,
        Refused::NoHostRange(range),
        Refused::Misaligned(at),
        Refused::Operands(OpId(one as u32)),
        Refused::NotRepeatable(OpId(one as u32)),
    ];
    for refused in refused {
        returns("Refused", || refused.to_string())?;
    }
    returns("Unavailable", || Unavailable(one.to_string()).to_string())?;
    Ok(())
}
