//! Floating-point arithmetic.

use super::opcode::{Opcode, UNSUPPORTED_TYPE, binary, ternary, unary};
use crate::ptx::kind::{Kind, floats};
use crate::ptx::registers::Value;
use crate::ptx::warp::Action;
use std::ops::{Add, Neg};

/// Floating-point values as instructions take and return them.
pub(super) trait Float: Value + PartialOrd {
    const ZERO: Self;
    const ONE: Self;
    /// Turns a subnormal into a zero of its sign.
    fn flushed(self) -> Self;
    /// Turns every NaN into the one that a device returns in single precision (section "Floating
    /// Point Instructions").
    fn canonical(self) -> Self;
}

impl Float for f32 {
    const ZERO: Self = 0.0;
    const ONE: Self = 1.0;

    fn flushed(self) -> Self {
        if self.is_subnormal() { Self::ZERO.copysign(self) } else { self }
    }

    fn canonical(self) -> Self {
        if self.is_nan() { Self::from_bits(0x7fff_ffff) } else { self }
    }
}

impl Float for f64 {
    const ZERO: Self = 0.0;
    const ONE: Self = 1.0;

    fn flushed(self) -> Self {
        self
    }

    fn canonical(self) -> Self {
        self
    }
}

/// The suffixes `ftz` and `sat`, which change operands and results.
#[derive(Clone, Copy)]
pub(super) struct Modifiers {
    flushes: bool,
    saturates: bool,
}

impl Modifiers {
    pub(super) fn take(opcode: &mut Opcode<'_, '_, '_>) -> Self {
        Self { flushes: opcode.take("ftz"), saturates: opcode.take("sat") }
    }

    const fn is_plain(self) -> bool {
        !self.flushes && !self.saturates
    }

    fn operand<T: Float>(self, value: T) -> T {
        if self.flushes { value.flushed() } else { value }
    }

    pub(super) fn result<T: Float>(self, value: T) -> T {
        let value = self.operand(value);
        match value {
            _ if !self.saturates => value.canonical(),
            // NaN becomes zero as well.
            _ if value > T::ONE => T::ONE,
            _ if value > T::ZERO => value,
            _ => T::ZERO,
        }
    }
}

fn one<T: Float>(
    operands: (usize, [usize; 1]),
    modifiers: Modifiers,
    f: impl Fn(T) -> T + Send + Sync + 'static,
) -> Action {
    unary(operands, move |a: T| modifiers.result(f(modifiers.operand(a))))
}

fn two<T: Float>(
    operands: (usize, [usize; 2]),
    modifiers: Modifiers,
    f: impl Fn(T, T) -> T + Send + Sync + 'static,
) -> Action {
    if modifiers.is_plain() {
        return binary(operands, move |a: T, b: T| f(a, b).canonical());
    }
    binary(operands, move |a: T, b: T| {
        modifiers.result(f(modifiers.operand(a), modifiers.operand(b)))
    })
}

fn three<T: Float>(
    operands: (usize, [usize; 3]),
    modifiers: Modifiers,
    f: impl Fn(T, T, T) -> T + Send + Sync + 'static,
) -> Action {
    if modifiers.is_plain() {
        return ternary(operands, move |a: T, b: T, c: T| f(a, b, c).canonical());
    }
    ternary(operands, move |a: T, b: T, c: T| {
        modifiers.result(f(modifiers.operand(a), modifiers.operand(b), modifiers.operand(c)))
    })
}

/// The rounding mode of a result.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Rounding {
    Nearest,
    Zero,
    Down,
    Up,
}

const ROUNDINGS: [(&str, Rounding); 4] = [
    ("rn", Rounding::Nearest),
    ("rz", Rounding::Zero),
    ("rm", Rounding::Down),
    ("rp", Rounding::Up),
];

