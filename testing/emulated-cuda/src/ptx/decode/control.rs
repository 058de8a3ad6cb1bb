//! Branches, barriers, and collective instructions of a warp.

use super::opcode::Opcode;
use crate::ptx::error::KernelError;
use crate::ptx::kind::Kind;
use crate::ptx::registers::{LANES, Mask, Slot, lanes};
use crate::ptx::syntax::Operand;
use crate::ptx::warp::Action;
use cudarc::driver::sys::CUresult::CUDA_ERROR_LAUNCH_FAILED;
use std::time::Duration;

pub(super) fn decode(
    opcode: &mut Opcode<'_, '_, '_>,
    label: &dyn Fn(&str) -> Option<usize>,
) -> Result<Option<Action>, String> {
    Ok(Some(match opcode.name {
        "bra" => {
            opcode.take("uni");
            let [Operand::Name(name)] = opcode.operands()? else {
                return Err("a label is missing".into());
            };
            let target = label(name).ok_or_else(|| format!("there is no label `{name}`"))?;
            Action::Branch(target)
        }
        "ret" | "exit" => {
            opcode.take("uni");
            opcode.operands::<0>()?;
            Action::Exit
        }
        "bar" | "barrier" => barrier(opcode)?,
        "membar" | "fence" => {
            // All threads see every access at once and in order, so there is nothing to do.
            opcode.suffixes.clear();
            opcode.operands::<0>()?;
            Action::Compute(Box::new(|_, _| ()))
        }
        "nanosleep" => {
            opcode.kind()?;
            opcode.operands::<1>()?;
            Action::Access(Box::new(|_, _, memory| {
                memory.sleep(Duration::from_micros(1));
                Ok(())
            }))
        }
        "trap" => {
            opcode.operands::<0>()?;
            Action::Access(Box::new(|_, _, _| {
                Err(KernelError::new(CUDA_ERROR_LAUNCH_FAILED, "a trap"))
            }))
        }
        "shfl" => shuffle(opcode)?,
        "vote" => vote(opcode)?,
        "activemask" => {
            let kind = opcode.kind()?;
            let [result] = opcode.operands()?;
            let to = opcode.symbols.target(kind, result)?;
            Action::Compute(Box::new(move |registers, lanes| {
                registers.put(to, lanes, &[lanes; LANES]);
            }))
        }
        _ => return Ok(None),
    }))
}

fn barrier(opcode: &mut Opcode<'_, '_, '_>) -> Result<Action, String> {
    let is_aligned = opcode.take("aligned") | (opcode.name == "bar");
    if opcode.take("warp") {
        opcode.take("sync");
        let [members] = opcode.operands()?;
        let members = opcode.symbols.source(Kind::U32, members)?;
        return Ok(Action::Collective(members, Box::new(|_, _| ())));
    }
    opcode.take("cta");
    if !opcode.take("sync") {
        return Err("only `sync` is supported".into());
    }
    let [number] =
        opcode.operands().map_err(|_| "only barriers of the whole block are supported")?;
    let number = opcode.symbols.source(Kind::U32, number)?;
    Ok(Action::Barrier { number, is_aligned })
}

/// How a shuffle finds the lane from which a lane reads.
#[derive(Clone, Copy)]
enum ShuffleMode {
    Up,
    Down,
    Butterfly,
    Index,
}

const SHUFFLE_MODES: [(&str, ShuffleMode); 4] = [
    ("up", ShuffleMode::Up),
    ("down", ShuffleMode::Down),
    ("bfly", ShuffleMode::Butterfly),
    ("idx", ShuffleMode::Index),
];

impl ShuffleMode {
    /// Returns the lane from which a lane reads, and whether it is in the same segment (section
    /// "shfl").
    fn from(self, lane: u32, b: u32, c: u32) -> (u32, bool) {
        let (b, clamp, segments) = (b & 31, c & 31, c >> 8 & 31);
        let last = lane & segments | clamp & !segments;
        let (from, is_inside) = match self {
            Self::Up => {
                (lane.wrapping_sub(b), lane.cast_signed() - b.cast_signed() >= last.cast_signed())
            }
            Self::Down => (lane + b, lane + b <= last),
            Self::Butterfly => (lane ^ b, lane ^ b <= last),
            Self::Index => {
                let from = lane & segments | b & !segments;
                (from, from <= last)
            }
        };
        if is_inside { (from, true) } else { (lane, false) }
    }
}

fn shuffle(opcode: &mut Opcode<'_, '_, '_>) -> Result<Action, String> {
    let kind = opcode.kind()?;
    if !opcode.take("sync") || kind != Kind::U32 {
        return Err("only `sync` with `b32` is supported".into());
    }
    let mode = opcode.take_one(&SHUFFLE_MODES).ok_or("the mode is missing")?;
    let [result, a, b, c, members] = opcode.operands()?;
    let mut source = |operand| opcode.symbols.source(kind, operand);
    let (a, b, c, members) = (source(a)?, source(b)?, source(c)?, source(members)?);
    let (to, inside) = match *result {
        Operand::Pair(to, inside) => (Operand::Name(to), Operand::Name(inside)),
        ref to => (to.clone(), Operand::Name("_")),
    };
    let to = opcode.symbols.target(kind, &to)?;
    let inside = opcode.symbols.target(Kind::Predicate, &inside)?;
    Ok(Action::Collective(
        members,
        Box::new(move |registers, here| {
            let [a, b, c] = [a, b, c].map(|slot| *registers.row::<u32>(slot));
            let (mut row, mut insides) = (a, 0);
            for lane in lanes(here) {
                let (from, is_inside) = mode.from(lane as u32, b[lane], c[lane]);
                row[lane] = a[from as usize];
                insides |= Mask::from(is_inside) << lane;
            }
            registers.put(to, here, &row);
            registers.put_predicate(inside, here, insides);
        }),
    ))
}

fn vote(opcode: &mut Opcode<'_, '_, '_>) -> Result<Action, String> {
    let kind = opcode.kind()?;
    let how = opcode.take_one(&[("all", 'a'), ("any", 'o'), ("uni", 'u'), ("ballot", 'b')]);
    let (true, Some(how)) = (opcode.take("sync"), how) else {
        return Err("only `sync` votes are supported".into());
    };
    let [result, by, members] = opcode.operands()?;
    let (by, is_negated) = opcode.symbols.predicate(by)?;
    let members = opcode.symbols.source(Kind::U32, members)?;
    let to: Slot = opcode.symbols.target(kind, result)?;
    if (how == 'b') != (kind == Kind::U32) {
        return Err("the result has the wrong type".into());
    }
    Ok(Action::Collective(
        members,
        Box::new(move |registers, here| {
            let votes = (registers.predicates[by] ^ if is_negated { Mask::MAX } else { 0 }) & here;
            let is = match how {
                'a' => votes == here,
                'o' => votes != 0,
                'u' => votes == here || votes == 0,
                _ => return registers.put(to, here, &[votes; LANES]),
            };
            registers.put_predicate(to, here, if is { Mask::MAX } else { 0 });
        }),
    ))
}
