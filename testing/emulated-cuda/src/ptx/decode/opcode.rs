//! An instruction while it is decoded.

use crate::ptx::kind::Kind;
use crate::ptx::registers::{Slot, Value};
use crate::ptx::symbols::Symbols;
use crate::ptx::syntax::Operand;
use crate::ptx::warp::Action;

/// An error: the instruction exists, but not for this type.
pub(super) const UNSUPPORTED_TYPE: &str = "this type is not supported";

/// An instruction. The decoder takes its suffixes one by one, and one that is left is an error.
pub(super) struct Opcode<'o, 'f, 't> {
    pub(super) name: &'o str,
    pub(super) suffixes: Vec<&'o str>,
    pub(super) operands: &'o [Operand<'o>],
    pub(super) symbols: &'f mut Symbols<'t>,
}

impl<'o> Opcode<'o, '_, '_> {
    /// Takes a suffix. Returns whether it was there.
    pub(super) fn take(&mut self, suffix: &str) -> bool {
        let found = self.suffixes.iter().position(|&other| other == suffix);
        found.map(|at| self.suffixes.remove(at)).is_some()
    }

    /// Takes the first of some suffixes that is there. Returns its meaning.
    pub(super) fn take_one<T: Copy>(&mut self, of: &[(&str, T)]) -> Option<T> {
        of.iter().find_map(|&(suffix, value)| self.take(suffix).then_some(value))
    }

    /// Takes the last suffix, which has to be a type.
    pub(super) fn kind(&mut self) -> Result<Kind, String> {
        let kind = self.suffixes.last().and_then(|suffix| Kind::parse(suffix));
        let kind = kind.ok_or_else(|| format!("`{}` has no supported type", self.name))?;
        self.suffixes.pop();
        Ok(kind)
    }

    /// Returns the last suffix as a type, and leaves it.
    pub(super) fn peek_kind(&self) -> Option<Kind> {
        self.suffixes.last().and_then(|suffix| Kind::parse(suffix))
    }

    /// Returns all operands. Fails if they are not this many.
    pub(super) fn operands<const N: usize>(&self) -> Result<&'o [Operand<'o>; N], String> {
        self.operands.try_into().map_err(|_| format!("`{}` takes {N} operands", self.name))
    }

    /// Returns the registers of the result and of the sources, all of one type.
    pub(super) fn same_type<const N: usize>(
        &mut self,
        kind: Kind,
    ) -> Result<(Slot, [Slot; N]), String> {
        self.typed(kind, [kind; N])
    }

    /// Returns the registers of the result and of the sources.
    pub(super) fn typed<const N: usize>(
        &mut self,
        of_result: Kind,
        kinds: [Kind; N],
    ) -> Result<(Slot, [Slot; N]), String> {
        let Some((result, sources)) = self.operands.split_first() else {
            return Err(format!("`{}` takes {} operands", self.name, N + 1));
        };
        let sources: &[Operand<'o>; N] =
            sources.try_into().map_err(|_| format!("`{}` takes {} operands", self.name, N + 1))?;
        let mut slots = [0; N];
        for (slot, (kind, operand)) in slots.iter_mut().zip(kinds.into_iter().zip(sources)) {
            *slot = self.symbols.source(kind, operand)?;
        }
        Ok((self.symbols.target(of_result, result)?, slots))
    }
}

/// Computes a register from another.
pub(super) fn unary<A: Value, D: Value>(
    (to, [a]): (Slot, [Slot; 1]),
    function: impl Fn(A) -> D + Send + Sync + 'static,
) -> Action {
    Action::Compute(Box::new(move |registers, lanes| registers.map(lanes, to, a, &function)))
}

/// Computes a register from two others.
pub(super) fn binary<A: Value, B: Value, D: Value>(
    (to, from): (Slot, [Slot; 2]),
    function: impl Fn(A, B) -> D + Send + Sync + 'static,
) -> Action {
    Action::Compute(Box::new(move |registers, lanes| registers.map2(lanes, to, from, &function)))
}

/// Computes a register from three others.
pub(super) fn ternary<A: Value, B: Value, C: Value, D: Value>(
    (to, from): (Slot, [Slot; 3]),
    function: impl Fn(A, B, C) -> D + Send + Sync + 'static,
) -> Action {
    Action::Compute(Box::new(move |registers, lanes| registers.map3(lanes, to, from, &function)))
}
