//! Bitwise operations, comparisons and selections.

use super::float::Float;
use super::opcode::{Opcode, UNSUPPORTED_TYPE, binary, ternary, unary};
use crate::ptx::kind::{Kind, bits, floats, integers, kinds};
use crate::ptx::registers::{Mask, Registers, Slot, Value};
use crate::ptx::syntax::{Number, Operand};
use crate::ptx::warp::Action;

pub(super) fn decode(opcode: &mut Opcode<'_, '_, '_>) -> Result<Option<Action>, String> {
    Ok(Some(match opcode.name {
        "and" | "or" | "xor" | "not" if opcode.peek_kind() == Some(Kind::Predicate) => {
            predicates(opcode)?
        }
        "and" | "or" | "xor" | "not" => bitwise(opcode)?,
        "shl" | "shr" => shift(opcode)?,
        "shf" => funnel(opcode)?,
        "lop3" => lookup(opcode)?,
        "prmt" => permute(opcode)?,
        "setp" => set_predicate(opcode)?,
        "selp" => select(opcode)?,
        _ => return Ok(None),
    }))
}

fn predicates(opcode: &mut Opcode<'_, '_, '_>) -> Result<Action, String> {
    let (kind, name) = (opcode.kind()?, opcode.name);
    if name == "not" {
        let (to, [a]) = opcode.same_type(kind)?;
        return Ok(Action::Compute(Box::new(move |registers, lanes| {
            registers.put_predicate(to, lanes, !registers.predicates[a]);
        })));
    }
    let (to, [a, b]) = opcode.same_type(kind)?;
    let function: fn(Mask, Mask) -> Mask = match name {
        "and" => |a, b| a & b,
        "or" => |a, b| a | b,
        _ => |a, b| a ^ b,
    };
    Ok(Action::Compute(Box::new(move |registers, lanes| {
        let values = function(registers.predicates[a], registers.predicates[b]);
        registers.put_predicate(to, lanes, values);
    })))
}

fn bitwise(opcode: &mut Opcode<'_, '_, '_>) -> Result<Action, String> {
    let (kind, name) = (opcode.kind()?, opcode.name);
    if name == "not" {
        let operands = opcode.same_type(kind)?;
        return Ok(
            bits!(kind, T => unary(operands, |a: T| !a), else return Err(UNSUPPORTED_TYPE.into())),
        );
    }
    let operands = opcode.same_type(kind)?;
    Ok(bits!(kind, T => match name {
        "and" => binary(operands, |a: T, b: T| a & b),
        "or" => binary(operands, |a: T, b: T| a | b),
        _ => binary(operands, |a: T, b: T| a ^ b),
    }, else return Err(UNSUPPORTED_TYPE.into())))
}

/// `shl` and `shr`. A shift by more than the bits of the type moves them all out.
fn shift(opcode: &mut Opcode<'_, '_, '_>) -> Result<Action, String> {
    let (kind, name) = (opcode.kind()?, opcode.name);
    let operands = opcode.typed(kind, [kind, Kind::U32])?;
    Ok(integers!(kind, T => match name {
        "shl" => binary(operands, |a: T, by: u32| if by < T::BITS { a << by } else { 0 }),
        _ => binary(operands, |a: T, by: u32| {
            let sign = a >> (T::BITS - 1);
            let gone = if is_signed::<T>() { sign } else { 0 };
            if by < T::BITS { a >> by } else { gone }
        }),
    }, else return Err(UNSUPPORTED_TYPE.into())))
}

/// Whether a type is signed.
fn is_signed<T: Value + Default + PartialOrd + std::ops::Not<Output = T>>() -> bool {
    !T::default() < T::default()
}

/// `shf`: shifts the 64 bits of two words and returns 32 of them.
fn funnel(opcode: &mut Opcode<'_, '_, '_>) -> Result<Action, String> {
    let kind = opcode.kind()?;
    let is_left = opcode.take("l");
    if !is_left && !opcode.take("r") {
        return Err("a direction is missing".into());
    }
    let wraps = opcode.take("wrap");
    if !wraps && !opcode.take("clamp") {
        return Err("one of wrap and clamp is missing".into());
    }
    if kind != Kind::U32 {
        return Err(UNSUPPORTED_TYPE.into());
    }
    let operands = opcode.same_type(kind)?;
    Ok(ternary(operands, move |low: u32, high: u32, by: u32| {
        let by = if wraps { by & 31 } else { by.min(32) };
        let both = u64::from(high) << 32 | u64::from(low);
        if is_left { (both << by >> 32) as u32 } else { (both >> by) as u32 }
    }))
}

