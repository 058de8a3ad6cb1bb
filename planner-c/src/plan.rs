//! Plans.

use crate::boundary::{
    self, Out, array, call, fill, given, given_sized, hand_out, put_sized, text,
};
use crate::error::{Code, Error, Failure};
use crate::graph::Graph;
use crate::machine::Machine;
use spillway::Strategy;
use spillway::settings::SettingError;
use spillway_c_types::sized::Versioned;
use std::ffi::c_char;

/// A proved plan. It is safe in every order that its waits allow, and its prediction is exact.
pub struct Plan(pub(crate) spillway::Plan);

/// How to plan. Null, or 0 in all fields except the first, stands for the defaults.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct PlanOptions {
    /// The size of this struct.
    pub struct_bytes: usize,
    /// The device memory for the plan: a size (`"4GiB"`), a percentage of the memory that the work
    /// needs in-core (`"35%"`), or `"min"`. Null for all of the device's memory.
    pub budget: *const c_char,
    /// The name of a strategy, with its settings after a colon: `"window:bytes=512MiB,variant=published"`
    /// (`docs/strategies.md`). Null for `"auto"`.
    pub strategy: *const c_char,
    /// Whether the plan may map memory while it runs, instead of before: 1 or 0. Such a plan has no
    /// addresses.
    pub unplaced: u8,
}

// SAFETY: the structs are `repr(C)`, begin with their size, and all their bytes may be zero.
unsafe impl Versioned for PlanOptions {}
// SAFETY: as above.
unsafe impl Versioned for Figures {}

/// The exact figures of a plan for the given times of ops and links.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct Figures {
    /// The size of this struct, which the caller sets.
    pub struct_bytes: usize,
    /// The budget that the plan keeps.
    pub budget_bytes: u64,
    /// The time from one iteration to the next in steady state.
    pub period_ns: u64,
    /// The sum of all op times, each op once.
    pub compute_ns: u64,
    /// The time of the repeats.
    pub repeat_ns: u64,
    /// The part of a period in which no op runs on the device: the period less all launches there,
    /// including repeats.
    pub stall_ns: u64,
    /// A period that no plan can beat. The report says among which plans.
    pub lower_bound_ns: u64,
    /// The device memory that the work needs with everything resident.
    pub in_core_peak_bytes: u64,
    /// The most device memory that is held at a time.
    pub peak_bytes: u64,
    /// Bytes copied to the device in one iteration.
    pub h2d_bytes: u64,
    /// Bytes copied to the host in one iteration.
    pub d2h_bytes: u64,
    /// The size of the pinned host memory.
    pub host_bytes: u64,
    /// The time of the ops that run on the host.
    pub host_ns: u64,
    /// The number of ops that run on the host.
    pub on_host: u64,
    /// The number of repeats.
    pub repeats: u64,
    /// The part of the peak that neither tensors nor workspaces fill.
    pub waste_bytes: u64,
    /// Time for which the host maps and unmaps memory in one iteration, if the plan maps as it runs.
    /// The period leaves it out.
    pub mapping_ns: u64,
    /// Whether ops run in another order than the graph's: 1 or 0.
    pub reordered: u8,
}

/// The options after they were read.
struct Choices<'o> {
    budget: Option<&'o str>,
    strategy: Strategy,
    placed: bool,
}

impl<'o> Choices<'o> {
    /// # Safety
    /// The condition of [`boundary`].
    unsafe fn read(options: *const PlanOptions) -> Result<Self, Failure> {
        if options.is_null() {
            return Ok(Self { budget: None, strategy: Strategy::default(), placed: true });
        }
        // SAFETY: the caller's promise.
        let (options, budget, strategy) = unsafe {
            let options = given_sized(options, "options")?;
            (options, text(options.budget, "budget")?, text(options.strategy, "strategy")?)
        };
        let strategy = strategy.map_or_else(|| Ok(Strategy::default()), str::parse);
        let strategy = strategy.map_err(|error: SettingError| Failure::argument(error))?;
        Ok(Self { budget, strategy, placed: options.unplaced == 0 })
    }
}

/// Returns the smallest budget with which a graph can be planned for a machine. `options` may be
/// null. Only the strategy in it matters.
///
/// # Safety
/// The pointers are as `spillway.h` requires.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn spillway_graph_min_feasible_bytes(
    graph: *const Graph,
    machine: *const Machine,
    options: *const PlanOptions,
    min_feasible_bytes: *mut u64,
    error: *mut Error,
) -> Code {
    let body = || {
        // SAFETY: the caller's promise.
        let (Graph(graph), Machine(machine), choices, out) = unsafe {
            (
                given(graph, "graph")?,
                given(machine, "machine")?,
                Choices::read(options)?,
                Out::new(min_feasible_bytes, "min_feasible_bytes")?,
            )
        };
        out.put(graph.min_feasible_bytes(machine, &choices.strategy)?);
        Ok(())
    };
    // SAFETY: the caller's promise.
    unsafe { call(error, body) }
}

