//! From tokens to what is written.

mod body;

use super::Refusal;
use super::kind::Kind;
use super::syntax::{Entry, Home, Number, Source, Variable};
use super::token::{Placed, Token, tokens};

/// The most registers that one declaration makes.
const MOST_REGISTERS: u64 = 1 << 16;

/// Reads a text.
pub(super) fn parse(text: &str) -> Result<Source<'_>, Refusal> {
    let mut parser = Parser { tokens: tokens(text)?, next: 0 };
    let mut source = Source::default();
    while parser.peek().is_some() {
        parser.module_item(&mut source)?;
    }
    Ok(source)
}

struct Parser<'t> {
    tokens: Vec<Placed<'t>>,
    next: usize,
}

impl<'t> Parser<'t> {
    fn peek(&self) -> Option<Token<'t>> {
        self.tokens.get(self.next).map(|&(token, _)| token)
    }

    fn line(&self) -> usize {
        self.tokens.get(self.next).or(self.tokens.last()).map_or(1, |&(_, line)| line)
    }

    fn refuse<T>(&self, why: impl Into<String>) -> Result<T, Refusal> {
        Err(Refusal::new(self.line(), why))
    }

    fn accept(&mut self, token: Token<'_>) -> bool {
        let is_next = self.peek() == Some(token);
        self.next += usize::from(is_next);
        is_next
    }

    fn expect(&mut self, mark: char) -> Result<(), Refusal> {
        let found = self.accept(Token::Mark(mark));
        if found { Ok(()) } else { self.refuse(format!("`{mark}` is missing")) }
    }

    fn word(&mut self) -> Result<&'t str, Refusal> {
        let Some(Token::Word(word)) = self.peek() else { return self.refuse("a name is missing") };
        self.next += 1;
        Ok(word)
    }

    fn number(&mut self) -> Result<Number, Refusal> {
        let is_negative = self.accept(Token::Mark('-'));
        let Some(Token::Number(written)) = self.peek() else {
            return self.refuse("a number is missing");
        };
        let Some(number) = number(written) else { return self.refuse("not a number") };
        self.next += 1;
        Ok(match number {
            _ if !is_negative => number,
            Number::Integer(value) => Number::Integer(value.wrapping_neg()),
            Number::Single(bits) => Number::Single(bits ^ 1 << 31),
            Number::Double(value) => Number::Double(-value),
        })
    }

    fn integer(&mut self) -> Result<u64, Refusal> {
        match self.number()? {
            Number::Integer(value) => Ok(value),
            _ => self.refuse("an integer is missing"),
        }
    }

    /// A type, with its dot.
    fn kind(&mut self) -> Result<Kind, Refusal> {
        let kind = match self.peek() {
            Some(Token::Word(word)) => word.strip_prefix('.').and_then(Kind::parse),
            _ => None,
        };
        self.next += usize::from(kind.is_some());
        kind.map_or_else(|| self.refuse("not a type that is known here"), Ok)
    }

    fn skip_line(&mut self) {
        let line = self.line();
        while self.peek().is_some() && self.line() == line {
            self.next += 1;
        }
    }

    fn module_item(&mut self, source: &mut Source<'t>) -> Result<(), Refusal> {
        let mut is_extern = false;
        loop {
            match self.word()? {
                ".visible" | ".weak" => continue,
                ".extern" => {
                    is_extern = true;
                    continue;
                }
                ".version" => drop(self.number()?),
                ".address_size" if self.integer()? != 64 => {
                    return self.refuse("addresses have 64 bits here");
                }
                ".address_size" => {}
                ".target" | ".file" => {
                    self.next -= 1;
                    self.skip_line();
                }
                ".pragma" => self.pragma()?,
                ".entry" => source.entries.push(self.entry()?),
                space @ (".global" | ".const" | ".shared") => {
                    let home = match space {
                        ".shared" if is_extern => Home::Dynamic,
                        _ if is_extern => return self.refuse("a variable of another module"),
                        ".shared" => Home::Shared,
                        _ => Home::Global,
                    };
                    self.variables(home, &mut source.variables)?;
                }
                other => {
                    self.next -= 1;
                    return self.refuse(format!("`{other}` is not known here"));
                }
            }
            return Ok(());
        }
    }

    fn pragma(&mut self) -> Result<(), Refusal> {
        let Some(Token::Text(_)) = self.peek() else { return self.refuse("a text is missing") };
        self.next += 1;
        self.expect(';')
    }

    /// Variables up to a semicolon.
    fn variables(&mut self, home: Home, into: &mut Vec<Variable<'t>>) -> Result<(), Refusal> {
        let mut align_bytes = 0;
        if self.accept(Token::Word(".align")) {
            align_bytes = self.integer()?;
        }
        let vector = match self.peek() {
            Some(Token::Word(".v2")) => 2,
            Some(Token::Word(".v4")) => 4,
            _ => 1,
        };
        self.next += usize::from(vector > 1);
        let kind = self.kind()?;
        loop {
            into.push(self.variable(home, kind, vector, align_bytes)?);
            if !self.accept(Token::Mark(',')) {
                return self.expect(';');
            }
        }
    }

    /// The name of a variable and what follows it.
    fn variable(
        &mut self,
        home: Home,
        kind: Kind,
        elements: u64,
        align_bytes: u64,
    ) -> Result<Variable<'t>, Refusal> {
        let element_bytes = kind.bytes() * elements;
        let align_bytes = align_bytes.max(element_bytes);
        let name = self.word()?;
        let mut bytes = element_bytes;
        while self.accept(Token::Mark('[')) {
            let length = if self.accept(Token::Mark(']')) {
                0
            } else {
                let length = self.integer()?;
                self.expect(']')?;
                length
            };
            let Some(product) = bytes.checked_mul(length).filter(|&all| all <= 1 << 30) else {
                return self.refuse("too many bytes");
            };
            bytes = product;
        }
        if !align_bytes.is_power_of_two() || (bytes == 0 && home != Home::Dynamic) {
            return self.refuse("not a size or an alignment");
        }
        let mut initial = Vec::new();
        if self.accept(Token::Mark('=')) {
            self.initial(kind, &mut initial)?;
        }
        if initial.len() as u64 > bytes || (home != Home::Global && !initial.is_empty()) {
            return self.refuse("more values than there is room for");
        }
        Ok(Variable { name, home, bytes, align_bytes, initial })
    }

    fn initial(&mut self, kind: Kind, into: &mut Vec<u8>) -> Result<(), Refusal> {
        if self.accept(Token::Mark('{')) {
            loop {
                self.initial(kind, into)?;
                if !self.accept(Token::Mark(',')) {
                    return self.expect('}');
                }
            }
        }
        let Some(bits) = self.number()?.bits(kind) else { return self.refuse("not of this type") };
        into.extend(&bits.to_le_bytes()[..kind.bytes() as usize]);
        Ok(())
    }

    fn entry(&mut self) -> Result<Entry<'t>, Refusal> {
        let name = self.word()?;
        let mut parameters = Vec::new();
        if self.accept(Token::Mark('(')) && !self.accept(Token::Mark(')')) {
            loop {
                parameters.push(self.parameter()?);
                if !self.accept(Token::Mark(',')) {
                    break;
                }
            }
            self.expect(')')?;
        }
        let mut most_threads = None;
        while let Some(Token::Word(directive)) = self.peek() {
            if !matches!(directive, ".maxntid" | ".minnctapersm" | ".maxnreg") {
                return self.refuse(format!("`{directive}` is not known here"));
            }
            self.next += 1;
            let mut product = self.integer()?;
            while self.accept(Token::Mark(',')) {
                product = product.saturating_mul(self.integer()?);
            }
            if directive == ".maxntid" {
                most_threads = Some(product);
            }
        }
        let body = self.body()?;
        Ok(Entry { name, parameters, most_threads, body })
    }

    fn parameter(&mut self) -> Result<Variable<'t>, Refusal> {
        if !self.accept(Token::Word(".param")) {
            return self.refuse("`.param` is missing");
        }
        let mut align_bytes = 0;
        if self.accept(Token::Word(".align")) {
            align_bytes = self.integer()?;
        }
        let kind = self.kind()?;
        if self.accept(Token::Word(".ptr")) {
            // What the compiler knows of the pointer; the device checks every address anyway.
            let is_space = |token| {
                matches!(token, Some(Token::Word(".global" | ".shared" | ".const" | ".local")))
            };
            self.next += usize::from(is_space(self.peek()));
            if self.accept(Token::Word(".align")) {
                self.integer()?;
            }
        }
        self.variable(Home::Parameter, kind, 1, align_bytes)
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
