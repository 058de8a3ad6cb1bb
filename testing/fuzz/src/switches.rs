//! Switches between two plans: what is planned is proved, the verifier judges as the ledger does,
//! and a plan that is arranged after another copies no more than before.

use crate::case::Files;
use crate::fault::{Fault, returns};
use crate::numbers::{numbers, numbers_u32};
use crate::{judge, plans};
use conformance::ledger::switch::{Between, judge as judge_switch};
use conformance::plans::{Case, Pair, pairs, pairs_of_one_graph};
use planner_core::switch::{
    self, ChunkRun, Holding, Memory, SharedState, SwitchOutput, SwitchPrediction, SwitchStep,
    TensorBytes,
};
use planner_core::{Limits, Scratch, TensorId, Verified};
use proptest::collection::vec;
use proptest::prelude::*;
use spillway::switching::{self, OwnedSwitch};
use spillway::{Error, Plan, SwitchFigures};

/// Two plans, and what is done to the switch between them.
#[derive(Clone, Debug)]
pub struct Input {
    pair: Pair,
    forgeries: Vec<Forgery>,
    /// Pairs of states that are none.
    strangers: Vec<SharedState>,
    /// How much of the working memory that is enough is lent.
    permille: usize,
    /// Iterations of the first plan.
    iterations: u64,
    memory: Memory,
}

/// What is changed in a switch.
#[derive(Clone, Copy, Debug)]
enum Forgery {
    Remove(usize),
    Swap(usize, usize),
    Again(usize, usize),
    Kind(usize, usize),
    Tensor(usize, u32),
    FirstByte(usize, u64),
    Bytes(usize, u64),
    Chunk(usize, u64),
    ChunkCount(usize, u64),
    Kept(u64),
}

/// Any input.
pub fn inputs() -> impl Strategy<Value = Input> {
    let state = (numbers_u32(), numbers_u32())
        .prop_map(|(from, to)| SharedState { from: TensorId(from), to: TensorId(to) });
    let permille = prop_oneof![3 => Just(1000usize), 1 => 0..=1000usize];
    let pair = prop_oneof![pairs().boxed(), pairs_of_one_graph().boxed()];
    let memory = prop_oneof![Just(Memory::Chunks), Just(Memory::Slab)];
    let iterations = prop_oneof![0..9u64, numbers()];
    (pair, vec(forgeries(), 0..=2), vec(state, 0..=6), permille, iterations, memory).prop_map(
        |(pair, forgeries, strangers, permille, iterations, memory)| Input {
            pair,
            forgeries,
            strangers,
            permille,
            iterations,
            memory,
        },
    )
}

fn forgeries() -> impl Strategy<Value = Forgery> {
    let at = || 0..32usize;
    prop_oneof![
        at().prop_map(Forgery::Remove),
        (at(), at()).prop_map(|(at, other)| Forgery::Swap(at, other)),
        (at(), at()).prop_map(|(at, other)| Forgery::Again(at, other)),
        (at(), 0..4usize).prop_map(|(at, kind)| Forgery::Kind(at, kind)),
        (at(), numbers_u32()).prop_map(|(at, tensor)| Forgery::Tensor(at, tensor)),
        (at(), numbers()).prop_map(|(at, first)| Forgery::FirstByte(at, first)),
        (at(), numbers()).prop_map(|(at, bytes)| Forgery::Bytes(at, bytes)),
        (at(), numbers()).prop_map(|(at, first)| Forgery::Chunk(at, first)),
        (at(), numbers()).prop_map(|(at, count)| Forgery::ChunkCount(at, count)),
        numbers().prop_map(Forgery::Kept),
    ]
}

/// The files of the second plan, and all of the input in words.
#[must_use]
pub fn files(input: &Input) -> Files {
    let (graph, plan) = input.pair.to.clone();
    let mut files = plans::files(&Case { graph, machine: input.pair.machine, plan });
    files.push(("input.txt", format!("{input:#?}").into_bytes()));
    files
}

