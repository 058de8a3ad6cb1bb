//! Plans training steps and tokens of large decoders, and compares the plans with other ways to run
//! them. Writes a page in Markdown, and a picture of the same name beside it. In the folder
//! `research` beside the page, writes a page of the same name about published figures and smaller budgets.
//!
//!     cargo run --release -p spillway-benches --example large-models -- docs/large-models.md
//!
//! With `serving` in place of the page, prints the table of `docs/research/serving.md`.

mod picture;
mod published;
mod serving;
mod tokens;
mod training;

use conformance::by_hand;
use planner_core::bounds;
use planner_core::planner::{Auto, Groups, Host, Request, Strategy};
use spillway::figures::{Context, Needs};
use spillway::{Graph, OwnedGraph, OwnedMachine, Plan, certificate, machines, placing, planning};
use std::error::Error;
use std::path::PathBuf;
use std::time::Instant;
use zoo::models;

type Done<T> = Result<T, Box<dyn Error + Send + Sync>>;

const AUTO: Strategy = auto(Host::Allowed);

const fn auto(host: Host) -> Strategy {
    Strategy::Auto(Auto::new().with_host(host))
}

fn main() -> Done<()> {
    let page =
        std::env::args().nth(1).ok_or("usage: large-models PAGE, or large-models serving")?;
    if page == "serving" {
        return serving::print();
    }
    let page = PathBuf::from(page);
    let started = Instant::now();
    let mut text = include_str!("page.md").to_owned();
    let curve = picture::curve()?;
    picture::draw(&page.with_extension("svg"), &curve)?;
    let mut research = String::new();
    published::tables(&mut research)?;
    training::table(&mut text, &mut research)?;
    tokens::table(&mut research)?;
    let name = page.file_name().ok_or("the page is a folder")?;
    std::fs::write(page.with_file_name("research").join(name), research)?;
    eprintln!("{:.0} s in all", started.elapsed().as_secs_f64());
    Ok(std::fs::write(page, text)?)
}

/// A built-in machine, with the speeds on both sides of its link.
#[derive(Clone, Copy)]
struct Card {
    machine: &'static str,
    /// The device's arithmetic and memory speeds, as a model spec has them.
    speeds: &'static str,
    /// The speed of the host's memory.
    host_gb_s: u64,
}

/// The vendor's peak for dense products of bfloat16 with sums in float32, and nine tenths of the
/// nominal speed of its memory.
const LAPTOP: Card =
    Card { machine: "laptop-8gb", speeds: "tflops=30,memory_gb_s=230", host_gb_s: 50 };
const RTX_4090: Card =
    Card { machine: "rtx4090", speeds: "tflops=165,memory_gb_s=900", host_gb_s: 60 };
const RTX_5090: Card =
    Card { machine: "rtx5090", speeds: "tflops=209.5,memory_gb_s=1600", host_gb_s: 80 };
const GH200: Card =
    Card { machine: "gh200", speeds: "tflops=989,memory_gb_s=3600", host_gb_s: 350 };

impl Card {
    /// The machine, with at least this much host memory.
    fn machine(&self, host_gb: u64) -> Done<OwnedMachine> {
        let built_in = machines::builtin(self.machine).ok_or("no such machine")?;
        let host_bytes = built_in.machine.host_bytes.max(host_gb * 1_000_000_000);
        let machine = built_in.machine.with_host_bytes(host_bytes);
        Ok(built_in.with_machine(machine))
    }

    /// A decoder on this card. With `on_host`, its updates may run on the host.
    fn work(&self, spec: &str, on_host: bool) -> Done<OwnedGraph> {
        let host = if on_host { format!(",host_gb_s={}", self.host_gb_s) } else { String::new() };
        Ok(models::generate(&format!("llama:{spec},{}{host}", self.speeds))?)
    }
}

