//! The parser's position among the tokens, and what all of its parts read.

use crate::ptx::error::LoadError;
use crate::ptx::kind::Kind;
use crate::ptx::syntax::Number;
use crate::ptx::token::{Placed, Token, tokens};

/// Reads tokens one by one.
pub(super) struct Parser<'t> {
    tokens: Vec<Placed<'t>>,
    next: usize,
}

impl<'t> Parser<'t> {
    /// Starts at the beginning of a text.
    pub(super) fn new(text: &'t str) -> Result<Self, LoadError> {
        Ok(Self { tokens: tokens(text)?, next: 0 })
    }

    /// Skips some tokens.
    pub(super) fn skip(&mut self, tokens: usize) {
        self.next += tokens;
    }

    /// Goes back to the token before.
    pub(super) fn step_back(&mut self) {
        self.next -= 1;
    }

    /// Returns the token after the next one.
    pub(super) fn peek_second(&self) -> Option<Token<'t>> {
        self.tokens.get(self.next + 1).map(|&(token, _)| token)
    }

    pub(super) fn peek(&self) -> Option<Token<'t>> {
        self.tokens.get(self.next).map(|&(token, _)| token)
    }

    pub(super) fn line(&self) -> usize {
        self.tokens.get(self.next).or(self.tokens.last()).map_or(1, |&(_, line)| line)
    }

    pub(super) fn refuse<T>(&self, why: impl Into<String>) -> Result<T, LoadError> {
        Err(LoadError::new(self.line(), why))
    }

    pub(super) fn accept(&mut self, token: Token<'_>) -> bool {
        let is_next = self.peek() == Some(token);
        self.next += usize::from(is_next);
        is_next
    }

    pub(super) fn expect(&mut self, mark: char) -> Result<(), LoadError> {
        let found = self.accept(Token::Mark(mark));
        if found { Ok(()) } else { self.refuse(format!("`{mark}` is missing")) }
    }

    pub(super) fn word(&mut self) -> Result<&'t str, LoadError> {
        let Some(Token::Word(word)) = self.peek() else { return self.refuse("a name is missing") };
        self.next += 1;
        Ok(word)
    }

    pub(super) fn number(&mut self) -> Result<Number, LoadError> {
        let is_negative = self.accept(Token::Mark('-'));
        let Some(Token::Number(written)) = self.peek() else {
            return self.refuse("a number is missing");
        };
        let Some(number) = number(written) else { return self.refuse("the number is not valid") };
        self.next += 1;
        Ok(match number {
            _ if !is_negative => number,
            Number::Integer(value) => Number::Integer(value.wrapping_neg()),
            Number::Single(bits) => Number::Single(bits ^ 1 << 31),
            Number::Double(value) => Number::Double(-value),
        })
    }

    pub(super) fn integer(&mut self) -> Result<u64, LoadError> {
        match self.number()? {
            Number::Integer(value) => Ok(value),
            _ => self.refuse("an integer is missing"),
        }
    }

    /// Reads a type, with its dot.
    pub(super) fn kind(&mut self) -> Result<Kind, LoadError> {
        let kind = match self.peek() {
            Some(Token::Word(word)) => word.strip_prefix('.').and_then(Kind::parse),
            _ => None,
        };
        self.next += usize::from(kind.is_some());
        kind.map_or_else(|| self.refuse("a supported type is missing"), Ok)
    }

    pub(super) fn skip_line(&mut self) {
        let line = self.line();
        while self.peek().is_some() && self.line() == line {
            self.next += 1;
        }
    }

    pub(super) fn pragma(&mut self) -> Result<(), LoadError> {
        let Some(Token::Text(_)) = self.peek() else { return self.refuse("a string is missing") };
        self.next += 1;
        self.expect(';')
    }
}

/// Reads a number without a sign.
fn number(written: &str) -> Option<Number> {
    let hexadecimal = |digits: &str| u64::from_str_radix(digits, 16).ok();
    let lower = written.to_ascii_lowercase();
    if let Some(digits) = lower.strip_prefix("0f").filter(|digits| digits.len() == 8) {
        return hexadecimal(digits).map(|bits| Number::Single(bits as u32));
    }
    if let Some(digits) = lower.strip_prefix("0d").filter(|digits| digits.len() == 16) {
        return hexadecimal(digits).map(|bits| Number::Double(f64::from_bits(bits)));
    }
    if lower.contains('.') {
        return lower.parse().ok().map(Number::Double);
    }
    let digits = lower.trim_end_matches('u');
    let integer = match digits.get(..2) {
        Some("0x") => hexadecimal(&digits[2..]),
        Some("0b") => u64::from_str_radix(&digits[2..], 2).ok(),
        Some(_) if digits.starts_with('0') => u64::from_str_radix(&digits[1..], 8).ok(),
        _ => digits.parse().ok(),
    };
    integer.map(Number::Integer)
}
