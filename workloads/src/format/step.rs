//! Steps and the parts of tensors that they name.

use super::json::Object;
use planner_core::plan::{Part, Resident, Step};
use planner_core::{Launched, OpId, TensorId};
use serde::de::{Deserializer, Error, SeqAccess, Unexpected, Visitor};
use serde::ser::{SerializeTuple, Serializer};
use serde::{Deserialize, Serialize};
use std::fmt;

/// In memory, the largest count stands for the whole tensor, so no file may contain it.
fn part(tensor: u32, range: Option<(u64, u64)>) -> Result<Part, String> {
    match range {
        None => Ok(Part::whole(TensorId(tensor))),
        Some((_, Part::ALL)) => Err(format!("a count of {} objects is too large", Part::ALL)),
        Some((first, count)) => Ok(Part { tensor: TensorId(tensor), first, count }),
    }
}

/// An entry of `resident_at_start`.
#[derive(Clone, Copy, Serialize, Deserialize)]
#[serde(try_from = "Object<ResidentFields>", into = "ResidentFields")]
pub(super) struct ResidentRecord(pub(super) Resident);

#[derive(Serialize, Deserialize)]
struct ResidentFields {
    tensor: u32,
    host_copy: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    first: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    count: Option<u64>,
}

impl TryFrom<Object<ResidentFields>> for ResidentRecord {
    type Error = String;

    fn try_from(Object(fields): Object<ResidentFields>) -> Result<Self, String> {
        let range = match (fields.first, fields.count) {
            (None, None) => None,
            (Some(first), Some(count)) => Some((first, count)),
            _ => return Err("`first` and `count` go together".into()),
        };
        Ok(Self(Resident { part: part(fields.tensor, range)?, host_copy: fields.host_copy }))
    }
}

impl From<ResidentRecord> for ResidentFields {
    fn from(ResidentRecord(Resident { part, host_copy }): ResidentRecord) -> Self {
        let range = (!part.is_whole()).then_some((part.first, part.count));
        let (first, count) = range.unzip();
        Self { tensor: part.tensor.0, host_copy, first, count }
    }
}

/// A step: `["launch", op]`, `["host", op]`, or a verb with a tensor and an optional range.
#[derive(Clone, Copy)]
pub(super) struct StepRecord(pub(super) Step);

impl Serialize for StepRecord {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let (verb, part) = match self.0 {
            Step::Launch(Launched { op, .. }) => return ("launch", op.0).serialize(serializer),
            Step::Host(op) => return ("host", op.0).serialize(serializer),
            Step::Prefetch(part) => ("prefetch", part),
            Step::Offload(part) => ("offload", part),
            Step::Evict(part) => ("evict", part),
        };
        let mut step = serializer.serialize_tuple(if part.is_whole() { 2 } else { 4 })?;
        step.serialize_element(verb)?;
        step.serialize_element(&part.tensor.0)?;
        if !part.is_whole() {
            step.serialize_element(&part.first)?;
            step.serialize_element(&part.count)?;
        }
        step.end()
    }
}

impl<'de> Deserialize<'de> for StepRecord {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_seq(StepVisitor).map(Self)
    }
}

struct StepVisitor;

impl<'de> Visitor<'de> for StepVisitor {
    type Value = Step;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(
            r#"["launch", op], ["host", op], or "prefetch", "offload" or "evict" with a tensor and perhaps first and count"#,
        )
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut step: A) -> Result<Step, A::Error> {
        let verb: Verb = step.next_element()?.ok_or_else(|| Error::invalid_length(0, &self))?;
        let id: u32 = step.next_element()?.ok_or_else(|| Error::invalid_length(1, &self))?;
        let range = match step.next_element::<u64>()? {
            None => None,
            Some(_) if matches!(verb, Verb::Launch | Verb::Host) => {
                return Err(Error::invalid_length(3, &self));
            }
            Some(first) => {
                let count = step.next_element()?.ok_or_else(|| Error::invalid_length(3, &self))?;
                if step.next_element::<u64>()?.is_some() {
                    return Err(Error::invalid_length(5, &self));
                }
                Some((first, count))
            }
        };
        let part = part(id, range).map_err(Error::custom)?;
        Ok(match verb {
            Verb::Launch => Step::launch(OpId(id)),
            Verb::Host => Step::Host(OpId(id)),
            Verb::Prefetch => Step::Prefetch(part),
            Verb::Offload => Step::Offload(part),
            Verb::Evict => Step::Evict(part),
        })
    }
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Verb {
    Launch,
    Host,
    Prefetch,
    Offload,
    Evict,
}

impl<'de> Deserialize<'de> for Verb {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_str(VerbVisitor)
    }
}

struct VerbVisitor;

impl Visitor<'_> for VerbVisitor {
    type Value = Verb;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(r#""launch", "host", "prefetch", "offload" or "evict""#)
    }

    fn visit_str<E: Error>(self, word: &str) -> Result<Verb, E> {
        match word {
            "launch" => Ok(Verb::Launch),
            "host" => Ok(Verb::Host),
            "prefetch" => Ok(Verb::Prefetch),
            "offload" => Ok(Verb::Offload),
            "evict" => Ok(Verb::Evict),
            _ => Err(E::invalid_value(Unexpected::Str(word), &self)),
        }
    }
}
