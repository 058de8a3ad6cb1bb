//! Plans are made within budgets, kept in files, and proved whoever made them.
#![allow(clippy::unwrap_used, reason = "what fails here fails the test")]

use serde_json::Value;
use spillway::figures::{Bound, Figures};
use spillway::planner_core::bounds::BoundOrder;
use spillway::planner_core::plan::{Part, Pool, Prediction, Resident};
use spillway::planner_core::planner::Strategy as CoreStrategy;
use spillway::planner_core::{OpId, PlanError, Step, VerifyError};
use spillway::strategy::{Auto, Lms, Swap, Weights, Window};
use spillway::{
    Budget, Error, Graph, GraphBuilder, OwnedMachine, OwnedPlan, Plan, Prepared, Strategy, machines,
};
use spillway::{summary, units};
use std::path::PathBuf;
use workloads::OwnedChain;

const MIB: u64 = 1 << 20;

fn machine() -> OwnedMachine {
    machines::builtin("v100-pcie3").unwrap()
}

/// A training step of some layers, each with a weight of 16 MiB and activations of 8 MiB.
fn step() -> Graph {
    const LAYERS: usize = 4;
    let mut graph = GraphBuilder::new("step");
    let mut last = graph.input("x", 8 * MIB);
    let weights: Vec<_> = (0..LAYERS).map(|i| graph.state(format!("w{i}"), 16 * MIB)).collect();
    let mut saved = Vec::new();
    for (i, &weight) in weights.iter().enumerate() {
        let next = graph.temporary(format!("h{i}"), 8 * MIB);
        graph.op(format!("forward {i}"), 2_000_000).reads([last, weight]).writes([next]);
        saved.push(last);
        last = next;
    }
    for (i, &weight) in weights.iter().enumerate().rev() {
        let next = graph.temporary(format!("g{i}"), 8 * MIB);
        let op = graph.op(format!("backward {i}"), 4_000_000).workspace_bytes(2 * MIB);
        op.reads([last, saved[i], weight]).writes([weight, next]);
        last = next;
    }
    graph.build().unwrap()
}

/// A list in which `auto` tries few plans.
const QUICK: Auto = Auto::new().with_effort(2);

fn planned() -> (Graph, Plan) {
    let graph = step();
    let plan = graph.plan(&machine()).budget("60%").strategy(QUICK).run().unwrap();
    (graph, plan)
}

/// A file that goes away with the test.
struct File(PathBuf);

impl File {
    fn new(name: &str) -> Self {
        Self(std::env::temp_dir().join(format!("spillway-{}-{name}", std::process::id())))
    }
}

impl Drop for File {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.0);
    }
}

fn budget_bytes(budget: Budget) -> u64 {
    let plan = step().plan(&machine()).budget(budget).strategy(QUICK).run().unwrap();
    assert!(plan.figures().peak_bytes <= plan.owned().budget_bytes);
    assert_eq!(plan.owned().budget_bytes, plan.context().budget_bytes);
    plan.owned().budget_bytes
}

#[test]
fn budgets_are_bytes_shares_or_the_least() {
    let (_, plan) = planned();
    let in_core = plan.context().in_core_peak_bytes;
    assert_eq!(plan.owned().budget_bytes, in_core * 60 / 100);
    assert_eq!(budget_bytes(Budget::Bytes(80 * MIB)), 80 * MIB);
    assert_eq!(budget_bytes("0.5GiB".parse().unwrap()), 512 * MIB);
    let least = plan.context().min_feasible_bytes.unwrap();
    assert_eq!(budget_bytes(Budget::Min), least);
    let graph = step();
    let in_bytes = graph.plan(&machine()).budget(80 << 20).strategy(QUICK).run().unwrap();
    assert_eq!(in_bytes.owned().budget_bytes, 80 * MIB);
    let whole = graph.plan(&machine()).strategy(QUICK).run().unwrap();
    assert_eq!(whole.owned().budget_bytes, machine().machine.device_bytes);
}

