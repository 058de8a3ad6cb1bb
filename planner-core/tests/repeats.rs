//! The results of the verifier for plans that launch ops again.
#![allow(clippy::unwrap_used, reason = "what fails here fails the test")]

use planner_core::plan::{ArenaPlacement, Location, Pool, Prediction, Resident};
use planner_core::{
    Graph, Kind, Limits, Machine, MachineParameters, Op, OpId, Part, Plan, PlanError, Scheduled,
    Scratch, Step, Tensor, TensorId, VerifyError, lower, verify,
};

const STATE: Kind = Kind::State;
const INPUT: Kind = Kind::Input;
const TEMPORARY: Kind = Kind::Temporary;

/// A plan whose tensors take one object of 256 bytes, unless `bytes` sets another size.
struct Case {
    tensors: Vec<Tensor>,
    ops: Vec<Op>,
    operands: Vec<TensorId>,
    arena: Vec<ArenaPlacement>,
    resident: Vec<Resident>,
}

impl Case {
    fn new(kinds: &[Kind]) -> Self {
        Self {
            tensors: kinds.iter().map(|&kind| Tensor::new(256, kind)).collect(),
            ops: Vec::new(),
            operands: Vec::new(),
            arena: Vec::new(),
            resident: Vec::new(),
        }
    }

    /// Adds a repeatable op.
    fn op(mut self, reads: &[u32], writes: &[u32]) -> Self {
        self.ops.push(
            Op::new(1)
                .with_first_operand(self.operands.len() as u32)
                .with_reads(reads.len() as u32)
                .with_writes(writes.len() as u32)
                .with_repeatable(true),
        );
        self.operands.extend(reads.iter().chain(writes).map(|&id| TensorId(id)));
        self
    }

    fn resident(mut self, tensor: u32, host_copy: bool) -> Self {
        self.resident.push(Resident { part: Part::whole(TensorId(tensor)), host_copy });
        self
    }

    fn in_arena(mut self, tensor: u32, offset_bytes: u64) -> Self {
        self.arena.push(ArenaPlacement { tensor: TensorId(tensor), offset_bytes });
        self
    }

    fn verify(&self, steps: &[Step]) -> Result<(), VerifyError> {
        let machine = Machine::new(
            MachineParameters::new()
                .with_device_bytes(1 << 20)
                .with_host_bytes(1 << 20)
                .with_chunk_bytes(256)
                .with_h2d_bytes_per_s(1_000_000_000)
                .with_d2h_bytes_per_s(1_000_000_000),
        )
        .unwrap();
        let mut memory = vec![0; 10_000];
        let graph = &mut Scratch::new(&mut memory);
        let graph = Graph::new(&self.tensors, &self.ops, &self.operands, graph).unwrap();
        let plan = Plan {
            budget_bytes: 1 << 20,
            arena_bytes: 1024,
            arena: &self.arena,
            pools: &[Pool { object_bytes: 256, count: 64 }],
            tensor_pool: &[],
            workspace_pool: &[],
            resident_at_start: &self.resident,
            steps,
            placements: None,
            predicted: Prediction::default(),
        };
        let limits = Limits::of_plan(&graph, &plan);
        let words = lower::scratch_words(&limits).max(verify::scratch_words(&limits));
        let (mut memory, mut entries) = (vec![0; words], vec![Scheduled::EMPTY; limits.entries()]);
        let mut scratch = Scratch::new(&mut memory);
        let schedule = lower(&graph, &machine, &plan, &mut entries, &mut scratch)?;
        verify(&graph, &machine, &plan, &schedule, &mut scratch).map(|_| ())
    }

    fn assert_valid(&self, steps: &[Step]) {
        assert_eq!(self.verify(steps), Ok(()));
    }

    fn assert_refused(&self, steps: &[Step], error: PlanError) {
        assert_eq!(self.verify(steps), Err(VerifyError::Plan(error)));
    }
}

fn run(op: u32) -> Step {
    Step::launch(OpId(op))
}

fn again(op: u32) -> Step {
    Step::repeat(OpId(op))
}

fn prefetch(tensor: u32) -> Step {
    Step::Prefetch(Part::whole(TensorId(tensor)))
}

fn offload(tensor: u32) -> Step {
    Step::Offload(Part::whole(TensorId(tensor)))
}

fn evict(tensor: u32) -> Step {
    Step::Evict(Part::whole(TensorId(tensor)))
}

fn repeat_reads(step: u32, op: u32, tensor: u32) -> PlanError {
    PlanError::RepeatReads {
        location: Location::Step(step),
        op: OpId(op),
        tensor: TensorId(tensor),
    }
}

/// Op 0 computes tensor 1 from the input; op 1 reads it, and op 2 reads it later.
fn dropped_and_made_again() -> Case {
    Case::new(&[INPUT, TEMPORARY]).op(&[0], &[1]).op(&[1], &[]).op(&[1], &[])
}

