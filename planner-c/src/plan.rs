//! Plans.

use crate::boundary::{self, Out, array, call, fill, given, hand_out, text};
use crate::error::{Code, Error, Failure};
use crate::graph::Graph;
use crate::machine::Machine;
use spillway::Strategy;
use std::ffi::c_char;

/// A plan that was proved: it is safe in every order that its waits allow, and its prediction is
/// exact.
pub struct Plan(pub(crate) spillway::Plan);

/// How to plan. All zero, or no options at all, stands for the defaults.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct PlanOptions {
    /// Device memory for the plan: a size (`"4GiB"`), a percentage of what the work needs in-core
    /// (`"35%"`), or `"min"`. Null for all of the device's memory.
    pub budget: *const c_char,
    /// The name of a strategy (`docs/strategies.md`). Null for `"auto"`.
    pub strategy: *const c_char,
    /// Whether the plan may map memory while it runs, instead of before: 1, or 0.
    pub maps_as_it_runs: u8,
}

/// What a plan takes, exactly, for the given times of ops and links.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct Figures {
    /// The budget that the plan keeps.
    pub budget_bytes: u64,
    /// Time from one iteration to the next, once under way.
    pub period_ns: u64,
    /// The sum of all op times, each op once.
    pub compute_ns: u64,
    /// Time of the ops that run again.
    pub repeat_ns: u64,
    /// Time of a period in which no op runs on the device: the period less the launches there, repeats included.
    pub stall_ns: u64,
    /// A period that no plan can beat; the report says among which plans.
    pub bound_ns: u64,
    /// The most device memory that is held.
    pub peak_bytes: u64,
    /// Bytes copied to the device in one iteration.
    pub h2d_bytes: u64,
    /// Bytes copied to the host in one iteration.
    pub d2h_bytes: u64,
    /// Pinned host memory.
    pub host_bytes: u64,
    /// Time of the ops that run on the host, there.
    pub host_ns: u64,
}

/// Plans a graph for a machine, and proves the plan. `options` may be null.
///
/// # Safety
/// The pointers are as `spillway.h` says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn spillway_plan_new(
    graph: *const Graph,
    machine: *const Machine,
    options: *const PlanOptions,
    plan: *mut *mut Plan,
    error: *mut Error,
) -> Code {
    let body = || {
        // SAFETY: the caller's promise.
        let (Graph(graph), Machine(machine), out) = unsafe {
            (given(graph, "graph")?, given(machine, "machine")?, Out::new(plan, "plan")?)
        };
        let mut builder = graph.plan(machine);
        // SAFETY: the same.
        if let Some(options) = unsafe { options.as_ref() } {
            // SAFETY: the same.
            let (budget, strategy) =
                unsafe { (text(options.budget, "budget")?, text(options.strategy, "strategy")?) };
            if let Some(budget) = budget {
                builder = builder.budget(budget);
            }
            if let Some(name) = strategy {
                let unknown = || {
                    Failure::argument(format!(
                        "there is no strategy {name:?}: docs/strategies.md lists them"
                    ))
                };
                builder = builder.strategy(Strategy::named(name).ok_or_else(unknown)?);
            }
            builder = builder.placed(options.maps_as_it_runs == 0);
        }
        hand_out(out, Plan(builder.run()?));
        Ok(())
    };
    // SAFETY: the caller's promise.
    unsafe { call(error, body) }
}

/// Reads a plan from the bytes of a plan file (`spillway.plan.v1`), and proves it.
///
/// # Safety
/// The pointers are as `spillway.h` says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn spillway_plan_from_json(
    graph: *const Graph,
    machine: *const Machine,
    json: *const u8,
    json_bytes: usize,
    plan: *mut *mut Plan,
    error: *mut Error,
) -> Code {
    let body = || {
        // SAFETY: the caller's promise.
        let (Graph(graph), Machine(machine), json, out) = unsafe {
            (
                given(graph, "graph")?,
                given(machine, "machine")?,
                array(json, json_bytes, "json")?,
                Out::new(plan, "plan")?,
            )
        };
        hand_out(out, Plan(spillway::Plan::from_json(json, graph, machine)?));
        Ok(())
    };
    // SAFETY: the caller's promise.
    unsafe { call(error, body) }
}

