//! Cases of the folder `shared/cases`, one test each, through the program.
#![allow(clippy::unwrap_used, reason = "what fails here fails the test")]

mod common;

use common::{Folder, Ran, shared};

/// A folder of a case; nothing where there is none, which is said then.
struct Case(String);

impl Case {
    fn find(name: &str) -> Option<Self> {
        shared(&format!("cases/{name}")).map(Self)
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

#[test]
fn race() {
    let Some(case) = Case::find("race") else { return };
    case.is_refused("plan", &["step 1, the offload of tensor 0 (\"x\")", "the host has the next"]);
}

#[test]
fn host_memory() {
    let Some(case) = Case::find("host-memory") else { return };
    case.is_refused("plan", &["512 bytes of pinned host memory, the machine has 0"]);
}

#[test]
fn arena_input() {
    let Some(case) = Case::find("arena-input") else { return };
    case.is_refused("plan", &["step 0", "tensor 0 (\"x\") is an input in the arena"]);
}

#[test]
fn pool() {
    let Some(case) = Case::find("pool") else { return };
    case.is_refused("plan", &["workspace of op 0 (\"o0\")", "a pool that does not exist"]);
}

#[test]
fn placement_iterations() {
    let Some(case) = Case::find("memory") else { return };
    case.is_refused("b_plan_20000000", &["placement_iterations is 20000000", "from 1 to 64"]);
}

#[test]
fn strategy_name() {
    let Some(case) = Case::find("strategy-name") else { return };
    for plan in ["plan", "plan_other_name"] {
        assert_eq!(case.check(plan).done().json()["valid"], true);
        case.run("run", &["--plan", &case.path(plan)]).done();
    }
}

#[test]
fn swap_min() {
    let Some(case) = Case::find("swap-min") else { return };
    let figures = case.run("plan", &["-s", "swap", "-b", "min", "--json"]).done().json();
    let min_bytes = figures["min_feasible_bytes"].as_u64().unwrap();
    assert_eq!(figures["budget_bytes"], min_bytes);
    let less = (min_bytes - 1).to_string();
    let less = case.run("plan", &["-s", "swap", "-b", &less, "--json"]);
    less.fails_with_output(1, &["swap: ", "pinned host memory"]);
    case.run("run", &["-s", "swap", "-b", "min"]).done();
}
