//! The bodies of kernels.

use super::parser::Parser;
use crate::ptx::error::LoadError;
use crate::ptx::syntax::{Operand, ParsedInstruction, Statement, StatementKind, Storage};
use crate::ptx::token::Token;

/// The most registers of one declaration.
const MAX_REGISTERS: u64 = 1 << 16;

impl<'t> Parser<'t> {
    /// Reads the statements of a kernel.
    pub(super) fn body(&mut self) -> Result<Vec<Statement<'t>>, LoadError> {
        self.expect('{')?;
        let (mut body, mut depth) = (Vec::new(), 0);
        loop {
            let line = self.line();
            let kind = match self.peek() {
                None => return self.refuse("the kernel does not end"),
                Some(Token::Mark('}')) if depth == 0 => break,
                Some(Token::Mark('}')) => {
                    self.skip(1);
                    depth -= 1;
                    StatementKind::End
                }
                Some(Token::Mark('{')) => {
                    self.skip(1);
                    depth += 1;
                    StatementKind::Begin
                }
                Some(Token::Word(".loc")) => {
                    self.skip_line();
                    continue;
                }
                Some(Token::Word(".pragma")) => {
                    self.skip(1);
                    self.pragma()?;
                    continue;
                }
                Some(Token::Word(directive @ (".reg" | ".shared" | ".local"))) => {
                    self.skip(1);
                    self.declarations(directive, line, &mut body)?;
                    continue;
                }
                Some(Token::Word(label)) if self.is_label() => {
                    self.skip(2);
                    StatementKind::Label(label)
                }
                _ => StatementKind::Instruction(self.instruction()?),
            };
            body.push(Statement { line, kind });
        }
        self.expect('}')?;
        Ok(body)
    }

    fn is_label(&self) -> bool {
        self.peek_second() == Some(Token::Mark(':'))
    }

    fn declarations(
        &mut self,
        directive: &str,
        line: usize,
        into: &mut Vec<Statement<'t>>,
    ) -> Result<(), LoadError> {
        let statement = |kind| Statement { line, kind };
        if directive != ".reg" {
            let mut variables = Vec::new();
            let storage = if directive == ".shared" { Storage::Shared } else { Storage::Local };
            self.variables(storage, &mut variables)?;
            into.extend(variables.into_iter().map(StatementKind::Variable).map(statement));
            return Ok(());
        }
        let kind = self.kind()?;
        loop {
            let name = self.word()?;
            let mut count = None;
            if self.accept(Token::Mark('<')) {
                count = Some(self.integer()?);
                self.expect('>')?;
            }
            if count.is_some_and(|count| count > MAX_REGISTERS) {
                return self.refuse("too many registers");
            }
            into.push(statement(StatementKind::Registers(name, count, kind)));
            if !self.accept(Token::Mark(',')) {
                return self.expect(';');
            }
        }
    }

    fn instruction(&mut self) -> Result<ParsedInstruction<'t>, LoadError> {
        let mut guard = None;
        if self.accept(Token::Mark('@')) {
            let is_negated = self.accept(Token::Mark('!'));
            guard = Some((self.word()?, is_negated));
        }
        let opcode = self.word()?;
        let mut operands = Vec::new();
        if !self.accept(Token::Mark(';')) {
            operands = self.operands()?;
            self.expect(';')?;
        }
        Ok(ParsedInstruction { guard, opcode, operands })
    }

    fn operands(&mut self) -> Result<Vec<Operand<'t>>, LoadError> {
        let mut operands = vec![self.operand()?];
        while self.accept(Token::Mark(',')) {
            operands.push(self.operand()?);
        }
        Ok(operands)
    }

    fn operand(&mut self) -> Result<Operand<'t>, LoadError> {
        if self.accept(Token::Mark('!')) {
            return Ok(Operand::Not(self.word()?));
        }
        if self.accept(Token::Mark('{')) {
            let parts = self.operands()?;
            self.expect('}')?;
            return Ok(Operand::Vector(parts));
        }
        if self.accept(Token::Mark('[')) {
            let base = self.operand()?;
            let is_sum = self.accept(Token::Mark('+'));
            let has_offset = is_sum || self.peek() == Some(Token::Mark('-'));
            let offset = if has_offset { self.integer()? } else { 0 };
            self.expect(']')?;
            return Ok(Operand::Address(Box::new(base), offset.cast_signed()));
        }
        let Some(Token::Word(name)) = self.peek() else {
            return self.number().map(Operand::Number);
        };
        self.skip(1);
        if self.accept(Token::Mark('|')) {
            return Ok(Operand::Pair(name, self.word()?));
        }
        Ok(Operand::Name(name))
    }
}
