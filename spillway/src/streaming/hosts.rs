//! Which layers run on the host, best guesses first.

use super::candidates::{by_cost, reordered, subsets};
use super::streamed::{Layers, Shape, Streamed};
use super::turns::{ROLES, Role, Turns, Whole};
use std::collections::HashSet;

/// Of so many layers, every choice is tried.
const FEW: usize = 6;

/// Shares of the bytes that do not fit which the host takes at first.
const SHARES: u64 = 16;

/// Choices near which other shares are tried.
const NEAR: usize = 4;

/// Times that the distance to other shares is halved.
const HALVED: u32 = 4;

/// Choices that are changed layer by layer.
const CHANGED: usize = 4;

/// Choices of which only the order is changed.
const REORDERED: usize = 32;

/// Layers that estimates of changed choices look at together: some milliseconds' worth.
const LOOKS: usize = 100_000;

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
    whole: Whole<'a>,
    /// Shares and choices that have been tried.
    tried: HashSet<u64>,
    seen: HashSet<Vec<Role>>,
    /// Choices, each with the bytes that the host should take.
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

    /// Tries choices in which the host takes about so many bytes.
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

/// The roles that take the least memory of the device.
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

/// A better choice that differs in the roles of some layers, if one is found by so many estimates.
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