pub(super) fn decode(opcode: &mut Opcode<'_, '_, '_>) -> Result<Option<Action>, String> {
    let Some(kind) = opcode.peek_kind().filter(|kind| kind.is_float()) else { return Ok(None) };
    let name = opcode.name;
    if name == "testp" {
        return test(opcode).map(Some);
    }
    opcode.suffixes.pop();
    let modifiers = Modifiers::take(opcode);
    let is_approximate = opcode.take("approx");
    Ok(Some(match name {
        "add" | "sub" | "mul" | "fma" | "mad" => sum(opcode, kind, modifiers)?,
        "div" | "rcp" | "sqrt" => quotient(opcode, kind, modifiers, is_approximate)?,
        "min" | "max" | "copysign" => {
            let operands = opcode.same_type(kind)?;
            floats!(kind, T => match name {
                // Of a number and NaN, the number.
                "min" => two(operands, modifiers, lesser::<T>),
                "max" => two(operands, modifiers, |a: T, b: T| -lesser(-a, -b)),
                _ => two(operands, modifiers, |a: T, b: T| b.copysign(a)),
            }, else return Ok(None))
        }
        "neg" | "abs" => {
            let operands = opcode.same_type(kind)?;
            floats!(kind, T => match name {
                "neg" => one(operands, modifiers, |a: T| -a),
                _ => one(operands, modifiers, T::abs),
            }, else return Ok(None))
        }
        _ if is_approximate && kind == Kind::F32 => {
            let Some(function) = approximate(name) else { return Ok(None) };
            one(opcode.same_type(kind)?, modifiers, function)
        }
        _ => return Ok(None),
    }))
}

/// Returns the smaller of two numbers, and of two zeros the negative one.
fn lesser<T: Float + Add<Output = T> + Neg<Output = T>>(a: T, b: T) -> T {
    match a.partial_cmp(&b) {
        Some(std::cmp::Ordering::Less) => a,
        Some(std::cmp::Ordering::Greater) => b,
        // NaN is not smaller than anything.
        None if T::ZERO.partial_cmp(&a).is_none() => b,
        // Zeros differ only by their sign.
        Some(std::cmp::Ordering::Equal) if a == T::ZERO => -(-a + -b),
        _ => a,
    }
}

fn approximate(name: &str) -> Option<fn(f32) -> f32> {
    Some(match name {
        "rsqrt" => |a| 1.0 / a.sqrt(),
        "ex2" => f32::exp2,
        "lg2" => f32::log2,
        "sin" => f32::sin,
        "cos" => f32::cos,
        "tanh" => f32::tanh,
        _ => return None,
    })
}

/// `add`, `sub`, `mul`, `fma` and `mad`.
fn sum(
    opcode: &mut Opcode<'_, '_, '_>,
    kind: Kind,
    modifiers: Modifiers,
) -> Result<Action, String> {
    let (name, rounding) = (opcode.name, opcode.take_one(&ROUNDINGS));
    let is_nearest = rounding.is_none_or(|rounding| rounding == Rounding::Nearest);
    if matches!(name, "fma" | "mad") {
        let rounding = rounding.ok_or("a rounding is missing")?;
        let operands = opcode.same_type(kind)?;
        return Ok(match kind {
            _ if is_nearest => floats!(kind, T => three(operands, modifiers, T::mul_add),
                else return Err(UNSUPPORTED_TYPE.into())),
            Kind::F32 => three(operands, modifiers, move |a, b, c| rounded(a, b, c, rounding)),
            _ => return Err("this rounding is not supported".into()),
        });
    }
    let operands = opcode.same_type(kind)?;
    Ok(match (kind, rounding) {
        _ if is_nearest => floats!(kind, T => match name {
            "add" => two(operands, modifiers, |a: T, b: T| a + b),
            "sub" => two(operands, modifiers, |a: T, b: T| a - b),
            _ => two(operands, modifiers, |a: T, b: T| a * b),
        }, else return Err(UNSUPPORTED_TYPE.into())),
        (Kind::F32, Some(rounding)) => match name {
            "add" => two(operands, modifiers, move |a, b| rounded(a, 1.0, b, rounding)),
            "sub" => two(operands, modifiers, move |a, b: f32| rounded(a, 1.0, -b, rounding)),
            _ => two(operands, modifiers, move |a: f32, b: f32| {
                // Adding a zero with the product's sign does not change it.
                rounded(a, b, 0f32.copysign(a * b), rounding)
            }),
        },
        _ => return Err("this rounding is not supported".into()),
    })
}

