//! Loads and stores.

use super::opcode::Opcode;
use crate::ptx::error::KernelError;
use crate::ptx::kind::Kind;
use crate::ptx::memory::Memory;
use crate::ptx::registers::{LANES, Registers, Row, Slot};
use crate::ptx::symbols::{AddressBase, StateSpace};
use crate::ptx::syntax::Operand;
use crate::ptx::warp::Action;

pub(super) fn decode(opcode: &mut Opcode<'_, '_, '_>) -> Result<Option<Action>, String> {
    Ok(Some(match opcode.name {
        "ld" | "ldu" => load(opcode)?,
        "st" => store(opcode)?,
        _ => return Ok(None),
    }))
}

const STATE_SPACES: [(&str, StateSpace); 8] = [
    ("global", StateSpace::Global),
    ("const", StateSpace::Global),
    ("shared", StateSpace::Shared),
    ("shared::cta", StateSpace::Shared),
    ("local", StateSpace::Local),
    ("param", StateSpace::Parameter),
    ("param::entry", StateSpace::Parameter),
    ("generic", StateSpace::Generic),
];

/// Suffixes for caches and memory ordering. They change nothing here: all threads see every
/// access at once.
const HINTS: [&str; 23] = [
    "volatile",
    "weak",
    "relaxed",
    "acquire",
    "release",
    "acq_rel",
    "cta",
    "cluster",
    "gpu",
    "sys",
    "ca",
    "cg",
    "cs",
    "lu",
    "cv",
    "wb",
    "wt",
    "nc",
    "L1::evict_normal",
    "L1::evict_last",
    "L1::evict_first",
    "L1::no_allocate",
    "L2::128B",
];

pub(super) fn state_space(opcode: &mut Opcode<'_, '_, '_>) -> StateSpace {
    for hint in HINTS {
        opcode.take(hint);
    }
    opcode.take_one(&STATE_SPACES).unwrap_or(StateSpace::Generic)
}

/// A register that holds a value of a type and may be wider.
#[derive(Clone, Copy)]
pub(super) struct DataRegister {
    slot: Slot,
    is_long: bool,
}

impl DataRegister {
    pub(super) fn row(self, registers: &Registers) -> Row<u64> {
        if self.is_long {
            return *registers.row(self.slot);
        }
        let mut row = [0; LANES];
        widen(&mut row, registers.row(self.slot));
        row
    }

    pub(super) fn put(self, registers: &mut Registers, active: u32, row: &Row<u64>) {
        if self.is_long {
            return registers.put(self.slot, active, row);
        }
        let mut words = [0; LANES];
        for (word, &value) in words.iter_mut().zip(row) {
            *word = value as u32;
        }
        registers.put(self.slot, active, &words);
    }
}

pub(super) fn data_register(
    opcode: &mut Opcode<'_, '_, '_>,
    kind: Kind,
    operand: &Operand<'_>,
) -> Result<DataRegister, String> {
    match operand {
        Operand::Name("_") => {
            Ok(DataRegister { slot: opcode.symbols.new_register(Kind::U64), is_long: true })
        }
        Operand::Name(name) if opcode.symbols.register(name).is_ok() => {
            let (declared, slot) = opcode.symbols.register(name)?;
            if declared == Kind::Predicate || declared.register_bytes() < kind.register_bytes() {
                return Err(format!("`{name}` has another size"));
            }
            Ok(DataRegister { slot, is_long: declared.bytes() == 8 })
        }
        _ => Ok(DataRegister {
            slot: opcode.symbols.source(kind, operand)?,
            is_long: kind.bytes() == 8,
        }),
    }
}

/// Returns the registers of the elements of a vector, or of one value.
fn data_registers(
    opcode: &mut Opcode<'_, '_, '_>,
    kind: Kind,
    operand: &Operand<'_>,
) -> Result<Vec<DataRegister>, String> {
    let count = opcode.take_one(&[("v2", 2), ("v4", 4)]).unwrap_or(1);
    match operand {
        Operand::Vector(parts) if parts.len() == count => {
            parts.iter().map(|part| data_register(opcode, kind, part)).collect()
        }
        Operand::Vector(_) => Err("the vector has another number of elements".into()),
        _ if count == 1 => Ok(vec![data_register(opcode, kind, operand)?]),
        _ => Err("a vector is missing".into()),
    }
}

/// Returns an address in all lanes.
pub(super) fn addresses(registers: &Registers, base: AddressBase, offset: u64) -> Row<u64> {
    let mut row = [0; LANES];
    match base {
        AddressBase::Word(slot) => widen(&mut row, registers.row::<u32>(slot)),
        AddressBase::Long(slot) => row = *registers.row(slot),
    }
    for at in &mut row {
        *at = at.wrapping_add(offset);
    }
    row
}