/// Returns an operand that has to be an integer.
pub(super) fn immediate(operand: &Operand<'_>) -> Result<u64, String> {
    match operand {
        Operand::Number(Number::Integer(value)) => Ok(*value),
        _ => Err("a number is missing".into()),
    }
}

/// `lop3`: looks each bit up in a table, by three bits.
fn lookup(opcode: &mut Opcode<'_, '_, '_>) -> Result<Action, String> {
    let kind = opcode.kind()?;
    let [result, a, b, c, table] = opcode.operands()?;
    let table = immediate(table)?;
    if kind != Kind::U32 {
        return Err(UNSUPPORTED_TYPE.into());
    }
    let mut from = [0; 3];
    for (slot, operand) in from.iter_mut().zip([a, b, c]) {
        *slot = opcode.symbols.source(kind, operand)?;
    }
    let to = opcode.symbols.target(kind, result)?;
    Ok(ternary((to, from), move |a: u32, b: u32, c: u32| {
        let bits = (0..8).filter(|bit| table >> bit & 1 == 1);
        bits.fold(0, |all, bit| {
            let of = |value: u32, is: u64| if is == 1 { value } else { !value };
            all | of(a, bit >> 2 & 1) & of(b, bit >> 1 & 1) & of(c, bit & 1)
        })
    }))
}

/// `prmt`: picks four of the eight bytes of two words, or their signs.
fn permute(opcode: &mut Opcode<'_, '_, '_>) -> Result<Action, String> {
    let kind = opcode.kind()?;
    if kind != Kind::U32 {
        return Err(UNSUPPORTED_TYPE.into());
    }
    let operands = opcode.same_type(kind)?;
    Ok(ternary(operands, |a: u32, b: u32, picks: u32| {
        let bytes = (u64::from(b) << 32 | u64::from(a)).to_le_bytes();
        u32::from_le_bytes([0, 4, 8, 12].map(|at| {
            let pick = picks >> at;
            let byte = bytes[(pick & 7) as usize];
            if pick & 8 == 0 { byte } else { (byte.cast_signed() >> 7).cast_unsigned() }
        }))
    }))
}

/// Combines a comparison with a predicate.
type Join = fn(Mask, Mask) -> Mask;

/// Returns the lanes in which a comparison holds.
type Compare = Box<dyn Fn(&Registers) -> Mask + Send + Sync>;

fn compare<T: Value>(
    from: [Slot; 2],
    holds: impl Fn(T, T) -> bool + Send + Sync + 'static,
) -> Compare {
    Box::new(move |registers| registers.compare(from, &holds))
}

fn integers_compare(how: &str, kind: Kind, from: [Slot; 2]) -> Option<Compare> {
    Some(integers!(kind, T => match how {
        "eq" => compare::<T>(from, |a, b| a == b),
        "ne" => compare::<T>(from, |a, b| a != b),
        "lt" | "lo" => compare::<T>(from, |a, b| a < b),
        "le" | "ls" => compare::<T>(from, |a, b| a <= b),
        "gt" | "hi" => compare::<T>(from, |a, b| a > b),
        "ge" | "hs" => compare::<T>(from, |a, b| a >= b),
        _ => return None,
    }, else return None))
}

