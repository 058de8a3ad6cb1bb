//! Graphs and traces that others recorded.
#![allow(clippy::unwrap_used, reason = "what fails here fails the test")]

mod graphs;
mod pytorch;

use std::process::ExitCode;

fn main() -> ExitCode {
    test_harness::with_shared(
        &["data", "graphs"],
        &[
            ("graphs_of_others_are_read", graphs::graphs_of_others_are_read),
            (
                "a_recorded_step_has_the_same_tensors_and_times",
                graphs::a_recorded_step_has_the_same_tensors_and_times,
            ),
            ("resnet50", pytorch::resnet50),
            ("steps_of_resnet50_are_the_same_graph", pytorch::steps_of_resnet50_are_the_same_graph),
            ("linear_layers", pytorch::linear_layers),
        ],
    )
}
