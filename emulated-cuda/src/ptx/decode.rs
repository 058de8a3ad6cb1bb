//! From what is written to what is done, kernel by kernel.
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

use super::frame::{ALWAYS, Frame};
use super::kind::Kind;
use super::registers::{Mask, Slot, Value};
use super::syntax::{Entry, Home, Operand, Says, Source, Variable, Written};
use super::warp::{Action, Instruction};
use super::{Kernel, Refusal};
use std::collections::HashMap;

/// Readies a kernel. `places` are the addresses of the module's variables in device memory.
pub(super) fn kernel(
    source: &Source<'_>,
    entry: &Entry<'_>,
    places: &HashMap<&str, u64>,
) -> Result<Kernel, Refusal> {
    let mut frame = Frame::new();
    for variable in &source.variables {
        if let Some(&at) = places.get(variable.name) {
            frame.know(variable.name, at);
        }
    }
    let parameters = entry.parameters.iter().map(|one| (frame.place(one), one.bytes)).collect();
    // Dynamic shared memory lies behind all that is not.
    let of_body = entry.body.iter().filter_map(|statement| match &statement.says {
        Says::Variable(variable) => Some(variable),
        _ => None,
    });
    let of_module = source.variables.iter().filter(|variable| variable.home != Home::Global);
    let mut variables: Vec<&Variable<'_>> = of_module.chain(of_body).collect();
    variables.sort_by_key(|variable| variable.home == Home::Dynamic);
    for variable in variables {
        frame.place(variable);
    }
    let instructions = instructions(entry, &mut frame)?;
    Ok(Kernel {
        name: entry.name.to_owned(),
        parameters,
        parameter_bytes: frame.parameter_bytes,
        most_threads: entry.most_threads,
        shared_bytes: frame.shared_bytes,
        local_bytes: frame.local_bytes.next_multiple_of(16),
        instructions,
        registers: frame.counts,
        constants: frame.constants,
    })
}

/// Labels, by the braces in which they stand.
struct Labels<'t> {
    /// Of each pair of braces, in the order in which they open: its labels, and the pair around.
    scopes: Vec<(HashMap<&'t str, usize>, usize)>,
}

impl<'t> Labels<'t> {
    fn new(entry: &Entry<'t>) -> Self {
        let mut scopes = vec![(HashMap::new(), 0)];
        let (mut scope, mut place) = (0, 0);
        for statement in &entry.body {
            match statement.says {
                Says::Begin => {
                    scopes.push((HashMap::new(), scope));
                    scope = scopes.len() - 1;
                }
                Says::End => scope = scopes[scope].1,
                Says::Label(name) => drop(scopes[scope].0.insert(name, place)),
                Says::Instruction(_) => place += 1,
                _ => {}
            }
        }
        Self { scopes }
    }

    /// The instruction behind a label, as one in these braces knows it.
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

fn instructions(entry: &Entry<'_>, frame: &mut Frame<'_>) -> Result<Vec<Instruction>, Refusal> {
    let labels = Labels::new(entry);
    let mut instructions = Vec::new();
    let (mut open, mut scopes) = (vec![0], 0);
    for statement in &entry.body {
        match &statement.says {
            Says::Begin => {
                scopes += 1;
                open.push(scopes);
                frame.begin();
            }
            Says::End => {
                open.pop();
                frame.end();
            }
            Says::Registers(name, count, kind) => frame.declare(name, *count, *kind),
            Says::Instruction(written) => {
                let scope = open.last().copied().unwrap_or(0);
                let label = |name: &str| labels.find(scope, name);
                let made = instruction(written, statement.line, frame, &label);
                instructions.push(made.map_err(|why| Refusal::new(statement.line, why))?);
            }
            Says::Label(_) | Says::Variable(_) => {}
        }
    }
    let line = entry.body.last().map_or(0, |statement| statement.line);
    instructions.push(Instruction { guard: ALWAYS, flip: 0, action: Action::Exit, line });
    Ok(instructions)
}

fn instruction(
    written: &Written<'_>,
    line: usize,
    frame: &mut Frame<'_>,
    label: &dyn Fn(&str) -> Option<usize>,
) -> Result<Instruction, String> {
    let (guard, flip) = match written.guard {
        None => (ALWAYS, 0),
        Some((name, is_negated)) => {
            let (slot, _) = frame.predicate(&Operand::Name(name))?;
            (slot, if is_negated { Mask::MAX } else { 0 })
        }
    };
    let mut parts = written.opcode.split('.');
    let name = parts.next().unwrap_or_default();
    let suffixes = parts.collect();
    let mut opcode = Opcode { name, suffixes, operands: &written.operands, frame };
    let action = match control::decode(&mut opcode, label)? {
        Some(action) => Some(action),
        None => action(&mut opcode)?,
    };
    let action = action.ok_or_else(|| format!("`{name}` is not known here"))?;
    match opcode.suffixes.first() {
        Some(suffix) => Err(format!("`.{suffix}` is not known here")),
        None => Ok(Instruction { guard, flip, action, line }),
    }
}

/// What all but jumps and barriers do.
fn action(opcode: &mut Opcode<'_, '_, '_>) -> Result<Option<Action>, String> {
    for decode in [memory::decode, convert::decode, logic::decode, integer::decode, float::decode] {
        if let Some(action) = decode(opcode)? {
            return Ok(Some(action));
        }
    }
    Ok(None)
}

/// An instruction that is made sense of. Suffixes are taken out one by one, and one that is left
/// is an error.
struct Opcode<'o, 'f, 't> {
    name: &'o str,
    suffixes: Vec<&'o str>,
    operands: &'o [Operand<'o>],
    frame: &'f mut Frame<'t>,
}

