//! Reading of an execution trace. Both layouts give the same nodes.

use super::value::{Json, Value};
use super::{Device, ImportError, Source};
use core::fmt;
use serde::de::{Deserialize, Deserializer, MapAccess, SeqAccess, Visitor};

/// A recorded call, or an annotation around some calls.
#[derive(Debug, PartialEq)]
pub(super) struct Node {
    /// The position in the order of starts.
    pub(super) id: u64,
    /// The id of the node around this one.
    pub(super) parent: u64,
    /// The name with its namespace.
    pub(super) name: String,
    /// The operator's declaration; empty if the node is not an operator.
    pub(super) schema: String,
    /// The number of the call in a Kineto trace of the same run; 0 without a number.
    pub(super) record_id: u64,
    /// The thread of the call.
    pub(super) thread: u64,
    pub(super) inputs: Vec<Value>,
    pub(super) outputs: Vec<Value>,
}

impl Node {
    /// Returns the name without its namespace.
    pub(super) fn base_name(&self) -> &str {
        self.name.rsplit("::").next().unwrap_or(&self.name)
    }

    /// Returns an error about this node.
    pub(super) fn error(&self, problem: &'static str) -> ImportError {
        ImportError::Node { id: self.id, name: self.name.clone(), problem }
    }
}

#[derive(serde::Deserialize)]
struct RawTrace {
    nodes: Vec<RawNode>,
}

/// A node as in the file, with the fields of schema `1.0.1` and of the later schemas.
#[derive(serde::Deserialize)]
struct RawNode {
    id: u64,
    name: String,
    #[serde(alias = "ctrl_deps")]
    parent: Option<u64>,
    inputs: RawValues,
    #[serde(default)]
    input_shapes: Vec<Json>,
    outputs: RawValues,
    #[serde(default)]
    output_shapes: Vec<Json>,
    op_schema: Option<String>,
    rf_id: Option<u64>,
    tid: Option<u64>,
    #[serde(default)]
    attrs: Vec<RawAttribute>,
}

#[derive(serde::Deserialize)]
struct RawAttribute {
    name: String,
    value: Json,
}

/// Values, with shapes and strides if the layout has them in the same field.
#[derive(Default)]
struct RawValues {
    values: Vec<Json>,
    shapes: Vec<Json>,
    strides: Vec<Json>,
}

impl<'de> Deserialize<'de> for RawValues {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct EitherLayout;
        impl<'de> Visitor<'de> for EitherLayout {
            type Value = RawValues;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a list of values, or an object with `values` and `shapes`")
            }
            fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<RawValues, A::Error> {
                let mut raw = RawValues::default();
                while let Some(value) = list.next_element()? {
                    raw.values.push(value);
                }
                Ok(raw)
            }
            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<RawValues, A::Error> {
                let mut raw = RawValues::default();
                while let Some(key) = map.next_key::<String>()? {
                    match key.as_str() {
                        "values" => raw.values = map.next_value()?,
                        "shapes" => raw.shapes = map.next_value()?,
                        "strides" => raw.strides = map.next_value()?,
                        _ => drop(map.next_value::<serde::de::IgnoredAny>()?),
                    }
                }
                Ok(raw)
            }
        }
        deserializer.deserialize_any(EitherLayout)
    }
}

/// The most bytes of memory that a value takes while a trace is read. The smallest node has seven values and
/// takes some hundred bytes, three times while the list of nodes grows.
const VALUE_BYTES: usize = 256;

/// Reads the nodes of a trace, in the order of the file.
///
/// # Errors
/// The position in the file or the node that is not valid.
pub(super) fn read(trace: &[u8], device: Device) -> Result<Vec<Node>, ImportError> {
    let trace = Source::Trace.text(trace, VALUE_BYTES)?;
    let raw: RawTrace = serde_json::from_str(trace)
        .map_err(|error| ImportError::Malformed { source: Source::Trace, error })?;
    raw.nodes.into_iter().map(|node| node.read(device)).collect()
}

impl RawNode {
    fn read(mut self, device: Device) -> Result<Node, ImportError> {
        for attribute in std::mem::take(&mut self.attrs) {
            let number =
                |value| if let Json::Int(n) = value { u64::try_from(n).ok() } else { None };
            match (attribute.name.as_str(), attribute.value) {
                ("op_schema", Json::Text(schema)) => self.op_schema = Some(schema),
                ("rf_id", value) => self.rf_id = number(value),
                ("tid", value) => self.tid = number(value),
                _ => {}
            }
        }
        // The flat layout has the shapes in a separate field.
        self.inputs.shapes.append(&mut self.input_shapes);
        self.outputs.shapes.append(&mut self.output_shapes);
        let mut node = Node {
            id: self.id,
            parent: 0,
            name: self.name,
            schema: self.op_schema.unwrap_or_default(),
            record_id: self.rf_id.unwrap_or(0),
            thread: self.tid.unwrap_or(0),
            inputs: Vec::new(),
            outputs: Vec::new(),
        };
        node.parent =
            self.parent.ok_or_else(|| node.error("has neither `ctrl_deps` nor `parent`"))?;
        node.inputs = self.inputs.read(device).map_err(|problem| node.error(problem))?;
        node.outputs = self.outputs.read(device).map_err(|problem| node.error(problem))?;
        Ok(node)
    }
}

impl RawValues {
    fn read(&self, device: Device) -> Result<Vec<Value>, &'static str> {
        let value = |(index, value)| {
            Value::read(value, self.shapes.get(index), self.strides.get(index), device)
        };
        self.values.iter().enumerate().map(value).collect()
    }
}
