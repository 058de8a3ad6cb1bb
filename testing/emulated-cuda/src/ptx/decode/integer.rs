//! Integer arithmetic.

use super::opcode::{Opcode, binary, ternary, unary};
use crate::ptx::kind::{Kind, integers, kinds};
use crate::ptx::registers::{LANES, Row};
use crate::ptx::warp::Action;

pub(super) fn decode(opcode: &mut Opcode<'_, '_, '_>) -> Result<Option<Action>, String> {
    if opcode.peek_kind().is_none_or(Kind::is_float) {
        return Ok(None);
    }
    Ok(Some(match opcode.name {
        "add" | "sub" | "min" | "max" | "div" | "rem" => two(opcode)?,
        "abs" | "neg" => one(opcode)?,
        "mul" => multiply(opcode)?,
        "mad" => multiply_add(opcode)?,
        "popc" | "clz" | "brev" | "bfind" => count(opcode)?,
        "bfe" => extract(opcode)?,
        "bfi" => insert(opcode)?,
        _ => return Ok(None),
    }))
}

fn wrong(kind: Kind) -> String {
    format!("{kind:?} is not supported")
}

fn two(opcode: &mut Opcode<'_, '_, '_>) -> Result<Action, String> {
    let (kind, name) = (opcode.kind()?, opcode.name);
    if opcode.suffixes == ["sat"] && kind == Kind::S32 && matches!(name, "add" | "sub") {
        opcode.suffixes.clear();
        let operands = opcode.same_type(kind)?;
        return Ok(if name == "add" {
            binary(operands, i32::saturating_add)
        } else {
            binary(operands, i32::saturating_sub)
        });
    }
    let operands = opcode.same_type(kind)?;
    Ok(integers!(kind, T => match name {
        "add" => binary(operands, T::wrapping_add),
        "sub" => binary(operands, T::wrapping_sub),
        "min" => binary(operands, |a: T, b: T| a.min(b)),
        "max" => binary(operands, |a: T, b: T| a.max(b)),
        // What a device returns for a division by zero is not specified.
        "div" => binary(operands, |a: T, b: T| if b == 0 { !0 } else { a.wrapping_div(b) }),
        _ => binary(operands, |a: T, b: T| if b == 0 { a } else { a.wrapping_rem(b) }),
    }, else return Err(wrong(kind))))
}

fn one(opcode: &mut Opcode<'_, '_, '_>) -> Result<Action, String> {
    let (kind, name) = (opcode.kind()?, opcode.name);
    let operands = opcode.same_type(kind)?;
    Ok(kinds!(kind, T in [S16 = i16, S32 = i32, S64 = i64] => match name {
        "abs" => unary(operands, T::wrapping_abs),
        _ => unary(operands, T::wrapping_neg),
    }, else return Err(wrong(kind))))
}

/// The half of a product that an instruction returns, or both.
#[derive(Clone, Copy)]
enum Half {
    Low,
    High,
    Wide,
}

const HALVES: [(&str, Half); 3] = [("lo", Half::Low), ("hi", Half::High), ("wide", Half::Wide)];

/// Does the same for each type that has one of twice the bits.
macro_rules! doubled {
    ($kind:expr, ($T:ident, $W:ident) => $body:expr, else $other:expr) => {
        match $kind {
            Kind::U16 => {
                type $T = u16;
                type $W = u32;
                $body
            }
            Kind::S16 => {
                type $T = i16;
                type $W = i32;
                $body
            }
            Kind::U32 => {
                type $T = u32;
                type $W = u64;
                $body
            }
            Kind::S32 => {
                type $T = i32;
                type $W = i64;
                $body
            }
            _ => $other,
        }
    };
}

const fn wide(kind: Kind) -> Kind {
    match kind {
        Kind::U16 => Kind::U32,
        Kind::S16 => Kind::S32,
        Kind::U32 => Kind::U64,
        _ => Kind::S64,
    }
}

fn multiply(opcode: &mut Opcode<'_, '_, '_>) -> Result<Action, String> {
    let kind = opcode.kind()?;
    let half = opcode.take_one(&HALVES).ok_or("one of lo, hi and wide is missing")?;
    let result = if matches!(half, Half::Wide) { wide(kind) } else { kind };
    let operands = opcode.typed(result, [kind, kind])?;
    Ok(match (half, kind) {
        (Half::Low, _) => integers!(kind, T => binary(operands, T::wrapping_mul),
            else return Err(wrong(kind))),
        (Half::High, Kind::U64) => binary(operands, high_u64),
        (Half::High, Kind::S64) => binary(operands, high_s64),
        (Half::High, _) => doubled!(kind, (T, W) => binary(operands, |a: T, b: T| {
            ((W::from(a) * W::from(b)) >> T::BITS) as T
        }), else return Err(wrong(kind))),
        (Half::Wide, _) => doubled!(kind, (T, W) => binary(operands, |a: T, b: T| {
            W::from(a) * W::from(b)
        }), else return Err(wrong(kind))),
    })
}

const fn high_u64(a: u64, b: u64) -> u64 {
    ((a as u128 * b as u128) >> 64) as u64
}

