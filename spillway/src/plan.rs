//! A plan that owns its data and is proved.

use crate::addresses::Addresses;
use crate::certificate;
use crate::course::Course;
use crate::error::Error;
use crate::figures::{Bound, Context, Figures, Needs};
use crate::graph::Graph;
use crate::names::Names;
use crate::planning::OwnedSchedule;
use crate::proof::{self, Proved};
use crate::report::{Actual, Beside, Measured};
use crate::slab::SlabSwitch;
use crate::strategy::Strategy;
use crate::switching::SwitchFigures;
use crate::{planning, report, switching, trace};
use planner_core::Verified;
use planner_core::bounds::BoundOrder;
use planner_core::executor::Mappings;
use planner_core::planner::Request;
use planner_core::switch::{Capacity, Memory, SwitchPrediction};
use std::path::Path;
use workloads::{OwnedCertificate, OwnedMachine, OwnedPlan, format};

/// A plan that was proved: it is safe in every order that its waits allow, and its prediction
/// is exact.
///
/// [`Graph::plan`] makes one; [`Plan::read`] and [`Plan::new`] prove one that comes from
/// elsewhere.
#[derive(Clone, Debug)]
pub struct Plan {
    graph: Graph,
    machine: OwnedMachine,
    plan: OwnedPlan,
    schedule: OwnedSchedule,
    context: Context,
    figures: Figures,
}

/// What a [`Plan`] is made of.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Parts {
    /// The graph that it runs.
    pub graph: Graph,
    /// The machine that it is for.
    pub machine: OwnedMachine,
    /// The steps.
    pub plan: OwnedPlan,
    /// The waits between the steps.
    pub schedule: OwnedSchedule,
}

impl Plan {
    /// Lowers and proves a plan that something else made. Its strategy is only a label.
    ///
    /// # Errors
    /// [`Error::OtherGraph`] or [`Error::OtherMachine`] where it names another one;
    /// [`Error::Invalid`] where it breaks a rule or its prediction is not exact.
    pub fn new(graph: &Graph, machine: &OwnedMachine, plan: OwnedPlan) -> Result<Self, Error> {
        check_names(graph, machine, &plan)?;
        let (core, on) = (graph.graph(), &machine.machine);
        let request = Request { graph: &core, machine: on, budget_bytes: on.device_bytes };
        let least = |strategy: Strategy| strategy.min_feasible(&request).ok();
        let least = Strategy::named(&plan.strategy).and_then(least).map(|(bytes, _)| bytes);
        let work = graph.owned();
        let needs = Needs::of(&core, on, least)
            .map_err(|error| Error::planning(&Names::new(work, &[]), error, on.device_bytes))?;
        let context = Context::new(work, machine, &plan.strategy, plan.budget_bytes, needs)?;
        Self::in_context(graph.clone(), machine.clone(), plan, context)
    }

    /// Lowers and proves a plan of which its planner knows more, for custom planners. The
    /// names in the plan are not looked at.
    ///
    /// # Errors
    /// [`Error::Invalid`] where it breaks a rule or its prediction is not exact.
    pub fn in_context(
        graph: Graph,
        machine: OwnedMachine,
        plan: OwnedPlan,
        context: Context,
    ) -> Result<Self, Error> {
        let schedule = proof::lower(graph.owned(), &machine, &plan)?;
        let figures = Figures::of(&proof::prove(graph.owned(), &machine, &plan, &schedule)?);
        Ok(Self { graph, machine, plan, schedule, context, figures })
    }

    /// Reads a plan file (`spillway.plan.v1`, compressed where its name ends in `.gz`) and proves
    /// the plan.
    ///
    /// # Errors
    /// [`Error::File`] where it cannot be read or is malformed; those of [`Plan::new`].
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
    /// [`Error::File`] where the bytes are malformed; those of [`Plan::new`].
    pub fn from_json(bytes: &[u8], graph: &Graph, machine: &OwnedMachine) -> Result<Self, Error> {
        Self::new(graph, machine, format::read_plan(bytes)?)
    }

    /// The bytes of a plan file (`spillway.plan.v1`).
    #[must_use]
    pub fn to_json(&self) -> Vec<u8> {
        format::write_plan(&self.plan)
    }

    /// Writes a plan file whole or not at all, compressed where its name ends in `.gz`.
    ///
    /// # Errors
    /// [`Error::File`]: it cannot be written.
    pub fn save(&self, path: impl AsRef<Path>) -> Result<(), Error> {
        Ok(format::save(path, &self.to_json())?)
    }

