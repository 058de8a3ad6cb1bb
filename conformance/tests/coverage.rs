//! The generated plans show everything that a plan can do, and the corrupt ones break every
//! rule.
#![allow(clippy::unwrap_used, reason = "what fails here fails the test")]

use conformance::ledger::{Event, Judgement, judge};
use conformance::plans::{Case, cases, mutated_cases};
use planner_core::{Kind, Launched, OpId, Part, Step, TensorId};
use proptest::strategy::{Strategy, ValueTree};
use proptest::test_runner::TestRunner;
use std::collections::BTreeMap;

const PLANS: usize = 500;

/// The same cases in every run.
fn samples(strategy: impl Strategy<Value = Case>, count: usize) -> impl Iterator<Item = Case> {
    let mut runner = TestRunner::deterministic();
    let mut sample = move || strategy.new_tree(&mut runner).expect("no case is rejected").current();
    (0..count).map(move |_| sample())
}

fn launches(case: &Case) -> Vec<(usize, Launched)> {
    let steps = case.plan.steps.iter().enumerate();
    steps.filter_map(|(at, step)| step.launched().map(|launched| (at, launched))).collect()
}

fn repeats(case: &Case) -> Vec<(usize, OpId)> {
    let repeats = launches(case).into_iter().filter(|(_, launched)| launched.is_repeat);
    repeats.map(|(at, launched)| (at, launched.op)).collect()
}

fn last_launch(case: &Case, matches: impl Fn(Launched) -> bool) -> Option<usize> {
    launches(case).into_iter().rfind(|&(_, launched)| matches(launched)).map(|(at, _)| at)
}

fn last_read(case: &Case, tensor: TensorId) -> Option<usize> {
    let graph = case.graph.graph().unwrap();
    last_launch(case, |launched| graph.read_by(launched).any(|read| read == tensor))
}

fn last_write(case: &Case, tensor: TensorId) -> Option<usize> {
    let graph = case.graph.graph().unwrap();
    last_launch(case, |launched| graph.written_by(launched).any(|written| written == tensor))
}

/// Whether an op writes a tensor of this kind.
fn writes_a(case: &Case, op: OpId, wanted: Kind) -> bool {
    case.graph.graph().unwrap().writes(op).iter().any(|&tensor| kind(case, tensor) == wanted)
}

/// Whether an op updates a temporary in place.
fn updates_a_temporary(case: &Case, op: OpId) -> bool {
    let graph = case.graph.graph().unwrap();
    let mut writes = graph.writes(op).iter();
    writes.any(|tensor| kind(case, *tensor) == Kind::Temporary && graph.reads(op).contains(tensor))
}

/// A temporary that a repeat makes anew: its launches begin a second span.
fn is_made_anew(case: &Case, tensor: TensorId) -> bool {
    let graph = case.graph.graph().unwrap();
    repeats(case)
        .into_iter()
        .any(|(_, op)| graph.writes(op).contains(&tensor) && !graph.reads(op).contains(&tensor))
}

/// Whether a temporary leaves the device without an offload, before a repeat makes it again.
fn drops_and_makes_again(case: &Case) -> bool {
    let graph = case.graph.graph().unwrap();
    let moves = |step: &Step, tensor| match *step {
        Step::Offload(part) | Step::Prefetch(part) => part.tensor == tensor,
        _ => false,
    };
    repeats(case).into_iter().any(|(at, op)| {
        graph.writes(op).iter().any(|&tensor| {
            let is_evict = |step: &Step| matches!(*step, Step::Evict(it) if it.tensor == tensor);
            kind(case, tensor) == Kind::Temporary
                && case.plan.steps[..at].iter().any(is_evict)
                && !case.plan.steps[..at].iter().any(|step| moves(step, tensor))
        })
    })
}

/// Whether a repeat reads a value that the tensor has had before, and a prefetch brings it.
fn prefetches_an_earlier_value(case: &Case) -> bool {
    let graph = case.graph.graph().unwrap();
    let launches = launches(case);
    repeats(case).into_iter().any(|(at, op)| {
        graph.read_by(Launched::repeat(op)).any(|tensor| {
            let first = launches.iter().find(|(_, launched)| launched.op == op).unwrap().0;
            let mut writes = launches.iter().filter(|(_, launched)| {
                graph.written_by(*launched).any(|written| written == tensor)
            });
            let last_write = writes.rfind(|(step, _)| (first..at).contains(step));
            let prefetch = prefetches(case, tensor).into_iter().rfind(|&step| step < at);
            last_write.is_some_and(|&(write, _)| prefetch > Some(write))
        })
    })
}

