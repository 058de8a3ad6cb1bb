//! The decoder: from the syntax tree of a kernel to instructions that run.
#![allow(
    clippy::unnecessary_cast,
    clippy::useless_conversion,
    reason = "one text stands for types of every size"
)]

mod atomic;
mod control;
mod convert;
mod float;
mod integer;
mod logic;
mod memory;
mod opcode;

use super::error::LoadError;
use super::kernel::Kernel;
use super::registers::Mask;
use super::symbols::{Symbols, TRUE};
use super::syntax::{Entry, Operand, ParsedInstruction, Source, StatementKind, Storage, Variable};
use super::warp::{Action, Instruction};
use opcode::Opcode;
use std::collections::HashMap;
use std::sync::Mutex;

/// Decodes a kernel. `addresses` are those of the module's variables in device memory.
pub(super) fn kernel(
    source: &Source<'_>,
    entry: &Entry<'_>,
    addresses: &HashMap<&str, u64>,
) -> Result<Kernel, LoadError> {
    let mut symbols = Symbols::new();
    for variable in &source.variables {
        if let Some(&at) = addresses.get(variable.name) {
            symbols.define_global(variable.name, at);
        }
    }
    let parameters =
        entry.parameters.iter().map(|one| (symbols.allocate(one), one.bytes)).collect();
    // Dynamic shared memory lies after all other.
    let of_body = entry.body.iter().filter_map(|statement| match &statement.kind {
        StatementKind::Variable(variable) => Some(variable),
        _ => None,
    });
    let of_module = source.variables.iter().filter(|variable| variable.storage != Storage::Global);
    let mut variables: Vec<&Variable<'_>> = of_module.chain(of_body).collect();
    variables.sort_by_key(|variable| variable.storage == Storage::Dynamic);
    for variable in variables {
        symbols.allocate(variable);
    }
    let instructions = instructions(entry, &mut symbols)?;
    Ok(Kernel {
        name: entry.name.to_owned(),
        parameters,
        parameter_bytes: symbols.parameter_bytes,
        max_threads: entry.max_threads,
        shared_bytes: symbols.shared_bytes,
        local_bytes: symbols.local_bytes.next_multiple_of(16),
        instructions,
        registers: symbols.counts,
        constants: symbols.constants,
        loaded_bytes: Mutex::default(),
    })
}

/// The labels of a kernel, by scope.
struct Labels<'t> {
    /// The labels of each scope and the scope around it, in the order in which they open.
    scopes: Vec<(HashMap<&'t str, usize>, usize)>,
}

impl<'t> Labels<'t> {
    fn new(entry: &Entry<'t>) -> Self {
        let mut scopes = vec![(HashMap::new(), 0)];
        let (mut scope, mut place) = (0, 0);
        for statement in &entry.body {
            match statement.kind {
                StatementKind::Begin => {
                    scopes.push((HashMap::new(), scope));
                    scope = scopes.len() - 1;
                }
                StatementKind::End => scope = scopes[scope].1,
                StatementKind::Label(name) => drop(scopes[scope].0.insert(name, place)),
                StatementKind::Instruction(_) => place += 1,
                _ => {}
            }
        }
        Self { scopes }
    }

    /// Returns the instruction at a label, as a scope sees it.
    fn find(&self, mut scope: usize, name: &str) -> Option<usize> {
        loop {
            let (labels, around) = &self.scopes[scope];
            if let Some(&place) = labels.get(name) {
                return Some(place);
            }
            if scope == 0 {
                return None;
            }
            scope = *around;
        }
    }
}

fn instructions(
    entry: &Entry<'_>,
    symbols: &mut Symbols<'_>,
) -> Result<Vec<Instruction>, LoadError> {
    let labels = Labels::new(entry);
    let mut instructions = Vec::new();
    let (mut open, mut scopes) = (vec![0], 0);
    for statement in &entry.body {
        match &statement.kind {
            StatementKind::Begin => {
                scopes += 1;
                open.push(scopes);
                symbols.open_scope();
            }
            StatementKind::End => {
                open.pop();
                symbols.close_scope();
            }
            StatementKind::Registers(name, count, kind) => symbols.declare(name, *count, *kind),
            StatementKind::Instruction(written) => {
                let scope = open.last().copied().unwrap_or(0);
                let label = |name: &str| labels.find(scope, name);
                let made = instruction(written, statement.line, symbols, &label);
                instructions.push(made.map_err(|why| LoadError::new(statement.line, why))?);
            }
            StatementKind::Label(_) | StatementKind::Variable(_) => {}
        }
    }
    let line = entry.body.last().map_or(0, |statement| statement.line);
    instructions.push(Instruction { guard: TRUE, negation: 0, action: Action::Exit, line });
    Ok(instructions)
}

fn instruction(
    written: &ParsedInstruction<'_>,
    line: usize,
    symbols: &mut Symbols<'_>,
    label: &dyn Fn(&str) -> Option<usize>,
) -> Result<Instruction, String> {
    let (guard, negation) = match written.guard {
        None => (TRUE, 0),
        Some((name, is_negated)) => {
            let (slot, _) = symbols.predicate(&Operand::Name(name))?;
            (slot, if is_negated { Mask::MAX } else { 0 })
        }
    };
    let mut parts = written.opcode.split('.');
    let name = parts.next().unwrap_or_default();
    let suffixes = parts.collect();
    let mut opcode = Opcode { name, suffixes, operands: &written.operands, symbols };
    let action = match control::decode(&mut opcode, label)? {
        Some(action) => Some(action),
        None => action(&mut opcode)?,
    };
    let action = action.ok_or_else(|| format!("`{name}` is not supported"))?;
    match opcode.suffixes.first() {
        Some(suffix) => Err(format!("`.{suffix}` is not supported")),
        None => Ok(Instruction { guard, negation, action, line }),
    }
}

/// Decodes everything but control flow.
fn action(opcode: &mut Opcode<'_, '_, '_>) -> Result<Option<Action>, String> {
    for decode in [
        memory::decode,
        atomic::decode,
        convert::decode,
        logic::decode,
        integer::decode,
        float::decode,
    ] {
        if let Some(action) = decode(opcode)? {
            return Ok(Some(action));
        }
    }
    Ok(None)
}
