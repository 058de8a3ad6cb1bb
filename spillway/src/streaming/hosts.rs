//! Which layers run on the host, best guesses first.
//!
//! Device, host and link take turns: layers on the host lie in runs at even distances, and the layers
//! behind a run are those that come over the link meanwhile.

use super::candidates::{by_cost, reordered, subsets};
use super::streamed::{Layers, Shape, Streamed};
use std::collections::HashSet;

/// Of so many layers, every choice is tried.
const FEW: usize = 6;

/// Shares of the bytes that do not fit which the host takes at first.
const SHARES: u64 = 16;

/// Choices near which other shares are tried.
const NEAR: usize = 4;

/// Times that the distance to other shares is halved.
const HALVED: u32 = 4;

/// Slots of the largest layer that are kept free for the layers that are streamed.
const FREE: [u64; 4] = [1, 2, 3, 4];

/// Layers that are streamed behind each run, at most. A balance: each run costs two transfers, and between
/// more of them uploads are spread more evenly.
const BEHIND: [u64; 5] = [1, 2, 3, 4, 8];

/// Choices that are changed layer by layer.
const CHANGED: usize = 4;

/// Choices of which only the order is changed.
const REORDERED: usize = 32;

/// Layers that estimates of changed choices look at together: some milliseconds' worth.
const LOOKS: usize = 50_000;

/// Where a layer is while it computes.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
enum Role {
    Stays,
    Streamed,
    OnHost,
}

const ROLES: [Role; 3] = [Role::Stays, Role::Streamed, Role::OnHost];

/// Choices with layers on the host, by their estimates.
pub(super) fn choices(layers: &Layers) -> Vec<Streamed> {
    let guessed = match layers.len() {
        ..=FEW => every(layers),
        _ => Search::new(layers).run(),
    };
    let looks = LOOKS / 2 / layers.len().max(1);
    let best = guessed.iter().take(CHANGED);
    let better: Vec<_> = best.filter_map(|from| improve(layers, from, looks / CHANGED)).collect();
    let guessed = by_cost(guessed.into_iter().chain(better));
    let reordered = |from: &Streamed| {
        let layers = layers.with_host(&from.on_host, from.yields);
        reordered(&layers, from, looks / REORDERED)
    };
    let better: Vec<_> = guessed.iter().take(REORDERED).filter_map(reordered).collect();
    by_cost(guessed.into_iter().chain(better))
}

/// All choices.
fn every(layers: &Layers) -> Vec<Streamed> {
    let count = layers.len();
    let choices = subsets(count).flat_map(|on_host| {
        subsets(count).filter_map(move |streamed| {
            let mut roles = vec![Role::Stays; count];
            on_host.iter().for_each(|&layer| roles[layer] = Role::OnHost);
            let is_new = streamed.iter().all(|&layer| roles[layer] == Role::Stays);
            streamed.iter().for_each(|&layer| roles[layer] = Role::Streamed);
            is_new.then_some(roles)
        })
    });
    by_cost(choices.flat_map(|roles| judged(layers, &roles)))
}

/// A choice in each shape, with each use of the link.
fn judged(layers: &Layers, roles: &[Role]) -> Vec<Streamed> {
    let shapes = layers.shapes().iter();
    let ways = shapes.flat_map(|&shape| [false, true].map(|yields| (shape, yields)));
    ways.filter_map(|(shape, yields)| judge(layers, roles, shape, yields, u64::MAX)).collect()
}

/// None where a layer may not run on the host, where no layer does, or where the period is longer.
fn judge(
    layers: &Layers,
    roles: &[Role],
    shape: Shape,
    yields: bool,
    most_ns: u64,
) -> Option<Streamed> {
    let on_host: Vec<_> = roles.iter().map(|&role| role == Role::OnHost).collect();
    let mut of_host = on_host.iter().zip(&layers.host_ns).filter(|(on_host, _)| **on_host);
    if !on_host.contains(&true) || of_host.any(|(_, host_ns)| host_ns.is_none()) {
        return None;
    }
    let order = (0..roles.len()).filter(|&layer| roles[layer] == Role::Streamed).collect();
    layers.with_host(&on_host, yields).judge_below(order, shape, most_ns)
}

/// A search over how much the host takes.
struct Search<'a> {
    layers: &'a Layers,
    /// The bytes that do not fit.
    excess_bytes: u64,
    /// The bytes that may be on the host.
    most_bytes: u64,
    seen: HashSet<Vec<Role>>,
    /// Choices, each with the bytes that the host should take.
    found: Vec<(u64, Streamed)>,
}

impl<'a> Search<'a> {
    fn new(layers: &'a Layers) -> Self {
        let most_bytes = (0..layers.len()).fold(0u64, |sum, layer| {
            sum.saturating_add(layers.host_ns[layer].map_or(0, |_| layers.bytes[layer]))
        });
        let total_bytes = layers.bytes.iter().copied().fold(0, u64::saturating_add);
        let excess_bytes = total_bytes.saturating_sub(layers.weight_bytes());
        Self { layers, excess_bytes, most_bytes, seen: HashSet::new(), found: Vec::new() }
    }

