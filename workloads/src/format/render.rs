//! Converts records to JSON that is safe to print.

use crate::shown::is_hidden;
use serde::Serialize;
use serde_json::ser::{Formatter, Serializer};
use std::io;

/// Writes a record as one line of JSON. Escapes hidden characters in strings, so that a terminal does not
/// interpret them. The values stay the same.
///
/// # Panics
/// The record has a map with keys other than strings, or its own serialization fails.
#[must_use]
pub fn render(record: &impl Serialize) -> Vec<u8> {
    let mut bytes = Vec::new();
    record
        .serialize(&mut Serializer::with_formatter(&mut bytes, Printable))
        .expect("records have string keys and no failing field");
    bytes.push(b'\n');
    bytes
}

/// Compact JSON with more escapes. `serde_json` escapes only the characters that JSON forbids. It escapes
/// neither the controls from U+007F on nor the controls of direction.
struct Printable;

impl Formatter for Printable {
    fn write_string_fragment<W: io::Write + ?Sized>(
        &mut self,
        writer: &mut W,
        fragment: &str,
    ) -> io::Result<()> {
        let mut rest = fragment;
        while let Some(at) = rest.find(is_hidden) {
            let (plain, from) = rest.split_at(at);
            writer.write_all(plain.as_bytes())?;
            let hidden = from.chars().next().unwrap_or_default();
            for unit in hidden.encode_utf16(&mut [0; 2]) {
                write!(writer, "\\u{unit:04x}")?;
            }
            rest = &from[hidden.len_utf8()..];
        }
        writer.write_all(rest.as_bytes())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hidden_characters_are_escaped_and_come_back() {
        let text = "é数\u{1b}[2J\n\u{9b}a\u{202e}\u{7f}\u{e0001}🙂\"\\";
        let json = String::from_utf8(render(&[text])).unwrap();
        assert_eq!(json, "[\"é数\\u001b[2J\\n\\u009ba\\u202e\\u007f\\udb40\\udc01🙂\\\"\\\\\"]\n");
        assert_eq!(serde_json::from_str::<[String; 1]>(&json).unwrap(), [text]);
    }
}
