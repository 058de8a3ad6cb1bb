//! Guesses of the layers to stream, the best guesses first.

use super::streamed::{Layers, Streamed};

/// Sizes of groups, as in [`Groups`](planner_core::planner::Groups).
const GROUPS: [usize; 7] = [1, 2, 3, 4, 8, 16, 32];

/// The number of quantiles of layer sizes. Each is tried as the largest size of a streamed layer.
const QUANTILES: usize = 6;

/// Numbers of slots of the largest layer to keep free, for choices of spread layers.
const FREE: [u64; 5] = [1, 2, 3, 4, 6];

/// The most choices of each of two kinds: all layers but the first layers, as in `fit`, and all layers but
/// one. With at most this many layers, every such choice is tried.
const MOST: usize = 128;

/// The most layers for which every choice is tried.
const FEW: usize = 9;

/// The most layers that all estimates of changed choices look at together, which takes some milliseconds.
const LOOKS: usize = 50_000;

/// The number of choices of each shape that are changed layer by layer, with half of these looks.
const CHANGED: usize = 6;

/// The number of choices of each shape whose order is changed, with the other half.
const REORDERED: usize = 32;

/// The most later layers that a layer may move behind.
const NEAR: usize = 3;

/// Returns guessed choices, sorted by their estimates.
pub(super) fn guessed(layers: &Layers) -> Vec<Streamed> {
    let count = layers.len();
    let mut chosen: Vec<_> = match count {
        ..=FEW => subsets(count).collect(),
        _ => {
            let some = || (0..count).step_by(count.div_ceil(MOST));
            let but_first = some().map(|first| (first..count).collect());
            let but_one = some().map(|stays| order(count, |layer| layer != stays));
            spread(layers).chain(groups(count)).chain(but_first).chain(but_one).collect()
        }
    };
    chosen.sort_unstable();
    chosen.dedup();
    let judge = |order: Vec<usize>| {
        layers.shapes().iter().filter_map(move |&shape| layers.judge(order.clone(), shape))
    };
    by_cost(chosen.into_iter().flat_map(judge))
}

/// Returns the guessed choices, and better choices found by changes to the best guesses.
pub(super) fn improved(layers: &Layers, guessed: Vec<Streamed>) -> Vec<Streamed> {
    let shapes = layers.shapes();
    let looks = LOOKS / 2 / shapes.len() / layers.len().max(1);
    let mut better = Vec::new();
    for &shape in shapes {
        let of_shape = guessed.iter().filter(|streamed| streamed.shape == shape);
        for (rank, from) in of_shape.take(REORDERED).enumerate() {
            if rank < CHANGED {
                better.extend(improve(layers, from, &[exchanged, moved], looks / CHANGED));
            }
            better.extend(reordered(layers, from, looks / REORDERED));
        }
    }
    by_cost(guessed.into_iter().chain(better))
}

/// Returns all sets of layers.
pub(super) fn subsets(layers: usize) -> impl Iterator<Item = Vec<usize>> {
    (0..1 << layers).map(move |set| order(layers, |layer| set >> layer & 1 == 1))
}

pub(super) fn by_cost(choices: impl Iterator<Item = Streamed>) -> Vec<Streamed> {
    let mut all: Vec<_> = choices.collect();
    all.sort_by_key(Streamed::cost);
    all.dedup();
    all
}

/// Returns the streamed layers in their order.
fn order(layers: usize, is_streamed: impl Fn(usize) -> bool) -> Vec<usize> {
    (0..layers).filter(|&layer| is_streamed(layer)).collect()
}

/// Returns the last layers of each group, for all groups.
fn groups(layers: usize) -> impl Iterator<Item = Vec<usize>> {
    let patterns = GROUPS.into_iter().flat_map(|size| (1..=size).map(move |last| (size, last)));
    patterns.map(move |(size, last)| order(layers, |layer| layer % size >= size - last))
}

