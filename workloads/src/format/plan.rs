//! `spillway.plan.v1`.

use super::error::FormatError;
use super::json::{Document, Object, parse};
use super::render::render;
use super::step::{ResidentRecord, StepRecord};
use crate::plan::{OwnedPlacements, OwnedPlan};
use planner_core::plan::{ArenaPlacement, Placements, PlanError, Pool, Prediction};
use planner_core::{Launched, Step, TensorId};
use serde::{Deserialize, Serialize};
use std::borrow::Cow;
use std::collections::HashSet;

#[derive(Serialize, Deserialize)]
struct PlanRecord<'a> {
    format: Cow<'a, str>,
    graph: Cow<'a, str>,
    machine: Cow<'a, str>,
    strategy: Cow<'a, str>,
    budget_bytes: u64,
    #[serde(default)]
    arena: Object<ArenaRecord>,
    pools: Vec<Object<PoolRecord>>,
    #[serde(default)]
    tensor_pool: Cow<'a, [u32]>,
    #[serde(default)]
    workspace_pool: Cow<'a, [u32]>,
    resident_at_start: Vec<ResidentRecord>,
    steps: Vec<StepRecord>,
    predicted: Object<PredictionRecord>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    placements: Option<Vec<Cow<'a, [u64]>>>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    placement_iterations: Option<u32>,
}

#[derive(Default, Serialize, Deserialize)]
struct ArenaRecord {
    bytes: u64,
    placements: Vec<Object<PlacementRecord>>,
}

#[derive(Serialize, Deserialize)]
struct PlacementRecord {
    tensor: u32,
    offset: u64,
}

#[derive(Serialize, Deserialize)]
struct PoolRecord {
    object_bytes: u64,
    count: u64,
}

#[derive(Serialize, Deserialize)]
struct PredictionRecord {
    period_ns: u64,
    compute_ns: u64,
    #[serde(default, skip_serializing_if = "is_zero")]
    repeat_ns: u64,
    #[serde(default, skip_serializing_if = "is_zero")]
    host_ns: u64,
    peak_bytes: u64,
    h2d_bytes: u64,
    d2h_bytes: u64,
    host_bytes: u64,
}

/// Reads a plan, gzip or plain. Checks only its form: the verifier checks the plan against a graph and a
/// machine.
///
/// # Errors
/// The bytes are not a plan file.
pub fn read_plan(bytes: &[u8]) -> Result<OwnedPlan, FormatError> {
    let record: PlanRecord<'static> = parse(bytes, Document::Plan)?;
    let iterations = record.placement_iterations.unwrap_or(1);
    // If a plan has placements, the verifier checks their number of iterations.
    if record.placements.is_none() && !(1..=Placements::MOST_ITERATIONS).contains(&iterations) {
        return Err(FormatError::malformed(PlanError::PlacementIterations(iterations).to_string()));
    }
    let placements = record.placements.map(|arrays| joined(&arrays, iterations)).transpose()?;
    let Object(arena) = record.arena;
    let Object(predicted) = record.predicted;
    let in_arena = arena.placements.into_iter().map(|Object(record)| ArenaPlacement {
        tensor: TensorId(record.tensor),
        offset_bytes: record.offset,
    });
    let pools = record
        .pools
        .into_iter()
        .map(|Object(record)| Pool { object_bytes: record.object_bytes, count: record.count });
    Ok(OwnedPlan {
        graph: record.graph.into_owned(),
        machine: record.machine.into_owned(),
        strategy: record.strategy.into_owned(),
        budget_bytes: record.budget_bytes,
        arena_bytes: arena.bytes,
        arena: in_arena.collect(),
        pools: pools.collect(),
        tensor_pool: record.tensor_pool.into_owned(),
        workspace_pool: record.workspace_pool.into_owned(),
        resident_at_start: record.resident_at_start.into_iter().map(|record| record.0).collect(),
        steps: with_repeats(record.steps),
        placements,
        predicted: Prediction {
            period_ns: predicted.period_ns,
            compute_ns: predicted.compute_ns,
            repeat_ns: predicted.repeat_ns,
            host_ns: predicted.host_ns,
            peak_bytes: predicted.peak_bytes,
            h2d_bytes: predicted.h2d_bytes,
            d2h_bytes: predicted.d2h_bytes,
            host_bytes: predicted.host_bytes,
        },
    })
}

/// Converts the steps. Every launch of an op after the first one is a repeat. A step on the host is a first
/// launch.
fn with_repeats(records: Vec<StepRecord>) -> Vec<Step> {
    let mut launched = HashSet::new();
    let again = |step| match step {
        Step::Launch(Launched { op, .. }) if !launched.insert(op) => Step::repeat(op),
        Step::Host(op) => {
            launched.insert(op);
            step
        }
        step => step,
    };
    records.into_iter().map(|StepRecord(step)| step).map(again).collect()
}

fn is_zero(number: &u64) -> bool {
    *number == 0
}

/// Joins all arrays into one, with the end of each.
fn joined(arrays: &[Cow<'_, [u64]>], iterations: u32) -> Result<OwnedPlacements, FormatError> {
    let mut end = 0usize;
    let ends = arrays.iter().map(|array| {
        end += array.len();
        u32::try_from(end).map_err(|_| FormatError::malformed("placements: more than 2^32 numbers"))
    });
    let ends = ends.collect::<Result<_, _>>()?;
    Ok(OwnedPlacements { iterations, objects: arrays.concat(), ends })
}

/// Returns the array of each allocation.
fn arrays(placements: &OwnedPlacements) -> Vec<Cow<'_, [u64]>> {
    let allocations = 0..placements.ends.len() as u32;
    let table = placements.placements();
    allocations.map(|allocation| table.of(allocation).into()).collect()
}

/// Writes a plan as JSON.
#[must_use]
pub fn write_plan(plan: &OwnedPlan) -> Vec<u8> {
    let in_arena = plan.arena.iter().map(|placement| {
        Object(PlacementRecord { tensor: placement.tensor.0, offset: placement.offset_bytes })
    });
    let pools = plan
        .pools
        .iter()
        .map(|pool| Object(PoolRecord { object_bytes: pool.object_bytes, count: pool.count }));
    let Prediction {
        period_ns,
        compute_ns,
        repeat_ns,
        host_ns,
        peak_bytes,
        h2d_bytes,
        d2h_bytes,
        host_bytes,
    } = plan.predicted;
    render(&PlanRecord {
        format: Document::Plan.format().into(),
        graph: plan.graph.as_str().into(),
        machine: plan.machine.as_str().into(),
        strategy: plan.strategy.as_str().into(),
        budget_bytes: plan.budget_bytes,
        arena: Object(ArenaRecord { bytes: plan.arena_bytes, placements: in_arena.collect() }),
        pools: pools.collect(),
        tensor_pool: plan.tensor_pool.as_slice().into(),
        workspace_pool: plan.workspace_pool.as_slice().into(),
        resident_at_start: plan.resident_at_start.iter().copied().map(ResidentRecord).collect(),
        steps: plan.steps.iter().copied().map(StepRecord).collect(),
        predicted: Object(PredictionRecord {
            period_ns,
            compute_ns,
            repeat_ns,
            host_ns,
            peak_bytes,
            h2d_bytes,
            d2h_bytes,
            host_bytes,
        }),
        placements: plan.placements.as_ref().map(arrays),
        placement_iterations: plan
            .placements
            .as_ref()
            .map(|placements| placements.iterations)
            .filter(|&iterations| iterations != 1),
    })
}
