//! Guesses of the layers to run on the host, the best guesses first.

use super::candidates::{by_cost, reordered, subsets};
use super::streamed::{Layers, Shape, Streamed};
use super::turns::{ROLES, Role, Turns, Whole};
use std::collections::HashSet;

/// The most layers for which every choice is tried.
const FEW: usize = 6;

/// The number of shares that are tried first. A share is the part of the excess bytes that the host takes.
const SHARES: u64 = 16;

/// The number of choices near which other shares are tried.
const NEAR: usize = 4;

/// The number of times that the distance to other shares is halved.
const HALVED: u32 = 4;

/// The number of choices that are changed layer by layer.
const CHANGED: usize = 4;

/// The number of choices whose order is changed.
const REORDERED: usize = 32;

/// The most layers that all estimates of changed choices look at together, which takes some milliseconds.
const LOOKS: usize = 100_000;

/// Returns choices with layers on the host, sorted by their estimates.
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

/// Returns all choices.
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

/// Returns the choice in each shape, with each use of the link.
fn judged(layers: &Layers, roles: &[Role]) -> Vec<Streamed> {
    let shapes = layers.shapes().iter();
    let ways = shapes.flat_map(|&shape| [false, true].map(|yields| (shape, yields)));
    ways.filter_map(|(shape, yields)| judge(layers, roles, shape, yields, u64::MAX)).collect()
}

/// Returns `None` if a layer on the host may not run there, if no layer is on the host, or if the period is
/// longer.
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

/// A search over the share of the host.
struct Search<'a> {
    layers: &'a Layers,
    whole: Whole<'a>,
    /// The shares and choices that were tried.
    tried: HashSet<u64>,
    seen: HashSet<Vec<Role>>,
    /// The choices, each with the bytes that the host should take.
    found: Vec<(u64, Streamed)>,
}

impl<'a> Search<'a> {
    fn new(layers: &'a Layers) -> Self {
        let (tried, seen, found) = (HashSet::new(), HashSet::new(), Vec::new());
        Self { layers, whole: Whole::new(layers), tried, seen, found }
    }

    fn run(mut self) -> Vec<Streamed> {
        let most_bytes = self.whole.excess_bytes.min(self.whole.most_bytes);
        let share = |share: u64| u128::from(most_bytes) * u128::from(share) / u128::from(SHARES);
        (1..=SHARES).for_each(|at| self.share(share(at) as u64));
        self.share(self.whole.most_bytes);
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
        if self.found.is_empty() {
            return by_cost(judged(self.layers, &least_memory(self.layers)).into_iter());
        }
        by_cost(self.found.into_iter().map(|(_, streamed)| streamed))
    }

    /// Tries choices in which the host takes about `bytes`.
    fn share(&mut self, bytes: u64) {
        let unit_bytes = self.layers.unit_bytes;
        let bytes = bytes.saturating_add(unit_bytes / 2) / unit_bytes * unit_bytes;
        if !self.tried.insert(bytes) {
            return;
        }
        for turns in Turns::all() {
            let roles = self.whole.roles(bytes, turns);
            if self.seen.insert(roles.clone()) {
                let judged = judged(self.layers, &roles);
                self.found.extend(judged.into_iter().map(|streamed| (bytes, streamed)));
            }
        }
    }
}

/// Returns the roles that take the least device memory.
fn least_memory(layers: &Layers) -> Vec<Role> {
    let role = |host_ns: &Option<u64>| host_ns.map_or(Role::Streamed, |_| Role::OnHost);
    layers.host_ns.iter().map(role).collect()
}

fn roles(from: &Streamed) -> Vec<Role> {
    let mut roles = vec![Role::Stays; from.on_host.len()];
    from.order.iter().for_each(|&layer| roles[layer] = Role::Streamed);
    for (role, _) in roles.iter_mut().zip(&from.on_host).filter(|(_, on_host)| **on_host) {
        *role = Role::OnHost;
    }
    roles
}

/// Returns a better choice with other roles of some layers, if `looks` estimates find one.
fn improve(layers: &Layers, from: &Streamed, mut looks: usize) -> Option<Streamed> {
    let count = layers.len();
    let (mut best, mut best_roles) = (from.clone(), roles(from));
    let alone = (0..count).flat_map(|at| ROLES.map(|role| (at, 0, role)));
    let distances = (1..count).flat_map(move |distance| {
        (0..count - distance).flat_map(move |at| ROLES.map(|role| (at, distance, role)))
    });
    let mut unchanged = 0;
    let all = 3 * count * (count + 1) / 2;
    for (at, distance, role) in alone.chain(distances).cycle() {
        if unchanged >= all || looks == 0 {
            break;
        }
        unchanged += 1;
        let mut changed = best_roles.clone();
        match (distance, role) {
            (0, role) => changed[at] = role,
            (_, Role::Stays) => changed.swap(at, at + distance),
            (_, Role::Streamed) => changed[at..=at + distance].rotate_left(1),
            (_, Role::OnHost) => changed[at..=at + distance].rotate_right(1),
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
