//! A plan that owns its data and is proved.

use crate::addresses::Addresses;
use crate::certificate;
use crate::course::Course;
use crate::error::Error;
use crate::figures::{Bound, Context, Figures};
use crate::graph::Graph;
use crate::names::Names;
use crate::planning::OwnedSchedule;
use crate::proof::{Parts, Proof, Proved};
use crate::report::{Actual, Beside, Measured};
use crate::slab::SlabSwitch;
use crate::switching::SwitchFigures;
use crate::{planning, report, switching, trace};
use planner_core::Verified;
use planner_core::bounds::BoundOrder;
use planner_core::executor::Mappings;
use planner_core::switch::{Capacity, Memory, SwitchPrediction};
use std::path::Path;
use std::sync::Arc;
use workloads::{OwnedCertificate, OwnedMachine, OwnedPlan, format};

/// A proved plan: it is safe in every order that its waits allow, and its prediction is exact.
///
/// [`Graph::plan`] makes a plan; [`Plan::read`] and [`Plan::new`] prove a plan from another source. A clone
/// shares the plan and its proof.
#[derive(Clone, Debug)]
pub struct Plan {
    proof: Arc<Proof>,
    context: Context,
    figures: Figures,
}

impl Plan {
    /// Lowers and proves a plan from another source. Its strategy is only a label.
    ///
    /// # Errors
    /// [`Error::OtherGraph`] or [`Error::OtherMachine`] if the plan names another graph or machine;
    /// [`Error::Invalid`] if it breaks a rule or its prediction is not exact.
    pub fn new(graph: &Graph, machine: &OwnedMachine, plan: OwnedPlan) -> Result<Self, Error> {
        check_names(graph, machine, &plan)?;
        let context = Context::of_plan(graph, machine, &plan)?;
        Self::in_context(graph.clone(), machine.clone(), plan, context)
    }

    /// Lowers and proves a plan with the context that a custom planner gives. Ignores the names in the plan.
    ///
    /// # Errors
    /// [`Error::Invalid`] if the plan breaks a rule or its prediction is not exact.
    pub fn in_context(
        graph: Graph,
        machine: OwnedMachine,
        plan: OwnedPlan,
        context: Context,
    ) -> Result<Self, Error> {
        let proof = Proof::of(graph, machine, plan)?;
        let figures = Figures::of(proof.borrow_dependent());
        Ok(Self { proof: Arc::new(proof), context, figures })
    }

    /// Reads a plan file (`spillway.plan.v1`, compressed if its name ends in `.gz`) and proves the plan.
    ///
    /// # Errors
    /// [`Error::File`] if the file cannot be read or is malformed; the errors of [`Plan::new`].
    pub fn read(
        path: impl AsRef<Path>,
        graph: &Graph,
        machine: &OwnedMachine,
    ) -> Result<Self, Error> {
        let path = path.as_ref();
        let plan = format::read_plan(&format::load(path)?).map_err(|error| error.in_file(path))?;
        Self::new(graph, machine, plan)
    }

    /// Reads a plan from the bytes of a plan file, and proves it.
    ///
    /// # Errors
    /// [`Error::File`] if the bytes are malformed; the errors of [`Plan::new`].
    pub fn from_json(bytes: &[u8], graph: &Graph, machine: &OwnedMachine) -> Result<Self, Error> {
        Self::new(graph, machine, format::read_plan(bytes)?)
    }

    /// The bytes of a plan file (`spillway.plan.v1`).
    #[must_use]
    pub fn to_json(&self) -> Vec<u8> {
        format::write_plan(self.owned())
    }

    /// Writes a plan file whole or not at all, compressed if its name ends in `.gz`.
    ///
    /// # Errors
    /// [`Error::File`] if the file cannot be written.
    pub fn save(&self, path: impl AsRef<Path>) -> Result<(), Error> {
        Ok(format::save(path, &self.to_json())?)
    }

    /// The graph of the plan.
    #[must_use]
    pub fn graph(&self) -> &Graph {
        &self.parts().graph
    }

    /// The machine of the plan.
    #[must_use]
    pub fn machine(&self) -> &OwnedMachine {
        &self.parts().machine
    }

    /// The steps.
    #[must_use]
    pub fn owned(&self) -> &OwnedPlan {
        &self.parts().plan
    }

