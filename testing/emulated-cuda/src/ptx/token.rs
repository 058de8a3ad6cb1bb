//! The tokens of PTX: words, numbers and marks.

use super::error::LoadError;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Token<'t> {
    /// A name, a directive or an opcode with its suffixes.
    Word(&'t str),
    Number(&'t str),
    Mark(char),
    /// What stands between quotes.
    Text(&'t str),
}

/// A token and its line, from 1.
pub(super) type Placed<'t> = (Token<'t>, usize);

/// Cuts a text into tokens.
pub(super) fn tokens(text: &str) -> Result<Vec<Placed<'_>>, LoadError> {
    let mut tokens = Vec::new();
    let (mut rest, mut line) = (text, 1);
    while let Some(first) = rest.chars().next() {
        let taken = match first {
            _ if first.is_whitespace() => first.len_utf8(),
            '/' if rest.starts_with("//") => rest.find('\n').unwrap_or(rest.len()),
            '/' if rest.starts_with("/*") => {
                let end = rest
                    .find("*/")
                    .ok_or_else(|| LoadError::new(line, "the comment does not end"))?;
                end + 2
            }
            '"' => {
                let end = rest[1..]
                    .find('"')
                    .ok_or_else(|| LoadError::new(line, "the string does not end"))?;
                tokens.push((Token::Text(&rest[1..=end]), line));
                end + 2
            }
            '0'..='9' => {
                let taken = span(rest, |c| c.is_ascii_alphanumeric() || c == '.');
                tokens.push((Token::Number(&rest[..taken]), line));
                taken
            }
            _ if is_name(first) || first == '.' => {
                let taken = word(rest);
                tokens.push((Token::Word(&rest[..taken]), line));
                taken
            }
            _ => {
                tokens.push((Token::Mark(first), line));
                first.len_utf8()
            }
        };
        line += rest[..taken].matches('\n').count();
        rest = &rest[taken..];
    }
    Ok(tokens)
}

const fn is_name(c: char) -> bool {
    c.is_ascii_alphanumeric() || matches!(c, '_' | '$' | '%')
}

fn span(text: &str, is_part: impl Fn(char) -> bool) -> usize {
    text.find(|c| !is_part(c)).unwrap_or(text.len())
}

/// Returns the length of the word at the start of a text. Two colons are part of it; one is not.
fn word(text: &str) -> usize {
    let mut taken = span(text, |c| is_name(c) || c == '.');
    while text[taken..].starts_with("::") {
        taken += 2 + span(&text[taken + 2..], |c| is_name(c) || c == '.');
    }
    taken
}
