//! Graphs are built op by op, checked once, and refused by name.
#![allow(clippy::unwrap_used, reason = "what fails here fails the test")]

use spillway::planner_core::{GraphError, Kind, Op};
use spillway::{Error, Graph, GraphBuilder, OpId, TensorId};

fn refused(graph: GraphBuilder) -> (GraphError, String) {
    match graph.build().unwrap_err() {
        Error::Graph { error, message } => (error, message),
        other => panic!("{other:?}"),
    }
}

#[test]
fn ops_list_what_they_read_before_what_they_write() {
    let mut graph = GraphBuilder::new("g");
    let x = graph.input("x", 1);
    let w = graph.state("w", 2);
    let y = graph.temporary("y", 3);
    let first = graph.op("first", 10).writes([w]).reads([x]).reads([w]).writes([y]).id();
    let second = graph.op("second", 20).workspace_bytes(7).reads([y]).id();
    let third = graph.op("third", 30).id();
    assert_eq!([first, second, third], [OpId(0), OpId(1), OpId(2)]);
    let graph = graph.build().unwrap();
    let core = graph.graph();
    assert_eq!((core.reads(first), core.writes(first)), (&[x, w][..], &[w, y][..]));
    assert_eq!((core.reads(second), core.writes(second)), (&[y][..], &[][..]));
    assert!(core.operands_of(third).is_empty());
    let Op { time_ns, workspace_bytes, .. } = core.op(second);
    assert_eq!((time_ns, workspace_bytes), (20, 7));
    let kinds = [(1, Kind::Input), (2, Kind::State), (3, Kind::Temporary)];
    assert!(core.tensors().iter().map(|tensor| (tensor.bytes, tensor.kind)).eq(kinds));
    assert_eq!(graph.name(), "g");
    assert_eq!(graph.owned().op_names, ["first", "second", "third"]);
    assert_eq!(graph.owned().tensor_names, ["x", "w", "y"]);
}

#[test]
fn defects_are_told_by_name() {
    let mut graph = GraphBuilder::new("g");
    let y = graph.temporary("y", 8);
    graph.op("early", 1).reads([y]);
    let (error, message) = refused(graph);
    assert_eq!(error, GraphError::ReadBeforeWrite { op: OpId(0), tensor: y });
    assert!(message.starts_with("op 0 (\"early\") reads tensor 0 (\"y\"), "), "{message}");

    let mut graph = GraphBuilder::new("g");
    let nothing = graph.state("nothing", 0);
    graph.op("op", 1).reads([nothing]);
    let (error, message) = refused(graph);
    assert_eq!(error, GraphError::EmptyTensor(nothing));
    assert!(message.contains("\"nothing\""), "{message}");

    let mut graph = GraphBuilder::new("g");
    let w = graph.state("w", 8);
    graph.op("twice", 1).reads([w, w]);
    let (_, message) = refused(graph);
    assert!(message.contains("\"twice\"") && message.contains("\"w\""), "{message}");

    let mut graph = GraphBuilder::new("g");
    graph.op("lost", 1).reads([TensorId(5)]);
    let (error, message) = refused(graph);
    assert_eq!(error, GraphError::UnknownTensor { op: OpId(0), tensor: TensorId(5) });
    assert!(message.starts_with("op 0 (\"lost\") names tensor 5,"), "{message}");

    assert_eq!(refused(GraphBuilder::new("g")).0, GraphError::NoOps);
}

#[test]
fn clones_share_their_data() {
    let mut graph = GraphBuilder::new("g");
    let w = graph.state("w", 8);
    graph.op("op", 1).reads([w]);
    let graph: Graph = graph.build().unwrap();
    assert!(std::ptr::eq(graph.owned(), graph.clone().owned()));
}