/// A proved plan. `None` if the strategy has no plan in this memory. An error if a plan of `auto` maps memory as
/// it runs, since predictions leave out the time of mapping.
fn plan(
    work: &OwnedGraph,
    machine: &OwnedMachine,
    budget_bytes: u64,
    strategy: Strategy,
) -> Done<Option<Plan>> {
    let started = Instant::now();
    let graph = Graph::new(work.clone())?;
    let core = graph.graph();
    let request = Request { graph: &core, machine: &machine.machine, budget_bytes };
    let name = strategy.name();
    let planned = placing::plan(&request, strategy);
    let took_s = started.elapsed().as_secs_f64();
    let (plan, unplaced) = match planned {
        Ok(planned) => planned,
        Err(error) => {
            eprintln!("{} with {budget_bytes} B by {name}: {error:?}", work.name);
            return Ok(None);
        }
    };
    eprintln!(
        "{} with {budget_bytes} B by {name}: {} ns by {} after {took_s:.1} s",
        work.name, plan.predicted.period_ns, plan.strategy
    );
    if let (Strategy::Auto(_), Some(reason)) = (strategy, unplaced) {
        return Err(
            format!("{} with {budget_bytes} B is mapped as it runs: {reason}", work.name).into()
        );
    }
    let needs = Needs::of(&core, &machine.machine, None)?;
    let context = Context::new(work, machine, name, budget_bytes, needs)?;
    Ok(Some(Plan::in_context(graph, machine.clone(), plan, context)?))
}

fn period_ns(
    work: &OwnedGraph,
    machine: &OwnedMachine,
    budget_bytes: u64,
    strategy: Strategy,
) -> Done<Option<u64>> {
    let plan = plan(work, machine, budget_bytes, strategy)?;
    Ok(plan.map(|plan| plan.figures().period_ns))
}

/// The periods of the ways to run a training step, and a bound for the device alone.
struct Ways {
    compute_ns: u64,
    /// Checkpointing in the model. The states that do not fit are streamed one op ahead.
    streamed: Option<u64>,
    /// Checkpointing in the model, and the transfers of `auto`.
    by_hand: Option<u64>,
    /// All ops on the device.
    auto: Option<u64>,
    bound: Option<u64>,
    /// All updates on the host.
    zero_offload: Option<u64>,
    /// Updates on the host or the device.
    auto_with_host: Option<u64>,
}

impl Ways {
    fn of(
        [work, hosted]: [&OwnedGraph; 2],
        machine: &OwnedMachine,
        budget_bytes: u64,
    ) -> Done<Self> {
        let by_hand = by_hand::checkpointed(work);
        let period_ns = |work, strategy| period_ns(work, machine, budget_bytes, strategy);
        let in_model = || -> Done<_> {
            let groups = period_ns(&by_hand, Strategy::Groups(Groups::default()))?;
            let fit = period_ns(&by_hand, Strategy::Fit)?;
            Ok((groups.into_iter().chain(fit).min(), period_ns(&by_hand, AUTO)?))
        };
        std::thread::scope(|scope| {
            let in_model = scope.spawn(in_model);
            let auto = plan(work, machine, budget_bytes, AUTO)?;
            let kind = (bounds::BoundOrder::Any, true);
            let bound = certificate::find(work, machine, budget_bytes, kind)?.bound_ns;
            let zero_offload = period_ns(hosted, Strategy::OptimizerOffload)?;
            let auto_with_host = period_ns(hosted, AUTO)?;
            let (streamed, by_hand) = in_model.join().map_err(|_| "a planner panicked")??;
            Ok(Self {
                compute_ns: work.graph()?.compute_ns(),
                streamed,
                by_hand,
                bound: auto.as_ref().map(|_| bound),
                auto: auto.map(|plan| plan.figures().period_ns),
                zero_offload,
                auto_with_host,
            })
        })
    }

    fn over_compute(&self, period_ns: Option<u64>) -> String {
        let ratio = |ns| format!("{:.2}", ns as f64 / self.compute_ns as f64);
        period_ns.map_or_else(|| "–".to_owned(), ratio)
    }
}

/// The least memory in which `auto` has a plan.
fn least_bytes(work: &OwnedGraph, machine: &OwnedMachine) -> Done<u64> {
    let graph = work.graph()?;
    let budget_bytes = machine.machine.device_bytes;
    let request = Request { graph: &graph, machine: &machine.machine, budget_bytes };
    Ok(planning::min_feasible(&request, AUTO)?.0)
}