    fn run(mut self) -> Vec<Streamed> {
        let most_bytes = self.excess_bytes.min(self.most_bytes);
        let share = |share: u64| u128::from(most_bytes) * u128::from(share) / u128::from(SHARES);
        (1..=SHARES).for_each(|at| self.share(share(at) as u64));
        let mut step_bytes = most_bytes / SHARES;
        for _ in 0..HALVED {
            step_bytes /= 2;
            self.found.sort_by_key(|(_, streamed)| streamed.cost());
            let mut near: Vec<_> = self.found.iter().map(|&(bytes, _)| bytes).collect();
            let mut seen = HashSet::new();
            near.retain(|&bytes| seen.insert(bytes));
            for bytes in near.into_iter().take(NEAR) {
                self.share(bytes.saturating_sub(step_bytes));
                self.share(bytes.saturating_add(step_bytes));
            }
        }
        by_cost(self.found.into_iter().map(|(_, streamed)| streamed))
    }

    /// Tries choices in which the host takes about so many bytes.
    fn share(&mut self, bytes: u64) {
        for free in FREE {
            for behind in BEHIND {
                let roles = self.turns(bytes, free, behind);
                if self.seen.insert(roles.clone()) {
                    let judged = judged(self.layers, &roles);
                    self.found.extend(judged.into_iter().map(|streamed| (bytes, streamed)));
                }
            }
        }
    }

    /// Roles in turns: a run on the host, the layers that are streamed meanwhile, and those that stay.
    fn turns(&self, host_bytes: u64, free: u64, behind: u64) -> Vec<Role> {
        let layers = self.layers;
        let count = layers.len();
        let may = |layer: usize| layers.host_ns[layer].is_some();
        let largest = layers.bytes.iter().copied().max().unwrap_or(0).max(1);
        let missing_bytes = self.excess_bytes.saturating_sub(host_bytes);
        let streamed_bytes = match missing_bytes {
            0 => 0,
            _ => missing_bytes.saturating_add(largest.saturating_mul(free)),
        };
        let most_runs = count as u64 / 2;
        let runs = streamed_bytes.div_ceil(largest.saturating_mul(behind)).clamp(1, most_runs);
        let (runs, all) = (u128::from(runs), u128::from(self.most_bytes.max(1)));
        let mut roles = vec![Role::Stays; count];
        // By the middle of its bytes, among those that may be on the host, a layer is in a run or not.
        let (mut before, mut is_last) = (0, vec![false; count]);
        for layer in (0..count).filter(|&layer| may(layer)) {
            let bytes = u128::from(layers.bytes[layer]);
            let middle = before + bytes / 2;
            if middle.saturating_mul(runs) % all < u128::from(host_bytes) {
                roles[layer] = Role::OnHost;
            }
            before += bytes;
        }
        for layer in 0..count {
            let next = roles[(layer + 1) % count];
            is_last[layer] = roles[layer] == Role::OnHost && next != Role::OnHost;
        }
        let ends: Vec<_> = (0..count).filter(|&layer| is_last[layer]).collect();
        let mut taken_bytes = 0;
        for (at, &end) in ends.iter().enumerate() {
            let due = u128::from(streamed_bytes) * (at + 1) as u128 / ends.len() as u128;
            let next = ends[(at + 1) % ends.len()];
            let mut layer = (end + 1) % count;
            while layer != next && roles[layer] == Role::Stays {
                let bytes = u128::from(layers.bytes[layer]);
                if taken_bytes + bytes / 2 >= due {
                    break;
                }
                taken_bytes += bytes;
                roles[layer] = Role::Streamed;
                layer = (layer + 1) % count;
            }
        }
        roles
    }
}

fn roles(from: &Streamed) -> Vec<Role> {
    let mut roles = vec![Role::Stays; from.on_host.len()];
    from.order.iter().for_each(|&layer| roles[layer] = Role::Streamed);
    for (role, _) in roles.iter_mut().zip(&from.on_host).filter(|(_, on_host)| **on_host) {
        *role = Role::OnHost;
    }
    roles
}

/// A better choice that differs in the roles of some layers, if one is found by so many estimates.
fn improve(layers: &Layers, from: &Streamed, mut looks: usize) -> Option<Streamed> {
    let count = layers.len();
    let (mut best, mut best_roles) = (from.clone(), roles(from));
    let alone = (0..count).flat_map(|at| ROLES.map(|role| (at, at, role)));
    let pairs = (1..count).flat_map(move |distance| {
        (0..count).map(move |at| (at, (at + distance) % count, Role::Stays))
    });
    let mut unchanged = 0;
    let all = count * (ROLES.len() + count - 1);
    for (at, other, role) in alone.chain(pairs).cycle() {
        if unchanged >= all || looks == 0 {
            break;
        }
        unchanged += 1;
        let mut changed = best_roles.clone();
        match at == other {
            true => changed[at] = role,
            false => changed.swap(at, other),
        }
        if changed == best_roles {
            continue;
        }
        looks -= 1;
        let judged = judge(layers, &changed, best.shape, best.yields, best.period_ns);
        if let Some(judged) = judged.filter(|judged| judged.cost() < best.cost()) {
            (best, best_roles, unchanged) = (judged, changed, 0);
        }
    }
    (best != *from).then_some(best)
}
