//! Atomic operations.

use super::memory::{addresses, data_register, state_space};
use super::opcode::Opcode;
use crate::ptx::kind::{Kind, kinds};
use crate::ptx::registers::{LANES, lanes};
use crate::ptx::syntax::Operand;
use crate::ptx::warp::Action;

/// Computes the new value from the old one and two operands.
type Change = Box<dyn Fn(u64, u64, u64) -> u64 + Send + Sync>;

pub(super) fn decode(opcode: &mut Opcode<'_, '_, '_>) -> Result<Option<Action>, String> {
    Ok(Some(match opcode.name {
        "atom" | "red" => change(opcode)?,
        _ => return Ok(None),
    }))
}

/// `atom` returns what was there before, and `red` does not.
fn change(opcode: &mut Opcode<'_, '_, '_>) -> Result<Action, String> {
    let kind = opcode.kind()?;
    let state_space = state_space(opcode);
    let how = opcode.suffixes.pop().unwrap_or_default();
    let change =
        change_of(how, kind).ok_or_else(|| format!("`.{how}` is not supported for {kind:?}"))?;
    let (result, rest) = match (opcode.name, opcode.operands) {
        ("atom", [result, rest @ ..]) => (result, rest),
        (_, rest) => (&Operand::Name("_"), rest),
    };
    let (address, operands) = match (how, rest) {
        ("cas", [address, a, b]) => (address, [a, b]),
        (_, [address, a]) if how != "cas" => (address, [a, a]),
        _ => return Err("the number of operands is wrong".into()),
    };
    let (base, offset) = opcode.symbols.address(address)?;
    let [a, b] =
        [data_register(opcode, kind, operands[0])?, data_register(opcode, kind, operands[1])?];
    let (result, is_long) = (data_register(opcode, kind, result)?, kind.bytes() == 8);
    Ok(Action::Access(Box::new(move |registers, active, memory| {
        let at = addresses(registers, base, offset);
        let (a, b) = (a.row(registers), b.row(registers));
        let mut row = [0; LANES];
        for lane in lanes(active) {
            let change = |old| change(old, a[lane], b[lane]);
            row[lane] = match is_long {
                true => memory.update::<8>(state_space, at[lane], lane, change)?,
                false => memory.update::<4>(state_space, at[lane], lane, change)?,
            };
        }
        result.put(registers, active, &row);
        Ok(())
    })))
}

fn change_of(how: &str, kind: Kind) -> Option<Change> {
    let add = |kind| -> Option<Change> {
        Some(match kind {
            Kind::F32 => Box::new(|old, a, _| {
                (f32::from_bits(old as u32) + f32::from_bits(a as u32)).to_bits().into()
            }),
            Kind::F64 => Box::new(|old, a, _| (f64::from_bits(old) + f64::from_bits(a)).to_bits()),
            Kind::U32 | Kind::S32 | Kind::U64 => Box::new(|old, a, _| old.wrapping_add(a)),
            _ => return None,
        })
    };
    let min_or_max = |is_least: bool| -> Option<Change> {
        Some(kinds!(kind, T in [U32 = u32, S32 = i32, U64 = u64, S64 = i64] => {
            Box::new(move |old, a, _| {
                let (old, a) = (old as T, a as T);
                (if is_least { old.min(a) } else { old.max(a) }) as u64
            })
        }, else return None))
    };
    if how == "add" {
        return add(kind);
    }
    if matches!(how, "min" | "max") {
        return min_or_max(how == "min");
    }
    if !matches!(kind, Kind::U32 | Kind::U64) {
        return None;
    }
    Some(match how {
        "and" => Box::new(|old, a, _| old & a),
        "or" => Box::new(|old, a, _| old | a),
        "xor" => Box::new(|old, a, _| old ^ a),
        "exch" => Box::new(|_, a, _| a),
        "cas" => Box::new(|old, a, b| if old == a { b } else { old }),
        "inc" if kind == Kind::U32 => Box::new(|old, a, _| if old >= a { 0 } else { old + 1 }),
        "dec" if kind == Kind::U32 => {
            Box::new(|old, a, _| if old == 0 || old > a { a } else { old - 1 })
        }
        _ => return None,
    })
}