#[test]
fn a_budget_that_cannot_be_is_refused() {
    let graph = step();
    let error = graph.plan(&machine()).budget("much").run().unwrap_err();
    assert!(matches!(error, Error::Budget(_)));
    assert!(error.to_string().starts_with("a budget is a size"), "{error}");

    let error = graph.plan(&machine()).budget(MIB).strategy(QUICK).run().unwrap_err();
    let Error::Infeasible { budget_bytes, min_feasible_bytes, op, ref message } = error else {
        panic!("{error:?}");
    };
    assert_eq!(budget_bytes, MIB);
    let name = &graph.owned().op_names[op.index()];
    assert!(message.contains(&format!("{op} ({name:?})")), "{message}");
    assert!(message.contains(&format!("({min_feasible_bytes} bytes)")), "{message}");
    let least = graph.plan(&machine()).budget(min_feasible_bytes).strategy(QUICK).run().unwrap();
    assert_eq!(least.figures().peak_bytes, min_feasible_bytes);
    assert!(graph.plan(&machine()).budget(min_feasible_bytes - 1).strategy(QUICK).run().is_err());

    let error = graph.plan(&machine()).budget("1TiB").strategy(QUICK).run().unwrap_err();
    assert!(matches!(error, Error::Planning { .. }), "{error:?}");
}

#[test]
fn strategies_are_made_of_their_parameters() {
    let graph = step();
    let plans = [
        (graph.plan(&machine()).strategy(QUICK), "auto"),
        (graph.plan(&machine()).strategy(Window::default()), "window"),
        (graph.plan(&machine()).strategy(Lms::default()), "lms"),
        (graph.plan(&machine()).strategy(CoreStrategy::OnDemand), "on-demand"),
        (graph.plan(&machine()).strategy(Swap::default()), "swap"),
    ];
    for (plan, name) in plans {
        let plan = plan.budget("60%").run().unwrap();
        assert_eq!(
            (plan.owned().strategy.as_str(), plan.context().strategy.as_str()),
            (name, name)
        );
        let again = Plan::from_json(&plan.to_json(), &graph, &machine()).unwrap();
        assert_eq!(again.context().min_feasible_bytes, plan.context().min_feasible_bytes, "{name}");
        assert!(again.context().min_feasible_bytes.is_some(), "{name}");
    }
    let error = graph.plan(&machine()).strategy(Weights::default()).run().unwrap_err();
    let message = error.to_string();
    assert!(
        message.contains("chains of layers only") && message.contains("(\"backward 0\")"),
        "{message}"
    );
}

#[test]
fn another_strategy_has_the_context_that_it_has_alone() {
    let chain = OwnedChain::three_partition(&[6, 6, 8, 6, 7, 7]).unwrap();
    let (graph, machine) = (Graph::new(chain.graph()).unwrap(), chain.machine().unwrap());
    let prepare = |strategy| graph.plan(&machine).strategy(strategy).budget("min").prepare();
    let first = prepare(CoreStrategy::InCore.into()).unwrap();
    let budget_bytes = first.context().budget_bytes;
    for strategy in Strategy::all() {
        let alone = prepare(strategy.clone());
        let alone = alone.and_then(|prepared| prepared.within(budget_bytes, None));
        let known = |prepared: Prepared| (prepared.context().clone(), *prepared.needs());
        assert_eq!(first.with_strategy(strategy).map(known), alone.map(known));
    }
    let published = first.with_strategy("weights:variant=published".parse().unwrap()).unwrap();
    assert!(published.context().cycle_ns.is_some());
}

#[test]
fn objects_are_fixed_unless_that_is_not_wanted() {
    let (graph, plan) = planned();
    assert!(plan.figures().placement_iterations.is_some());
    assert_eq!(plan.context().unplaced, None);
    let mapped = graph.plan(&machine()).budget("60%").strategy(QUICK).placed(false).run().unwrap();
    assert_eq!(mapped.figures().placement_iterations, None);
    assert_eq!(plan.figures().mapping_ns, 0);
    let mapping_ns = mapped.figures().mapping_ns;
    assert!(mapping_ns > 0);
    let rows = summary::rows(mapped.context(), mapped.figures(), &machine());
    let (_, objects) = rows.iter().find(|(title, _)| *title == "objects").unwrap();
    let cost = format!("mapping takes the host {}, not in the prediction", units::time(mapping_ns));
    assert_eq!(*objects, format!("mapped as it runs; {cost}"));
}

