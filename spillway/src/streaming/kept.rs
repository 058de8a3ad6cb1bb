//! The caches and outputs that layers keep on the device at fixed offsets, in addition to their weights.

use super::Layer;
use super::list::predict;
use super::streamed::{arena_step_bytes, gcd};
use super::work::{cache, output};
use planner_core::plan::{ArenaPlacement, Part, PlanError, Resident, Step};
use planner_core::{Graph, Machine, TensorId};
use std::mem;
use workloads::OwnedPlan;

/// Returns the device memory of the cache and the output of a layer. Each begins at a chunk.
pub(super) fn bytes(layer: &Layer, machine: &Machine) -> u64 {
    sizes(layer, machine).into_iter().fold(0, u64::saturating_add)
}

/// Returns this memory for a layer that cannot run on the host, and 0 for other layers.
pub(super) fn bytes_on_device(layer: &Layer, machine: &Machine) -> u64 {
    if layer.host_ns.is_none() { bytes(layer, machine) } else { 0 }
}

fn sizes(layer: &Layer, machine: &Machine) -> [u64; 2] {
    let rounded = |bytes: u64| {
        let step_bytes = step_bytes(machine)?;
        bytes.checked_next_multiple_of(step_bytes)
    };
    [layer.cache_bytes, layer.output_bytes].map(|bytes| match bytes {
        0 => 0,
        bytes => rounded(bytes).unwrap_or(u64::MAX),
    })
}

/// Returns a step whose multiples are offsets both in an arena and of chunks.
fn step_bytes(machine: &Machine) -> Option<u64> {
    let chunk_bytes = machine.chunk_bytes;
    let arena_bytes = arena_step_bytes(chunk_bytes);
    chunk_bytes.checked_mul(arena_bytes / gcd(chunk_bytes, arena_bytes))
}

/// Returns whether any layer has a cache or an output.
pub(super) fn is_any(layers: &[Layer]) -> bool {
    layers.iter().any(|layer| layer.cache_bytes > 0 || layer.output_bytes > 0)
}

/// Returns the layers without caches and outputs.
pub(super) fn without(layers: &[Layer]) -> Vec<Layer> {
    let without = |layer: &Layer| Layer { cache_bytes: 0, output_bytes: 0, ..layer.clone() };
    layers.iter().map(without).collect()
}

/// Adds caches and outputs to plans of layers without them.
#[derive(Clone, Copy)]
pub(super) struct Kept<'a> {
    pub(super) layers: &'a [Layer],
    /// The graph with caches and outputs.
    pub(super) graph: &'a Graph<'a>,
    pub(super) machine: &'a Machine,
    pub(super) budget_bytes: u64,
}

impl Kept<'_> {
    /// Adds the caches and outputs of the layers that a plan launches on the device, at the start of its
    /// arena. Caches stay, so only the downloads of outputs change its times.
    pub(super) fn complete(&self, mut plan: OwnedPlan) -> Result<OwnedPlan, PlanError> {
        if !is_any(self.layers) {
            return Ok(plan);
        }
        let mut arena = Vec::new();
        let mut end_bytes = 0;
        for number in launched(&plan) {
            let layer = &self.layers[number];
            let tensors = [cache(self.layers, number), output(self.layers, number)];
            for (tensor, bytes) in tensors.into_iter().zip(sizes(layer, self.machine)) {
                let Some(tensor) = tensor else { continue };
                arena.push(ArenaPlacement { tensor, offset_bytes: end_bytes });
                // Caches and outputs fit in the budget.
                end_bytes += bytes;
            }
            let [cache, _] = tensors;
            let resident = |tensor| Resident { part: Part::whole(tensor), host_copy: false };
            plan.resident_at_start.extend(cache.map(resident));
        }
        let behind = mem::take(&mut plan.arena).into_iter().map(|placed| ArenaPlacement {
            offset_bytes: placed.offset_bytes + end_bytes,
            ..placed
        });
        plan.arena = arena.into_iter().chain(behind).collect();
        plan.arena_bytes += end_bytes;
        if !plan.tensor_pool.is_empty() {
            plan.tensor_pool.resize(self.graph.tensors().len(), 0);
        }
        plan.steps = self.with_downloads(&plan.steps);
        plan.budget_bytes = self.budget_bytes;
        plan.predicted = predict(self.graph, self.machine, &plan)?;
        Ok(plan)
    }

    /// Returns the steps with the download of each output that the device writes. It comes after the copies
    /// that the next layer waits for.
    fn with_downloads(&self, steps: &[Step]) -> Vec<Step> {
        let (mut all, mut due): (Vec<_>, Option<TensorId>) = (Vec::new(), None);
        for &step in steps {
            if step.launched().is_some() {
                all.extend(due.take().map(|tensor| Step::Offload(Part::whole(tensor))));
            }
            if let Step::Launch(launched) = step {
                due = output(self.layers, launched.op.index());
            }
            all.push(step);
        }
        all.extend(due.map(|tensor| Step::Offload(Part::whole(tensor))));
        all
    }
}

/// Returns the layers that a plan launches on the device.
fn launched(plan: &OwnedPlan) -> Vec<usize> {
    let launches = plan.steps.iter().filter_map(|step| match step {
        Step::Launch(launched) => Some(launched.op.index()),
        _ => None,
    });
    launches.collect()
}
