//! A text of PTX as it is written, before its names mean anything.

use super::kind::Kind;

/// What a text declares.
#[derive(Debug, Default)]
pub(super) struct Source<'t> {
    /// Variables of the module.
    pub(super) variables: Vec<Variable<'t>>,
    pub(super) entries: Vec<Entry<'t>>,
}

/// Where a variable lies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Storage {
    /// In device memory, constants included.
    Global,
    Shared,
    /// Shared, of a length that each launch says.
    Dynamic,
    /// Every thread has its own.
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
    /// What it holds at first, if it is said; zeros behind that.
    pub(super) initial: Vec<u8>,
}

/// A kernel.
#[derive(Debug)]
pub(super) struct Entry<'t> {
    pub(super) name: &'t str,
    pub(super) parameters: Vec<Variable<'t>>,
    /// The most threads of a block, if it is said.
    pub(super) max_threads: Option<u64>,
    pub(super) body: Vec<Statement<'t>>,
}

/// A statement, and the number of its line.
#[derive(Debug)]
pub(super) struct Statement<'t> {
    pub(super) line: usize,
    pub(super) kind: StatementKind<'t>,
}

#[derive(Debug)]
pub(super) enum StatementKind<'t> {
    /// Names declared from here on are forgotten at the matching end.
    Begin,
    End,
    Label(&'t str),
    /// One register, or so many whose names end with numbers from zero on.
    Registers(&'t str, Option<u64>, Kind),
    Variable(Variable<'t>),
    Instruction(ParsedInstruction<'t>),
}

/// An instruction.
#[derive(Debug)]
pub(super) struct ParsedInstruction<'t> {
    /// The predicate that lets a thread do it, and whether that must be false.
    pub(super) guard: Option<(&'t str, bool)>,
    pub(super) opcode: &'t str,
    pub(super) operands: Vec<Operand<'t>>,
}

#[derive(Clone, Debug)]
pub(super) enum Operand<'t> {
    Name(&'t str),
    /// A predicate, negated.
    Not(&'t str),
    Number(Number),
    /// What a name or a number is the address of, so many bytes further on.
    Address(Box<Operand<'t>>, i64),
    Vector(Vec<Operand<'t>>),
    /// Two predicates.
    Pair(&'t str, &'t str),
}

/// A number, as its writing says what it is.
#[derive(Clone, Copy, Debug)]
pub(super) enum Number {
    Integer(u64),
    /// Bits of single precision.
    Single(u32),
    Double(f64),
}

impl Number {
    /// Its bits as a value of a type; none if it cannot be one.
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
