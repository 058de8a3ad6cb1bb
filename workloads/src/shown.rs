//! Text from files, arguments and devices, made safe to display.

use std::borrow::Cow;
use std::fmt::{self, Write};
use std::path::Path;

/// The most characters of a name or a path.
const NAME_CHARS: usize = 120;

/// The most characters of a message that quotes its subject.
const MESSAGE_CHARS: usize = 400;

/// Text of any origin on one short line. It escapes characters that a terminal would not draw (controls, line
/// breaks, invisible characters and characters that change the direction of writing), and leaves out the
/// middle of long text.
///
/// `{:?}` adds quotation marks, and escapes quotation marks in the text.
#[derive(Clone)]
pub struct Shown<'t> {
    text: Cow<'t, str>,
    most_chars: usize,
}

impl<'t> Shown<'t> {
    /// A name or another value in a sentence: at most 120 characters.
    #[must_use]
    pub fn name(text: impl Into<Cow<'t, str>>) -> Self {
        Self { text: text.into(), most_chars: NAME_CHARS }
    }

    /// A path, with the limit of names.
    #[must_use]
    pub fn path(path: &'t (impl AsRef<Path> + ?Sized)) -> Self {
        Self::name(path.as_ref().to_string_lossy())
    }

    /// A sentence that another program or a parser wrote: at most 400 characters.
    #[must_use]
    pub fn message(text: impl Into<Cow<'t, str>>) -> Self {
        Self { text: text.into(), most_chars: MESSAGE_CHARS }
    }

    fn write(&self, f: &mut fmt::Formatter<'_>, special: &[char]) -> fmt::Result {
        let (text, half) = (&*self.text, self.most_chars / 2);
        if fitting(text.chars(), special, self.most_chars) == text.len() {
            return text.chars().try_for_each(|c| write_char(f, c, special));
        }
        let head = fitting(text.chars(), special, half);
        let tail = text.len() - fitting(text.chars().rev(), special, half - 1);
        text[..head].chars().try_for_each(|c| write_char(f, c, special))?;
        f.write_char('…')?;
        text[tail..].chars().try_for_each(|c| write_char(f, c, special))
    }
}

impl fmt::Display for Shown<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.write(f, &[])
    }
}

impl fmt::Debug for Shown<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_char('"')?;
        self.write(f, &['"', '\\'])?;
        f.write_char('"')
    }
}

/// Returns the number of bytes of the first characters that fit after escaping.
fn fitting(chars: impl Iterator<Item = char>, special: &[char], mut left: usize) -> usize {
    let fit = chars.take_while(|&c| {
        let width = if needs_escape(c, special) { c.escape_default().len() } else { 1 };
        left.checked_sub(width).inspect(|&rest| left = rest).is_some()
    });
    fit.map(char::len_utf8).sum()
}

fn write_char(f: &mut fmt::Formatter<'_>, c: char, special: &[char]) -> fmt::Result {
    if needs_escape(c, special) { write!(f, "{}", c.escape_default()) } else { f.write_char(c) }
}

fn needs_escape(c: char, special: &[char]) -> bool {
    is_hidden(c) || special.contains(&c)
}

/// Returns whether a terminal or a page does not draw a character, or draws other characters differently
/// because of it: controls, line breaks, Unicode's `Default_Ignorable_Code_Point` (which includes the
/// controls of direction), annotations, and characters that XML does not allow.
#[must_use]
pub fn is_hidden(c: char) -> bool {
    c.is_control()
        || matches!(c,
            '\u{ad}' | '\u{34f}' | '\u{61c}' | '\u{115f}' | '\u{1160}' | '\u{17b4}' | '\u{17b5}'
            | '\u{180b}'..='\u{180f}' | '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}'
            | '\u{2060}'..='\u{206f}' | '\u{3164}' | '\u{fe00}'..='\u{fe0f}' | '\u{feff}'
            | '\u{ffa0}' | '\u{fff0}'..='\u{fffb}' | '\u{fffe}' | '\u{ffff}'
            | '\u{1bca0}'..='\u{1bca3}' | '\u{1d173}'..='\u{1d17a}' | '\u{e0000}'..='\u{e0fff}')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_drawn_stays_and_all_else_is_escaped() {
        let readable = "conv1.w/é数e\u{301}ไทย🙂 \"a\" \\ 'b'";
        assert_eq!(Shown::name(readable).to_string(), readable);
        let hidden = "\u{1b}[2J\r\n\t\0\u{7f}\u{9b}\u{202e}\u{2066}\u{200b}\u{feff}\u{2028}";
        assert_eq!(
            Shown::name(hidden).to_string(),
            "\\u{1b}[2J\\r\\n\\t\\u{0}\\u{7f}\\u{9b}\\u{202e}\\u{2066}\\u{200b}\\u{feff}\\u{2028}"
        );
        assert_eq!(format!("{:?}", Shown::name("a\"\\\n'é")), "\"a\\\"\\\\\\n'é\"");
    }

    #[test]
    fn the_middle_of_long_text_is_left_out() {
        let fits = "x".repeat(120);
        assert_eq!(Shown::name(fits.as_str()).to_string(), fits);
        let long = format!("start{}end", "数".repeat(10_000));
        let shown = Shown::name(long.as_str()).to_string();
        assert_eq!(shown.chars().count(), 120);
        assert!(shown.starts_with("start数") && shown.ends_with("数end") && shown.contains('…'));
        for escaped in ["\u{1b}", "\u{e0001}a", "\"", "\\"] {
            let shown = Shown::name(escaped.repeat(10_000));
            assert!(shown.to_string().chars().count() <= 120, "{shown}");
            assert!(format!("{shown:?}").chars().count() <= 122, "{shown:?}");
        }
        let message = Shown::message("x".repeat(10_000)).to_string();
        assert_eq!(message.chars().count(), 400);
    }
}