/// Writes what is made of a plan into a buffer.
///
/// # Safety
/// That of [`boundary`].
unsafe fn write(
    plan: *const Plan,
    into: *mut u8,
    capacity: usize,
    needed: *mut usize,
    error: *mut Error,
    made: impl FnOnce(&spillway::Plan) -> Result<Vec<u8>, Failure>,
) -> Code {
    let body = || {
        // SAFETY: the caller's promise.
        let Plan(plan) = unsafe { given(plan, "plan") }?;
        // SAFETY: the same.
        unsafe { fill(into, capacity, needed, &made(plan)?) }
    };
    // SAFETY: the caller's promise.
    unsafe { call(error, body) }
}

/// Writes the bytes of a plan file into a buffer, and their number into `needed`. Where the buffer
/// is too short, only the number is written.
///
/// # Safety
/// The pointers are as `spillway.h` says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn spillway_plan_to_json(
    plan: *const Plan,
    into: *mut u8,
    capacity: usize,
    needed: *mut usize,
    error: *mut Error,
) -> Code {
    // SAFETY: the caller's promise.
    unsafe { write(plan, into, capacity, needed, error, |plan| Ok(plan.to_json())) }
}

/// Writes a report, one self-contained page of HTML, into a buffer, and its size into `needed`.
/// Where the buffer is too short, only the size is written.
///
/// # Safety
/// The pointers are as `spillway.h` says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn spillway_plan_report(
    plan: *const Plan,
    into: *mut u8,
    capacity: usize,
    needed: *mut usize,
    error: *mut Error,
) -> Code {
    // SAFETY: the caller's promise.
    unsafe { write(plan, into, capacity, needed, error, |plan| Ok(plan.report()?.into_bytes())) }
}

/// Makes the same plan with its arena laid out after that of `earlier`, so that a switch from that plan
/// to the new one copies less: states in both arenas have the same offsets. The plan is as it was if its
/// budget is too small for that.
///
/// # Safety
/// The pointers are as `spillway.h` says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn spillway_plan_arranged_after(
    plan: *const Plan,
    earlier: *const Plan,
    arranged: *mut *mut Plan,
    error: *mut Error,
) -> Code {
    let body = || {
        // SAFETY: the caller's promise.
        let (Plan(plan), Plan(earlier), out) = unsafe {
            (given(plan, "plan")?, given(earlier, "earlier")?, Out::new(arranged, "arranged")?)
        };
        hand_out(out, Plan(plan.arranged_after(earlier)?));
        Ok(())
    };
    // SAFETY: the caller's promise.
    unsafe { call(error, body) }
}

/// Makes a plan of the same work in the same budget for one iteration between two iterations of `other`,
/// such as a prompt between tokens. States that `other` holds may stay on the device for it. Of the
/// plans that are tried, and of `plan`, it is the one for which the period and the copies of both
/// switches take the least time. Plans the work up to ten times.
///
/// # Safety
/// The pointers are as `spillway.h` says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn spillway_plan_between(
    plan: *const Plan,
    other: *const Plan,
    between: *mut *mut Plan,
    error: *mut Error,
) -> Code {
    let body = || {
        // SAFETY: the caller's promise.
        let (Plan(plan), Plan(other), out) = unsafe {
            (given(plan, "plan")?, given(other, "other")?, Out::new(between, "between")?)
        };
        hand_out(out, Plan(plan.between(other)?));
        Ok(())
    };
    // SAFETY: the caller's promise.
    unsafe { call(error, body) }
}

/// Gives the figures of a plan.
///
/// # Safety
/// The pointers are as `spillway.h` says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn spillway_plan_figures(
    plan: *const Plan,
    figures: *mut Figures,
    error: *mut Error,
) -> Code {
    let body = || {
        // SAFETY: the caller's promise.
        let (Plan(plan), out) = unsafe { (given(plan, "plan")?, Out::new(figures, "figures")?) };
        let of = plan.figures();
        out.put(Figures {
            budget_bytes: plan.owned().budget_bytes,
            period_ns: of.period_ns,
            compute_ns: of.compute_ns,
            repeat_ns: of.repeat_ns,
            stall_ns: of.stall_ns,
            bound_ns: plan.lower_bound().period_ns,
            peak_bytes: of.peak_bytes,
            h2d_bytes: of.h2d_bytes,
            d2h_bytes: of.d2h_bytes,
            host_bytes: of.host_bytes,
            host_ns: of.host_ns,
        });
        Ok(())
    };
    // SAFETY: the caller's promise.
    unsafe { call(error, body) }
}

/// Frees a plan. Null does nothing.
///
/// # Safety
/// The pointer is as `spillway.h` says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn spillway_plan_free(plan: *mut Plan) {
    // SAFETY: the caller's promise.
    unsafe { boundary::free(plan) };
}
