//! A recorded plan that once took longer than predicted, where the checkout has it.
#![allow(clippy::unwrap_used, reason = "what fails here fails the test")]

mod common;

use common::{Folder, shared};

#[test]
fn what_is_mapped_as_it_goes_takes_as_long_as_predicted() {
    let case = |name: &str| shared(&format!("cases/longer/{name}.json"));
    let (Some(graph), Some(machine), Some(plan)) = (case("graph"), case("machine"), case("plan"))
    else {
        return;
    };
    let folder = Folder::new();
    let recorded = ["--plan", &plan];
    let planned = ["-s", "on-demand", "-b", "4611686018427387904", "--no-placements"];
    for how in [&recorded[..], &planned] {
        let ran = folder.run(&[&["run", &graph, "-m", &machine, "--json"], how].concat());
        let ran = ran.done().json();
        assert_eq!(ran["measured_period_ns"], ran["period_ns"]);
        assert_eq!(ran["digests_match"], true);
        assert!(ran["map_calls_per_iteration"].as_f64().unwrap() > 0.0, "mapped as it goes");
    }
}
