//! Declarations of variables.

use super::parser::Parser;
use crate::ptx::error::LoadError;
use crate::ptx::kind::Kind;
use crate::ptx::syntax::{Storage, Variable};
use crate::ptx::token::Token;

impl<'t> Parser<'t> {
    /// Reads variables up to a semicolon.
    pub(super) fn variables(
        &mut self,
        storage: Storage,
        into: &mut Vec<Variable<'t>>,
    ) -> Result<(), LoadError> {
        let mut align_bytes = 0;
        if self.accept(Token::Word(".align")) {
            align_bytes = self.integer()?;
        }
        let vector = match self.peek() {
            Some(Token::Word(".v2")) => 2,
            Some(Token::Word(".v4")) => 4,
            _ => 1,
        };
        self.skip(usize::from(vector > 1));
        let kind = self.kind()?;
        loop {
            into.push(self.variable(storage, kind, vector, align_bytes)?);
            if !self.accept(Token::Mark(',')) {
                return self.expect(';');
            }
        }
    }

    /// Reads the name of a variable and what follows it.
    pub(super) fn variable(
        &mut self,
        storage: Storage,
        kind: Kind,
        elements: u64,
        align_bytes: u64,
    ) -> Result<Variable<'t>, LoadError> {
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
        if !align_bytes.is_power_of_two() || (bytes == 0 && storage != Storage::Dynamic) {
            return self.refuse("the size or the alignment is not valid");
        }
        let mut initial = Vec::new();
        if self.accept(Token::Mark('=')) {
            self.initial(kind, &mut initial)?;
        }
        if initial.len() as u64 > bytes || (storage != Storage::Global && !initial.is_empty()) {
            return self.refuse("too many initial values");
        }
        Ok(Variable { name, storage, bytes, align_bytes, initial })
    }

    fn initial(&mut self, kind: Kind, into: &mut Vec<u8>) -> Result<(), LoadError> {
        if self.accept(Token::Mark('{')) {
            loop {
                self.initial(kind, into)?;
                if !self.accept(Token::Mark(',')) {
                    return self.expect('}');
                }
            }
        }
        let Some(bits) = self.number()?.bits(kind) else {
            return self.refuse("the value is not of this type");
        };
        into.extend(&bits.to_le_bytes()[..kind.bytes() as usize]);
        Ok(())
    }
}
