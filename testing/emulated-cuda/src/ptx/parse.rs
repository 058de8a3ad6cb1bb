//! The parser: modules and the heads of kernels.

mod body;
mod parser;
mod variables;

use super::error::LoadError;
use super::syntax::{Entry, Source, Storage, Variable};
use super::token::Token;
use parser::Parser;

/// Reads a module.
pub(super) fn parse(text: &str) -> Result<Source<'_>, LoadError> {
    let mut parser = Parser::new(text)?;
    let mut source = Source::default();
    while parser.peek().is_some() {
        parser.module_item(&mut source)?;
    }
    Ok(source)
}

impl<'t> Parser<'t> {
    fn module_item(&mut self, source: &mut Source<'t>) -> Result<(), LoadError> {
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
                    return self.refuse("only addresses of 64 bits are supported");
                }
                ".address_size" => {}
                ".target" | ".file" => {
                    self.step_back();
                    self.skip_line();
                }
                ".pragma" => self.pragma()?,
                ".entry" => source.entries.push(self.entry()?),
                space @ (".global" | ".const" | ".shared") => {
                    let storage = match space {
                        ".shared" if is_extern => Storage::Dynamic,
                        _ if is_extern => {
                            return self.refuse("variables of other modules are not supported");
                        }
                        ".shared" => Storage::Shared,
                        _ => Storage::Global,
                    };
                    self.variables(storage, &mut source.variables)?;
                }
                other => {
                    self.step_back();
                    return self.refuse(format!("`{other}` is not supported"));
                }
            }
            return Ok(());
        }
    }

    fn entry(&mut self) -> Result<Entry<'t>, LoadError> {
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
        let mut max_threads = None;
        while let Some(Token::Word(directive)) = self.peek() {
            if !matches!(directive, ".maxntid" | ".minnctapersm" | ".maxnreg") {
                return self.refuse(format!("`{directive}` is not supported"));
            }
            self.skip(1);
            let mut product = self.integer()?;
            while self.accept(Token::Mark(',')) {
                product = product.saturating_mul(self.integer()?);
            }
            if directive == ".maxntid" {
                max_threads = Some(product);
            }
        }
        let body = self.body()?;
        Ok(Entry { name, parameters, max_threads, body })
    }

    fn parameter(&mut self) -> Result<Variable<'t>, LoadError> {
        if !self.accept(Token::Word(".param")) {
            return self.refuse("`.param` is missing");
        }
        let mut align_bytes = 0;
        if self.accept(Token::Word(".align")) {
            align_bytes = self.integer()?;
        }
        let kind = self.kind()?;
        if self.accept(Token::Word(".ptr")) {
            // This is a hint of the compiler. Every address is checked anyway.
            let is_space = |token| {
                matches!(token, Some(Token::Word(".global" | ".shared" | ".const" | ".local")))
            };
            self.skip(usize::from(is_space(self.peek())));
            if self.accept(Token::Word(".align")) {
                self.integer()?;
            }
        }
        self.variable(Storage::Parameter, kind, 1, align_bytes)
    }
}
