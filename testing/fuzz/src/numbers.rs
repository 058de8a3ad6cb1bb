//! Numbers at the edges of their types.

use proptest::prelude::*;
use proptest::sample::select;

/// Numbers of 64 bits: small ones, powers of two and their neighbours, and any.
pub fn numbers() -> impl Strategy<Value = u64> {
    let near_power = (0..=64u32, -2..=2i64).prop_map(|(power, offset)| {
        1u64.checked_shl(power).unwrap_or(0).wrapping_add_signed(offset)
    });
    prop_oneof![
        3 => 0..=4u64,
        2 => 5..=4096u64,
        3 => select(vec![63, 64, 65, 255, 256, 257, 1 << 20, 1 << 32, 1 << 63, u64::MAX]),
        3 => near_power,
        1 => any::<u64>(),
    ]
}

/// Numbers of 32 bits, the same way.
pub fn numbers_u32() -> impl Strategy<Value = u32> {
    prop_oneof![3 => 0..=12u32, 1 => Just(u32::MAX), 2 => numbers().prop_map(|number| number as u32)]
}

/// Numbers of the machine's size, the same way.
pub fn numbers_usize() -> impl Strategy<Value = usize> {
    numbers().prop_map(|number| number as usize)
}
