//! The values that nodes take and return: tensors, lists of tensors, and others.

use super::Device;
use core::fmt;
use serde::de::{Deserialize, Deserializer, IgnoredAny, MapAccess, SeqAccess, Visitor};

/// The parts of a JSON value that an import needs.
pub(super) enum Json {
    Int(i64),
    Bool(bool),
    Text(String),
    List(Vec<Json>),
    Other,
}

impl<'de> Deserialize<'de> for Json {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct AnyValue;
        impl<'de> Visitor<'de> for AnyValue {
            type Value = Json;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a value")
            }
            fn visit_bool<E>(self, value: bool) -> Result<Json, E> {
                Ok(Json::Bool(value))
            }
            fn visit_i64<E>(self, value: i64) -> Result<Json, E> {
                Ok(Json::Int(value))
            }
            fn visit_u64<E>(self, value: u64) -> Result<Json, E> {
                Ok(i64::try_from(value).map_or(Json::Other, Json::Int))
            }
            fn visit_f64<E>(self, _: f64) -> Result<Json, E> {
                Ok(Json::Other)
            }
            fn visit_str<E>(self, value: &str) -> Result<Json, E> {
                Ok(Json::Text(value.to_owned()))
            }
            fn visit_unit<E>(self) -> Result<Json, E> {
                Ok(Json::Other)
            }
            fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<Json, A::Error> {
                let mut values = Vec::new();
                while let Some(value) = list.next_element()? {
                    values.push(value);
                }
                Ok(Json::List(values))
            }
            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Json, A::Error> {
                while map.next_entry::<IgnoredAny, IgnoredAny>()?.is_some() {}
                Ok(Json::Other)
            }
        }
        deserializer.deserialize_any(AnyValue)
    }
}

impl Json {
    fn get(&self, index: usize) -> Option<&Json> {
        match self {
            Self::List(values) => values.get(index),
            _ => None,
        }
    }

    /// Returns the list as sizes, if every entry is a size.
    fn sizes(&self) -> Option<Vec<u64>> {
        let Self::List(values) = self else { return None };
        let size = |value: &Json| match value {
            Json::Int(size) => u64::try_from(*size).ok(),
            _ => None,
        };
        values.iter().map(size).collect()
    }
}

/// An argument or a result of a node.
#[derive(Debug, PartialEq)]
pub(super) enum Value {
    /// A tensor on the device with at least one byte. An import ignores tensors on other devices.
    Tensor(View),
    List(Vec<Value>),
    Bool(bool),
    Other,
}

/// A tensor in PyTorch's sense: a view of a storage.
#[derive(Debug, PartialEq)]
pub(super) struct View {
    /// The identity of the tensor object: an address, which later objects may reuse.
    pub(super) tensor: i64,
    /// The identity of the storage: an address, which later storages may reuse.
    pub(super) storage: i64,
    /// The first byte in the storage.
    pub(super) first_byte: u64,
    /// The end in the storage of the last element that the view can reach.
    pub(super) end_byte: u64,
    /// The number of elements times their size.
    pub(super) bytes: u64,
    /// The size of an element, in bytes.
    pub(super) element_bytes: u64,
    /// Whether the elements fill the whole range.
    pub(super) dense: bool,
    /// The sizes; empty for a scalar, or if the trace does not have them.
    pub(super) shape: Vec<u64>,
}

