//! Repeats: an op that is launched again writes the same bytes into its temporaries, and does not
//! touch the states and inputs that it writes.

use super::failure::{Outcome, ensure};
use super::plans::{FILLED_CHUNK_BYTES, Length, machine, run};
use super::rig::{A, B, C, D, FLAGS, GROW, NORM};
use super::{Bench, Rig};
use integrity::Backend;
use planner_core::backend::{DeviceAddress, HostRange};
use planner_core::planner::{Auto, Request, Strategy};
use planner_core::{Kind, Launched, Step, Stream};
use spillway::{placing, planning};
use workloads::OwnedGraph;

/// The address of an operand that a repeat leaves alone.
const LEFT_ALONE: DeviceAddress = DeviceAddress(0);

/// The operands of [`NORM`] on the device, and the contents of [`A`], which repeats also read.
struct Norm {
    /// A state that is updated in place.
    running: DeviceAddress,
    /// An input that is updated in place.
    flags: DeviceAddress,
    source: DeviceAddress,
    made: DeviceAddress,
    space: DeviceAddress,
    sent: Vec<u8>,
}

impl Norm {
    /// Sets a rig up and launches the op once.
    fn launched<T: Backend>(rig: &mut Rig<'_, T>) -> Outcome<Self> {
        rig.set_up()?;
        let [running, flags, source, made, space] = ranges(rig)?;
        rig.fill(rig.slot(C), 1)?;
        rig.fill(rig.slot(FLAGS), 2)?;
        let sent = rig.fill(rig.slot(A), 3)?;
        for (tensor, to) in [(C, running), (FLAGS, flags), (A, source)] {
            rig.put(rig.slot(tensor), to)?;
        }
        let (reads, writes) = ([running, source, flags], [running, made, flags]);
        rig.launch_with(NORM, &reads, &writes, Some(space))?;
        rig.finish(Stream::Compute)?;
        Ok(Self { running, flags, source, made, space, sent })
    }

    /// Enqueues a repeat that writes to other addresses.
    fn repeat<T: Backend>(
        &self,
        rig: &mut Rig<'_, T>,
        made: DeviceAddress,
        space: DeviceAddress,
    ) -> Outcome {
        let reads = [LEFT_ALONE, self.source, LEFT_ALONE];
        rig.repeat(NORM, &reads, &[LEFT_ALONE, made, LEFT_ALONE], Some(space))
    }

    /// The bytes that the op writes at a position. They do not depend on the tensors that it
    /// updates in place.
    fn written<T: Backend>(&self, rig: &Rig<'_, T>, position: usize) -> Vec<u8> {
        rig.written(NORM, position, &[&[], &self.sent, &[]])
    }
}

/// Ranges of three chunks, which hold one tensor each.
fn ranges<T: Backend, const COUNT: usize>(rig: &mut Rig<'_, T>) -> Outcome<[DeviceAddress; COUNT]> {
    let mut ranges = [LEFT_ALONE; COUNT];
    for range in &mut ranges {
        *range = rig.range(3)?;
    }
    Ok(ranges)
}

/// Downloads the bytes at an address and compares them.
fn expect_at<T: Backend>(
    rig: &mut Rig<'_, T>,
    at: DeviceAddress,
    expected: &[u8],
    what: &str,
) -> Outcome {
    let slot: HostRange = rig.slot(B);
    rig.get(at, slot)?;
    rig.expect(slot, expected, what)
}

/// A repeat always writes the bytes that the first launch wrote, to the current address of its
/// temporary.
pub fn the_same_bytes_are_written<T: Backend>(rig: &mut Rig<'_, T>) -> Outcome {
    let norm = Norm::launched(rig)?;
    let made = norm.written(rig, 1);
    expect_at(rig, norm.made, &made, "the bytes that the first launch writes")?;
    let [again, space] = ranges(rig)?;
    for _ in 0..3 {
        rig.fill(rig.slot(D), 4)?;
        rig.put(rig.slot(D), again)?;
        norm.repeat(rig, again, space)?;
        rig.finish(Stream::Compute)?;
        expect_at(rig, again, &made, "the bytes that a repeat writes")?;
    }
    Ok(())
}

/// A repeat neither reads nor writes the state and the input that its op updates in place. Their
/// memory holds other bytes by then.
pub fn states_and_inputs_are_left_alone<T: Backend>(rig: &mut Rig<'_, T>) -> Outcome {
    let norm = Norm::launched(rig)?;
    let made = norm.written(rig, 1);
    let mut others = Vec::new();
    for (tensor, at) in [(C, norm.running), (FLAGS, norm.flags)] {
        others.push((at, rig.fill(rig.slot(tensor), 5 + at.0)?));
        rig.put(rig.slot(tensor), at)?;
    }
    norm.repeat(rig, norm.made, norm.space)?;
    rig.finish(Stream::Compute)?;
    expect_at(rig, norm.made, &made, "the bytes that a repeat writes")?;
    for (at, bytes) in others {
        expect_at(rig, at, &bytes, "where the op had a state or an input")?;
    }
    Ok(())
}

