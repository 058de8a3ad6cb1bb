//! An estimate of the width of text in images: the fonts depend on the viewer's machine.

use std::borrow::Cow;

/// The factor by which bold text is wider.
const BOLD: f64 = 1.12;

/// The width of a character in a wide sans-serif font, relative to the font size.
const fn share(c: char) -> f64 {
    match c {
        '.' | ',' | ':' | ';' | '\'' | '|' | '!' | ' ' | 'i' | 'l' | 'j' | 't' | 'f' | 'r' => 0.42,
        'm' | 'w' | 'M' | 'W' | '…' | '@' | '%' | '×' | '≤' => 1.0,
        'A'..='Z' => 0.78,
        // Most of these characters are East Asian, and as wide as they are high.
        '\u{1100}'.. => 1.0,
        _ => 0.65,
    }
}

/// The largest width of a text of this font size in usual fonts, in pixels.
#[must_use]
pub fn width_px(text: &str, size_px: f64, is_bold: bool) -> f64 {
    let shares: f64 = text.chars().map(share).sum();
    shares * size_px * if is_bold { BOLD } else { 1.0 }
}

/// Cuts the middle out of a text that may be too wide for the available room.
#[must_use]
pub fn fitted(text: &str, size_px: f64, is_bold: bool, most_px: f64) -> Cow<'_, str> {
    let width_px = |text: &str| width_px(text, size_px, is_bold);
    if width_px(text) <= most_px {
        return text.into();
    }
    let half_px = (most_px - width_px("…")) / 2.0;
    // The end of the longest prefix that fits into one half, and the start of the longest suffix that does.
    let ends = text.char_indices().map(|(at, c)| at + c.len_utf8());
    let head = ends.take_while(|&end| width_px(&text[..end]) <= half_px).last().unwrap_or(0);
    let starts = text.char_indices().rev().map(|(at, _)| at);
    let tail = starts.take_while(|&at| width_px(&text[at..]) <= half_px).last();
    format!("{}…{}", &text[..head], &text[tail.unwrap_or(text.len())..]).into()
}

#[cfg(test)]
mod tests {
    use super::{fitted, width_px};

    #[test]
    fn text_that_is_too_wide_loses_its_middle() {
        let text = "start, 数数数 and the end";
        let whole_px = width_px(text, 10.0, false);
        assert_eq!(fitted(text, 10.0, false, whole_px), text);
        for least_px in [0.0, 10.0, 40.0, 100.0, whole_px - 1.0] {
            let cut = fitted(text, 10.0, false, least_px);
            assert!(width_px(&cut, 10.0, false) <= least_px.max(10.0), "{cut}");
            let (head, tail) = cut.split_once('…').unwrap();
            assert!(text.starts_with(head) && text.ends_with(tail), "{cut}");
        }
        assert_eq!(fitted(text, 10.0, false, 60.0), "star… end");
    }
}