fn inputs(case: &Case) -> impl Iterator<Item = TensorId> {
    case.graph.graph().unwrap().tensor_ids().filter(|&tensor| kind(case, tensor) == Kind::Input)
}

fn kind(case: &Case, tensor: TensorId) -> Kind {
    case.graph.tensors[tensor.index()].kind
}

fn in_arena(case: &Case, kind: Kind) -> Vec<TensorId> {
    let tensors = case.plan.arena.iter().map(|placement| placement.tensor);
    tensors.filter(|tensor| case.graph.tensors[tensor.index()].kind == kind).collect()
}

fn at_start(case: &Case, tensor: TensorId) -> bool {
    case.plan.resident_at_start.iter().any(|resident| resident.part.tensor == tensor)
}

fn parts(case: &Case) -> impl Iterator<Item = Part> {
    case.plan.steps.iter().filter_map(Step::part)
}

fn prefetches(case: &Case, tensor: TensorId) -> Vec<usize> {
    let steps = case.plan.steps.iter().enumerate();
    steps
        .filter(|(_, step)| matches!(step, Step::Prefetch(part) if part.tensor == tensor))
        .map(|(at, _)| at)
        .collect()
}

/// A part that is not all of its tensor.
fn is_partial(case: &Case, part: Part) -> bool {
    let pool = case.plan.tensor_pool.get(part.tensor.index()).map_or(0, |&pool| pool as usize);
    let bytes = case.graph.tensors[part.tensor.index()].bytes;
    !part.is_whole() && part.count < bytes.div_ceil(case.plan.pools[pool].object_bytes)
}

fn shares_bytes(case: &Case) -> bool {
    let end = |at: usize| {
        let placement = case.plan.arena[at];
        placement.offset_bytes + case.graph.tensors[placement.tensor.index()].bytes
    };
    (0..case.plan.arena.len()).any(|one| {
        (0..one).any(|other| {
            case.plan.arena[one].offset_bytes < end(other)
                && case.plan.arena[other].offset_bytes < end(one)
        })
    })
}

fn evicts_without_host_copy(case: &Case) -> bool {
    case.plan.steps.iter().enumerate().any(|(at, step)| match *step {
        Step::Evict(part) => {
            let offloaded = case.plan.steps[..at].iter().any(
                |earlier| matches!(earlier, Step::Offload(other) if other.tensor == part.tensor),
            );
            kind(case, part.tensor) == Kind::State
                && !offloaded
                && last_write(case, part.tensor).is_some_and(|write| write > at)
        }
        _ => false,
    })
}

fn iterations(case: &Case) -> Option<u32> {
    case.plan.placements.as_ref().map(|placements| placements.iterations)
}

/// The time of all launches on the compute stream: the rest of a period is the stall.
fn launches_ns(case: &Case) -> u64 {
    let steps = case.plan.steps.iter();
    let launched = steps.filter_map(|step| match step {
        Step::Launch(launched) => Some(case.graph.ops[launched.op.index()]),
        _ => None,
    });
    launched.filter(|op| !op.collective).map(|op| op.time_ns).sum()
}

fn longest_lag(judgement: &Judgement) -> u32 {
    judgement.timeline.iter().filter_map(|event| event.memory_lag).max().unwrap_or(0)
}

/// The launches of collectives.
fn collectives(case: &Case) -> impl Iterator<Item = (usize, Launched)> {
    let is_collective = |at: usize, op: OpId| {
        matches!(case.plan.steps[at], Step::Launch(_)) && case.graph.ops[op.index()].collective
    };
    launches(case).into_iter().filter(move |&(at, launched)| is_collective(at, launched.op))
}

/// Whether a collective and another launch run at the same time.
fn overlap(case: &Case, judgement: &Judgement) -> bool {
    let exchanges: Vec<usize> = collectives(case).map(|(at, _)| at).collect();
    let is_launch = |event: &&Event| matches!(case.plan.steps[event.step], Step::Launch(_));
    let launches = judgement.timeline.iter().filter(is_launch);
    let (exchanged, computed): (Vec<&Event>, Vec<&Event>) =
        launches.partition(|event| exchanges.contains(&event.step));
    let meet = |one: &Event, other: &Event| {
        one.start_ns.max(other.start_ns) < one.end_ns.min(other.end_ns)
    };
    exchanged.iter().any(|one| computed.iter().any(|other| meet(one, other)))
}

/// The ops that run on the host.
fn on_host(case: &Case) -> impl Iterator<Item = OpId> {
    case.plan.steps.iter().filter_map(|step| match *step {
        Step::Host(op) => Some(op),
        _ => None,
    })
}

