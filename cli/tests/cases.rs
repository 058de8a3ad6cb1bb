//! Cases of the folder `shared/cases`, one test each, through the program.
#![allow(clippy::unwrap_used, reason = "what fails here fails the test")]

mod common;

use common::{Folder, Ran};
use spillway::{Graph, Plan};
use std::process::ExitCode;
use std::time::{Duration, Instant};
use workloads::format;

fn main() -> ExitCode {
    test_harness::with_shared(
        &["cases"],
        &[
            ("race", race),
            ("host_memory", host_memory),
            ("arena_input", arena_input),
            ("pool", pool),
            ("placement_iterations", placement_iterations),
            ("strategy_name", strategy_name),
            ("swap_min", swap_min),
            ("hang", hang),
            ("longer", longer),
            ("terminal", terminal),
            ("host_trailing_offload", host_trailing_offload),
            ("never_read_input", never_read_input),
            ("arranged_copies_more", arranged_copies_more),
        ],
    )
}

/// A folder of a case.
struct Case(String);

impl Case {
    fn find(name: &str) -> Self {
        let path = test_harness::shared("cases").join(name);
        Self(path.into_os_string().into_string().unwrap())
    }

    /// Runs a command on the case's graph and machine.
    fn run(&self, command: &str, more: &[&str]) -> Ran {
        let [graph, machine] = ["graph", "machine"].map(|name| self.path(name));
        let arguments = [&[command, &graph, "-m", &machine], more].concat();
        Folder::new().run(&arguments)
    }

    fn check(&self, plan: &str) -> Ran {
        self.run("check", &[&self.path(plan), "--json"])
    }

    /// The plan is invalid, for both who check and who run, and for a reason with these words.
    fn is_refused(&self, plan: &str, words: &[&str]) {
        let checked = self.check(plan).fails_with_output(1, words).json();
        assert_eq!(checked["valid"], false);
        let run = ["--plan", &self.path(plan), "--json"];
        let run = self.run("run", &run).fails_with_output(1, words).json();
        for report in [checked, run] {
            let reason = report["reason"].as_str().unwrap();
            assert!(words.iter().all(|word| reason.contains(word)), "{report}");
            assert!(report["in_core_peak_bytes"].is_u64(), "{report}");
        }
    }

    fn path(&self, name: &str) -> String {
        format!("{}/{name}.json", self.0)
    }
}

fn race() {
    let case = Case::find("race");
    case.is_refused("plan", &["step 1, the offload of tensor 0 (\"x\")", "the host has the next"]);
}

fn host_memory() {
    let case = Case::find("host-memory");
    case.is_refused("plan", &["512 bytes of pinned host memory, the machine has 0"]);
}

fn arena_input() {
    let case = Case::find("arena-input");
    case.is_refused("plan", &["step 0", "tensor 0 (\"x\") is an input in the arena"]);
}

fn pool() {
    let case = Case::find("pool");
    case.is_refused("plan", &["workspace of op 0 (\"o0\")", "a pool that does not exist"]);
}

fn placement_iterations() {
    let case = Case::find("memory");
    case.is_refused("b_plan_20000000", &["placement_iterations is 20000000", "from 1 to 64"]);
}

fn strategy_name() {
    let case = Case::find("strategy-name");
    for plan in ["plan", "plan_other_name"] {
        assert_eq!(case.check(plan).done().json()["valid"], true);
        case.run("run", &["--plan", &case.path(plan)]).done();
    }
}

fn host_trailing_offload() {
    let case = Case::find("host-trailing-offload");
    case.is_refused("plan", &["16 bytes of pinned host memory, the machine has 8"]);
}

fn never_read_input() {
    let case = Case::find("never-read-input");
    assert_eq!(case.check("plan").done().json()["valid"], true);
    case.run("run", &["--plan", &case.path("plan"), "--seed", "3"]).done();
}

/// A plan that is arranged after another is as it is where a switch would copy more.
fn arranged_copies_more() {
    let case = Case::find("arranged-copies-more");
    let read = |name: &str| format::load(case.path(name)).unwrap();
    let machine = format::read_machine(&read("machine")).unwrap();
    let [one, other] = [["graph", "plan"], ["graph2", "plan2"]].map(|[graph, plan]| {
        let graph = Graph::new(format::read_graph(&read(graph)).unwrap()).unwrap();
        Plan::read(case.path(plan), &graph, &machine).unwrap()
    });
    let copied_bytes = |to: &Plan| {
        let switch = one.switch_to(to).unwrap();
        switch.h2d_bytes + switch.d2h_bytes
    };
    let arranged = other.arranged_after(&one).unwrap();
    assert!(copied_bytes(&arranged) <= copied_bytes(&other));
}

fn swap_min() {
    let case = Case::find("swap-min");
    let figures = case.run("plan", &["-s", "swap", "-b", "min", "--json"]).done().json();
    let min_bytes = figures["min_feasible_bytes"].as_u64().unwrap();
    assert_eq!(figures["budget_bytes"], min_bytes);
    let less = (min_bytes - 1).to_string();
    let less = case.run("plan", &["-s", "swap", "-b", &less, "--json"]);
    less.fails_with_output(1, &["swap: ", "pinned host memory"]);
    case.run("run", &["-s", "swap", "-b", "min"]).done();
}

fn hang() {
    let case = Case::find("hang");
    for (graph, plan) in [("graph", "plan"), ("graph20", "plan20")] {
        let [graph, plan, machine] = [graph, plan, "machine"].map(|name| case.path(name));
        let start = Instant::now();
        let ran = Folder::new().run(&["check", &graph, &plan, "-m", &machine]);
        // It took 24 s and more; a busy machine may take its time to start a process.
        assert!(start.elapsed() < Duration::from_secs(5));
        ran.fails(1, &["is resident already"]);
    }
}

/// What is mapped as it runs takes as long as predicted.
fn longer() {
    let case = Case::find("longer");
    let plan = case.path("plan");
    let recorded = ["--plan", &plan];
    let planned = ["-s", "on-demand", "-b", "4611686018427387904", "--no-placements"];
    for how in [&recorded[..], &planned] {
        let ran = case.run("run", &[&["--json"], how].concat()).done().json();
        assert_eq!(ran["measured_period_ns"], ran["period_ns"]);
        assert_eq!(ran["digests_match"], true);
        assert!(ran["map_calls_per_iteration"].as_f64().unwrap() > 0.0, "mapped as it runs");
    }
}

/// No command prints an escape sequence or a line break of a name.
fn terminal() {
    let case = Case::find("terminal");
    let plan = case.path("plan");
    for (command, more) in [
        ("check", &[&*plan][..]),
        ("run", &["--plan", &plan]),
        ("plan", &[]),
        ("plan", &["-b", "1"]),
        ("compare", &[]),
    ] {
        let Ran { stdout, stderr, .. } = case.run(command, more);
        let raw = (stdout + &stderr).chars().find(|c| c.is_control() && *c != '\n');
        assert_eq!(raw, None, "{command}");
    }
}
