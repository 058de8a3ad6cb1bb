//! The generators make what they say, and all of it.

use conformance::ledger::{judge, measure};
use conformance::plans::{cases, mutated_cases};
use proptest::prelude::*;

proptest! {
    #![proptest_config(conformance::seeds::config(256))]
    #[test]
    fn every_generated_plan_is_valid(case in cases()) {
        let judged = judge(&case.graph.graph().unwrap(), &case.machine, &case.plan.plan());
        prop_assert!(judged.is_ok(), "{}", judged.unwrap_err());
    }

    #[test]
    fn mutated_plans_do_not_break_the_ledger(case in mutated_cases()) {
        let _ = judge(&case.graph.graph().unwrap(), &case.machine, &case.plan.plan());
    }

    #[test]
    fn one_more_object_delays_nothing(case in cases(), pool in 0..3usize) {
        let graph = case.graph.graph().unwrap();
        let before = measure(&graph, &case.machine, &case.plan.plan()).unwrap().timeline;
        let mut richer = case.plan.clone();
        let pools = richer.pools.len();
        let pool = &mut richer.pools[pool % pools];
        pool.count += 1;
        richer.budget_bytes += pool.object_bytes + case.machine.chunk_bytes;
        let after = measure(&graph, &case.machine, &richer.plan()).unwrap().timeline;
        prop_assert_eq!(before.len(), after.len());
        for (event, sooner) in before.iter().zip(&after) {
            prop_assert!(sooner.start_ns <= event.start_ns, "{:?} {:?}", event, sooner);
        }
    }

    #[test]
    fn a_plan_is_invalid_exactly_when_the_occupancy_exceeds_the_count(case in cases()) {
        prop_assume!(case.plan.pools.len() == 1);
        let graph = case.graph.graph().unwrap();
        let peak_bytes = case.plan.predicted.peak_bytes - case.plan.arena_bytes;
        let mut tight = case.plan.clone();
        tight.placements = None;
        tight.pools[0].count = peak_bytes / tight.pools[0].object_bytes;
        prop_assert!(measure(&graph, &case.machine, &tight.plan()).is_ok());
        prop_assume!(tight.pools[0].count > 0);
        tight.pools[0].count -= 1;
        prop_assert!(measure(&graph, &case.machine, &tight.plan()).is_err());
    }
}