const fn high_s64(a: i64, b: i64) -> i64 {
    ((a as i128 * b as i128) >> 64) as i64
}

fn multiply_add(opcode: &mut Opcode<'_, '_, '_>) -> Result<Action, String> {
    let kind = opcode.kind()?;
    let half = opcode.take_one(&HALVES).ok_or("one of lo, hi and wide is missing")?;
    let result = if matches!(half, Half::Wide) { wide(kind) } else { kind };
    let operands = opcode.typed(result, [kind, kind, result])?;
    Ok(match (half, kind) {
        (Half::Low, _) => integers!(kind, T => ternary(operands, |a: T, b: T, c: T| {
            a.wrapping_mul(b).wrapping_add(c)
        }), else return Err(wrong(kind))),
        (Half::High, Kind::U64) => {
            ternary(operands, |a: u64, b: u64, c: u64| high_u64(a, b).wrapping_add(c))
        }
        (Half::High, Kind::S64) => {
            ternary(operands, |a: i64, b: i64, c: i64| high_s64(a, b).wrapping_add(c))
        }
        (Half::High, _) => doubled!(kind, (T, W) => ternary(operands, |a: T, b: T, c: T| {
            (((W::from(a) * W::from(b)) >> T::BITS) as T).wrapping_add(c)
        }), else return Err(wrong(kind))),
        (Half::Wide, _) => doubled!(kind, (T, W) => ternary(operands, |a: T, b: T, c: W| {
            (W::from(a) * W::from(b)).wrapping_add(c)
        }), else return Err(wrong(kind))),
    })
}

fn count(opcode: &mut Opcode<'_, '_, '_>) -> Result<Action, String> {
    let (kind, name) = (opcode.kind()?, opcode.name);
    if name == "brev" {
        let operands = opcode.same_type(kind)?;
        return Ok(kinds!(kind, T in [U32 = u32, U64 = u64] => unary(operands, T::reverse_bits),
            else return Err(wrong(kind))));
    }
    let is_shift = name == "bfind" && opcode.take("shiftamt");
    let operands = opcode.typed(Kind::U32, [kind])?;
    Ok(kinds!(kind, T in [U32 = u32, U64 = u64] => match name {
        // By how much the highest bit that is set can be shifted left.
        _ if is_shift => unary(operands, |a: T| if a == 0 { u32::MAX } else { a.leading_zeros() }),
        "popc" => unary(operands, T::count_ones),
        "clz" => unary(operands, T::leading_zeros),
        _ => unary(operands, |a: T| (T::BITS - 1).wrapping_sub(a.leading_zeros())),
    }, else return Err(wrong(kind))))
}

/// `bfe`: extracts a bit field and extends its sign.
fn extract(opcode: &mut Opcode<'_, '_, '_>) -> Result<Action, String> {
    let kind = opcode.kind()?;
    let operands = opcode.typed(kind, [kind, Kind::U32, Kind::U32])?;
    // The shifts, in 128 bits, that cut off the bits below and above the field.
    let shifts = |at: u32, len: u32| (at.min(127), 128 - (len & 0xff).clamp(1, 128));
    let none = |len: u32| len & 0xff == 0;
    Ok(kinds!(kind, T in [U32 = u32, U64 = u64] => {
        ternary(operands, move |a: T, at: u32, len: u32| {
            let (right, left) = shifts(at & 0xff, len);
            if none(len) { 0 } else { (u128::from(a) >> right << left >> left) as T }
        })
    }, else kinds!(kind, T in [S32 = i32, S64 = i64] => {
        ternary(operands, move |a: T, at: u32, len: u32| {
            let (right, left) = shifts(at & 0xff, len);
            if none(len) { 0 } else { (i128::from(a) >> right << left >> left) as T }
        })
    }, else return Err(wrong(kind)))))
}

/// `bfi`: inserts a bit field into a value.
fn insert(opcode: &mut Opcode<'_, '_, '_>) -> Result<Action, String> {
    let kind = opcode.kind()?;
    let [result, a, b, at, len] = opcode.operands()?;
    let [a, b] = [opcode.symbols.source(kind, a)?, opcode.symbols.source(kind, b)?];
    let [at, len] = [opcode.symbols.source(Kind::U32, at)?, opcode.symbols.source(Kind::U32, len)?];
    let to = opcode.symbols.target(kind, result)?;
    Ok(kinds!(kind, T in [U32 = u32, U64 = u64] => {
        Action::Compute(Box::new(move |registers, lanes| {
            let [at, len] = [at, len].map(|slot| registers.row::<u32>(slot));
            let [a, b]: [&Row<T>; 2] = [a, b].map(|slot| registers.row(slot));
            let mut row = [0; LANES];
            for lane in 0..LANES {
                let (at, len) = (at[lane] & 0xff, len[lane] & 0xff);
                let ones = (1 as T).checked_shl(len).map_or(T::MAX, |above| above.wrapping_sub(1));
                let ones = ones.checked_shl(at).unwrap_or(0);
                row[lane] = b[lane] & !ones | a[lane].checked_shl(at).unwrap_or(0) & ones;
            }
            registers.put(to, lanes, &row);
        }))
    }, else return Err(wrong(kind))))
}