impl<'o> Opcode<'o, '_, '_> {
    /// Takes a suffix out, if it is there.
    fn take(&mut self, suffix: &str) -> bool {
        let place = self.suffixes.iter().position(|&other| other == suffix);
        place.map(|place| self.suffixes.remove(place)).is_some()
    }

    /// Takes out the one of some suffixes that is there.
    fn take_one<T: Copy>(&mut self, of: &[(&str, T)]) -> Option<T> {
        of.iter().find_map(|&(suffix, value)| self.take(suffix).then_some(value))
    }

    /// Takes out the last suffix, which is a type.
    fn kind(&mut self) -> Result<Kind, String> {
        let kind = self.suffixes.last().and_then(|suffix| Kind::parse(suffix));
        let kind = kind.ok_or_else(|| format!("`{}` lacks a type that is known", self.name))?;
        self.suffixes.pop();
        Ok(kind)
    }

    /// The last suffix as a type, which stays.
    fn peek_kind(&self) -> Option<Kind> {
        self.suffixes.last().and_then(|suffix| Kind::parse(suffix))
    }

    /// All operands, which are so many.
    fn operands<const N: usize>(&self) -> Result<&'o [Operand<'o>; N], String> {
        self.operands.try_into().map_err(|_| format!("`{}` has {N} operands", self.name))
    }

    /// The registers of a result and of what it is computed from, all of one type.
    fn alike<const N: usize>(&mut self, kind: Kind) -> Result<(Slot, [Slot; N]), String> {
        self.typed(kind, [kind; N])
    }

    /// The registers of a result and of what it is computed from.
    fn typed<const N: usize>(
        &mut self,
        of_result: Kind,
        kinds: [Kind; N],
    ) -> Result<(Slot, [Slot; N]), String> {
        let Some((result, sources)) = self.operands.split_first() else {
            return Err(format!("`{}` has {} operands", self.name, N + 1));
        };
        let sources: &[Operand<'o>; N] =
            sources.try_into().map_err(|_| format!("`{}` has {} operands", self.name, N + 1))?;
        let mut slots = [0; N];
        for (slot, (kind, operand)) in slots.iter_mut().zip(kinds.into_iter().zip(sources)) {
            *slot = self.frame.source(kind, operand)?;
        }
        Ok((self.frame.target(of_result, result)?, slots))
    }
}

/// An instruction over one register.
fn unary<A: Value, D: Value>(
    (to, [a]): (Slot, [Slot; 1]),
    function: impl Fn(A) -> D + Send + Sync + 'static,
) -> Action {
    Action::Compute(Box::new(move |registers, lanes| registers.map(lanes, to, a, &function)))
}

/// An instruction over two registers.
fn binary<A: Value, B: Value, D: Value>(
    (to, from): (Slot, [Slot; 2]),
    function: impl Fn(A, B) -> D + Send + Sync + 'static,
) -> Action {
    Action::Compute(Box::new(move |registers, lanes| registers.map2(lanes, to, from, &function)))
}

/// An instruction over three registers.
fn ternary<A: Value, B: Value, C: Value, D: Value>(
    (to, from): (Slot, [Slot; 3]),
    function: impl Fn(A, B, C) -> D + Send + Sync + 'static,
) -> Action {
    Action::Compute(Box::new(move |registers, lanes| registers.map3(lanes, to, from, &function)))
}