#[test]
fn figures_add_up() {
    let (_, plan) = planned();
    let figures = plan.figures();
    assert_eq!(figures.compute_ns, 24_000_000);
    assert_eq!(figures.period_ns, figures.compute_ns + figures.stall_ns);
    assert_eq!(figures.peak_bytes, figures.requested_peak_bytes + figures.waste_bytes);
    let upload = figures.h2d_bytes_by_kind;
    assert_eq!(figures.h2d_bytes, upload.state + upload.input + upload.temporary);
    assert!(upload.input >= 8 * MIB, "the input comes anew in each iteration");
    let download = figures.d2h_bytes_by_kind;
    assert_eq!(figures.d2h_bytes, download.state + download.input + download.temporary);
    assert!(download.state + download.temporary > 0, "at 60 %, something has to leave");
    assert!(figures.host_bytes >= 8 * MIB && figures.host_bytes <= figures.host_unshared_bytes);
    assert_eq!(figures.steps, plan.owned().steps.len() as u64);
    let bound = plan.lower_bound();
    assert!((figures.compute_ns..=figures.period_ns).contains(&bound.period_ns));
    assert!(bound.gap(figures.period_ns).is_some_and(|gap| (0.0..1.0).contains(&gap)));
    assert_eq!(plan.verified().plan().predicted.period_ns, figures.period_ns);
}

#[test]
fn with_everything_resident_no_plan_is_better() {
    let plan = step().plan(&machine()).strategy(CoreStrategy::InCore).run().unwrap();
    assert!(!plan.figures().reordered);
    assert_eq!(plan.lower_bound(), Bound::new(24_000_000, BoundOrder::Given, false));
    assert_eq!(plan.lower_bound().gap(plan.figures().period_ns), Some(0.0));
}

#[test]
fn a_plan_takes_no_more_memory_than_the_work_needs() {
    let plan = step().plan(&machine()).strategy(QUICK).run().unwrap();
    let all_bytes = machine().machine.device_bytes;
    assert_eq!(plan.owned().budget_bytes, all_bytes);
    let taken_bytes = plan.capacity().chunks * machine().machine.chunk_bytes;
    let needs = step().plan(&machine()).prepare().unwrap();
    assert!(taken_bytes <= needs.needs().in_core_least_bytes, "{taken_bytes}");
    // The published window takes all of its budget.
    let window = step().plan(&machine()).strategy(Window::new()).run().unwrap();
    assert!(window.capacity().chunks * machine().machine.chunk_bytes > all_bytes / 2);
}

#[test]
fn a_plan_that_is_read_back_is_the_same() {
    let (graph, plan) = planned();
    for name in ["same.plan.json", "same.plan.json.gz"] {
        let file = File::new(name);
        plan.save(&file.0).unwrap();
        let read = Plan::read(&file.0, &graph, &machine()).unwrap();
        assert_eq!(read.owned(), plan.owned());
        assert_eq!(read.figures(), plan.figures());
        assert_eq!((read.lower_bound(), read.context().planning_ns), (plan.lower_bound(), None));
    }
    let error = Plan::read("/nowhere/at.all", &graph, &machine()).unwrap_err();
    assert!(matches!(error, Error::File(_)), "{error:?}");
    assert!(error.to_string().starts_with("/nowhere/at.all: "), "{error}");
    let error = Plan::from_json(b"{}", &graph, &machine()).unwrap_err();
    assert!(matches!(error, Error::File(_)), "{error:?}");
}

fn forged(change: impl Fn(&mut OwnedPlan)) -> Error {
    let (graph, plan) = planned();
    let mut forged = plan.owned().clone();
    change(&mut forged);
    Plan::new(&graph, &machine(), forged).unwrap_err()
}

#[test]
fn a_forged_plan_is_refused_by_name() {
    let promised = forged(|plan| plan.predicted.period_ns -= 1);
    let Error::Invalid { error: VerifyError::Plan(PlanError::Prediction { .. }), .. } = promised
    else {
        panic!("{promised:?}");
    };
    let lost = forged(|plan| plan.steps.retain(|step| !matches!(step, Step::Offload(_))));
    assert!(matches!(lost, Error::Invalid { .. }), "{lost:?}");
    let message = lost.to_string();
    assert!(message.starts_with("step ") && message.contains("(\""), "{message}");
    let unlaunched = forged(|plan| plan.steps.retain(|step| !matches!(step, Step::Launch(_))));
    assert!(matches!(unlaunched, Error::Invalid { .. }), "{unlaunched:?}");
}

#[test]
fn a_plan_is_for_one_graph_and_one_machine() {
    let other = forged(|plan| plan.graph = "other\n".to_owned());
    assert!(matches!(other, Error::OtherGraph { .. }));
    assert_eq!(
        other.to_string(),
        "the plan is for the graph \"other\\n\", but the graph is \"step\""
    );
    let other = forged(|plan| plan.machine = "other".to_owned());
    assert!(matches!(other, Error::OtherMachine { .. }));
    assert_eq!(
        other.to_string(),
        "the plan is for the machine \"other\", but the machine is \"v100-pcie3\""
    );
}