/// Both plans of a pair, with the same names for the same states; none where one is not valid.
#[must_use]
pub fn proved(pair: &Pair) -> Option<[Plan; 2]> {
    let Pair { machine, from, to, .. } = pair.clone().named();
    let named = plans::named("fuzzed", machine);
    let proved = |(graph, plan)| judge::proved(&Case { graph, machine, plan }, &named);
    Some([proved(from)?, proved(to)?])
}

/// Plans, forges and proves.
///
/// # Errors
/// A call that does not return, two verdicts, or an arranged plan that is worse.
pub fn check(input: &Input) -> Result<(), Fault> {
    let Some([from, to]) = returns("proving both plans", || proved(&input.pair))? else {
        return Ok(());
    };
    check_arranged(&from, &to)?;
    match returns("slab_switch_to", || from.slab_switch_to(input.iterations, &to))? {
        Ok(_) | Err(Error::NotPlaced) => {}
        Err(error) => return Err(Fault::new("no switch in a slab", error.to_string())),
    }
    check_switch(input, &from, &to, [from.verified(), to.verified()])
}

/// Bytes that a switch copies.
const fn copied_bytes(switch: &SwitchFigures) -> u128 {
    switch.h2d_bytes as u128 + switch.d2h_bytes as u128
}

fn check_arranged(from: &Plan, to: &Plan) -> Result<(), Fault> {
    let arranged = returns("arranged_after", || to.arranged_after(from))?;
    let arranged = match arranged {
        Ok(arranged) => arranged,
        Err(error) => return Err(Fault::new("arranged_after fails", error.to_string())),
    };
    let case = Case {
        graph: to.graph().owned().clone(),
        machine: to.machine().machine,
        plan: arranged.owned().clone(),
    };
    judge::judge(&case)?;
    let [plain, kept] = [to, &arranged].map(|to| returns("switch_to", || from.switch_to(to)));
    match (plain?, kept?) {
        (Ok(plain), Ok(kept)) if copied_bytes(&kept) <= copied_bytes(&plain) => Ok(()),
        (Err(Error::Switch(_)), _) => Ok(()),
        (plain, kept) => {
            let detail = format!("{plain:?}, and arranged {kept:?}");
            Err(Fault::new("an arranged plan costs more", detail))
        }
    }
}