/// Comparisons that are false for NaN, and with a `u`, comparisons that are true for it.
#[expect(
    clippy::double_comparisons,
    clippy::float_cmp,
    clippy::neg_cmp_op_on_partial_ord,
    reason = "they differ for NaN"
)]
fn floats_compare(how: &str, kind: Kind, from: [Slot; 2], flushes: bool) -> Option<Compare> {
    fn on<T: Float>(
        from: [Slot; 2],
        flushes: bool,
        holds: impl Fn(T, T) -> bool + Send + Sync + 'static,
    ) -> Compare {
        if flushes {
            return compare(from, move |a: T, b: T| holds(a.flushed(), b.flushed()));
        }
        compare(from, holds)
    }
    Some(floats!(kind, T => match how {
        "eq" => on::<T>(from, flushes, |a, b| a == b),
        "ne" => on::<T>(from, flushes, |a, b| a < b || a > b),
        "lt" => on::<T>(from, flushes, |a, b| a < b),
        "le" => on::<T>(from, flushes, |a, b| a <= b),
        "gt" => on::<T>(from, flushes, |a, b| a > b),
        "ge" => on::<T>(from, flushes, |a, b| a >= b),
        "equ" => on::<T>(from, flushes, |a, b| !(a < b || a > b)),
        "neu" => on::<T>(from, flushes, |a, b| a != b),
        "ltu" => on::<T>(from, flushes, |a, b| !(a >= b)),
        "leu" => on::<T>(from, flushes, |a, b| !(a > b)),
        "gtu" => on::<T>(from, flushes, |a, b| !(a <= b)),
        "geu" => on::<T>(from, flushes, |a, b| !(a < b)),
        "num" => on::<T>(from, flushes, |a, b| !a.is_nan() && !b.is_nan()),
        "nan" => on::<T>(from, flushes, |a, b| a.is_nan() || b.is_nan()),
        _ => return None,
    }, else return None))
}

/// `setp`: sets a predicate, and perhaps its opposite, each combined with a third if one is given.
fn set_predicate(opcode: &mut Opcode<'_, '_, '_>) -> Result<Action, String> {
    let kind = opcode.kind()?;
    let flushes = opcode.take("ftz");
    let joined: [(&str, Join); 3] =
        [("and", |a, b| a & b), ("or", |a, b| a | b), ("xor", |a, b| a ^ b)];
    let joined = opcode.take_one(&joined);
    let how = opcode.suffixes.pop().unwrap_or_default();
    let (result, a, b, with) = match (opcode.operands, joined) {
        ([result, a, b], None) => (result, a, b, None),
        ([result, a, b, with], Some(join)) => (result, a, b, Some((join, with))),
        _ => return Err("`setp` takes three operands, or four with a combining suffix".into()),
    };
    let from = [opcode.symbols.source(kind, a)?, opcode.symbols.source(kind, b)?];
    let compare = if kind.is_float() {
        floats_compare(how, kind, from, flushes)
    } else {
        integers_compare(how, kind, from)
    };
    let compare = compare.ok_or_else(|| format!("`.{how}` is not supported for {kind:?}"))?;
    let (to, opposite) = match *result {
        Operand::Pair(to, opposite) => (Operand::Name(to), Operand::Name(opposite)),
        ref to => (to.clone(), Operand::Name("_")),
    };
    let to = opcode.symbols.target(Kind::Predicate, &to)?;
    let opposite = opcode.symbols.target(Kind::Predicate, &opposite)?;
    let with = with.map(|(join, with)| opcode.symbols.predicate(with).map(|slot| (join, slot)));
    let with = with.transpose()?;
    Ok(Action::Compute(Box::new(move |registers, lanes| {
        let found = compare(registers);
        let join = |found: Mask| match with {
            Some((join, (slot, is_negated))) => {
                let with = registers.predicates[slot];
                join(found, if is_negated { !with } else { with })
            }
            None => found,
        };
        let (values, opposites) = (join(found), join(!found));
        registers.put_predicate(to, lanes, values);
        registers.put_predicate(opposite, lanes, opposites);
    })))
}

fn select(opcode: &mut Opcode<'_, '_, '_>) -> Result<Action, String> {
    let kind = opcode.kind()?;
    let [result, a, b, by] = opcode.operands()?;
    let from = [opcode.symbols.source(kind, a)?, opcode.symbols.source(kind, b)?];
    let (to, (by, is_negated)) =
        (opcode.symbols.target(kind, result)?, opcode.symbols.predicate(by)?);
    Ok(kinds!(kind, T in [
        U16 = u16, U32 = u32, U64 = u64, S16 = i16, S32 = i32, S64 = i64, F32 = f32, F64 = f64
    ] => Action::Compute(Box::new(move |registers, lanes| {
        let by = registers.predicates[by] ^ if is_negated { Mask::MAX } else { 0 };
        let [a, b] = from.map(|slot| *registers.row::<<T as Value>::Cell>(slot));
        // The result may be one of the operands.
        registers.put(to, lanes & by, &a);
        registers.put(to, lanes & !by, &b);
    })), else return Err(UNSUPPORTED_TYPE.into())))
}
