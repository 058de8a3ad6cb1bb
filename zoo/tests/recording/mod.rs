//! Writes execution traces by hand, in either layout.

pub(crate) mod operators;

use planner_core::Kind;
use serde_json::{Value, json};
use workloads::OwnedGraph;
use zoo::pytorch::{Device, import};

/// How a trace is written.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Layout {
    /// Schema `1.0.1`.
    Flat,
    /// The later ones.
    Nested,
}

/// A tensor as a trace mentions it: four-byte elements on a device, unless told otherwise.
#[derive(Clone)]
pub(crate) struct Tensor {
    storage: u64,
    object: u64,
    offset: u64,
    shape: Vec<u64>,
    strides: Option<Vec<u64>>,
    element_bytes: u64,
    device: &'static str,
}

/// A tensor of the given shape at the beginning of a storage.
pub(crate) fn t<const N: usize>(storage: u64, shape: [u64; N]) -> Tensor {
    Tensor {
        storage,
        object: 100_000 + storage,
        offset: 0,
        shape: shape.to_vec(),
        strides: None,
        element_bytes: 4,
        device: "cuda:0",
    }
}

impl Tensor {
    pub(crate) fn at(self, offset: u64) -> Self {
        Self { offset, ..self }
    }

    pub(crate) fn elements_of(self, element_bytes: u64) -> Self {
        Self { element_bytes, ..self }
    }

    pub(crate) fn on(self, device: &'static str) -> Self {
        Self { device, ..self }
    }

    pub(crate) fn object(self, object: u64) -> Self {
        Self { object, ..self }
    }

    pub(crate) fn strides(self, strides: &[u64]) -> Self {
        Self { strides: Some(strides.to_vec()), ..self }
    }
}

/// An argument or a result.
#[derive(Clone)]
pub(crate) enum Argument {
    Tensor(Tensor),
    List(Vec<Argument>),
    Plain(Value),
}

impl From<Tensor> for Argument {
    fn from(tensor: Tensor) -> Self {
        Self::Tensor(tensor)
    }
}

impl<const N: usize> From<[Tensor; N]> for Argument {
    fn from(tensors: [Tensor; N]) -> Self {
        Self::List(tensors.map(Self::Tensor).to_vec())
    }
}

impl From<Value> for Argument {
    fn from(value: Value) -> Self {
        Self::Plain(value)
    }
}

impl Argument {
    /// Value, shape, type and strides, as traces write them.
    fn written(&self) -> [Value; 4] {
        match self {
            Self::Tensor(t) => {
                let numel: u64 = t.shape.iter().product();
                [
                    json!([t.object, t.storage, t.offset, numel, t.element_bytes, t.device]),
                    json!(t.shape),
                    json!("Tensor(float)"),
                    t.strides.as_ref().map_or(json!([]), |strides| json!(strides)),
                ]
            }
            Self::List(list) => {
                let of = |k: usize| list.iter().map(|a| a.written()[k].clone()).collect::<Value>();
                [of(0), of(1), json!("GenericList[Tensor(float)]"), of(3)]
            }
            Self::Plain(value) => [value.clone(), json!([]), json!("Int"), json!([])],
        }
    }
}

/// The arguments of a call.
macro_rules! args {
    ($($value:expr),* $(,)?) => {
        vec![$($crate::recording::Argument::from($value)),*]
    };
}
pub(crate) use args;

struct Call {
    id: u64,
    parent: u64,
    thread: u64,
    name: String,
    schema: String,
    inputs: Vec<Argument>,
    outputs: Vec<Argument>,
}

/// A trace in the making.
pub(crate) struct Trace {
    calls: Vec<Call>,
    parents: Vec<u64>,
    thread: u64,
    last_id: u64,
}

impl Trace {
    /// A trace with its root.
    pub(crate) fn new() -> Self {
        let mut trace = Self { calls: Vec::new(), parents: Vec::new(), thread: 1, last_id: 0 };
        trace.note("[pytorch|profiler|execution_trace|process]", |_| {});
        trace.parents.push(1);
        trace
    }

    /// A call of an operator with its schema, which calls nothing itself.
    pub(crate) fn call(&mut self, schema: &str, inputs: Vec<Argument>, outputs: Vec<Argument>) {
        self.calling(schema, inputs, outputs, |_| {});
    }

    /// A call of an operator, and what it calls.
    pub(crate) fn calling(
        &mut self,
        schema: &str,
        inputs: Vec<Argument>,
        outputs: Vec<Argument>,
        inside: impl FnOnce(&mut Self),
    ) {
        let name = schema.split(['.', '(']).next().unwrap();
        self.add(name, schema, (inputs, outputs), inside);
    }

    /// An annotation around some calls.
    pub(crate) fn note(&mut self, name: &str, inside: impl FnOnce(&mut Self)) {
        self.add(name, "", (vec![], vec![]), inside);
    }