/// A repeat uses its own workspace completely, and not the workspace of the first launch.
pub fn the_workspace_is_used_again<T: Backend>(rig: &mut Rig<'_, T>) -> Outcome {
    let norm = Norm::launched(rig)?;
    let wasted = norm.written(rig, 3);
    expect_at(rig, norm.space, &wasted, "the workspace of the first launch")?;
    let other = rig.fill(rig.slot(D), 6)?;
    rig.put(rig.slot(D), norm.space)?;
    let [again, space] = ranges(rig)?;
    norm.repeat(rig, again, space)?;
    rig.finish(Stream::Compute)?;
    expect_at(rig, space, &wasted, "the workspace of a repeat")?;
    expect_at(rig, norm.space, &other, "where the first launch had its workspace")
}

/// If an op updates a temporary in place, a repeat of the op that made it restores the earlier
/// value, and a repeat of the update restores the later value.
pub fn earlier_values_come_back<T: Backend>(rig: &mut Rig<'_, T>) -> Outcome {
    let norm = Norm::launched(rig)?;
    let [other] = ranges(rig)?;
    let added = rig.fill(rig.slot(D), 7)?;
    rig.put(rig.slot(D), other)?;
    let earlier = norm.written(rig, 1);
    let later = rig.computed(GROW, &[&earlier, &added]);
    rig.launch(GROW, &[norm.made, other], &[norm.made])?;
    rig.finish(Stream::Compute)?;
    expect_at(rig, norm.made, &later, "the bytes that an update in place writes")?;
    for _ in 0..2 {
        norm.repeat(rig, norm.made, norm.space)?;
        rig.finish(Stream::Compute)?;
        expect_at(rig, norm.made, &earlier, "the value before the update")?;
        rig.repeat(GROW, &[norm.made, other], &[norm.made], None)?;
        rig.finish(Stream::Compute)?;
        expect_at(rig, norm.made, &later, "the value after the update")?;
    }
    Ok(())
}

/// Plans with repeats, mapped as they run and mapped once, end with the bytes that the graph
/// defines.
pub fn plans_with_repeats<T: Backend>(bench: &Bench<'_, T>) -> Outcome {
    let (machine, graph) = (machine(bench), work(bench.machine.chunk_bytes));
    let graph = graph.graph()?;
    let strategy = Strategy::Auto(Auto::new().with_effort(8));
    let request = Request { graph: &graph, machine: &machine, budget_bytes: 0 };
    let (min_bytes, _) = planning::min_feasible(&request, strategy)?;
    let (mut repeats_with_states, mut placed_once) = (0, 0);
    // The bytes of large chunks take long.
    let is_large = machine.chunk_bytes > FILLED_CHUNK_BYTES;
    let spares_chunks: &[u64] = if is_large { &[4] } else { &[0, 4, 8] };
    for spare_chunks in spares_chunks {
        let budget_bytes = min_bytes + spare_chunks * machine.chunk_bytes;
        let plan = planning::plan(&Request { budget_bytes, ..request }, strategy)?;
        let leaves_a_state_alone = |step: &&Step| match **step {
            Step::Launch(Launched { op, is_repeat: true }) => {
                graph.writes(op).iter().any(|&tensor| graph.tensor(tensor).kind == Kind::State)
            }
            _ => false,
        };
        repeats_with_states += plan.steps.iter().filter(leaves_a_state_alone).count();
        run(bench, &graph, &plan.plan(), Length::Short)?;
        if let Ok(placed) = placing::place(&graph, &machine, &plan, u64::MAX) {
            placed_once += 1;
            run(bench, &graph, &placed.plan(), Length::Short)?;
        }
    }
    ensure!(placed_once > 0, "no plan could be mapped once");
    ensure!(repeats_with_states > 0, "no plan repeats an op that updates a state");
    Ok(())
}

/// A training step whose activations take longer to move than to make again. Each layer has a
/// workspace, and running statistics: a state that its forward op updates in place.
fn work(chunk_bytes: u64) -> OwnedGraph {
    const LAYERS: usize = 6;
    let bytes = (2 * chunk_bytes + chunk_bytes / 2).next_multiple_of(4);
    let mut graph = OwnedGraph::new("repeats");
    let mut values = vec![graph.push_tensor("input", bytes, Kind::Input)];
    let mut weights = Vec::new();
    for layer in 0..LAYERS {
        let weight = graph.push_tensor("weights", 64, Kind::State);
        let running = graph.push_tensor("running", 64, Kind::State);
        let made = graph.push_tensor("activation", bytes, Kind::Temporary);
        let (reads, writes) = ([running, values[layer], weight], [running, made]);
        let forward = graph.push_op("forward", 20, chunk_bytes, &reads, &writes);
        graph.set_repeatable(forward);
        values.push(made);
        weights.push(weight);
    }
    let mut change = values[LAYERS];
    for layer in (0..LAYERS).rev() {
        let before = graph.push_tensor("change", bytes, Kind::Temporary);
        let reads = [values[layer], weights[layer], change];
        graph.push_op("backward", 40, 0, &reads, &[before, weights[layer]]);
        change = before;
    }
    graph
}