    /// The waits between the steps.
    #[must_use]
    pub fn schedule(&self) -> &OwnedSchedule {
        &self.parts().schedule
    }

    /// The names for descriptions of its steps and errors.
    #[must_use]
    pub fn names(&self) -> Names<'_> {
        Names::new(self.graph().owned(), &self.owned().steps)
    }

    /// The figures of the plan: its times, its memory and the bytes that it moves.
    #[must_use]
    pub const fn figures(&self) -> &Figures {
        &self.figures
    }

    /// Facts about the work and about the planning of the plan.
    #[must_use]
    pub const fn context(&self) -> &Context {
        &self.context
    }

    /// A lower bound on the period of comparable plans under this budget. It holds for plans with the same
    /// order of the ops, or with any order if this plan reorders them. If this plan has no repeats, it holds
    /// only for plans without repeats.
    #[must_use]
    pub fn lower_bound(&self) -> Bound {
        self.context.bound(&self.figures)
    }

    /// Finds a certificate of a bound that holds for this plan. If this plan runs ops on the host, the bound
    /// holds for plans that run no op there. From then on, [`Plan::lower_bound`] also considers this bound.
    /// Takes about a second at most for some thousands of ops.
    ///
    /// # Errors
    /// [`Error::OutOfMemory`], and [`Error::Certificate`] if the graph has collectives.
    pub fn certify(&mut self) -> Result<OwnedCertificate, Error> {
        let (order, repeats) = match self.figures.on_host {
            0 => self.figures.bounded_by(),
            _ => (BoundOrder::Any, true),
        };
        let (graph, budget_bytes) =
            (self.proof.borrow_owner().graph.owned(), self.owned().budget_bytes);
        let certificate = certificate::find(graph, self.machine(), budget_bytes, (order, repeats))?;
        let period_ns = certificate.bound_ns;
        self.context.certified = Some(Bound { period_ns, order, repeats });
        Ok(certificate)
    }

    /// The plan for an executor.
    #[must_use]
    pub fn verified(&self) -> &Verified<'_> {
        &self.proved().verified
    }

    /// The memory that the plan needs on the device and on the host, for sessions that switch between plans.
    #[must_use]
    pub fn capacity(&self) -> Capacity {
        self.proved().capacity
    }

    /// Counts the mappings of a session that runs only this plan. If the objects are fixed, all mappings are
    /// before the first iteration. O(objects).
    ///
    /// # Errors
    /// [`Error::OutOfMemory`].
    pub fn mappings(&self) -> Result<Mappings, Error> {
        planning::mappings(self.verified())
            .map_err(|error| Error::invalid(&self.names(), error.into()))
    }

    /// Computes the cost of a [switch](crate::Session::switch) from this plan to `next` between two
    /// iterations, ahead of a run. Assumes that `next` has not run before. If tensors have objects smaller
    /// than a chunk, a running session may keep other bytes.
    ///
    /// # Errors
    /// [`Error::States`], [`Error::Switch`], [`Error::OutOfMemory`].
    pub fn switch_to(&self, next: &Self) -> Result<SwitchFigures, Error> {
        let (copies, machine) = (self.copies_to(next)?, &next.machine().machine);
        Ok(SwitchFigures::new(copies, next.mappings()?.set_up(machine), machine))
    }

    /// The copies of [`Plan::switch_to`], without the mapping.
    pub(crate) fn copies_to(&self, next: &Self) -> Result<SwitchPrediction, Error> {
        switching::ahead(self, 0, next, Memory::Chunks, |ahead| Ok(ahead.planned.predicted))
    }

    /// Returns this plan with an arena that follows the layout of `earlier`: states in both arenas have the
    /// same offsets, so that a [switch](crate::Session::switch) leaves them in place. Returns the plan
    /// unchanged if the budget is too small for this layout, or if a switch from `earlier` would then copy
    /// more bytes.
    ///
    /// # Errors
    /// [`Error::States`], [`Error::OutOfMemory`].
    pub fn arranged_after(&self, earlier: &Self) -> Result<Self, Error> {
        let states = switching::shared_states(earlier.graph(), self.graph())?;
        let (from, to) = (earlier.verified(), self.verified());
        let arranged = switching::keep_offsets(from, to, self.owned(), &states)?;
        let Some(plan) = arranged else { return Ok(self.clone()) };
        let (graph, machine) = (self.graph().clone(), self.machine().clone());
        let arranged = Self::in_context(graph, machine, plan, self.context.clone())?;
        let copied_bytes = |to: &Self| match earlier.copies_to(to) {
            Ok(switch) => Ok(u128::from(switch.h2d_bytes) + u128::from(switch.d2h_bytes)),
            Err(error @ Error::OutOfMemory(_)) => Err(error),
            // No switch is possible.
            Err(_) => Ok(u128::MAX),
        };
        let copies_more = copied_bytes(&arranged)? > copied_bytes(self)?;
        Ok(if copies_more { self.clone() } else { arranged })
    }

    fn parts(&self) -> &Parts {
        self.proof.borrow_owner()
    }

    fn proved(&self) -> &Proved<'_> {
        self.proof.borrow_dependent()
    }

    /// Computes the addresses of the plan in one allocation of device memory, for runtimes that map nothing.
    /// O((steps + operands) × objects of a tensor).
    ///
    /// # Errors
    /// [`Error::NotPlaced`] if the plan does not fix its objects; [`Error::OutOfMemory`].
    pub fn addresses(&self) -> Result<Addresses, Error> {
        Addresses::of(self.verified())
    }

    /// Computes the copies of a switch from this plan to `next`, after a number of iterations, if both plans
    /// lie in one slab, each at its [addresses](Self::addresses). Bytes that both plans hold at the same
    /// offset stay; [`arranged_after`](Self::arranged_after) finds such offsets for states in the arena.
    ///
    /// # Errors
    /// The errors of [`Plan::switch_to`]; [`Error::NotPlaced`] if a plan does not fix its objects.
    pub fn slab_switch_to(&self, iterations: u64, next: &Self) -> Result<SlabSwitch, Error> {
        SlabSwitch::between(self, iterations, next)
    }

    /// Renders a report: one self-contained page of HTML.
    #[must_use]
    pub fn report(&self) -> String {
        report::render(self.proved(), &self.course(), &self.context, &[], None)
    }

    /// Renders a report that also shows plans for other budgets, or measured times of this plan.
    ///
    /// # Errors
    /// [`Error::Measured`] if the times do not come from a run of the plan.
    pub fn report_beside(&self, beside: &Beside) -> Result<String, Error> {
        let proved = self.proved();
        let measured = beside.actual.as_ref().map(|actual| Measured::of(proved, actual));
        let measured = measured.transpose()?.flatten();
        let (course, curve) = (self.course(), &beside.curve);
        Ok(report::render(proved, &course, &self.context, curve, measured.as_ref()))
    }

    /// Draws one iteration as a separate SVG image: the streams, and device memory by content.
    #[must_use]
    pub fn picture(&self) -> String {
        report::picture::render(self.proved(), &self.course(), &self.context)
    }

    /// Renders the predicted timeline of four iterations as JSON, for Perfetto or Chrome's tracing page.
    #[must_use]
    pub fn trace(&self) -> Vec<u8> {
        trace::render(self.proved(), &self.course(), None)
    }

    /// Renders the same trace with tracks of the measured times.
    ///
    /// # Errors
    /// [`Error::Measured`] if the times do not come from a run of the plan.
    pub fn trace_beside(&self, actual: &Actual) -> Result<Vec<u8>, Error> {
        let measured = Measured::of(self.proved(), actual)?;
        Ok(trace::render(self.proved(), &self.course(), measured.as_ref()))
    }

    fn course(&self) -> Course {
        Course::of(self.verified())
    }

    /// Returns the graph, the machine, the steps and the waits of the plan by value.
    #[must_use]
    pub fn into_parts(self) -> Parts {
        Arc::try_unwrap(self.proof)
            .map_or_else(|shared| shared.borrow_owner().clone(), Proof::into_owner)
    }
}

/// Checks that a plan names this graph and this machine.
fn check_names(graph: &Graph, machine: &OwnedMachine, plan: &OwnedPlan) -> Result<(), Error> {
    if plan.graph != graph.name() {
        let (planned, given) = (plan.graph.clone(), graph.name().to_owned());
        return Err(Error::OtherGraph { planned, given });
    }
    if plan.machine != machine.name {
        let (planned, given) = (plan.machine.clone(), machine.name.clone());
        return Err(Error::OtherMachine { planned, given });
    }
    Ok(())
}
