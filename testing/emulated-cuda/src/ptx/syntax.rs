//! The syntax tree of PTX, before its names are resolved.

use super::kind::Kind;

/// A module as it is written.
#[derive(Debug, Default)]
pub(super) struct Source<'t> {
    /// Variables of the module, outside of kernels.
    pub(super) variables: Vec<Variable<'t>>,
    pub(super) entries: Vec<Entry<'t>>,
}

/// Where a variable is stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Storage {
    /// In device memory. Constants are there too.
    Global,
    Shared,
    /// In shared memory, with a length that each launch sets.
    Dynamic,
    /// In memory of each thread.
    Local,
    Parameter,
}

/// A variable.
#[derive(Clone, Debug)]
pub(super) struct Variable<'t> {
    pub(super) name: &'t str,
    pub(super) storage: Storage,
    pub(super) bytes: u64,
    pub(super) align_bytes: u64,
    /// The initial value. Zeros follow it.
    pub(super) initial: Vec<u8>,
}

/// A kernel.
#[derive(Debug)]
pub(super) struct Entry<'t> {
    pub(super) name: &'t str,
    pub(super) parameters: Vec<Variable<'t>>,
    /// The most threads of a block, if the kernel limits them.
    pub(super) max_threads: Option<u64>,
    pub(super) body: Vec<Statement<'t>>,
}

/// A statement and its line.
#[derive(Debug)]
pub(super) struct Statement<'t> {
    pub(super) line: usize,
    pub(super) kind: StatementKind<'t>,
}

#[derive(Debug)]
pub(super) enum StatementKind<'t> {
    /// Opens a scope: names declared in it are unknown after the matching end.
    Begin,
    End,
    Label(&'t str),
    /// One register, or with a count, registers whose names end with numbers from zero.
    Registers(&'t str, Option<u64>, Kind),
    Variable(Variable<'t>),
    Instruction(ParsedInstruction<'t>),
}

/// An instruction.
#[derive(Debug)]
pub(super) struct ParsedInstruction<'t> {
    /// The predicate under which a thread does it, and whether it is negated.
    pub(super) guard: Option<(&'t str, bool)>,
    pub(super) opcode: &'t str,
    pub(super) operands: Vec<Operand<'t>>,
}

#[derive(Clone, Debug)]
pub(super) enum Operand<'t> {
    Name(&'t str),
    /// A negated predicate.
    Not(&'t str),
    Number(Number),
    /// The memory at a name or a number plus some bytes.
    Address(Box<Operand<'t>>, i64),
    Vector(Vec<Operand<'t>>),
    /// Two predicates.
    Pair(&'t str, &'t str),
}

/// A number, by the way it is written.
#[derive(Clone, Copy, Debug)]
pub(super) enum Number {
    Integer(u64),
    /// The bits of a number in single precision.
    Single(u32),
    Double(f64),
}

impl Number {
    /// Returns its bits as a value of a type, or `None` if it is not of that type.
    pub(super) fn bits(self, kind: Kind) -> Option<u64> {
        Some(match (self, kind) {
            (Self::Integer(_), Kind::F32 | Kind::F64) => return None,
            (Self::Integer(value), _) => value,
            (Self::Single(bits), Kind::F64) => f64::from(f32::from_bits(bits)).to_bits(),
            (Self::Single(bits), _) => bits.into(),
            (Self::Double(value), Kind::F32) => (value as f32).to_bits().into(),
            (Self::Double(value), _) => value.to_bits(),
        })
    }
}
