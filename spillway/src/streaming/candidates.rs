//! Which layers might be streamed, best guesses first.

use super::streamed::{Layers, Shape, Streamed};

/// Sizes of groups, as [`Groups`](planner_core::planner::Groups) tries them.
const GROUPS: [u32; 7] = [1, 2, 3, 4, 8, 16, 32];

/// Sizes below which layers may be streamed: quantiles of all sizes.
const QUANTILES: usize = 6;

/// Slots of the largest layer that are kept free, where layers are spread.
const FREE: [u64; 5] = [1, 2, 3, 4, 6];

/// Layers that estimates of changed choices look at together: a millisecond's worth.
const LOOKS: usize = 60_000;

/// A layer changes places with one of the next ones, up to this many less one.
const NEAR: usize = 4;

/// Choices that are changed, layer by layer.
const CHANGED: usize = 2;

/// All choices of some shapes, by their estimates.
pub(super) fn all(layers: &Layers, shapes: &[Shape]) -> Vec<Streamed> {
    let mut chosen: Vec<_> = spread(layers).chain(groups(layers)).collect();
    chosen.sort_unstable();
    chosen.dedup();
    let judge = |is_streamed: Vec<bool>| {
        shapes.iter().filter_map(move |&shape| layers.judge(is_streamed.clone(), shape))
    };
    let mut all: Vec<_> = chosen.into_iter().flat_map(judge).collect();
    all.sort_by_key(Streamed::cost);
    let looks = LOOKS / layers.len().max(1) / CHANGED;
    let changed: Vec<_> =
        all.iter().take(CHANGED).filter_map(|best| improve(layers, best, looks)).collect();
    all.extend(changed);
    all.sort_by_key(Streamed::cost);
    all.dedup();
    all
}

/// Of each group of layers, the last ones.
fn groups(layers: &Layers) -> impl Iterator<Item = Vec<bool>> {
    let patterns = GROUPS.into_iter().flat_map(|size| (1..=size).map(move |last| (size, last)));
    patterns.map(|(size, last)| {
        (0..layers.len() as u32).map(|layer| layer % size >= size - last).collect()
    })
}

/// As few bytes as leave some slots free, spread evenly over the time of all layers or over their
/// number, of layers up to some sizes.
fn spread(layers: &Layers) -> impl Iterator<Item = Vec<bool>> {
    let mut sizes = layers.bytes.clone();
    sizes.sort_unstable();
    let quantiles = (1..=QUANTILES).map(|at| (sizes.len() * at).div_ceil(QUANTILES));
    let mut most: Vec<_> =
        quantiles.filter_map(|at| sizes.get(at.checked_sub(1)?).copied()).collect();
    most.dedup();
    let total_bytes = sizes.iter().copied().fold(0, u64::saturating_add);
    let excess_bytes = total_bytes.saturating_sub(layers.budget_bytes);
    most.into_iter().flat_map(move |most_bytes| {
        FREE.into_iter().flat_map(move |free| {
            let bytes = excess_bytes.saturating_add(most_bytes.saturating_mul(free));
            [true, false].map(|by_time| evenly(layers, most_bytes, bytes, by_time))
        })
    })
}

/// Layers of at least so many bytes together, if there are as many, at even distances.
fn evenly(layers: &Layers, most_bytes: u64, bytes: u64, by_time: bool) -> Vec<bool> {
    let weight = |layer: usize| match by_time {
        true => u128::from(layers.time_ns[layer]),
        false => 1,
    };
    let whole: u128 = (0..layers.len()).map(weight).sum::<u128>().max(1);
    let (mut passed, mut taken) = (0, 0u64);
    let mut is_streamed = vec![false; layers.len()];
    for (layer, is_streamed) in is_streamed.iter_mut().enumerate() {
        passed += weight(layer);
        let due = (u128::from(bytes) * passed).div_ceil(whole);
        let size = layers.bytes[layer];
        *is_streamed = size <= most_bytes && u128::from(taken.saturating_add(size / 2)) < due;
        taken = taken.saturating_add(if *is_streamed { size } else { 0 });
    }
    for layer in (0..layers.len()).rev() {
        if taken < bytes && layers.bytes[layer] <= most_bytes && !is_streamed[layer] {
            is_streamed[layer] = true;
            taken = taken.saturating_add(layers.bytes[layer]);
        }
    }
    is_streamed
}

/// A better choice that differs in a few layers, if one is found by so many estimates.
fn improve(layers: &Layers, from: &Streamed, mut looks: usize) -> Option<Streamed> {
    let mut best = from.clone();
    let mut unchanged = 0;
    for at in (0..layers.len()).cycle() {
        for partner in (at..layers.len()).take(NEAR) {
            let mut is_streamed = best.is_streamed.clone();
            if partner > at && is_streamed[at] == is_streamed[partner] {
                continue;
            }
            is_streamed[at] ^= true;
            is_streamed[partner] ^= partner > at;
            looks = looks.saturating_sub(1);
            let changed = layers.judge(is_streamed, best.shape);
            if let Some(changed) = changed.filter(|changed| changed.cost() < best.cost()) {
                (best, unchanged) = (changed, 0);
            }
        }
        unchanged += 1;
        if unchanged > layers.len() || looks == 0 {
            break;
        }
    }
    (best != *from).then_some(best)
}