/// Whether some tensor is written on the host and read on the device, or the reverse.
fn hands_over(case: &Case, to_host: bool) -> bool {
    let graph = case.graph.graph().unwrap();
    let runs_on_host = |op: OpId| on_host(case).any(|it| it == op);
    let reads = |op: OpId, tensor| graph.reads(op).contains(&tensor);
    launches(case).iter().any(|&(at, writer)| {
        graph.writes(writer.op).iter().any(|&tensor| {
            launches(case).iter().any(|&(later, reader)| {
                at < later
                    && reads(reader.op, tensor)
                    && runs_on_host(reader.op) == to_host
                    && runs_on_host(writer.op) != to_host
            })
        })
    })
}

type Class = (&'static str, fn(&Case, &Judgement) -> bool);

const CLASSES: &[Class] = &[
    ("update in place", |case, _| {
        let graph = case.graph.graph().unwrap();
        graph.op_ids().any(|op| graph.reads(op).iter().any(|t| graph.writes(op).contains(t)))
    }),
    ("tensor that no op touches", |case, _| {
        let graph = case.graph.graph().unwrap();
        let untouched = |tensor| !graph.op_ids().any(|op| graph.touches(op).any(|t| t == tensor));
        graph.tensor_ids().any(untouched)
    }),
    ("input that is never read", |case, _| inputs(case).any(|t| last_read(case, t).is_none())),
    ("input written after its last read", |case, _| {
        inputs(case).any(|t| last_read(case, t).is_some_and(|r| last_write(case, t) > Some(r)))
    }),
    ("workspace", |case, _| case.graph.ops.iter().any(|op| op.workspace_bytes > 0)),
    ("op that takes no time", |case, _| case.graph.ops.iter().any(|op| op.time_ns == 0)),
    ("another order of the ops", |case, _| {
        let launches = launches(case).into_iter();
        !launches.filter(|(_, it)| !it.is_repeat).map(|(_, it)| it.op).is_sorted()
    }),
    ("no repeat of a repeatable op", |case, _| {
        repeats(case).is_empty() && case.graph.ops.iter().any(|op| op.repeatable)
    }),
    ("repeat", |case, _| !repeats(case).is_empty()),
    ("collective", |case, _| collectives(case).next().is_some()),
    ("collective beside another launch", overlap),
    ("repeat of a collective", |case, _| collectives(case).any(|(_, it)| it.is_repeat)),
    ("collective with a workspace", |case, _| {
        collectives(case).any(|(_, it)| case.graph.ops[it.op.index()].workspace_bytes > 0)
    }),
    ("temporary of a collective in the arena", |case, _| {
        let graph = case.graph.graph().unwrap();
        let in_arena = in_arena(case, Kind::Temporary);
        collectives(case)
            .any(|(_, it)| graph.touches(it.op).any(|tensor| in_arena.contains(&tensor)))
    }),
    ("collective beside an op on the host", |case, _| {
        collectives(case).next().is_some() && on_host(case).next().is_some()
    }),
    ("op on the host", |case, _| on_host(case).next().is_some()),
    ("op on the device that may run on the host", |case, _| {
        let launched = launches(case).into_iter().map(|(_, launched)| launched.op);
        launched
            .filter(|&op| on_host(case).all(|it| it != op))
            .any(|op| case.graph.ops[op.index()].host_ns.is_some())
    }),
    ("value made on the device and read on the host", |case, _| hands_over(case, true)),
    ("value made on the host and read on the device", |case, _| hands_over(case, false)),
    ("op on the host beside a repeat", |case, _| {
        on_host(case).next().is_some() && !repeats(case).is_empty()
    }),
    ("state written on the host", |case, _| {
        on_host(case).any(|op| writes_a(case, op, Kind::State))
    }),
    ("output written on the host", |case, _| {
        on_host(case).any(|op| writes_a(case, op, Kind::Output))
    }),
    ("output written on the device", |case, _| {
        let launched = launches(case).into_iter().map(|(_, launched)| launched.op);
        launched
            .filter(|&op| on_host(case).all(|it| it != op))
            .any(|op| writes_a(case, op, Kind::Output))
    }),
    ("output in the arena", |case, _| !in_arena(case, Kind::Output).is_empty()),
    ("input read on the host", |case, _| {
        let graph = case.graph.graph().unwrap();
        on_host(case).any(|op| graph.reads(op).iter().any(|&it| kind(case, it) == Kind::Input))
    }),
    ("many repeats", |case, _| repeats(case).len() > 5),
    ("op repeated twice", |case, _| {
        let mut ops: Vec<OpId> = repeats(case).into_iter().map(|(_, op)| op).collect();
        ops.sort_unstable();
        ops.windows(2).any(|pair| pair[0] == pair[1])
    }),
    ("temporary dropped and made again", |case, _| drops_and_makes_again(case)),
    ("repeat of an update in place", |case, _| {
        repeats(case).into_iter().any(|(_, op)| updates_a_temporary(case, op))
    }),
    ("repeat that leaves a state alone", |case, _| {
        let mut ops = repeats(case).into_iter().map(|(_, op)| op);
        ops.any(|op| writes_a(case, op, Kind::State) && writes_a(case, op, Kind::Temporary))
    }),
    ("repeat that leaves an input alone", |case, _| {
        repeats(case).into_iter().any(|(_, op)| writes_a(case, op, Kind::Input))
    }),
    ("repeat that touches nothing", |case, _| {
        let graph = case.graph.graph().unwrap();
        let mut ops = repeats(case).into_iter().map(|(_, op)| op);
        ops.any(|op| graph.operands_by(Launched::repeat(op)).next().is_none())
    }),
    ("repeat with a workspace", |case, _| {
        repeats(case).into_iter().any(|(_, op)| case.graph.ops[op.index()].workspace_bytes > 0)
    }),
    ("repeat of an earlier value from the host", |case, _| prefetches_an_earlier_value(case)),
    ("repeat that reads an input last", |case, _| {
        inputs(case).any(|tensor| {
            let last_read = last_read(case, tensor);
            repeats(case).into_iter().any(|(at, _)| Some(at) == last_read)
        })
    }),
    ("temporary of the arena made anew", |case, _| {
        in_arena(case, Kind::Temporary).into_iter().any(|tensor| is_made_anew(case, tensor))
    }),
    ("repeat with placements", |case, _| !repeats(case).is_empty() && iterations(case).is_some()),
    ("range", |case, _| parts(case).any(|part| is_partial(case, part))),
    ("all objects as a range", |case, _| {
        parts(case).any(|part| !part.is_whole() && !is_partial(case, part))
    }),
    ("range resident at start", |case, _| {
        case.plan.resident_at_start.iter().any(|resident| is_partial(case, resident.part))
    }),
    ("nothing resident at start", |case, _| case.plan.resident_at_start.is_empty()),
    ("stale host copy at start", |case, _| {
        case.plan
            .resident_at_start
            .iter()
            .any(|resident| !resident.host_copy && kind(case, resident.part.tensor) == Kind::State)
    }),
    ("offloaded state", |case, judgement| {
        judgement.prediction.d2h_bytes > 0
            && parts(case).any(|part| kind(case, part.tensor) == Kind::State)
    }),
    ("offloaded temporary that comes back", |case, _| {
        let temporaries = case.graph.graph().unwrap().tensor_ids();
        temporaries
            .filter(|&tensor| kind(case, tensor) == Kind::Temporary)
            .any(|tensor| !prefetches(case, tensor).is_empty())
    }),
    ("evict of a value that is overwritten", |case, _| evicts_without_host_copy(case)),
    ("several pools in use", |case, _| {
        case.plan.tensor_pool.iter().any(|&pool| pool != case.plan.tensor_pool[0])
    }),
    ("objects that are no multiple of a chunk", |case, _| {
        let pools = case.plan.pools.iter();
        pools.clone().any(|pool| pool.count > 0 && pool.object_bytes % case.machine.chunk_bytes > 0)
    }),
    ("state in the arena", |case, _| !in_arena(case, Kind::State).is_empty()),
    ("temporary in the arena", |case, _| !in_arena(case, Kind::Temporary).is_empty()),
    ("bytes of the arena that are shared", |case, _| shares_bytes(case)),
    ("input in the arena, there at start", |case, _| {
        in_arena(case, Kind::Input).into_iter().any(|tensor| at_start(case, tensor))
    }),
    ("input in the arena, not there at start", |case, _| {
        in_arena(case, Kind::Input).into_iter().any(|tensor| !at_start(case, tensor))
    }),
    ("input prefetched for the next iteration", |case, _| {
        inputs(case).any(|tensor| {
            let read = last_read(case, tensor);
            at_start(case, tensor)
                && read.is_some()
                && prefetches(case, tensor).last().copied() > read
        })
    }),
    ("input prefetched twice", |case, _| inputs(case).any(|t| prefetches(case, t).len() > 1)),
    ("memory granted by the iteration before", |_, judgement| longest_lag(judgement) == 1),
    ("memory granted by an iteration long before", |_, judgement| longest_lag(judgement) >= 2),
    ("memory granted at once", |_, judgement| {
        judgement.timeline.iter().all(|event| event.memory_lag.is_none())
    }),
    ("stall", |case, judgement| judgement.prediction.period_ns > launches_ns(case)),
    ("no stall", |case, judgement| {
        judgement.prediction.h2d_bytes > 0
            && judgement.prediction.repeat_ns == 0
            && judgement.prediction.period_ns == launches_ns(case)
            && case.plan.steps.len() > case.graph.ops.len()
    }),
    ("placements for one iteration", |case, _| iterations(case) == Some(1)),
    ("placements for several iterations", |case, _| iterations(case) > Some(1)),
    ("placements that change from one iteration to the next", |case, _| {
        let Some(placements) = &case.plan.placements else { return false };
        let starts = case.plan.resident_at_start.iter().map(|entry| entry.part.tensor);
        let in_arena = |tensor| case.plan.arena.iter().any(|placement| placement.tensor == tensor);
        let starts = starts.filter(|&tensor| !in_arena(tensor)).count();
        let table = placements.placements();
        let later = starts as u32..placements.ends.len() as u32;
        let arrays: Vec<_> = later.map(|allocation| table.of(allocation)).collect();
        let len = arrays.len() / placements.iterations as usize;
        arrays.len() > len && arrays[..len] != arrays[len..2 * len]
    }),
    ("many steps", |case, _| case.plan.steps.len() > 50),
];

#[test]
fn generated_plans_show_everything() {
    let mut counts: BTreeMap<&str, usize> = BTreeMap::new();
    for case in samples(cases(), PLANS) {
        let judgement =
            judge(&case.graph.graph().unwrap(), &case.machine, &case.plan.plan()).unwrap();
        for (name, shows) in CLASSES {
            *counts.entry(name).or_default() += usize::from(shows(&case, &judgement));
        }
    }
    println!("{counts:#?}");
    for (name, count) in counts {
        assert!(count >= PLANS / 100, "only {count} of {PLANS} plans show: {name}");
    }
}

/// What the ledger says of corrupt plans, one for each of its rules that a single corruption
/// can break.
const REFUSALS: &[&str] = &[
    "a pool table has the wrong length",
    "exceeds 64 bits",
    "a state in the arena is resident at start",
    "an input in the arena needs one prefetch",
    "an object has no bytes",
    "take more than the budget",
    "past the end of the arena",
    "no multiple of a chunk",
    "no range of",
    "depends on",
    "is launched twice",
    "is repeated before its first launch",
    "is repeated and is not repeatable",
    "that op",
    "is never launched",
    "is full",
    "never has enough free objects",
    "predicted host_bytes",
    "predicted is",
    "shares bytes",
    "has no host copy and claims one",
    "has two offsets",
    "has no value at start",
    "has no time on the host",
    "and there once",
    "runs on the host, and tensor",
    "the host does not hold the current value",
    "the last value of",
    "is listed twice",
    "is not resident",
    "is resident already",
    "is still resident",
    "has no ranges",
    "where this step is not allowed",
    "more than the device has",
    "does not hold the current value",
    "the device has no valid copy",
    "the host has the next value",
    "the host has no valid copy",
    "is not aligned",
    "the only copy of",
    "placements[",
    "more placements than allocations",
    "has no object",
    "has two holders",
    "in other objects than at the start",
    "do not cover 1 to 64 iterations",
    "there is no op",
    "names no such pool",
    "there is no tensor",
];

/// Ends when the plans so far have broken each rule twice.
#[test]
fn mutated_plans_break_every_rule() {
    let mut counts = [0; REFUSALS.len()];
    let mut valid = 0;
    for case in samples(mutated_cases(), 12 * PLANS) {
        match judge(&case.graph.graph().unwrap(), &case.machine, &case.plan.plan()) {
            Ok(_) => valid += 1,
            Err(violation) => {
                let message = violation.to_string();
                for (count, refusal) in counts.iter_mut().zip(REFUSALS) {
                    *count += u32::from(message.contains(refusal));
                }
            }
        }
        if valid > PLANS / 10 && counts.iter().all(|&count| count > 1) {
            return;
        }
    }
    for (count, refusal) in counts.into_iter().zip(REFUSALS) {
        assert!(count > 1, "no corrupt plan is refused with: {refusal}");
    }
    panic!("of the corruptions, only {valid} change nothing that matters");
}
