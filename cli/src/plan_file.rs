//! Reads plan files, and checks that they are for the given work and machine.

use crate::failure::Failure;
use crate::figures::Figures;
use crate::machine;
use spillway::figures::Context;
use spillway::{Graph, Plan};
use std::path::Path;
use workloads::{OwnedMachine, OwnedPlan, Shown, format, machines};

/// Checks that work and plan are not both standard input.
pub(crate) fn check_inputs(work: &str, plan: &Path) -> Result<(), Failure> {
    if work == "-" && plan == Path::new("-") {
        return Err(Failure::bad_input("only one of WORK and PLAN can be standard input"));
    }
    Ok(())
}

/// Reads a plan and checks its form only.
pub(crate) fn load(path: &Path) -> Result<OwnedPlan, Failure> {
    let bytes = format::load(path).map_err(|error| Failure::reading(&error))?;
    format::read_plan(&bytes).map_err(|error| Failure::reading(&error.in_file(path)))
}

/// The given machine, else the built-in machine that a plan or a certificate names, else the
/// machine in the chain file, else the default. A machine in the chain file comes before a built-in
/// machine of the same name.
pub(crate) fn machine_for(
    named: &str,
    given: Option<&str>,
    own: Option<OwnedMachine>,
) -> Result<OwnedMachine, Failure> {
    let of_work = own.as_ref().is_some_and(|own| own.name == named);
    match (given, machines::builtin(named)) {
        (None, Some(builtin)) if !of_work => Ok(builtin),
        _ => machine::choose(given, own),
    }
}

/// Proves a plan from a file. Returns the figures, and the proved plan or the reason why the plan
/// is invalid.
///
/// # Errors
/// The program runs out of memory.
pub(crate) fn prove(
    graph: &Graph,
    machine: &OwnedMachine,
    plan: OwnedPlan,
) -> Result<(Figures, Result<Plan, String>), Failure> {
    let context = Context::of_plan(graph, machine, &plan)
        .map_err(|error| Failure::cannot(error.to_string()))?;
    let proved = check_names(&plan, graph.name(), &machine.name).and_then(|()| {
        Plan::in_context(graph.clone(), machine.clone(), plan, context.clone())
            .map_err(|error| error.to_string())
    });
    let figures = proved.as_ref().map_or_else(|_| Figures::new(context), Figures::of);
    Ok((figures, proved))
}

/// Checks that a plan names this work and this machine. The error says what differs.
fn check_names(plan: &OwnedPlan, graph: &str, machine: &str) -> Result<(), String> {
    if plan.graph != graph {
        let (planned, given) = (Shown::name(&plan.graph), Shown::name(graph));
        return Err(format!("the plan is for the graph {planned:?}, but the graph is {given:?}"));
    }
    if plan.machine != machine {
        let (planned, given) = (Shown::name(&plan.machine), Shown::name(machine));
        return Err(format!(
            "the plan is for the machine {planned:?}, but the machine is {given:?}; name the \
             plan's machine with --machine"
        ));
    }
    Ok(())
}