fn check_switch(
    input: &Input,
    from: &Plan,
    to: &Plan,
    [one, other]: [&Verified<'_>; 2],
) -> Result<(), Fault> {
    let fault = |error: String| Fault::new("a switch is not planned", error);
    let capacity = from.capacity().max(to.capacity());
    let mut held = Vec::new();
    let holding = returns("holding_of", || {
        switching::holding_of(one, input.iterations, capacity, &mut held)
    })?;
    let holding = holding.map_err(|error| fault(error.to_string()))?;
    let states = switching::shared_states(from.graph(), to.graph());
    let states = states.map_err(|error| fault(error.to_string()))?;
    let planned =
        returns("switching::plan", || switching::plan(&holding, other, &states, input.memory))?;
    let planned = planned.map_err(|error| fault(error.to_string()))?;
    let mut forged = planned.clone();
    input.forgeries.iter().for_each(|forgery| forge(&mut forged, forgery));
    if let Some(predicted) = SwitchPrediction::of(&forged.steps, &input.pair.machine)
        && !input.forgeries.iter().any(|it| matches!(it, Forgery::Kept(_)))
    {
        forged.predicted = predicted;
    }
    for (name, owned) in [("planned", &planned), ("forged", &forged)] {
        let switch = owned.switch();
        let fast = returns("switching::prove", || {
            switching::prove(&holding, other, &states, &switch).map(|_| ())
        })?;
        let between = Between {
            machine: other.machine(),
            from: holding.verified().graph(),
            held: holding.entries(),
            to: (other.graph(), other.plan()),
            states: &states,
            device_chunks: capacity.chunks,
        };
        let slow = returns("the ledger", || judge_switch(between, &switch))?;
        let should_hold = name == "planned" && (fast.is_err() || slow.is_err());
        if fast.is_ok() != slow.is_ok() || should_hold {
            let detail = format!("{name}: {fast:?}, by the ledger {slow:?}");
            return Err(Fault::new(format!("a {name} switch judged in two ways"), detail));
        }
    }
    check_garbage(input, &holding, one, other, &states, &planned)
}

/// Other states, and too little memory.
fn check_garbage(
    input: &Input,
    holding: &Holding<'_>,
    one: &Verified<'_>,
    other: &Verified<'_>,
    states: &[SharedState],
    planned: &OwnedSwitch,
) -> Result<(), Fault> {
    let strangers = &input.strangers;
    returns("a switch of strangers", || {
        switching::plan(holding, other, strangers, input.memory).is_ok()
    })?;
    returns("a proof for strangers", || {
        switching::prove(holding, other, strangers, &planned.switch()).is_ok()
    })?;
    let plan = workloads::OwnedPlan::from(other.plan());
    returns("offsets of strangers", || {
        switching::keep_offsets(one, other, &plan, strangers).is_ok()
    })?;
    let limits = [one, other].map(|it| Limits::of_plan(it.graph(), it.plan()));
    let words = switch::scratch_words(&limits[0], &limits[1], holding.entries().len());
    let part = |len: usize| len * input.permille / 1000;
    let mut memory = vec![0xaaaa_aaaa_aaaa_aaaa; part(words)];
    let mut chunks =
        vec![ChunkRun { first: 7, device_first: 7, count: 7 }; part(planned.chunks.len())];
    let bytes = TensorBytes { tensor: TensorId(7), first_byte: 7, bytes: 7 };
    let mut steps = vec![SwitchStep::Keep(bytes); part(planned.steps.len())];
    let output = SwitchOutput { chunks: &mut chunks, steps: &mut steps };
    let short = returns("switch::plan", || {
        let scratch = &mut Scratch::new(&mut memory);
        switch::plan(holding, other, states, input.memory, output, scratch).map(|it| it.predicted)
    })?;
    if input.permille == 1000 && short != Ok(planned.predicted) {
        let detail = format!("{short:?} for {:?}", planned.predicted);
        return Err(Fault::new("a switch is planned in two ways", detail));
    }
    Ok(())
}

fn forge(switch: &mut OwnedSwitch, forgery: &Forgery) {
    let OwnedSwitch { chunks, steps, predicted, .. } = switch;
    let (len, runs) = (steps.len().max(1), chunks.len().max(1));
    let mut bytes = |at: usize, change: &dyn Fn(&mut TensorBytes)| {
        if let Some(step) = steps.get_mut(at % len) {
            change(bytes_of(step));
        }
    };
    match *forgery {
        Forgery::Tensor(at, tensor) => bytes(at, &|it| it.tensor = TensorId(tensor)),
        Forgery::FirstByte(at, first) => bytes(at, &|it| it.first_byte = first),
        Forgery::Bytes(at, count) => bytes(at, &|it| it.bytes = count),
        Forgery::Kept(bytes) => predicted.kept_bytes = bytes,
        Forgery::Chunk(at, first) => {
            chunks.iter_mut().skip(at % runs).take(1).for_each(|it| it.device_first = first);
        }
        Forgery::ChunkCount(at, count) => {
            chunks.iter_mut().skip(at % runs).take(1).for_each(|it| it.count = count);
        }
        _ if steps.is_empty() => {}
        Forgery::Remove(at) => drop(steps.remove(at % len)),
        Forgery::Swap(at, other) => steps.swap(at % len, other % len),
        Forgery::Again(at, other) => steps.insert(other % len, steps[at % len]),
        Forgery::Kind(at, kind) => {
            let kinds =
                [SwitchStep::Keep, SwitchStep::Offload, SwitchStep::Evict, SwitchStep::Prefetch];
            let step = &mut steps[at % len];
            *step = kinds[kind % kinds.len()](*bytes_of(step));
        }
    }
}

const fn bytes_of(step: &mut SwitchStep) -> &mut TensorBytes {
    match step {
        SwitchStep::Keep(bytes)
        | SwitchStep::Offload(bytes)
        | SwitchStep::Evict(bytes)
        | SwitchStep::Prefetch(bytes) => bytes,
    }
}
