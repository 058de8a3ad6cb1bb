//! The types of PTX.

/// A type. Untyped bits count as unsigned.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    Predicate,
    U8,
    U16,
    U32,
    U64,
    S8,
    S16,
    S32,
    S64,
    F32,
    F64,
}

impl Kind {
    /// Reads a type, without its dot.
    pub(super) fn parse(name: &str) -> Option<Self> {
        Some(match name {
            "pred" => Self::Predicate,
            "u8" | "b8" => Self::U8,
            "u16" | "b16" => Self::U16,
            "u32" | "b32" => Self::U32,
            "u64" | "b64" => Self::U64,
            "s8" => Self::S8,
            "s16" => Self::S16,
            "s32" => Self::S32,
            "s64" => Self::S64,
            "f32" => Self::F32,
            "f64" => Self::F64,
            _ => return None,
        })
    }

    /// Returns the bytes of a value in memory. Predicates, which are never there, have none.
    pub(super) const fn bytes(self) -> u64 {
        match self {
            Self::Predicate => 0,
            Self::U8 | Self::S8 => 1,
            Self::U16 | Self::S16 => 2,
            Self::U32 | Self::S32 | Self::F32 => 4,
            Self::U64 | Self::S64 | Self::F64 => 8,
        }
    }

    /// Returns the bytes of the register that holds it. No register has one byte.
    pub(super) const fn register_bytes(self) -> u64 {
        match self.bytes() {
            1 => 2,
            bytes => bytes,
        }
    }

    pub(super) const fn is_signed(self) -> bool {
        matches!(self, Self::S8 | Self::S16 | Self::S32 | Self::S64)
    }

    pub(super) const fn is_float(self) -> bool {
        matches!(self, Self::F32 | Self::F64)
    }
}

/// Does the same for each of some types: `kinds!(kind, T in [U32 = u32, …] => code, else code)`,
/// where `T` is the Rust type in the code.
macro_rules! kinds {
    ($kind:expr, $T:ident in [$($variant:ident = $type:ty),*] => $body:expr, else $other:expr) => {
        match $kind {
            $($crate::ptx::kind::Kind::$variant => {
                type $T = $type;
                $body
            })*
            _ => $other,
        }
    };
}

/// Does the same for every integer type that instructions compute with.
macro_rules! integers {
    ($kind:expr, $T:ident => $body:expr, else $other:expr) => {
        $crate::ptx::kind::kinds!($kind, $T in [
            U16 = u16, U32 = u32, U64 = u64, S16 = i16, S32 = i32, S64 = i64
        ] => $body, else $other)
    };
}

/// Does the same for every size of bits.
macro_rules! bits {
    ($kind:expr, $T:ident => $body:expr, else $other:expr) => {
        $crate::ptx::kind::kinds!($kind, $T in [U16 = u16, U32 = u32, U64 = u64] => $body, else $other)
    };
}

/// Does the same for both floating-point types.
macro_rules! floats {
    ($kind:expr, $T:ident => $body:expr, else $other:expr) => {
        $crate::ptx::kind::kinds!($kind, $T in [F32 = f32, F64 = f64] => $body, else $other)
    };
}

pub(super) use {bits, floats, integers, kinds};