#[test]
fn reports_and_traces_name_the_ops() {
    let (graph, plan) = planned();
    let page = plan.report();
    assert!(page.starts_with("<!DOCTYPE html>") && page.contains("backward 0"));
    assert!(page.contains("planned in"));
    let trace: Value = serde_json::from_slice(&plan.trace()).unwrap();
    let events = trace["traceEvents"].as_array().unwrap();
    let launches = events.iter().filter(|event| event["ph"] == "X" && event["tid"] == 1);
    for name in &graph.owned().op_names {
        assert_eq!(launches.clone().filter(|event| event["name"] == **name).count(), 4, "{name}");
    }
}

#[test]
fn the_parts_of_a_plan_are_owned() {
    fn is_owned<T: Send + 'static>(_: &T) {}
    let (_, plan) = planned();
    let schedule = plan.schedule().steps.clone();
    let parts = plan.clone().into_parts();
    is_owned(&parts);
    assert_eq!((&parts.plan, &parts.machine), (plan.owned(), plan.machine()));
    assert_eq!((&parts.graph, parts.schedule.steps), (plan.graph(), schedule));
}

/// Two temporaries of 8 MiB, made again for the last op within 32 MiB; and a plan by hand.
fn with_repeats() -> (Graph, OwnedMachine, OwnedPlan) {
    let mut graph = GraphBuilder::new("again");
    let [x, w] = ["x", "w"].map(|name| graph.state(name, 8 * MIB));
    let [y, z, s] = ["y", "z", "s"].map(|name| graph.temporary(name, 8 * MIB));
    graph.op("norm", 1_000_000).reads([x, w]).writes([w, y]).repeatable();
    graph.op("relu", 1_000_000).reads([y]).writes([y]).repeatable();
    graph.op("forward", 3_000_000).reads([y]).writes([z]);
    graph.op("loss", 3_000_000).reads([z]).writes([s]);
    graph.op("backward", 3_000_000).reads([x, y, s]).writes([x]);
    let graph = graph.build().unwrap();
    let launch = |op| Step::launch(OpId(op));
    let repeat = |op| Step::repeat(OpId(op));
    let evict = |tensor| Step::Evict(Part::whole(tensor));
    let steps = vec![
        launch(0),
        launch(1),
        launch(2),
        evict(y),
        launch(3),
        evict(z),
        repeat(0),
        repeat(1),
        launch(4),
        evict(y),
        evict(s),
    ];
    let resident = [x, w].map(|id| Resident { part: Part::whole(id), host_copy: false });
    let pools = vec![Pool { object_bytes: 2 * MIB, count: 16 }];
    let mut plan = OwnedPlan::new(pools, resident.into(), steps);
    (plan.graph, plan.machine) = ("again".to_owned(), machine().name);
    plan.strategy = "by hand".to_owned();
    plan.budget_bytes = 32 * MIB;
    plan.predicted = Prediction {
        period_ns: 13_000_000,
        compute_ns: 11_000_000,
        repeat_ns: 2_000_000,
        peak_bytes: 32 * MIB,
        ..Prediction::default()
    };
    (graph, machine(), plan)
}

#[test]
fn repeats_are_counted_apart_from_compute_and_stalls() {
    let (graph, machine, plan) = with_repeats();
    let plan = Plan::new(&graph, &machine, plan).unwrap();
    let figures = plan.figures();
    assert_eq!((figures.repeats, figures.repeat_ns), (2, 2_000_000));
    assert_eq!((figures.compute_ns, figures.stall_ns), (11_000_000, 0));
    // Both repeats are for one value, which one op reads.
    assert_eq!(figures.repeated_bytes, 8 * MIB);
    assert!(!figures.reordered);
    let rows = summary::rows(plan.context(), figures, &machine);
    let row = |name: &str| rows.iter().find(|row| row.0 == name).map(|row| row.1.as_str());
    assert_eq!(
        row("repeats"),
        Some(
            "2 ops, 2.00 ms (18.2 % of compute), for 8.00 MiB of values that neither stay nor move"
        )
    );
    let bound = row("bound").unwrap();
    assert!(bound.starts_with("no plan can beat ") && bound.contains(" where each op runs once)"));
    let (graph, once) = planned();
    assert_eq!((graph.name(), once.figures().repeats), ("step", 0));
    let rows = summary::rows(once.context(), once.figures(), &machine);
    assert!(rows.iter().all(|row| row.0 != "repeats"));
    let bound = rows.iter().find(|row| row.0 == "bound").unwrap();
    assert!(bound.1.starts_with("no plan that runs each op once can beat "));
}