#[test]
fn what_is_dropped_is_made_again() {
    let case = dropped_and_made_again();
    let end = [run(2), evict(1), evict(0)];
    let steps = [prefetch(0), run(0), run(1), evict(1), again(0)];
    case.assert_valid(&[&steps[..], &end].concat());
    let kept = [prefetch(0), run(0), run(1), again(0), again(0)];
    case.assert_valid(&[&kept[..], &end].concat());
    let lost = [prefetch(0), run(0), run(1), evict(1), run(2), evict(0)];
    case.assert_refused(&lost, PlanError::ValueLost(Location::Step(3), TensorId(1)));
}

#[test]
fn only_repeatable_ops_are_launched_again_and_only_after_their_first_launch() {
    let mut case = dropped_and_made_again();
    let early = [prefetch(0), again(0), run(0), run(1), run(2), evict(1), evict(0)];
    case.assert_refused(&early, PlanError::RepeatedTooEarly(Location::Step(1), OpId(0)));
    case.ops[0].repeatable = false;
    let refused = [prefetch(0), run(0), run(1), again(0), run(2), evict(1), evict(0)];
    let error = PlanError::NotRepeatable(Location::Step(3), OpId(0));
    case.assert_refused(&refused, error);
    assert_eq!(error.to_string(), "step 3: op 0 is launched again, but it is not repeatable");
}

#[test]
fn a_repeat_does_not_read_what_is_gone() {
    let case = dropped_and_made_again();
    let steps = [prefetch(0), run(0), run(1), evict(1), evict(0), again(0), run(2), evict(1)];
    case.assert_refused(&steps, repeat_reads(5, 0, 0));
    assert_eq!(
        repeat_reads(5, 0, 0).to_string(),
        "step 5: op 0 is launched again, but tensor 0 does not hold the value that its first \
         launch read"
    );
}

#[test]
fn an_input_is_read_by_repeats_and_forgotten_after_the_last() {
    let case = dropped_and_made_again();
    let (evicted, offloaded) = ([evict(0), prefetch(0)], [offload(0)]);
    for between in [&evicted[..], &offloaded] {
        let before = [prefetch(0), run(0), run(1), evict(1)];
        let after = [again(0), run(2), evict(1), evict(0)];
        case.assert_valid(&[&before[..], between, &after].concat());
    }
    let late = [prefetch(0), run(0), run(1), again(0), offload(0), run(2), evict(1), evict(0)];
    case.assert_refused(&late, PlanError::NextInput(Location::Step(4), TensorId(0)));
}

/// Op 0 computes version 1 of tensor 1, op 1 reads it, op 2 updates it in place to version 2, and
/// op 3 reads version 2.
fn updated_in_place() -> Case {
    Case::new(&[STATE, TEMPORARY])
        .op(&[0], &[1])
        .op(&[1], &[])
        .op(&[1], &[1])
        .op(&[1], &[])
        .resident(0, true)
}

#[test]
fn an_older_version_comes_back_for_repeats_only() {
    let case = updated_in_place();
    let chain = [run(0), run(1), run(2)];
    let older = [run(0), run(1), run(2), again(0), run(3), evict(1)];
    case.assert_refused(&older, PlanError::NoValue(Location::Step(4), TensorId(1)));
    case.assert_valid(&[&chain[..], &[again(0), again(1), again(2), run(3), evict(1)]].concat());
    case.assert_refused(
        &[&chain[..], &[again(2), run(3), evict(1)]].concat(),
        repeat_reads(3, 2, 1),
    );
}

#[test]
fn host_copies_keep_their_version() {
    let case = updated_in_place();
    // Version 1 is offloaded, is prefetched after version 2 was computed, and is read again.
    let older = [run(0), run(1), offload(1), run(2), run(3), evict(1), prefetch(1), again(1)];
    case.assert_valid(&[&older[..], &[evict(1)]].concat());
    // No launch reads it later.
    let unread = [run(0), run(1), offload(1), run(2), run(3), evict(1), prefetch(1), evict(1)];
    case.assert_refused(&unread, PlanError::NoHostCopy(Location::Step(6), TensorId(1)));
    // A repeat computes version 1 again while the host holds version 2, and vice versa.
    let newer =
        [run(0), run(1), run(2), offload(1), again(0), again(1), evict(1), prefetch(1), run(3)];
    case.assert_valid(&[&newer[..], &[evict(1)]].concat());
    // Version 1 is offloaded instead of version 2, which is lost.
    let lost = [
        run(0),
        run(1),
        run(2),
        offload(1),
        again(0),
        offload(1),
        evict(1),
        prefetch(1),
        again(1),
        run(3),
        evict(1),
    ];
    case.assert_refused(&lost, PlanError::NoValue(Location::Step(9), TensorId(1)));
    // Version 1 is offloaded although no launch reads it later.
    let stale =
        [run(0), run(1), run(2), evict(1), again(0), offload(1), again(2), run(3), evict(1)];
    case.assert_valid(&stale);
    let stale = [run(0), run(1), run(2), run(3), again(0), offload(1), evict(1)];
    case.assert_refused(&stale, PlanError::NoValue(Location::Step(5), TensorId(1)));
}