/// Returns choices of the fewest bytes that leave some slots free. They are spread evenly over the time of
/// all layers or over their number, and use only layers up to some size.
pub(super) fn spread(layers: &Layers) -> impl Iterator<Item = Vec<usize>> {
    let mut sizes: Vec<_> = layers.bytes.iter().copied().filter(|&bytes| bytes > 0).collect();
    sizes.sort_unstable();
    let quantiles = (1..=QUANTILES).map(|at| (sizes.len() * at).div_ceil(QUANTILES));
    let mut most: Vec<_> =
        quantiles.filter_map(|at| sizes.get(at.checked_sub(1)?).copied()).collect();
    most.dedup();
    let total_bytes = sizes.iter().copied().fold(0, u64::saturating_add);
    let excess_bytes = total_bytes.saturating_sub(layers.weight_bytes());
    most.into_iter().flat_map(move |most_bytes| {
        FREE.into_iter().flat_map(move |free| {
            let bytes = excess_bytes.saturating_add(most_bytes.saturating_mul(free));
            [true, false].map(|by_time| evenly(layers, most_bytes, bytes, by_time))
        })
    })
}

/// Returns layers at even distances that have at least `bytes` together, if possible.
fn evenly(layers: &Layers, most_bytes: u64, bytes: u64, by_time: bool) -> Vec<usize> {
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
        *is_streamed =
            size > 0 && size <= most_bytes && u128::from(taken.saturating_add(size / 2)) < due;
        taken = taken.saturating_add(if *is_streamed { size } else { 0 });
    }
    for layer in (0..layers.len()).rev() {
        let may_be = layers.bytes[layer] > 0 && layers.bytes[layer] <= most_bytes;
        if taken < bytes && may_be && !is_streamed[layer] {
            is_streamed[layer] = true;
            taken = taken.saturating_add(layers.bytes[layer]);
        }
    }
    order(layers.len(), |layer| is_streamed[layer])
}

/// Returns a better choice of the same layers in another order, if `looks` estimates find one.
pub(super) fn reordered(layers: &Layers, from: &Streamed, looks: usize) -> Option<Streamed> {
    improve(layers, from, &[moved], looks)
}

/// Returns a better choice that differs by these changes, if `looks` estimates find one.
fn improve(layers: &Layers, from: &Streamed, changes: &[Change], looks: usize) -> Option<Streamed> {
    let (count, mut best) = (layers.len(), from.clone());
    let (mut looks, mut unchanged) = (looks, 0);
    let near_first = (0..count).flat_map(|distance| (0..count).map(move |at| (at, distance)));
    let all = near_first
        .flat_map(|(at, distance)| changes.iter().map(move |change| (change, at, distance)));
    for (change, at, distance) in all.cycle() {
        if unchanged >= changes.len() * count * count || looks == 0 {
            break;
        }
        unchanged += 1;
        let Some(order) = change(count, &best.order, at, distance) else { continue };
        if order.iter().any(|&layer| layers.on_host[layer]) {
            continue;
        }
        looks -= 1;
        let changed = layers.judge_below(order, best.shape, best.period_ns);
        if let Some(changed) = changed.filter(|changed| changed.cost() < best.cost()) {
            (best, unchanged) = (changed, 0);
        }
    }
    (best != *from).then_some(best)
}

/// Returns a changed order, from the number of layers, the order, a position and a distance. Returns `None`
/// if the change does not exist.
type Change = fn(usize, &[usize], usize, usize) -> Option<Vec<usize>>;

/// Streams a layer that was not streamed, or the reverse; or exchanges a layer with another one at a
/// distance.
fn exchanged(layers: usize, from: &[usize], at: usize, distance: usize) -> Option<Vec<usize>> {
    let (other, is_streamed) = (at + distance, |layer| from.contains(&layer));
    if other >= layers || distance > 0 && is_streamed(at) == is_streamed(other) {
        return None;
    }
    let mut order: Vec<_> =
        from.iter().copied().filter(|&layer| layer != at && layer != other).collect();
    for changed in [at, other] {
        if !is_streamed(changed) && !order.contains(&changed) {
            let behind = order.iter().position(|&layer| layer > changed);
            order.insert(behind.unwrap_or(order.len()), changed);
        }
    }
    Some(order)
}

/// Moves a layer behind one or a few later layers.
fn moved(_: usize, from: &[usize], at: usize, distance: usize) -> Option<Vec<usize>> {
    let to = at + distance + 1;
    (distance < NEAR && to < from.len()).then(|| {
        let mut order = from.to_vec();
        order[at..=to].rotate_left(1);
        order
    })
}
