//! Moves and conversions.

use super::float::Modifiers;
use super::opcode::{Opcode, UNSUPPORTED_TYPE, unary};
use crate::ptx::kind::{Kind, floats, kinds};
use crate::ptx::memory::{LOCAL_WINDOW, Memory, SHARED_WINDOW};
use crate::ptx::registers::{LANES, Slot};
use crate::ptx::symbols::StateSpace;
use crate::ptx::syntax::Operand;
use crate::ptx::warp::Action;

pub(super) fn decode(opcode: &mut Opcode<'_, '_, '_>) -> Result<Option<Action>, String> {
    Ok(Some(match opcode.name {
        "mov" => move_(opcode)?,
        "cvta" => address(opcode)?,
        "cvt" => convert(opcode)?,
        _ => return Ok(None),
    }))
}

#[expect(
    clippy::redundant_closure_for_method_calls,
    reason = "as a function it would be for one lifetime only"
)]
fn move_(opcode: &mut Opcode<'_, '_, '_>) -> Result<Action, String> {
    let kind = opcode.kind()?;
    let [result, source] = opcode.operands()?;
    match (result, source) {
        (_, Operand::Vector(parts)) => return pack(opcode, kind, result, parts),
        (Operand::Vector(parts), _) => return unpack(opcode, kind, parts, source),
        (_, Operand::Name(name)) => {
            let clock: Option<fn(&mut Memory<'_, '_>) -> u64> = match *name {
                "%globaltimer" | "%globaltimer_lo" => Some(|memory| memory.timer_ns()),
                "%globaltimer_hi" => Some(|memory| memory.timer_ns() >> 32),
                "%clock" | "%clock64" => Some(|memory| memory.cycles()),
                _ => None,
            };
            if let Some(clock) = clock {
                return read_clock(opcode, kind, result, clock);
            }
        }
        _ => {}
    }
    if kind == Kind::Predicate {
        let (to, [from]) = opcode.same_type(kind)?;
        return Ok(Action::Compute(Box::new(move |registers, lanes| {
            registers.put_predicate(to, lanes, registers.predicates[from]);
        })));
    }
    let operands = opcode.same_type(kind)?;
    Ok(if kind.bytes() == 8 { unary(operands, |a: u64| a) } else { unary(operands, |a: u32| a) })
}

fn read_clock(
    opcode: &mut Opcode<'_, '_, '_>,
    kind: Kind,
    result: &Operand<'_>,
    clock: fn(&mut Memory<'_, '_>) -> u64,
) -> Result<Action, String> {
    let to = opcode.symbols.target(kind, result)?;
    let is_long = kind.bytes() == 8;
    Ok(Action::Access(Box::new(move |registers, lanes, memory| {
        let time = clock(memory);
        if is_long {
            registers.put(to, lanes, &[time; LANES]);
        } else {
            registers.put(to, lanes, &[time as u32; LANES]);
        }
        Ok(())
    })))
}

/// Returns the type of each of some equal parts of a type.
fn part(kind: Kind, parts: usize) -> Result<Kind, String> {
    match (kind.bytes(), parts) {
        (8, 2) => Ok(Kind::U32),
        (8, 4) | (4, 2) => Ok(Kind::U16),
        _ => Err("parts of this size are not supported".into()),
    }
}