    /// An annotation that was given tensors, and returned some.
    pub(crate) fn note_of(&mut self, name: &str, inputs: Vec<Argument>, outputs: Vec<Argument>) {
        self.add(name, "", (inputs, outputs), |_| {});
    }

    /// Calls on another thread, outside of all that runs on this one.
    pub(crate) fn on_thread(&mut self, thread: u64, inside: impl FnOnce(&mut Self)) {
        let thread = std::mem::replace(&mut self.thread, thread);
        self.parents.push(1);
        inside(self);
        self.parents.pop();
        self.thread = thread;
    }

    /// Nodes are listed as they end, and numbered as they start.
    fn add(
        &mut self,
        name: &str,
        schema: &str,
        (inputs, outputs): (Vec<Argument>, Vec<Argument>),
        inside: impl FnOnce(&mut Self),
    ) {
        self.last_id += 1;
        let id = self.last_id;
        let parent = self.parents.last().copied().unwrap_or(1);
        self.parents.push(id);
        inside(self);
        self.parents.pop();
        let (name, schema, thread) = (name.to_owned(), schema.to_owned(), self.thread);
        self.calls.push(Call { id, parent, thread, name, schema, inputs, outputs });
    }

    /// The trace as a file.
    pub(crate) fn json(&self, layout: Layout) -> Vec<u8> {
        let nodes: Value = self.calls.iter().map(|call| call.json(layout)).collect();
        serde_json::to_vec_pretty(&json!({ "schema": "written by hand", "nodes": nodes })).unwrap()
    }

    /// The graph, which must be the same from both layouts.
    pub(crate) fn import(&self) -> OwnedGraph {
        let of = |layout| import(&self.json(layout), None, Device::Cuda, "by hand").unwrap();
        let (flat, nested) = (of(Layout::Flat), of(Layout::Nested));
        assert_eq!(flat, nested);
        nested
    }
}

impl Call {
    fn json(&self, layout: Layout) -> Value {
        let column = |arguments: &[Argument], k: usize| -> Value {
            arguments.iter().map(|argument| argument.written()[k].clone()).collect()
        };
        let (ins, outs) = (&self.inputs, &self.outputs);
        // Recording numbers differ from ids; the root has none.
        let rf_id = if self.id == 1 { 0 } else { self.id + 500 };
        match layout {
            Layout::Flat => json!({
                "name": self.name, "id": self.id, "rf_id": rf_id, "parent": self.parent,
                "tid": self.thread, "op_schema": self.schema,
                "inputs": column(ins, 0), "input_shapes": column(ins, 1),
                "input_types": column(ins, 2),
                "outputs": column(outs, 0), "output_shapes": column(outs, 1),
                "output_types": column(outs, 2),
            }),
            Layout::Nested => {
                let values = |arguments: &[Argument]| {
                    json!({ "values": column(arguments, 0), "shapes": column(arguments, 1),
                            "types": column(arguments, 2), "strides": column(arguments, 3) })
                };
                json!({
                    "id": self.id, "name": self.name, "ctrl_deps": self.parent,
                    "inputs": values(ins), "outputs": values(outs),
                    "attrs": [
                        { "name": "rf_id", "type": "uint64", "value": rf_id },
                        { "name": "tid", "type": "uint64", "value": self.thread },
                        { "name": "op_schema", "type": "string", "value": self.schema },
                    ],
                })
            }
        }
    }
}

/// The ops of a graph, as `name: reads -> writes`, with the workspace where there is one.
pub(crate) fn ops(owned: &OwnedGraph) -> Vec<String> {
    let graph = owned.graph().unwrap();
    let line = |op: planner_core::OpId| {
        let names = |tensors: &[planner_core::TensorId]| -> String {
            tensors.iter().map(|t| format!(" {}", owned.tensor_names[t.index()])).collect()
        };
        let name = owned.op_names[op.index()].split('@').next().unwrap();
        let (reads, writes) = (names(graph.reads(op)), names(graph.writes(op)));
        let workspace = match graph.op(op).workspace_bytes {
            0 => String::new(),
            bytes => format!(" ({bytes})"),
        };
        format!("{name}:{reads} ->{writes}{workspace}")
    };
    graph.op_ids().map(line).collect()
}

/// The tensors of a graph, as `name kind bytes`.
pub(crate) fn tensors(graph: &OwnedGraph) -> Vec<String> {
    let line = |(name, tensor): (&String, &planner_core::Tensor)| {
        let kind = match tensor.kind {
            Kind::State => "state",
            Kind::Input => "input",
            Kind::Temporary => "temporary",
            Kind::Output => "output",
        };
        format!("{name} {kind} {}", tensor.bytes)
    };
    graph.tensor_names.iter().zip(&graph.tensors).map(line).collect()
}

/// The times of all ops.
pub(crate) fn times_ns(graph: &OwnedGraph) -> Vec<u64> {
    graph.ops.iter().map(|op| op.time_ns).collect()
}