#[test]
fn the_summary_says_where_the_prediction_is_pessimistic() {
    let (graph, plan) = planned();
    let with = |one_way_bytes_per_s| machine().with_one_way_bytes_per_s(one_way_bytes_per_s);
    let links = |figures: &Figures, machine: &OwnedMachine| {
        let rows = summary::rows(plan.context(), figures, machine).into_iter();
        rows.filter(|row| row.0 == "links").map(|row| row.1).next()
    };
    assert_eq!(links(plan.figures(), &with(None)), None);
    // Twice the uploads take 48 MB / 12 GB/s, of which half run alone.
    let mut figures = *plan.figures();
    (figures.h2d_bytes, figures.d2h_bytes) = (48_000_000, 24_000_000);
    figures.stall_ns = 5_000_000;
    let both = "predicted with 12.00 GB/s up and 12.00 down (both in use); one way 24.00 up and \
                12.00 down"
        .replace("24.00 up", "24.00 GB/s up");
    let fast_up = with(Some([24_000_000_000, 12_000_000_000]));
    let pessimistic = format!(
        "{both}; pessimistic: uploads run for at least 2.00 ms of an iteration while no download \
         runs, which takes 1.00 ms less one way"
    );
    assert_eq!(links(&figures, &fast_up), Some(pessimistic));
    // Downloads are as fast both ways, and a plan without stalls waits for nothing.
    (figures.h2d_bytes, figures.d2h_bytes) = (24_000_000, 48_000_000);
    assert_eq!(links(&figures, &fast_up), Some(both.clone()));
    (figures.h2d_bytes, figures.stall_ns) = (96_000_000, 0);
    assert_eq!(links(&figures, &fast_up), Some(both));
    let page = Plan::new(&graph, &fast_up, plan.owned().clone()).unwrap().report();
    assert!(page.contains("<th>links</th>"), "the report says it too");
}

#[test]
fn reports_and_traces_show_repeats() {
    let (graph, machine, plan) = with_repeats();
    let plan = Plan::new(&graph, &machine, plan).unwrap();
    let page = plan.report();
    assert_eq!(page.matches("class=\"b repeat").count(), 2, "{page}");
    assert!(page.contains("<h2>Repeats</h2>") && page.contains("2 of 2 ops that run again"));
    assert!(page.contains("<title>repeat of op 1 (&quot;relu&quot;), 1.00 ms</title>"));
    let trace: Value = serde_json::from_slice(&plan.trace()).unwrap();
    let events = trace["traceEvents"].as_array().unwrap();
    let named = |name: &str| {
        let event = events.iter().find(|event| event["name"] == name).unwrap();
        (event["cat"].clone(), event["cname"].is_string())
    };
    assert_eq!(named("repeat of relu"), ("repeat".into(), true));
    assert_eq!(named("relu"), ("compute".into(), false));
    let once = planned().1.report();
    assert!(!once.contains("class=\"b repeat") && !once.contains("<h2>Repeats</h2>"));
}

#[test]
fn a_wrong_repeat_is_refused_by_name() {
    let refused = |change: &dyn Fn(&mut OwnedPlan)| {
        let (graph, machine, mut plan) = with_repeats();
        change(&mut plan);
        Plan::new(&graph, &machine, plan).unwrap_err().to_string()
    };
    // The relu runs on what it has written already.
    let stale = refused(&|plan| plan.steps.insert(2, Step::repeat(OpId(1))));
    let at = "step 2, the repeat of op 1 (\"relu\"): op 1 (\"relu\") is launched again, but ";
    let expected = "tensor 2 (\"y\") does not hold the value that its first launch read";
    assert_eq!(stale, format!("{at}{expected}"));
    let forbidden = refused(&|plan| plan.steps.insert(3, Step::repeat(OpId(2))));
    let end = "op 2 (\"forward\") is launched again, but it is not repeatable";
    assert!(forbidden.starts_with("step 3, the repeat of ") && forbidden.ends_with(end));
}