/// Plans a graph for a machine, and proves the plan. `options` may be null.
///
/// # Safety
/// The pointers are as `spillway.h` requires.
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
        // SAFETY: as above.
        let choices = unsafe { Choices::read(options) }?;
        let mut builder = graph.plan(machine).strategy(choices.strategy).placed(choices.placed);
        if let Some(budget) = choices.budget {
            builder = builder.budget(budget);
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
/// The pointers are as `spillway.h` requires.
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

/// Writes bytes that are made from a plan into a buffer.
///
/// # Safety
/// The condition of [`boundary`].
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
        // SAFETY: as above.
        unsafe { fill(into, capacity, needed, &made(plan)?) }
    };
    // SAFETY: the caller's promise.
    unsafe { call(error, body) }
}

/// Writes the bytes of a plan file into a buffer, and their number into `needed`. If the buffer is
/// too short, writes only the number.
///
/// # Safety
/// The pointers are as `spillway.h` requires.
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

/// Writes a report, one self-contained page of HTML, into a buffer, and its size into `needed`. If
/// the buffer is too short, writes only the size.
///
/// # Safety
/// The pointers are as `spillway.h` requires.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn spillway_plan_report(
    plan: *const Plan,
    into: *mut u8,
    capacity: usize,
    needed: *mut usize,
    error: *mut Error,
) -> Code {
    // SAFETY: the caller's promise.
    unsafe { write(plan, into, capacity, needed, error, |plan| Ok(plan.report().into_bytes())) }
}

/// Writes why a plan maps memory while it runs into a buffer, as text without a zero at its end, and
/// its size into `needed`. The text is empty if the plan does not map while it runs, if the options
/// allowed it (`unplaced`), or if the plan comes from a file. If the buffer is too short, writes only
/// the size.
///
/// # Safety
/// The pointers are as `spillway.h` requires.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn spillway_plan_unplaced(
    plan: *const Plan,
    into: *mut u8,
    capacity: usize,
    needed: *mut usize,
    error: *mut Error,
) -> Code {
    let reason = |plan: &spillway::Plan| {
        let unplaced = plan.context().unplaced;
        Ok(unplaced.map(|reason| reason.to_string().into_bytes()).unwrap_or_default())
    };
    // SAFETY: the caller's promise.
    unsafe { write(plan, into, capacity, needed, error, reason) }
}

/// Makes the same plan with an arena that is laid out after the arena of `earlier`. A switch from
/// `earlier` to the new plan then copies less, since states in both arenas have the same offsets.
/// If the plan's budget is too small for that, the plan is unchanged.
///
/// # Safety
/// The pointers are as `spillway.h` requires.
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

/// Makes a plan of the same work in the same budget for one iteration between two iterations of
/// `other`, such as a prompt between tokens. If possible, the plan ends with all states on the
/// device that `other` holds. Returns the best of `plan` and the plans that are tried: its period
/// and the copies of both switches take the least time together. Plans the work up to twice.
///
/// # Safety
/// The pointers are as `spillway.h` requires.
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

/// Returns the figures of a plan.
///
/// # Safety
/// The pointers are as `spillway.h` requires.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn spillway_plan_figures(
    plan: *const Plan,
    figures: *mut Figures,
    error: *mut Error,
) -> Code {
    let body = || {
        // SAFETY: the caller's promise.
        let Plan(plan) = unsafe { given(plan, "plan") }?;
        let of = plan.figures();
        let made = Figures {
            struct_bytes: size_of::<Figures>(),
            budget_bytes: plan.owned().budget_bytes,
            period_ns: of.period_ns,
            compute_ns: of.compute_ns,
            repeat_ns: of.repeat_ns,
            stall_ns: of.stall_ns,
            lower_bound_ns: plan.lower_bound().period_ns,
            in_core_peak_bytes: plan.context().in_core_peak_bytes,
            peak_bytes: of.peak_bytes,
            h2d_bytes: of.h2d_bytes,
            d2h_bytes: of.d2h_bytes,
            host_bytes: of.host_bytes,
            host_ns: of.host_ns,
            on_host: of.on_host,
            repeats: of.repeats,
            waste_bytes: of.waste_bytes,
            mapping_ns: of.mapping_ns,
            reordered: u8::from(of.reordered),
        };
        // SAFETY: as above.
        unsafe { put_sized(figures, &made, "figures") }?;
        Ok(())
    };
    // SAFETY: the caller's promise.
    unsafe { call(error, body) }
}

/// Frees a plan. Null does nothing.
///
/// # Safety
/// The pointer is as `spillway.h` requires.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn spillway_plan_free(plan: *mut Plan) {
    // SAFETY: the caller's promise.
    unsafe { boundary::free(plan) };
}
