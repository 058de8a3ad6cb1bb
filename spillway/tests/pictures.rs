//! What a trace and a report show of a plan that stalls.
#![allow(clippy::unwrap_used, reason = "what fails here fails the test")]

use serde_json::Value;
use spillway::core::planner::Strategy;
use spillway::{Graph, GraphBuilder, Plan, machines};

const MIB: u64 = 1 << 20;

/// Two rounds over two weights of which one fits beside the activations.
fn work() -> Graph {
    let mut graph = GraphBuilder::new("rounds");
    let weights = ["w0", "w1"].map(|name| graph.state(name, 16 * MIB));
    let mut last = graph.input("x", 6 * MIB);
    for round in 0..2 {
        for (at, &weight) in weights.iter().enumerate() {
            let next = graph.temporary(format!("y{round}{at}"), 6 * MIB);
            let op = graph.op(format!("op {round}{at}"), 1_000_000).workspace_bytes(MIB);
            op.reads([last, weight]).writes([next]);
            last = next;
        }
    }
    graph.build().unwrap()
}

/// A plan that uploads each weight when it is needed.
fn planned() -> Plan {
    let machine = machines::builtin("v100-pcie3").unwrap();
    work().plan(&machine).budget("min").strategy(Strategy::OnDemand).run().unwrap()
}

/// The start and the end of a slice, in nanoseconds.
fn span_ns(slice: &Value) -> (u64, u64) {
    let ns = |field: &str| (slice[field].as_f64().unwrap_or(0.0) * 1e3).round() as u64;
    (ns("ts"), ns("ts") + ns("dur"))
}

#[test]
fn the_trace_shows_stalls_and_what_they_wait_for() {
    let plan = planned();
    let trace: Value = serde_json::from_slice(&plan.trace().unwrap()).unwrap();
    let events = trace["traceEvents"].as_array().unwrap();
    let of_phase = |phase: &'static str| events.iter().filter(move |event| event["ph"] == phase);
    let stalls: Vec<_> = of_phase("X").filter(|event| event["cat"] == "stall").collect();
    assert!(stalls.iter().all(|stall| stall["tid"] == 1 && stall["name"] == "stall"));
    let stalled_ns: u64 = stalls.iter().map(|stall| span_ns(stall).1 - span_ns(stall).0).sum();
    let figures = plan.figures();
    assert!(figures.stall_ns > figures.compute_ns, "{figures:?}");
    assert_eq!(stalled_ns, 4 * figures.stall_ns);

    assert_eq!((of_phase("s").count(), of_phase("f").count()), (stalls.len(), stalls.len()));
    for (tail, head) in of_phase("s").zip(of_phase("f")) {
        assert_eq!(
            (&tail["id"], &tail["cat"], &tail["name"]),
            (&head["id"], &head["cat"], &head["name"])
        );
        let slice = |track: &Value, ns: u64| {
            let runs = |slice: &&Value| (span_ns(slice).0..span_ns(slice).1).contains(&ns);
            of_phase("X").filter(|slice| slice["tid"] == *track).find(runs).unwrap()
        };
        let (tail_ns, head_ns) = (span_ns(tail).0, span_ns(head).0);
        let (awaited, launch) = (slice(&tail["tid"], tail_ns), slice(&head["tid"], head_ns));
        assert_ne!(awaited["tid"], 1);
        assert_eq!((span_ns(awaited).1, span_ns(launch).0), (head_ns, head_ns));
        assert_eq!(launch["args"]["waited_for"], awaited["args"]["what"]);
        let stall = stalls.iter().find(|stall| span_ns(stall).1 == head_ns).unwrap();
        assert_eq!(stall["args"]["waited_for"], awaited["args"]["what"]);
        let before = format!("stall before the {}", launch["args"]["what"].as_str().unwrap());
        assert_eq!(stall["args"]["what"], *before);
    }
}
