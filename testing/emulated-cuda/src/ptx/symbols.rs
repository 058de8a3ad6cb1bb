//! The symbol table of a kernel: its names stand for registers, addresses and constants.

use super::kind::Kind;
use super::registers::Slot;
use super::special::Special;
use super::syntax::{Operand, Storage, Variable};
use std::collections::HashMap;

/// The predicates that are always true and always false.
pub(super) const TRUE: Slot = 0;
pub(super) const FALSE: Slot = 1;

/// The alignment of dynamic shared memory: that of the largest type.
const DYNAMIC_ALIGN_BYTES: u64 = 16;

/// The state space that an instruction names. A `Generic` address tells its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum StateSpace {
    Generic,
    Global,
    Shared,
    Local,
    Parameter,
}

/// The value of a register that is set before the kernel runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Constant {
    Word(Slot, u32),
    Long(Slot, u64),
    /// A word that depends on the lane, the warp, the block or the launch.
    Special(Slot, Special),
}

/// What a name stands for.
#[derive(Clone, Copy, Debug)]
enum Symbol {
    Register(Kind, Slot),
    Address(StateSpace, u64),
}

/// The register that holds an address.
#[derive(Clone, Copy, Debug)]
pub(super) enum AddressBase {
    Word(Slot),
    Long(Slot),
}

/// The names of a kernel, and the registers that it needs.
#[derive(Debug)]
pub(super) struct Symbols<'t> {
    variables: HashMap<&'t str, Symbol>,
    /// Declared registers, by scope.
    scopes: Vec<HashMap<String, Symbol>>,
    /// How many registers there are: words, longs, predicates.
    pub(super) counts: [usize; 3],
    pub(super) constants: Vec<Constant>,
    pub(super) shared_bytes: u64,
    pub(super) local_bytes: u64,
    pub(super) parameter_bytes: u64,
}

impl<'t> Symbols<'t> {
    pub(super) fn new() -> Self {
        Self {
            variables: HashMap::new(),
            scopes: vec![HashMap::new()],
            counts: [0, 0, 2],
            constants: Vec::new(),
            shared_bytes: 0,
            local_bytes: 0,
            parameter_bytes: 0,
        }
    }

    /// Allocates a variable of the kernel. Returns its address in its state space. Dynamic ones
    /// come last.
    pub(super) fn allocate(&mut self, variable: &Variable<'t>) -> u64 {
        let (state_space, end) = match variable.storage {
            Storage::Local => (StateSpace::Local, &mut self.local_bytes),
            Storage::Parameter => (StateSpace::Parameter, &mut self.parameter_bytes),
            _ => (StateSpace::Shared, &mut self.shared_bytes),
        };
        let align_bytes = match variable.storage {
            Storage::Dynamic => DYNAMIC_ALIGN_BYTES,
            _ => variable.align_bytes,
        };
        let at = end.next_multiple_of(align_bytes);
        *end = at + if variable.storage == Storage::Dynamic { 0 } else { variable.bytes };
        self.variables.insert(variable.name, Symbol::Address(state_space, at));
        at
    }

    /// Adds a variable of the module, which has an address already.
    pub(super) fn define_global(&mut self, name: &'t str, at: u64) {
        self.variables.insert(name, Symbol::Address(StateSpace::Global, at));
    }

    pub(super) fn open_scope(&mut self) {
        self.scopes.push(HashMap::new());
    }

    pub(super) fn close_scope(&mut self) {
        self.scopes.pop();
    }

    /// Returns a register that nothing else uses.
    pub(super) fn new_register(&mut self, kind: Kind) -> Slot {
        let count = match kind.bytes() {
            0 => &mut self.counts[2],
            8 => &mut self.counts[1],
            _ => &mut self.counts[0],
        };
        *count += 1;
        *count - 1
    }

    pub(super) fn declare(&mut self, name: &str, count: Option<u64>, kind: Kind) {
        let names = match count {
            None => vec![name.to_owned()],
            Some(count) => (0..count).map(|number| format!("{name}{number}")).collect(),
        };
        for name in names {
            let register = Symbol::Register(kind, self.new_register(kind));
            if let Some(scope) = self.scopes.last_mut() {
                scope.insert(name, register);
            }
        }
    }

    fn find(&self, name: &str) -> Option<Symbol> {
        let register = self.scopes.iter().rev().find_map(|scope| scope.get(name));
        register.or_else(|| self.variables.get(name)).copied()
    }

