//! Converts JSON text to records and back, with stricter rules than serde.

use super::error::{ErrorKind, FormatError};
use super::file::decompress;
use crate::shown::Shown;
use serde::de::{DeserializeOwned, Deserializer, IgnoredAny, MapAccess, Visitor};
use serde::{Deserialize, Serialize, forward_to_deserialize_any};
use serde_json::error::Category;
use serde_path_to_error::{Path, Track};
use std::fmt;

/// The deepest nesting of arrays and objects.
pub const MAX_DEPTH: usize = 100;

/// The five formats.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Document {
    /// `spillway.graph.v1`
    Graph,
    /// `spillway.machine.v1`
    Machine,
    /// `spillway.plan.v1`
    Plan,
    /// `spillway.chain.v1`
    Chain,
    /// `spillway.certificate.v1`
    Certificate,
}

impl Document {
    const ALL: [Self; 5] = [Self::Graph, Self::Machine, Self::Plan, Self::Chain, Self::Certificate];

    /// The value of the field `format`.
    #[must_use]
    pub const fn format(self) -> &'static str {
        match self {
            Self::Graph => "spillway.graph.v1",
            Self::Machine => "spillway.machine.v1",
            Self::Plan => "spillway.plan.v1",
            Self::Chain => "spillway.chain.v1",
            Self::Certificate => "spillway.certificate.v1",
        }
    }
}

/// Returns the format of a file. Reads only as far as necessary.
///
/// # Errors
/// The file is not a JSON object up to its field `format`, or this field is missing or unknown.
pub fn document(bytes: &[u8]) -> Result<Document, FormatError> {
    document_of(checked_text(&decompress(bytes)?, VALUE_BYTES)?)
}

/// Reads a file of the given format into its record.
pub(super) fn parse<T: DeserializeOwned>(
    bytes: &[u8],
    expected: Document,
) -> Result<T, FormatError> {
    let bytes = decompress(bytes)?;
    let text = checked_text(&bytes, VALUE_BYTES)?;
    let found = document_of(text)?;
    if found != expected {
        return Err(FormatError::malformed(format!(
            "format is {}, but {} is expected here",
            found.format(),
            expected.format()
        )));
    }
    let mut json = serde_json::Deserializer::from_str(text);
    let mut track = Track::new();
    let record = Object::deserialize(serde_path_to_error::Deserializer::new(&mut json, &mut track));
    let Object(record) = record.map_err(|error| locate(&error, &track.path()))?;
    json.end().map_err(|error| locate(&error, &Track::new().path()))?;
    Ok(record)
}

fn document_of(text: &str) -> Result<Document, FormatError> {
    let mut found = FindFormat { format: None, has_nodes: false };
    let mut json = serde_json::Deserializer::from_str(text);
    let mut track = Track::new();
    let looked =
        serde_path_to_error::Deserializer::new(&mut json, &mut track).deserialize_map(&mut found);
    // The search stops at the field, and serde_json then reports an unfinished object.
    let Some(name) = found.format else {
        return Err(match looked {
            Err(error) => locate(&error, &track.path()),
            Ok(()) if found.has_nodes => FormatError::malformed(
                "an execution trace: import it first with `spillway import pytorch`",
            ),
            Ok(()) => FormatError::malformed("the field `format` is missing"),
        });
    };
    Document::ALL.into_iter().find(|document| document.format() == name).ok_or_else(|| {
        let known = Document::ALL.map(Document::format).join(", ");
        let name = Shown::name(name);
        FormatError::malformed(format!("format {name:?} is unknown; known are {known}"))
    })
}

struct FindFormat {
    format: Option<String>,
    /// Whether there is a field `nodes`, as in an execution trace of PyTorch.
    has_nodes: bool,
}

impl<'de> Visitor<'de> for &mut FindFormat {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a JSON object")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<(), A::Error> {
        while let Some(key) = map.next_key::<String>()? {
            if key == "format" {
                self.format = Some(map.next_value()?);
                return Ok(());
            }
            self.has_nodes |= key == "nodes";
            map.next_value::<IgnoredAny>()?;
        }
        Ok(())
    }
}

/// The most bytes of memory that a value of our formats takes while it is read. An empty list in a list takes
/// the size of a list header, three times while the outer list grows.
const VALUE_BYTES: usize = 128;

