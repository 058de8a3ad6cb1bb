//! `spillway.graph.v1`.

use super::error::FormatError;
use super::json::{Document, Object, parse};
use super::render::render;
use crate::graph::OwnedGraph;
use crate::shown::Shown;
use planner_core::{GraphError, Kind, OpId, TensorId};
use serde::{Deserialize, Serialize};
use std::borrow::Cow;

#[derive(Serialize, Deserialize)]
struct GraphRecord<'a> {
    format: Cow<'a, str>,
    name: Cow<'a, str>,
    tensors: Vec<Object<TensorRecord<'a>>>,
    ops: Vec<Object<OpRecord<'a>>>,
}

#[derive(Serialize, Deserialize)]
struct TensorRecord<'a> {
    name: Cow<'a, str>,
    bytes: u64,
    #[serde(with = "kind")]
    kind: Kind,
}

#[derive(Serialize, Deserialize)]
struct OpRecord<'a> {
    name: Cow<'a, str>,
    time_ns: u64,
    reads: Vec<u32>,
    writes: Vec<u32>,
    #[serde(default)]
    workspace_bytes: u64,
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    repeatable: bool,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    host_ns: Option<u64>,
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    collective: bool,
}

/// Reads a graph, gzip or plain, and checks it.
///
/// # Errors
/// The bytes are not a graph file, or [`OwnedGraph::graph`] rejects the graph.
pub fn read_graph(bytes: &[u8]) -> Result<OwnedGraph, FormatError> {
    let record: GraphRecord<'static> = parse(bytes, Document::Graph)?;
    let mut graph = OwnedGraph::new(record.name);
    for Object(tensor) in record.tensors {
        graph.push_tensor(tensor.name, tensor.bytes, tensor.kind);
    }
    for Object(op) in record.ops {
        let (reads, writes) = (ids(op.reads), ids(op.writes));
        let id = graph.push_op(op.name, op.time_ns, op.workspace_bytes, &reads, &writes);
        if op.repeatable {
            graph.set_repeatable(id);
        }
        if let Some(host_ns) = op.host_ns {
            graph.set_host_ns(id, host_ns);
        }
        if op.collective {
            graph.set_collective(id);
        }
    }
    if let Err(error) = graph.graph() {
        return Err(FormatError::malformed(with_names(&graph, error)));
    }
    Ok(graph)
}

/// Writes a graph as JSON.
///
/// # Panics
/// The graph has fewer names than tensors or ops, or an op's operands are out of range.
#[must_use]
pub fn write_graph(graph: &OwnedGraph) -> Vec<u8> {
    let tensors = graph.tensors.iter().zip(&graph.tensor_names).map(|(tensor, name)| {
        Object(TensorRecord { name: name.into(), bytes: tensor.bytes, kind: tensor.kind })
    });
    let ops = graph.ops.iter().zip(&graph.op_names).map(|(op, name)| {
        let operands = &graph.operands[op.first_operand as usize..];
        let (reads, rest) = operands.split_at(op.reads as usize);
        Object(OpRecord {
            name: name.into(),
            time_ns: op.time_ns,
            reads: reads.iter().map(|tensor| tensor.0).collect(),
            writes: rest[..op.writes as usize].iter().map(|tensor| tensor.0).collect(),
            workspace_bytes: op.workspace_bytes,
            repeatable: op.repeatable,
            host_ns: op.host_ns,
            collective: op.collective,
        })
    });
    render(&GraphRecord {
        format: Document::Graph.format().into(),
        name: graph.name.as_str().into(),
        tensors: tensors.collect(),
        ops: ops.collect(),
    })
}

fn ids(numbers: Vec<u32>) -> Vec<TensorId> {
    numbers.into_iter().map(TensorId).collect()
}

/// Describes an error with names, since the core knows only numbers.
fn with_names(graph: &OwnedGraph, error: GraphError) -> String {
    let op = |id: OpId| format!("op {} ({:?})", id.0, Shown::name(&graph.op_names[id.index()]));
    let tensor = |id: TensorId| match graph.tensor_names.get(id.index()) {
        Some(name) => format!("tensor {} ({:?})", id.0, Shown::name(name)),
        None => format!("tensor {}", id.0),
    };
    match error {
        GraphError::EmptyTensor(id) => format!("{} has zero bytes", tensor(id)),
        GraphError::UnknownTensor { op: at, tensor: id } => {
            format!("{} names {}, and there are {}", op(at), tensor(id), graph.tensors.len())
        }
        GraphError::RepeatedOperand { op: at, tensor: id } => {
            format!("{} lists {} twice in its reads or twice in its writes", op(at), tensor(id))
        }
        GraphError::ReadBeforeWrite { op: at, tensor: id } => {
            format!("{} reads {}, which has no value before an op writes it", op(at), tensor(id))
        }
        GraphError::NeverWritten(id) => format!("{} is an output that no op writes", tensor(id)),
        GraphError::HostWritesInput { op: at, tensor: id } => format!(
            "{} has a time on the host (host_ns) and writes {}, an input: such an op can run only \
             on the device",
            op(at),
            tensor(id)
        ),
        GraphError::CollectiveOnHost(id) => format!(
            "{} is a collective and has a time on the host (host_ns): a collective runs only on the \
             device",
            op(id)
        ),
        other => other.to_string(),
    }
}

/// A kind is a bare word. Serde's derived enums would also accept `{"state": null}`.
mod kind {
    use planner_core::Kind;
    use serde::de::{Deserializer, Error, Unexpected, Visitor};
    use serde::ser::Serializer;
    use std::fmt;

    pub(super) fn serialize<S: Serializer>(kind: &Kind, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(match kind {
            Kind::State => "state",
            Kind::Input => "input",
            Kind::Temporary => "temporary",
            Kind::Output => "output",
        })
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(
        deserializer: D,
    ) -> Result<Kind, D::Error> {
        deserializer.deserialize_str(Word)
    }

    struct Word;

    impl Visitor<'_> for Word {
        type Value = Kind;

        fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.write_str(r#""state", "input", "temporary" or "output""#)
        }

        fn visit_str<E: Error>(self, word: &str) -> Result<Kind, E> {
            match word {
                "state" => Ok(Kind::State),
                "input" => Ok(Kind::Input),
                "temporary" => Ok(Kind::Temporary),
                "output" => Ok(Kind::Output),
                _ => Err(E::invalid_value(Unexpected::Str(word), &self)),
            }
        }
    }
}
