//! Ops that may run on the host.

use super::{SMALL, make};
use workloads::OwnedGraph;

fn is_update(name: &str) -> bool {
    [".adam", ".adamw", ".sgd"].iter().any(|end| name.ends_with(end))
}

/// The same graph without times on the host.
fn without_host(graph: &OwnedGraph, name: &str) -> OwnedGraph {
    let mut graph = graph.clone().with_name(name);
    graph.ops.iter_mut().for_each(|op| op.host_ns = None);
    graph
}

#[test]
fn without_a_speed_no_op_may_run_there() {
    for spec in SMALL {
        let plain = make(spec);
        assert!(plain.ops.iter().all(|op| op.host_ns.is_none()), "{spec}");
        assert!(!plain.name.contains("host"), "{}", plain.name);
        assert_eq!(make(&format!("{spec},host_gb_s=0,host_tflops=0")), plain, "{spec}");
    }
}

#[test]
fn with_a_memory_speed_updates_may() {
    for spec in SMALL {
        let (plain, host) = (make(spec), make(&format!("{spec},host_gb_s=60")));
        assert_eq!(without_host(&host, &plain.name), plain, "{spec}");
        let updates = host.op_names.iter().filter(|name| is_update(name)).count();
        assert!(updates > 0, "{spec}");
        for (op, name) in host.ops.iter().zip(&host.op_names) {
            assert_eq!(op.host_ns.is_some(), is_update(name), "{spec}: {name}");
        }
        host.graph().unwrap();
        assert_eq!(make(&host.name), host);
    }
}

#[test]
fn with_arithmetic_all_may() {
    let requests = ["gpt:mode=inference,layers=1,sequence=8", "llama:mode=token,layers=2"];
    for spec in SMALL.into_iter().chain(requests) {
        let host = make(&format!("{spec},host_gb_s=60,host_tflops=0.5"));
        assert!(host.ops.iter().all(|op| op.host_ns.is_some()), "{spec}");
        host.graph().unwrap();
        assert_eq!(without_host(&host, &make(spec).name), make(spec), "{spec}");
    }
}

/// At 100 GB/s, AdamW takes 0.28 ns a parameter, and a product takes its arithmetic or its bytes.
#[test]
fn times_follow_from_bytes_and_arithmetic() {
    let spec = "llama:layers=4,sequence=64";
    let graph = make(&format!("{spec},host_gb_s=100,host_tflops=2"));
    let host_ns = |name: &str| {
        let op = graph.op_names.iter().position(|other| other == name).unwrap();
        graph.ops[op].host_ns.unwrap() - 5_000
    };
    let elements = 4096 * 14_336;
    assert_eq!(host_ns("layers.1.mlp.down.adamw"), elements * 28 / 100);
    let product_ns = 2 * 64 * elements / 2_000;
    assert_eq!(host_ns("layers.1.mlp.down"), product_ns);
    let slow = make("llama:mode=token,layers=4,bits=4.5,host_gb_s=80,host_tflops=2");
    let op = slow.op_names.iter().position(|name| name == "layers.1.mlp.down").unwrap();
    let bytes = elements * 9 / 16 + 2 * (4096 + 14_336);
    assert_eq!(slow.ops[op].host_ns, Some(5_000 + bytes / 80));
}