fn pack(
    opcode: &mut Opcode<'_, '_, '_>,
    kind: Kind,
    result: &Operand<'_>,
    parts: &[Operand<'_>],
) -> Result<Action, String> {
    let of_part = part(kind, parts.len())?;
    let from = parts.iter().map(|part| opcode.symbols.source(of_part, part));
    let from: Vec<Slot> = from.collect::<Result<_, _>>()?;
    let (to, bits) = (opcode.symbols.target(kind, result)?, 8 * of_part.bytes());
    Ok(Action::Compute(Box::new(move |registers, lanes| {
        let mut all = [0u64; LANES];
        for (&slot, shift) in from.iter().zip((0..).step_by(bits as usize)) {
            let row = registers.row::<u32>(slot);
            for lane in 0..LANES {
                all[lane] |= (u64::from(row[lane]) & (u64::MAX >> (64 - bits))) << shift;
            }
        }
        if kind.bytes() == 8 {
            registers.put(to, lanes, &all);
        } else {
            registers.put(to, lanes, &all.map(|value| value as u32));
        }
    })))
}

fn unpack(
    opcode: &mut Opcode<'_, '_, '_>,
    kind: Kind,
    parts: &[Operand<'_>],
    source: &Operand<'_>,
) -> Result<Action, String> {
    let of_part = part(kind, parts.len())?;
    let from = opcode.symbols.source(kind, source)?;
    let to = parts.iter().map(|part| opcode.symbols.target(of_part, part));
    let (to, bits): (Vec<Slot>, _) = (to.collect::<Result<_, _>>()?, 8 * of_part.bytes());
    Ok(Action::Compute(Box::new(move |registers, lanes| {
        let all = match kind.bytes() {
            8 => *registers.row::<u64>(from),
            _ => registers.row::<u32>(from).map(u64::from),
        };
        for (&slot, shift) in to.iter().zip((0..).step_by(bits as usize)) {
            let row = all.map(|value| (value >> shift & (u64::MAX >> (64 - bits))) as u32);
            registers.put(slot, lanes, &row);
        }
    })))
}

/// `cvta`: converts between generic addresses and those of a state space.
fn address(opcode: &mut Opcode<'_, '_, '_>) -> Result<Action, String> {
    let kind = opcode.kind()?;
    let is_from_generic = opcode.take("to");
    let state_spaces = [
        ("global", StateSpace::Global),
        ("const", StateSpace::Global),
        ("shared", StateSpace::Shared),
        ("shared::cta", StateSpace::Shared),
        ("local", StateSpace::Local),
    ];
    let start = match opcode.take_one(&state_spaces) {
        Some(StateSpace::Shared) => SHARED_WINDOW,
        Some(StateSpace::Local) => LOCAL_WINDOW,
        Some(_) => 0,
        None => return Err("the state space is missing".into()),
    };
    if kind != Kind::U64 {
        return Err("only addresses of 64 bits are supported".into());
    }
    let operands = opcode.same_type(kind)?;
    let by = if is_from_generic { start.wrapping_neg() } else { start };
    Ok(unary(operands, move |a: u64| a.wrapping_add(by)))
}

/// Does the same for every integer type that can be converted.
macro_rules! all_integers {
    ($kind:expr, $T:ident => $body:expr, else $other:expr) => {
        kinds!($kind, $T in [
            U8 = u8, U16 = u16, U32 = u32, U64 = u64, S8 = i8, S16 = i16, S32 = i32, S64 = i64
        ] => $body, else $other)
    };
}

/// Returns the register that a conversion reads or writes, and whether it has 64 bits. It may be
/// wider than the type.
fn any(
    opcode: &mut Opcode<'_, '_, '_>,
    kind: Kind,
    operand: &Operand<'_>,
) -> Result<(Slot, bool), String> {
    let Operand::Name(name) = operand else { return Err("a register is missing".into()) };
    let (declared, slot) = opcode.symbols.register(name)?;
    if declared.bytes() < kind.bytes() || declared == Kind::Predicate {
        return Err(format!("`{name}` has another size"));
    }
    Ok((slot, declared.bytes() == 8))
}

fn convert(opcode: &mut Opcode<'_, '_, '_>) -> Result<Action, String> {
    let (from, to) = (opcode.kind()?, opcode.kind()?);
    let [result, source] = opcode.operands()?;
    if from.is_float() || to.is_float() {
        return convert_float(opcode, from, to);
    }
    let saturates = opcode.take("sat");
    let (target, is_long) = any(opcode, to, result)?;
    let (slot, of_long) = match source {
        Operand::Name(_) => any(opcode, from, source)?,
        _ => (opcode.symbols.source(from, source)?, from.bytes() == 8),
    };
    Ok(all_integers!(from, S => all_integers!(to, D => {
        let value = move |bits: u64| -> u64 {
            let value = bits as S;
            if saturates {
                let value = i128::from(value).clamp(D::MIN as i128, D::MAX as i128);
                value as D as u64
            } else {
                value as D as u64
            }
        };
        match (is_long, of_long) {
            (true, true) => unary((target, [slot]), value),
            (true, false) => unary((target, [slot]), move |a: u32| value(a.into())),
            (false, true) => unary((target, [slot]), move |a: u64| value(a) as u32),
            (false, false) => unary((target, [slot]), move |a: u32| value(a.into()) as u32),
        }
    }, else return Err(UNSUPPORTED_TYPE.into())), else return Err(UNSUPPORTED_TYPE.into())))
}

/// How a number is rounded to an integer.
#[derive(Clone, Copy)]
enum IntegerRounding {
    Nearest,
    Zero,
    Down,
    Up,
}

const INTEGER_ROUNDINGS: [(&str, IntegerRounding); 4] = [
    ("rni", IntegerRounding::Nearest),
    ("rzi", IntegerRounding::Zero),
    ("rmi", IntegerRounding::Down),
    ("rpi", IntegerRounding::Up),
];

impl IntegerRounding {
    fn of(self, value: f64) -> f64 {
        match self {
            Self::Nearest => value.round_ties_even(),
            Self::Zero => value.trunc(),
            Self::Down => value.floor(),
            Self::Up => value.ceil(),
        }
    }
}

fn convert_float(opcode: &mut Opcode<'_, '_, '_>, from: Kind, to: Kind) -> Result<Action, String> {
    let modifiers = Modifiers::take(opcode);
    let rounding = opcode.take_one(&INTEGER_ROUNDINGS);
    let is_nearest = opcode.take("rn");
    match (from, to) {
        (Kind::F64, Kind::F32) if is_nearest => {
            Ok(unary(opcode.typed(to, [from])?, move |a: f64| modifiers.result(a as f32)))
        }
        (Kind::F32, Kind::F64) => {
            Ok(unary(opcode.typed(to, [from])?, move |a: f32| modifiers.result(f64::from(a))))
        }
        _ if from == to => {
            let operands = opcode.same_type(from)?;
            // Rounding a single as a double is exact.
            Ok(floats!(from, T => unary(operands, move |a: T| {
                let value = rounding.map_or(a, |rounding| rounding.of(f64::from(a)) as T);
                modifiers.result(value)
            }), else return Err(UNSUPPORTED_TYPE.into())))
        }
        (Kind::F32 | Kind::F64, _) => {
            let rounding = rounding.ok_or("a rounding to integers is missing")?;
            to_integer(opcode, from, to, rounding)
        }
        _ if is_nearest => from_integer(opcode, from, to, modifiers),
        _ => Err("this rounding is not supported".into()),
    }
}

fn to_integer(
    opcode: &mut Opcode<'_, '_, '_>,
    from: Kind,
    to: Kind,
    rounding: IntegerRounding,
) -> Result<Action, String> {
    let [result, source] = opcode.operands()?;
    let (target, is_long) = any(opcode, to, result)?;
    let slot = opcode.symbols.source(from, source)?;
    // NaN becomes zero, or for 64 bits the highest bit alone (section "cvt").
    let of_nan = if from == Kind::F64 || to.bytes() == 8 { 1 << (8 * to.bytes() - 1) } else { 0 };
    Ok(floats!(from, S => all_integers!(to, D => {
        let value = move |a: S| -> u64 {
            // Values that do not fit become the nearest that does.
            if a.is_nan() { of_nan } else { rounding.of(f64::from(a)) as D as u64 }
        };
        if is_long {
            unary((target, [slot]), value)
        } else {
            unary((target, [slot]), move |a: S| value(a) as u32)
        }
    }, else return Err(UNSUPPORTED_TYPE.into())), else return Err(UNSUPPORTED_TYPE.into())))
}

fn from_integer(
    opcode: &mut Opcode<'_, '_, '_>,
    from: Kind,
    to: Kind,
    modifiers: Modifiers,
) -> Result<Action, String> {
    let [result, source] = opcode.operands()?;
    let (slot, of_long) = any(opcode, from, source)?;
    let target = opcode.symbols.target(to, result)?;
    Ok(all_integers!(from, S => floats!(to, D => {
        let value = move |bits: u64| modifiers.result(bits as S as D);
        if of_long {
            unary((target, [slot]), value)
        } else {
            unary((target, [slot]), move |a: u32| value(a.into()))
        }
    }, else return Err(UNSUPPORTED_TYPE.into())), else return Err(UNSUPPORTED_TYPE.into())))
}