#[test]
fn an_evict_keeps_what_is_read_next() {
    let case = updated_in_place();
    // The next launch that uses the tensor reads version 2, but the device holds version 1.
    let dropped =
        [run(0), run(1), run(2), offload(1), again(0), evict(1), prefetch(1), run(3), evict(1)];
    case.assert_valid(&dropped);
    let lost = [
        run(0),
        run(1),
        run(2),
        evict(1),
        again(0),
        evict(1),
        again(0),
        again(2),
        run(3),
        evict(1),
    ];
    case.assert_valid(&lost);
    let needed = [run(0), run(1), run(2), again(0), evict(1), again(1), again(2), run(3), evict(1)];
    case.assert_refused(&needed, PlanError::ValueLost(Location::Step(4), TensorId(1)));
}

#[test]
fn a_state_keeps_its_last_value() {
    // Op 0 reads the state, op 1 updates it.
    let case = Case::new(&[STATE, TEMPORARY]).op(&[0], &[1]).op(&[0, 1], &[0]).op(&[1], &[]);
    let ends = [evict(1)];
    let old =
        [prefetch(0), run(0), run(1), evict(1), evict(0), prefetch(0), again(0), run(2), evict(0)];
    case.assert_refused(
        &[&old[..], &ends].concat(),
        PlanError::ValueLost(Location::Step(4), TensorId(0)),
    );
    // The new value on the host overwrites the old one.
    let gone =
        [prefetch(0), run(0), run(1), offload(0), evict(1), again(0), run(2), evict(0), evict(1)];
    case.assert_refused(&gone, repeat_reads(5, 0, 0));
}

#[test]
fn a_repeat_leaves_states_and_inputs_that_its_op_writes_alone() {
    // Op 0 reads and updates the state (running statistics), and computes tensor 1.
    let case =
        Case::new(&[STATE, TEMPORARY, INPUT]).op(&[0, 2], &[0, 1]).op(&[1], &[]).op(&[1], &[]);
    let steps = [
        prefetch(0),
        prefetch(2),
        run(0),
        offload(0),
        evict(0),
        run(1),
        evict(1),
        again(0),
        run(2),
        evict(1),
        evict(2),
    ];
    case.assert_valid(&steps);
}

#[test]
fn parts_hold_versions_of_their_own() {
    let mut case = updated_in_place();
    case.tensors[1].bytes = 4 * 256;
    let part = |first| Part { tensor: TensorId(1), first, count: 2 };
    // The host holds half of version 1 and half of version 2. Both are valid, but no launch reads
    // them together. Without the repeat, version 1 is not valid.
    let mixed = [run(0), run(1), Step::Offload(part(0)), run(2), Step::Offload(part(2)), run(3)];
    let end = [evict(1), prefetch(1), again(1), evict(1)];
    case.assert_refused(&[&mixed[..], &end].concat(), repeat_reads(8, 1, 1));
    let no_copy = PlanError::NoHostCopy(Location::Step(7), TensorId(1));
    case.assert_refused(&[&mixed[..], &[evict(1), prefetch(1), evict(1)]].concat(), no_copy);
    let half = [run(0), run(1), run(2), Step::Offload(part(0)), evict(1), prefetch(1), run(3)];
    let lost = PlanError::ValueLost(Location::Step(4), TensorId(1));
    case.assert_refused(&[&half[..], &[evict(1)]].concat(), lost);
    let other_half = [
        run(0),
        run(1),
        Step::Offload(part(0)),
        run(2),
        run(3),
        evict(1),
        Step::Prefetch(part(0)),
        again(0),
        again(1),
        evict(1),
    ];
    case.assert_valid(&other_half);
}
#[test]
fn arena_temporaries_share_bytes_between_spans() {
    // Tensor 2 is alive between the two spans of tensor 1.
    let case = Case::new(&[STATE, TEMPORARY, TEMPORARY])
        .op(&[0], &[1])
        .op(&[1], &[])
        .op(&[], &[2])
        .op(&[2], &[])
        .op(&[1], &[])
        .resident(0, true)
        .in_arena(1, 0)
        .in_arena(2, 0);
    case.assert_valid(&[run(0), run(1), run(2), run(3), again(0), run(4)]);
    let overlap = PlanError::ArenaOverlap(TensorId(1), TensorId(2));
    case.assert_refused(&[run(0), run(1), run(2), run(3), run(4)], overlap);
    let overlap = PlanError::ArenaOverlap(TensorId(2), TensorId(1));
    case.assert_refused(&[run(0), run(1), run(2), again(0), run(3), run(4)], overlap);
}

#[test]
fn untouched_temporaries_share_bytes_with_each_other_but_not_with_a_state() {
    let case = Case::new(&[STATE, TEMPORARY, TEMPORARY])
        .op(&[0], &[])
        .resident(0, true)
        .in_arena(1, 0)
        .in_arena(2, 0);
    case.assert_valid(&[run(0)]);
    let overlap = PlanError::ArenaOverlap(TensorId(0), TensorId(1));
    case.in_arena(0, 0).assert_refused(&[run(0)], overlap);
}
