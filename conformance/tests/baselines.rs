//! The plans of the baselines on a chain of three layers, followed by hand. In-core, it takes
//! seven chunks; its largest op takes four.
#![allow(clippy::unwrap_used, reason = "what fails here fails the test")]

use crate::chain;
use planner_core::Kind;
use planner_core::planner::{Groups, Lms, Strategy};
use workloads::OwnedGraph;

fn plan(budget_chunks: u64, strategy: Strategy) -> String {
    chain::plan(&chain::chain(), budget_chunks, strategy)
}

fn lms(threshold: u32, ahead: u32) -> Strategy {
    Strategy::Lms(Lms::new().with_threshold(threshold).with_ahead(ahead))
}

/// Weights of one chunk each, `a` to `d`, and the ops that read them, numbered from 0.
fn readers(weights: &[&str]) -> OwnedGraph {
    let mut graph = OwnedGraph::new("readers");
    let ids = ["a", "b", "c", "d"]
        .map(|name| (name, graph.push_tensor(name, chain::CHUNK_BYTES, Kind::State)));
    for (at, reads) in weights.iter().enumerate() {
        let reads: Vec<_> =
            ids.iter().filter(|(name, _)| reads.contains(name)).map(|&(_, id)| id).collect();
        graph.push_op(at.to_string(), 100, 0, &reads, &[]);
    }
    graph
}

#[test]
fn with_memory_enough_nothing_moves() {
    for strategy in [Strategy::Fit, Strategy::OnDemand, lms(6, 1)] {
        let plan = plan(7, strategy);
        assert_eq!(plan, "w0 w1 w2 [F0] [F1] [F2] [B2] -a2 [B1] -a1 [B0] -d -a0");
    }
}

/// `d` and `w1` need memory at `B2`, where neither it nor `B1` uses `w0` and `a0`; `w0` is the
/// one that was used first.
#[test]
fn on_demand_evicts_the_least_recently_used() {
    assert_eq!(
        plan(5, Strategy::OnDemand),
        "w0 w1 [F0] +w2 [F1] >w0 -w0 [F2] >a0 -a0 [B2] -a2 +a0 >w2 -w2 +w0 [B1] -a1 [B0] -d -a0"
    );
}

/// At `B2`, four temporaries and the weights of two layers leave no memory for a third, so all
/// are streamed; `w2` and `w0` turn around on the device.
#[test]
fn fit_streams_the_weights_that_do_not_fit() {
    assert_eq!(
        plan(6, Strategy::Fit),
        "w0 +w1 [F0] >w0 -w0 +w2 [F1] -w1 [F2] +w1 [B2] -a2 >w2 -w2 +w0 [B1] -a1 >w1 -w1 \
         [B0] -d -a0"
    );
}

/// With less, temporaries do not fit at all: the weights stay beside what each op touches,
/// and in the two chunks that are left, `a0` frees memory at `F2` and `a1` at `B2`.
#[test]
fn fit_falls_back_to_the_least_recently_used() {
    assert_eq!(
        plan(5, Strategy::Fit),
        "w0 w1 w2 [F0] [F1] >a0 -a0 [F2] >a1 -a1 [B2] -a2 +a1 [B1] -a1 +a0 [B0] -d -a0"
    );
}

/// Forward turns to backward after `F2`. `a0` leaves after `F1`, its last use forward, and comes back one op before `B0`, even
/// where it could stay. The gap of `a1`, from `F2` to `B1`, is but one op. Without `a0`, all
/// weights fit into six chunks.
#[test]
fn vdnn_swaps_from_forward_to_backward() {
    for budget_chunks in [6, 7] {
        assert_eq!(
            plan(budget_chunks, Strategy::Vdnn),
            "w0 w1 w2 [F0] [F1] >a0 -a0 [F2] [B2] -a2 +a0 [B1] -a1 [B0] -d -a0"
        );
    }
}

#[test]
fn vdnn_streams_the_weights_that_do_not_fit() {
    assert_eq!(
        plan(5, Strategy::Vdnn),
        "w0 +w1 [F0] >w0 -w0 +w2 [F1] >a0 -a0 -w1 [F2] +w1 [B2] -a2 >w2 -w2 +a0 +w0 \
         [B1] -a1 >w1 -w1 [B0] -d -a0"
    );
}

/// Next uses: `w0` is five ops ahead after `F0`, `a0` four and `w1` three after `F1`; after
/// the backward ops, `w2` five, `w1` three and `w0` one, in the next iteration.
#[test]
fn lms_swaps_out_beyond_the_threshold_and_in_ahead() {
    assert_eq!(
        plan(7, lms(2, 1)),
        "w0 +w1 [F0] >w0 -w0 +w2 [F1] >a0 -a0 -w1 [F2] +w1 [B2] -a2 >w2 -w2 +a0 +w0 \
         [B1] -a1 >w1 -w1 [B0] -d -a0"
    );
    assert_eq!(
        plan(7, lms(4, 2)),
        "w0 w1 +w2 [F0] >w0 -w0 [F1] [F2] [B2] -a2 >w2 -w2 +w0 [B1] -a1 [B0] -d -a0"
    );
}

/// What is swapped out cannot have been swapped in already.
#[test]
fn lms_looks_ahead_no_farther_than_the_threshold() {
    assert_eq!(plan(7, lms(2, 5)), plan(7, lms(2, 2)));
}

/// Of each two weights, the second is streamed, one op or two ahead; with less memory, what was used
/// least recently leaves as well.
#[test]
fn groups_stream_their_last_layers() {
    let groups =
        |ahead| Strategy::Groups(Groups::new().with_size(2).with_leaving(1).with_ahead(ahead));
    let plan = |chunks, ahead| chain::plan(&readers(&["a", "b", "c", "d"]), chunks, groups(ahead));
    assert_eq!(plan(3, 1), "a c +b [0] [1] -b +d [2] [3] -d");
    assert_eq!(plan(4, 2), "a b c [0] +d [1] -b [2] +b [3] -d");
    assert_eq!(plan(2, 1), "a +b [0] -a +c [1] -b +d [2] -c +a [3] -d");
}

/// `a` would have to come back at once after op 0, but not after op 2.
#[test]
fn fit_keeps_what_would_come_back_at_once() {
    assert_eq!(
        chain::plan(&readers(&["a", "b", "a", "c", "d"]), 2, Strategy::Fit),
        "a +b [0] [1] -b +c [2] -a +d [3] -c +a [4] -d"
    );
}

/// Of two weights for the next op, one fits beside the running op's.
#[test]
fn the_next_op_is_fetched_as_far_as_memory_allows() {
    assert_eq!(chain::plan(&readers(&["a", "bc"]), 2, lms(1, 1)), "+a +b [0] -a +c [1] -b -c");
}