    /// Returns the register from which an instruction reads an operand of a type.
    pub(super) fn source(&mut self, kind: Kind, operand: &Operand<'_>) -> Result<Slot, String> {
        match *operand {
            Operand::Number(number) if kind == Kind::Predicate => match number.bits(kind) {
                Some(0) => Ok(FALSE),
                _ => Ok(TRUE),
            },
            Operand::Number(number) => {
                let bits = number.bits(kind).ok_or("the number is not of this type")?;
                Ok(self.constant(kind, bits))
            }
            Operand::Name(name) => match self.find(name) {
                Some(Symbol::Register(..)) => self.sized(kind, name),
                Some(Symbol::Address(state_space, at))
                    if kind.bytes() == 8 || state_space != StateSpace::Global =>
                {
                    Ok(self.constant(kind, at))
                }
                _ => self.special(kind, name),
            },
            _ => Err("this form of operand is not supported".into()),
        }
    }

    /// Returns the register to which an instruction writes a result of a type.
    pub(super) fn target(&mut self, kind: Kind, operand: &Operand<'_>) -> Result<Slot, String> {
        match operand {
            Operand::Name("_") => Ok(self.new_register(kind)),
            Operand::Name(name) => self.sized(kind, name),
            _ => Err("the result needs a register".into()),
        }
    }

    /// Returns a register that has the size of a type.
    fn sized(&self, kind: Kind, name: &str) -> Result<Slot, String> {
        let (declared, slot) = self.register(name)?;
        let fits = declared.register_bytes() == kind.register_bytes();
        if fits { Ok(slot) } else { Err(format!("`{name}` has another size")) }
    }

    /// Returns a register and its type.
    pub(super) fn register(&self, name: &str) -> Result<(Kind, Slot), String> {
        match self.find(name) {
            Some(Symbol::Register(kind, slot)) => Ok((kind, slot)),
            _ => Err(format!("`{name}` is not a register")),
        }
    }

    pub(super) fn predicate(&mut self, operand: &Operand<'_>) -> Result<(Slot, bool), String> {
        match operand {
            Operand::Not(name) => Ok((self.sized(Kind::Predicate, name)?, true)),
            _ => Ok((self.source(Kind::Predicate, operand)?, false)),
        }
    }

    /// Returns the register of an address, and the bytes to add to it.
    pub(super) fn address(&mut self, operand: &Operand<'_>) -> Result<(AddressBase, u64), String> {
        let Operand::Address(base, offset) = operand else {
            return Err("an address is missing".into());
        };
        let base = match **base {
            Operand::Name(name) if self.register(name).is_ok() => match self.register(name)? {
                (kind, slot) if kind.bytes() == 8 => AddressBase::Long(slot),
                (kind, slot) if kind.bytes() == 4 => AddressBase::Word(slot),
                _ => return Err("an address has 32 or 64 bits".into()),
            },
            ref constant => AddressBase::Long(self.source(Kind::U64, constant)?),
        };
        Ok((base, offset.cast_unsigned()))
    }

    /// Returns the offset of a parameter.
    pub(super) fn parameter(&self, operand: &Operand<'_>) -> Result<u64, String> {
        if let Operand::Address(base, offset) = operand
            && let Operand::Name(name) = **base
            && let Some(Symbol::Address(StateSpace::Parameter, at)) = self.find(name)
        {
            return Ok(at.wrapping_add(offset.cast_unsigned()));
        }
        Err("a parameter is missing".into())
    }

    pub(super) fn constant(&mut self, kind: Kind, bits: u64) -> Slot {
        let is_long = kind.bytes() == 8;
        let same = self.constants.iter().find_map(|&constant| match constant {
            Constant::Word(slot, word) if !is_long && u64::from(word) == bits & 0xffff_ffff => {
                Some(slot)
            }
            Constant::Long(slot, long) if is_long && long == bits => Some(slot),
            _ => None,
        });
        same.unwrap_or_else(|| {
            let slot = self.new_register(kind);
            let long = Constant::Long(slot, bits);
            self.constants.push(if is_long { long } else { Constant::Word(slot, bits as u32) });
            slot
        })
    }

    fn special(&mut self, kind: Kind, name: &str) -> Result<Slot, String> {
        let special = Special::parse(name).ok_or_else(|| format!("`{name}` is not declared"))?;
        if kind.bytes() != 4 {
            return Err(format!("`{name}` has 32 bits"));
        }
        let slot = self.new_register(kind);
        self.constants.push(Constant::Special(slot, special));
        Ok(slot)
    }
}