fn widen(row: &mut Row<u64>, words: &Row<u32>) {
    for (value, &word) in row.iter_mut().zip(words) {
        *value = word.into();
    }
}

/// An access to one value or to a vector, which is aligned to its whole size.
#[derive(Clone)]
struct Access {
    state_space: StateSpace,
    base: AddressBase,
    offset: u64,
    data: Vec<DataRegister>,
    /// By how many bits a loaded value is shifted left and right again, to extend its sign.
    sign_bits: u64,
}

impl Access {
    fn new(
        opcode: &mut Opcode<'_, '_, '_>,
        kind: Kind,
        state_space: StateSpace,
        [address, values]: [&Operand<'_>; 2],
    ) -> Result<Self, String> {
        let data = data_registers(opcode, kind, values)?;
        let (base, offset) = match state_space {
            StateSpace::Parameter => {
                let at = opcode.symbols.parameter(address)?;
                (AddressBase::Long(opcode.symbols.constant(Kind::U64, at)), 0)
            }
            _ => opcode.symbols.address(address)?,
        };
        let sign_bits = if kind.is_signed() { 64 - 8 * kind.bytes() } else { 0 };
        Ok(Self { state_space, base, offset, data, sign_bits })
    }

    /// Returns the addresses of the first elements. One that is not aligned to the vector is made
    /// odd, so that its access fails.
    fn first(&self, registers: &Registers, bytes: u64) -> Row<u64> {
        let mut row = addresses(registers, self.base, self.offset);
        if self.data.len() > 1 {
            for at in &mut row {
                *at |= u64::from(!at.is_multiple_of(bytes * self.data.len() as u64));
            }
        }
        row
    }

    #[inline(always)]
    fn load_one<const BYTES: u64>(
        &self,
        at: u64,
        lane: usize,
        memory: &mut Memory<'_, '_>,
    ) -> Result<u64, KernelError> {
        let loaded = memory.load::<BYTES>(self.state_space, at, lane)?;
        Ok((loaded.cast_signed() << self.sign_bits >> self.sign_bits).cast_unsigned())
    }

    fn load<const BYTES: u64>(self) -> Action {
        Action::Access(Box::new(move |registers, active, memory| {
            let first = self.first(registers, BYTES);
            for (register, place) in self.data.iter().zip((0..).step_by(BYTES as usize)) {
                let mut row = [0; LANES];
                if self.state_space == StateSpace::Parameter {
                    // All lanes have the same parameters.
                    row = [self.load_one::<BYTES>(first[0].wrapping_add(place), 0, memory)?; LANES];
                    register.put(registers, active, &row);
                    continue;
                }
                for (lane, value) in row.iter_mut().enumerate() {
                    if active >> lane & 1 == 1 {
                        let at = first[lane].wrapping_add(place);
                        *value = self.load_one::<BYTES>(at, lane, memory)?;
                    }
                }
                register.put(registers, active, &row);
            }
            Ok(())
        }))
    }

    fn store<const BYTES: u64>(self) -> Action {
        Action::Access(Box::new(move |registers, active, memory| {
            let first = self.first(registers, BYTES);
            for (register, place) in self.data.iter().zip((0..).step_by(BYTES as usize)) {
                let row = register.row(registers);
                for (lane, &value) in row.iter().enumerate() {
                    if active >> lane & 1 == 1 {
                        let at = first[lane].wrapping_add(place);
                        memory.store::<BYTES>(self.state_space, at, lane, value)?;
                    }
                }
            }
            Ok(())
        }))
    }
}

const NOT_IN_MEMORY: &str = "a predicate cannot be in memory";

fn load(opcode: &mut Opcode<'_, '_, '_>) -> Result<Action, String> {
    let kind = opcode.kind()?;
    let state_space = state_space(opcode);
    let [result, address] = opcode.operands()?;
    let access = Access::new(opcode, kind, state_space, [address, result])?;
    Ok(match kind.bytes() {
        1 => access.load::<1>(),
        2 => access.load::<2>(),
        4 => access.load::<4>(),
        8 => access.load::<8>(),
        _ => return Err(NOT_IN_MEMORY.into()),
    })
}

fn store(opcode: &mut Opcode<'_, '_, '_>) -> Result<Action, String> {
    let kind = opcode.kind()?;
    let state_space = state_space(opcode);
    let [address, values] = opcode.operands()?;
    let access = Access::new(opcode, kind, state_space, [address, values])?;
    Ok(match kind.bytes() {
        1 => access.store::<1>(),
        2 => access.store::<2>(),
        4 => access.store::<4>(),
        8 => access.store::<8>(),
        _ => return Err(NOT_IN_MEMORY.into()),
    })
}