    /// The graph that it runs.
    #[must_use]
    pub const fn graph(&self) -> &Graph {
        &self.graph
    }

    /// The machine that it is for.
    #[must_use]
    pub const fn machine(&self) -> &OwnedMachine {
        &self.machine
    }

    /// The steps.
    #[must_use]
    pub const fn owned(&self) -> &OwnedPlan {
        &self.plan
    }

    /// The waits between the steps.
    #[must_use]
    pub const fn schedule(&self) -> &OwnedSchedule {
        &self.schedule
    }

    /// The names by which to speak of its steps and errors.
    #[must_use]
    pub fn names(&self) -> Names<'_> {
        Names::new(self.graph.owned(), &self.plan.steps)
    }

    /// What it holds, moves and takes.
    #[must_use]
    pub const fn figures(&self) -> &Figures {
        &self.figures
    }

    /// What is known of the work and of how it was planned.
    #[must_use]
    pub const fn context(&self) -> &Context {
        &self.context
    }

    /// A period that no plan can beat under this budget: none in the same order of the ops, or none
    /// in any where this plan reorders them; and where this plan repeats no op, none that runs each
    /// op once.
    #[must_use]
    pub fn lower_bound(&self) -> Bound {
        self.context.bound(&self.figures)
    }

    /// Finds a certificate of a bound that holds for this plan, or, if it runs ops on the host, for the
    /// plans that run none there. From then on, [`Plan::lower_bound`] is the better of this bound and those that are
    /// known anyway. Takes about a second at most for some thousands of ops.
    ///
    /// # Errors
    /// [`Error::OutOfMemory`].
    pub fn certify(&mut self) -> Result<OwnedCertificate, Error> {
        let (order, repeats) = match self.figures.on_host {
            0 => self.figures.bounded_by(),
            _ => (BoundOrder::Any, true),
        };
        let (graph, budget_bytes) = (self.graph.owned(), self.plan.budget_bytes);
        let certificate = certificate::find(graph, &self.machine, budget_bytes, (order, repeats))?;
        let period_ns = certificate.bound_ns;
        self.context.certified = Some(Bound { period_ns, order, repeats });
        Ok(certificate)
    }

    /// The plan as an executor takes it. It is proved again, since the core's proof borrows the
    /// data. O((steps + operands) log steps).
    ///
    /// # Errors
    /// [`Error::OutOfMemory`].
    pub fn verified(&self) -> Result<Verified<'_>, Error> {
        Ok(self.proved()?.verified)
    }

    /// The memory that it needs on the device and on the host, for sessions that switch between
    /// plans.
    ///
    /// # Errors
    /// [`Error::OutOfMemory`].
    pub fn capacity(&self) -> Result<Capacity, Error> {
        switching::capacity(&self.verified()?)
            .map_err(|error| Error::invalid(&self.names(), error.into()))
    }

    /// What a session maps for it on a device of its own, before the first iteration if its objects are
    /// fixed. O(objects).
    ///
    /// # Errors
    /// [`Error::OutOfMemory`].
    pub fn mappings(&self) -> Result<Mappings, Error> {
        planning::mappings(&self.verified()?)
            .map_err(|error| Error::invalid(&self.names(), error.into()))
    }

    /// What a [switch](crate::Session::switch) from this plan to `next` costs between two iterations,
    /// ahead of a run, if `next` has not run before. Where tensors have objects smaller than a
    /// chunk, a running session may keep other bytes.
    ///
    /// # Errors
    /// [`Error::States`], [`Error::Switch`], [`Error::OutOfMemory`].
    pub fn switch_to(&self, next: &Self) -> Result<SwitchFigures, Error> {
        let (copies, machine) = (self.copies_to(next)?, &next.machine.machine);
        Ok(SwitchFigures::new(copies, next.mappings()?.set_up(machine), machine))
    }

    /// The part of [`Plan::switch_to`] that is no mapping.
    pub(crate) fn copies_to(&self, next: &Self) -> Result<SwitchPrediction, Error> {
        switching::ahead(self, 0, next, Memory::Chunks, |ahead| Ok(ahead.planned.predicted))
    }

    /// The same plan with its arena laid out after that of `earlier`: states in both arenas have the same
    /// offsets, so that a [switch](crate::Session::switch) leaves them where they are. The plan as it is
    /// if the budget is too small for that, or if a switch from `earlier` would copy more bytes.
    ///
    /// # Errors
    /// [`Error::States`], [`Error::OutOfMemory`].
    pub fn arranged_after(&self, earlier: &Self) -> Result<Self, Error> {
        let states = switching::shared_states(&earlier.graph, &self.graph)?;
        let arranged = {
            let (from, to) = (earlier.verified()?, self.verified()?);
            switching::keep_offsets(&from, &to, &self.plan, &states)?
        };
        let Some(plan) = arranged else { return Ok(self.clone()) };
        let arranged =
            Self::in_context(self.graph.clone(), self.machine.clone(), plan, self.context.clone())?;
        let copied_bytes = |to: &Self| match earlier.copies_to(to) {
            Ok(switch) => Ok(u128::from(switch.h2d_bytes) + u128::from(switch.d2h_bytes)),
            Err(error @ Error::OutOfMemory(_)) => Err(error),
            // There is no such switch.
            Err(_) => Ok(u128::MAX),
        };
        let copies_more = copied_bytes(&arranged)? > copied_bytes(self)?;
        Ok(if copies_more { self.clone() } else { arranged })
    }

    fn proved(&self) -> Result<Proved<'_>, Error> {
        proof::prove(self.graph.owned(), &self.machine, &self.plan, &self.schedule)
    }

    /// Where everything lies in one allocation of device memory, for runtimes that map nothing.
    /// O((steps + operands) × objects of a tensor).
    ///
    /// # Errors
    /// [`Error::NotPlaced`] where the plan does not fix its objects; [`Error::OutOfMemory`].
    pub fn addresses(&self) -> Result<Addresses, Error> {
        Addresses::of(&self.verified()?)
    }

    /// The copies of a switch from this plan, after so many iterations, to `next`, if both lie in one
    /// slab, each at its [addresses](Self::addresses). Bytes that both hold at the same offset stay;
    /// [`arranged_after`](Self::arranged_after) finds such offsets for states in the arena.
    ///
    /// # Errors
    /// Those of [`Plan::switch_to`]; [`Error::NotPlaced`] where a plan does not fix its objects.
    pub fn slab_switch_to(&self, iterations: u64, next: &Self) -> Result<SlabSwitch, Error> {
        SlabSwitch::between(self, iterations, next)
    }

    /// A report: one self-contained page of HTML.
    ///
    /// # Errors
    /// [`Error::OutOfMemory`].
    pub fn report(&self) -> Result<String, Error> {
        self.report_beside(&Beside::default())
    }

    /// A report that also shows plans for other budgets, or how this plan ran.
    ///
    /// # Errors
    /// [`Error::Measured`] where the times are not those of a run; [`Error::OutOfMemory`].
    pub fn report_beside(&self, beside: &Beside) -> Result<String, Error> {
        let proved = self.proved()?;
        let measured = beside.actual.as_ref().map(|actual| Measured::of(&proved, actual));
        let measured = measured.transpose()?.flatten();
        let course = self.course(&proved)?;
        Ok(report::render(&proved, &course, &self.context, &beside.curve, measured.as_ref()))
    }

    /// One iteration as an SVG image of its own: the three streams, and device memory by what it
    /// holds.
    ///
    /// # Errors
    /// [`Error::OutOfMemory`].
    pub fn picture(&self) -> Result<String, Error> {
        let proved = self.proved()?;
        Ok(report::picture::render(&proved, &self.course(&proved)?, &self.context))
    }

    /// The predicted timeline of four iterations as JSON, for Perfetto or Chrome's tracing page.
    ///
    /// # Errors
    /// [`Error::OutOfMemory`].
    pub fn trace(&self) -> Result<Vec<u8>, Error> {
        let proved = self.proved()?;
        Ok(trace::render(&proved, &self.course(&proved)?, None))
    }

    /// The same with tracks of how the plan ran.
    ///
    /// # Errors
    /// [`Error::Measured`] where the times are not those of a run; [`Error::OutOfMemory`].
    pub fn trace_beside(&self, actual: &Actual) -> Result<Vec<u8>, Error> {
        let proved = self.proved()?;
        let measured = Measured::of(&proved, actual)?;
        Ok(trace::render(&proved, &self.course(&proved)?, measured.as_ref()))
    }

    fn course(&self, proved: &Proved<'_>) -> Result<Course, Error> {
        Course::of(&proved.verified).map_err(|error| Error::invalid(&self.names(), error.into()))
    }

    /// What it is made of, by value.
    #[must_use]
    pub fn into_parts(self) -> Parts {
        let Self { graph, machine, plan, schedule, .. } = self;
        Parts { graph, machine, plan, schedule }
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