/// Checks that the text is UTF-8 and nested no deeper than `MAX_DEPTH`, since serde_json checks neither in
/// ignored fields. Checks that there is memory for the values, each of at most `value_bytes`, since
/// serde_json would abort the process without it.
pub fn checked_text(bytes: &[u8], value_bytes: usize) -> Result<&str, FormatError> {
    if bytes.iter().all(u8::is_ascii_whitespace) {
        return Err(FormatError::malformed("the file is empty"));
    }
    let text = std::str::from_utf8(bytes).map_err(|error| {
        let position = position_of(bytes, error.valid_up_to());
        FormatError::malformed(format!("{position}: invalid UTF-8"))
    })?;
    let (mut depth, mut quoted, mut escaped) = (0usize, false, false);
    let mut values = 1usize;
    for (at, byte) in text.bytes().enumerate() {
        match byte {
            _ if escaped => escaped = false,
            b'\\' => escaped = quoted,
            b'"' => quoted = !quoted,
            b'[' | b'{' if !quoted => (depth, values) = (depth + 1, values + 1),
            b',' if !quoted => values += 1,
            b']' | b'}' if !quoted => depth = depth.saturating_sub(1),
            _ => {}
        }
        if depth > MAX_DEPTH {
            let position = position_of(bytes, at);
            return Err(FormatError::malformed(format!(
                "{position}: nested deeper than {MAX_DEPTH}"
            )));
        }
    }
    check_memory(values.saturating_mul(value_bytes).saturating_add(text.len()))?;
    Ok(text)
}

/// Allocates this much memory and frees it again. Fails if there is too little.
fn check_memory(bytes: usize) -> Result<(), FormatError> {
    let mut buffer = Vec::<u8>::new();
    let reserved = buffer.try_reserve_exact(bytes);
    // Without this, compilers remove the unused allocation.
    std::hint::black_box(&buffer);
    reserved.map_err(|_| {
        let message = format!(
            "cannot be read: it may need {bytes} bytes of memory, which cannot be allocated"
        );
        FormatError::new(ErrorKind::Io, message)
    })
}

fn position_of(bytes: &[u8], at: usize) -> String {
    let before = &bytes[..at];
    let line = before.iter().filter(|&&byte| byte == b'\n').count() + 1;
    let column = before.iter().rev().take_while(|&&byte| byte != b'\n').count() + 1;
    format!("line {line} column {column}")
}

/// Locates an error: a wrong value by its path, wrong syntax only by its position.
fn locate(error: &serde_json::Error, path: &Path) -> FormatError {
    let position = format!("line {} column {}", error.line(), error.column());
    let shown = error.to_string();
    let reason = shown.strip_suffix(&format!(" at {position}")).unwrap_or(&shown);
    let path = path.to_string();
    FormatError::malformed(if error.classify() == Category::Data && path != "." {
        format!("{path}: {reason} ({position})")
    } else {
        format!("{position}: {reason}")
    })
}

/// A record that must be an object in JSON. Serde alone would also accept an array of its fields.
#[derive(Default, Serialize)]
#[serde(transparent)]
pub(super) struct Object<T>(pub(super) T);

impl<'de, T: Deserialize<'de>> Deserialize<'de> for Object<T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        T::deserialize(OnlyObjects(deserializer)).map(Self)
    }
}

struct OnlyObjects<D>(D);

impl<'de, D: Deserializer<'de>> Deserializer<'de> for OnlyObjects<D> {
    type Error = D::Error;

    fn deserialize_any<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, D::Error> {
        self.0.deserialize_map(OnlyMaps(visitor))
    }

    forward_to_deserialize_any! {
        bool i8 i16 i32 i64 i128 u8 u16 u32 u64 u128 f32 f64 char str string bytes byte_buf
        option unit unit_struct newtype_struct seq tuple tuple_struct map struct enum
        identifier ignored_any
    }
}

struct OnlyMaps<V>(V);

impl<'de, V: Visitor<'de>> Visitor<'de> for OnlyMaps<V> {
    type Value = V::Value;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a JSON object")
    }

    fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<V::Value, A::Error> {
        self.0.visit_map(map)
    }
}
