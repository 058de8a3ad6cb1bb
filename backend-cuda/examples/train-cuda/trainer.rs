//! What is trained where, the ways of doing it, and the plans for them.

use crate::model::Model;
use crate::settings::{Given, Settings};
use crate::text::Text;
use crate::training::{Bench, Trained, Way, train};
use backend_cuda::{Cuda, DeviceInfo, Measurement, Options};
use planner_core::Machine;
use planner_core::planner::{Auto, Request, Strategy};
use spillway::placing::{self, Unplaced};
use spillway::planning;
use std::error::Error;
use workloads::OwnedPlan;

/// Iterations from which the times of ops are taken.
const TIMED: u64 = 5;

/// A device, and what is asked for.
#[derive(Debug)]
pub(crate) struct Trainer {
    cuda: Cuda,
    pub(crate) info: DeviceInfo,
    pub(crate) text: Text,
    pub(crate) settings: Settings,
    pub(crate) machine: Machine,
}

/// Memory, and the strategy that is to do with it.
pub(crate) type Budget = (u64, Strategy);

/// A way of training.
#[derive(Debug)]
pub(crate) struct Planned {
    pub(crate) name: &'static str,
    pub(crate) plan: OwnedPlan,
    pub(crate) way: Way,
}

impl Trainer {
    pub(crate) fn new(cuda: Cuda, text: Text, settings: Settings) -> Result<Self, Box<dyn Error>> {
        let options = Options { ordinal: settings.device, chunk_bytes: None };
        let info = cuda.device(settings.device)?;
        let machine = match settings.machine {
            Some(Given::File(machine)) => machine,
            Some(Given::Builtin(links)) => Machine::new(
                (*links)
                    .with_device_bytes(info.free_bytes)
                    .with_host_bytes(cuda.pinnable_bytes(settings.device)?)
                    .with_chunk_bytes(info.granularity_bytes),
            )?,
            None => {
                let measurement = Measurement { options, host_bytes: None };
                cuda.measure(&measurement, |_, _| ())?.machine
            }
        };
        Ok(Self { cuda, info, text, settings, machine })
    }

    /// What training takes with everything resident.
    pub(crate) fn in_core(&self, model: &Model) -> Result<Budget, Box<dyn Error>> {
        let graph = model.graph.graph()?;
        let request = Request { graph: &graph, machine: &self.machine, budget_bytes: 0 };
        let (need_bytes, _) = planning::min_feasible(&request, Strategy::InCore)?;
        Ok((need_bytes, Strategy::InCore))
    }

    /// The share of it that is asked for.
    fn spilled(&self, (need_bytes, _): Budget) -> Budget {
        (need_bytes * self.settings.budget_percent / 100, Strategy::Auto(Auto::default()))
    }

    fn fits(&self, (budget_bytes, _): Budget) -> bool {
        budget_bytes <= self.machine.device_bytes.min(self.info.free_bytes)
    }

    pub(crate) fn plan(
        &self,
        model: &Model,
        (budget_bytes, strategy): Budget,
    ) -> Result<(OwnedPlan, Option<Unplaced>), Box<dyn Error>> {
        let graph = model.graph.graph()?;
        let request = Request { graph: &graph, machine: &self.machine, budget_bytes };
        Ok(placing::plan(&request, strategy)?)
    }

    pub(crate) fn train(
        &self,
        model: &Model,
        plan: &OwnedPlan,
        way: Way,
        iterations: u64,
    ) -> Result<Trained, Box<dyn Error>> {
        let Self { cuda, text, settings, machine, .. } = self;
        let (products, chunk_bytes) = (settings.products, Some(machine.chunk_bytes));
        let options = Options { ordinal: settings.device, chunk_bytes };
        let bench = Bench { cuda, options, machine: *machine, model, text, products };
        train(&bench, plan, way, iterations)
    }

    /// Takes the time of each op, for the planner: in-core, if that fits.
    pub(crate) fn take_times(&self, model: &mut Model) -> Result<Trained, Box<dyn Error>> {
        let in_core = self.in_core(model)?;
        let budget = if self.fits(in_core) { in_core } else { self.spilled(in_core) };
        let (plan, _) = self.plan(model, budget)?;
        let timed = self.train(model, &plan, Way::Timed, model.sizes.iterations.min(TIMED))?;
        for (op, &time_ns) in model.graph.ops.iter_mut().zip(&timed.times_ns) {
            op.time_ns = time_ns;
        }
        Ok(timed)
    }

    /// The ways of training that are available, and why others are not.
    pub(crate) fn ways(
        &self,
        model: &Model,
    ) -> Result<(Vec<Planned>, Vec<String>), Box<dyn Error>> {
        let (mut ways, mut others) = (Vec::new(), Vec::new());
        let in_core = self.in_core(model)?;
        if self.fits(in_core) {
            let (plan, _) = self.plan(model, in_core)?;
            ways.push(Planned { name: "in-core", plan, way: Way::Eager });
        } else {
            let free_bytes = self.machine.device_bytes.min(self.info.free_bytes);
            others.push(format!("in-core is not run: {free_bytes} bytes of memory are free"));
        }
        let (plan, unplaced) = self.plan(model, self.spilled(in_core))?;
        ways.push(Planned { name: "spilled", plan: plan.clone(), way: Way::Eager });
        match unplaced {
            None => ways.push(Planned { name: "spilled, as graphs", plan, way: Way::Graphs }),
            Some(reason) => others.push(format!("spilled as graphs is not run: {reason}")),
        }
        Ok((ways, others))
    }
}
