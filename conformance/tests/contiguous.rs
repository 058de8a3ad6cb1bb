//! Plans in contiguous memory ask for what they predict.
#![allow(clippy::unwrap_used, reason = "what fails here fails the test")]

use backend_sim::contiguous::{CachingAllocator, ReplayError, replay};
use conformance::graphs::{graphs, machines};
use planner_core::Machine;
use planner_core::planner::{Auto, Lms, Order, Request, Strategy as Planner, Window};
use proptest::prelude::*;
use spillway::planning;

const WHOLE: [Planner; 6] = [
    Planner::InCore,
    Planner::OnDemand,
    Planner::Fit,
    Planner::Vdnn,
    Planner::Lms(Lms::new()),
    Planner::Window(Window::new().with_published(true)),
];
const PARTS: Planner = Planner::Auto(Auto::new().with_effort(3).with_order(Order::Given));

proptest! {
    #![proptest_config(conformance::seeds::config(256))]
    #[test]
    fn the_peak_is_the_predicted_one(
        graph in graphs(),
        machine in machines(),
        spare_bytes in 0..4096u64,
    ) {
        // In chunks of one byte nothing is rounded up, and there is no arena.
        let machine = Machine::new((*machine).with_chunk_bytes(1)).unwrap();
        let graph = graph.graph().unwrap();
        for strategy in WHOLE.into_iter().chain([PARTS]) {
            let request = |budget_bytes| Request { graph: &graph, machine: &machine, budget_bytes };
            let (min_bytes, _) = planning::min_feasible(&request(0), strategy).unwrap();
            let plan = planning::plan(&request(min_bytes + spare_bytes), strategy).unwrap();
            let mut allocator = CachingAllocator::new(1 << 40);
            match replay(&graph, &plan.plan(), 3, &mut allocator) {
                Ok(usage) => {
                    prop_assert_eq!(usage.requested_bytes, plan.predicted.peak_bytes);
                    prop_assert!(usage.requested_bytes <= usage.used_bytes);
                    prop_assert!(usage.used_bytes <= usage.reserved_bytes);
                }
                Err(error) => {
                    let of_parts = matches!(error, ReplayError::Part { .. });
                    prop_assert!(of_parts && strategy == PARTS, "{:?}: {}", strategy, error);
                }
            }
        }
    }
}