/// Returns `a * b + c`, rounded once.
fn rounded(a: f32, b: f32, c: f32, rounding: Rounding) -> f32 {
    // The product is exact, and so is the sum with its error (Knuth's TwoSum).
    let (product, c) = (f64::from(a) * f64::from(b), f64::from(c));
    let sum = product + c;
    let part = sum - product;
    let error = (product - (sum - part)) + (c - part);
    let near = sum as f32;
    if !near.is_finite() && !sum.is_finite() {
        return near;
    }
    // Whether the near result is above or below the exact one. Infinity is above or below all.
    let difference = f64::from(near) - sum;
    let (is_above, is_below) = (difference > error, difference < error);
    if sum == 0.0 && error == 0.0 {
        let is_negative = if product == 0.0 && c == 0.0 && product.signum() == c.signum() {
            product.is_sign_negative()
        } else {
            rounding == Rounding::Down
        };
        return if is_negative { -0.0 } else { 0.0 };
    }
    match rounding {
        Rounding::Nearest => a.mul_add(b, c as f32),
        Rounding::Down if is_above => near.next_down(),
        Rounding::Up if is_below => near.next_up(),
        Rounding::Zero if is_above && sum > 0.0 => near.next_down(),
        Rounding::Zero if is_below && sum < 0.0 => near.next_up(),
        _ => near,
    }
}

/// `div`, `rcp` and `sqrt`. Those that are approximate on a device are exact here.
fn quotient(
    opcode: &mut Opcode<'_, '_, '_>,
    kind: Kind,
    modifiers: Modifiers,
    is_approximate: bool,
) -> Result<Action, String> {
    let is_known = is_approximate | opcode.take("full") | opcode.take("rn");
    if !is_known {
        return Err("this rounding is not supported".into());
    }
    let name = opcode.name;
    if name == "div" {
        let operands = opcode.same_type(kind)?;
        return Ok(floats!(kind, T => two(operands, modifiers, |a: T, b: T| a / b),
            else return Err(UNSUPPORTED_TYPE.into())));
    }
    let operands = opcode.same_type(kind)?;
    Ok(floats!(kind, T => match name {
        "rcp" => one(operands, modifiers, |a: T| 1.0 / a),
        _ => one(operands, modifiers, T::sqrt),
    }, else return Err(UNSUPPORTED_TYPE.into())))
}

fn test(opcode: &mut Opcode<'_, '_, '_>) -> Result<Action, String> {
    let kind = opcode.kind()?;
    let what = opcode.suffixes.pop().unwrap_or_default();
    let (to, [a]) = opcode.typed(Kind::Predicate, [kind])?;
    Ok(floats!(kind, T => {
        let holds: fn(T) -> bool = match what {
            "finite" => |a| a.is_finite(),
            "infinite" => |a| a.is_infinite(),
            "number" => |a| !a.is_nan(),
            "notanumber" => |a| a.is_nan(),
            "normal" => |a| a.is_normal(),
            "subnormal" => |a| a.is_subnormal(),
            _ => return Err(format!("`{what}` is not supported")),
        };
        Action::Compute(Box::new(move |registers, lanes| {
            let found = registers.compare::<T>([a, a], |a, _| holds(a));
            registers.put_predicate(to, lanes, found);
        }))
    }, else return Err(UNSUPPORTED_TYPE.into())))
}