impl Value {
    /// Reads a value with its shape and, if the trace has them, its strides.
    ///
    /// # Errors
    /// The defect of a tensor.
    pub(super) fn read(
        value: &Json,
        shape: Option<&Json>,
        strides: Option<&Json>,
        device: Device,
    ) -> Result<Self, &'static str> {
        let values = match value {
            Json::Bool(value) => return Ok(Self::Bool(*value)),
            Json::List(values) => values,
            _ => return Ok(Self::Other),
        };
        if let [
            Json::Int(tensor),
            Json::Int(storage),
            Json::Int(offset),
            Json::Int(elements),
            Json::Int(element_bytes),
            Json::Text(holder),
        ] = values.as_slice()
        {
            if !device.holds(holder) || *elements == 0 || *element_bytes == 0 {
                return Ok(Self::Other);
            }
            let counts = [*offset, *elements, *element_bytes].map(u64::try_from);
            let [Ok(offset), Ok(elements), Ok(element_bytes)] = counts else {
                return Err("has a tensor with a negative size");
            };
            let shape = shape.and_then(Json::sizes).unwrap_or_default();
            let strides = strides.and_then(Json::sizes);
            let view = reach(elements, &shape, strides.as_deref()).and_then(|reach| {
                View::new(*tensor, *storage, [offset, elements, reach, element_bytes], shape)
            });
            return view.map(Self::Tensor).ok_or("has a tensor of more than 2^64 bytes");
        }
        let element = |(index, value)| {
            let shape = shape.and_then(|shapes| shapes.get(index));
            let strides = strides.and_then(|strides| strides.get(index));
            Self::read(value, shape, strides, device)
        };
        values.iter().enumerate().map(element).collect::<Result<_, _>>().map(Self::List)
    }

    /// Adds the tensors of the value to `views`, in order.
    fn collect_views<'a>(&'a self, views: &mut Vec<&'a View>) {
        match self {
            Self::Tensor(view) => views.push(view),
            Self::List(values) => values.iter().for_each(|value| value.collect_views(views)),
            Self::Bool(_) | Self::Other => {}
        }
    }

    /// Returns the length of the value, if it is a list of tensors.
    pub(super) fn list_length(&self) -> usize {
        match self {
            Self::List(values) if values.iter().any(|value| value.view().is_some()) => values.len(),
            _ => 0,
        }
    }

    /// Returns whether the value has an entry at a position. A value that is not a list has one at every
    /// position.
    pub(super) fn has_position(&self, position: usize) -> bool {
        !matches!(self, Self::List(values) if values.len() <= position)
    }

    /// Returns the tensor, if the value is one.
    pub(super) fn view(&self) -> Option<&View> {
        match self {
            Self::Tensor(view) => Some(view),
            _ => None,
        }
    }
}

/// Returns all tensors of some values, in order.
pub(super) fn views(values: &[Value]) -> Vec<&View> {
    let mut views = Vec::new();
    values.iter().for_each(|value| value.collect_views(&mut views));
    views
}

/// Returns the number of elements from the first to the last one that a view can reach. Without strides, this
/// is the number of elements.
fn reach(elements: u64, shape: &[u64], strides: Option<&[u64]>) -> Option<u64> {
    let product = shape.iter().try_fold(1u64, |product, size| product.checked_mul(*size));
    match strides {
        Some(strides) if strides.len() == shape.len() && product == Some(elements) => {
            shape.iter().zip(strides).try_fold(1u64, |reach, (size, stride)| {
                reach.checked_add(size.checked_sub(1)?.checked_mul(*stride)?)
            })
        }
        _ => Some(elements),
    }
}

impl View {
    /// Creates a view from the offset, the number, the reach and the size of its elements. Returns `None` if
    /// a value exceeds 64 bits.
    fn new(
        tensor: i64,
        storage: i64,
        [offset, elements, reach, element_bytes]: [u64; 4],
        shape: Vec<u64>,
    ) -> Option<Self> {
        Some(Self {
            tensor,
            storage,
            first_byte: offset.checked_mul(element_bytes)?,
            end_byte: offset.checked_add(reach)?.checked_mul(element_bytes)?,
            bytes: elements.checked_mul(element_bytes)?,
            element_bytes,
            dense: reach == elements,
            shape,
        })
    }

    /// The number of elements.
    pub(super) fn elements(&self) -> u64 {
        self.bytes / self.element_bytes.max(1)
    }
}
