//! Orders of ops that keep all dependencies, and their variation (section 5.2).

use planner_core::Graph;
use rand::RngExt;
use rand_chacha::ChaCha8Rng;
use std::cmp::Reverse;
use std::collections::BinaryHeap;

/// The dependencies between ops on the same tensor: reads wait for writes, and writes wait for reads and
/// writes.
#[derive(Clone, Debug)]
pub struct Dependencies {
    /// The first entry of each op in `followers`, then the number of entries.
    start: Vec<u32>,
    followers: Vec<u32>,
    /// The number of entries that name each op.
    waits: Vec<u32>,
}

impl Dependencies {
    /// Returns the dependencies of the given order. O(operands).
    #[must_use]
    pub fn new(graph: &Graph<'_>) -> Self {
        let tensors = graph.tensors().len();
        let mut writer = vec![None; tensors];
        let mut readers: Vec<Vec<u32>> = vec![Vec::new(); tensors];
        let mut edges: Vec<(u32, u32)> = Vec::new();
        for op in graph.op_ids() {
            for &tensor in graph.reads(op) {
                edges.extend(writer[tensor.index()].map(|writer| (writer, op.0)));
            }
            for &tensor in graph.writes(op) {
                edges.extend(writer[tensor.index()].map(|writer| (writer, op.0)));
                edges.extend(readers[tensor.index()].drain(..).map(|reader| (reader, op.0)));
            }
            graph.writes(op).iter().for_each(|tensor| writer[tensor.index()] = Some(op.0));
            graph.reads(op).iter().for_each(|tensor| readers[tensor.index()].push(op.0));
        }
        edges.retain(|(before, after)| before != after);
        edges.sort_unstable();
        edges.dedup();
        let ops = graph.ops().len();
        let mut waits = vec![0; ops];
        let mut start = vec![0; ops + 1];
        for &(before, after) in &edges {
            start[before as usize + 1] += 1;
            waits[after as usize] += 1;
        }
        for op in 0..ops {
            start[op + 1] += start[op];
        }
        Self { start, followers: edges.into_iter().map(|(_, after)| after).collect(), waits }
    }

    /// Returns the ops that wait for an op.
    #[must_use]
    pub fn followers(&self, op: u32) -> &[u32] {
        let [from, to] = [op, op + 1].map(|op| self.start[op as usize] as usize);
        &self.followers[from..to]
    }

    /// Returns whether an order has every op once, each after all ops that it waits for.
    #[must_use]
    pub fn keeps(&self, order: &[u32]) -> bool {
        let mut position = vec![u32::MAX; self.waits.len()];
        for (at, &op) in (0..).zip(order) {
            match position.get_mut(op as usize) {
                Some(position) if *position == u32::MAX => *position = at,
                _ => return false,
            }
        }
        let follows = |(op, &at): (u32, &u32)| {
            self.followers(op).iter().all(|&after| position[after as usize] > at)
        };
        order.len() == self.waits.len() && (0..).zip(&position).all(follows)
    }

    /// Returns a random order: [`Self::mutate`] with probability 1.
    #[must_use]
    pub fn random(&self, rng: &mut ChaCha8Rng) -> Vec<u32> {
        let given: Vec<u32> = (0..self.waits.len() as u32).collect();
        self.mutate(&given, 1.0, rng)
    }

    /// Schedules the ops. With a probability, a random ready op runs next; otherwise the ready op that is
    /// first in the order. O(ops × log ops + dependencies).
    #[must_use]
    pub fn mutate(&self, order: &[u32], probability: f64, rng: &mut ChaCha8Rng) -> Vec<u32> {
        let mut position = vec![0; order.len()];
        (0u32..).zip(order).for_each(|(at, &op)| position[op as usize] = at);
        let mut waits = self.waits.clone();
        let mut ready = Ready::new(order.len());
        for op in (0..).zip(&waits).filter(|&(_, &waits)| waits == 0).map(|(op, _)| op) {
            ready.insert(op, position[op as usize]);
        }
        let mut walk = Vec::with_capacity(order.len());
        loop {
            let mutates = probability > 0.0 && rng.random_bool(probability.min(1.0));
            let next = if mutates { ready.take_any(rng) } else { ready.take_first(order) };
            let Some(op) = next else { return walk };
            walk.push(op);
            for &after in self.followers(op) {
                waits[after as usize] -= 1;
                if waits[after as usize] == 0 {
                    ready.insert(after, position[after as usize]);
                }
            }
        }
    }
}

/// The ops that may run next. Returns a random one, or the first in the order.
struct Ready {
    ops: Vec<u32>,
    /// The position of each op in `ops`, or `OUT`.
    position_of: Vec<u32>,
    /// The ready ops by position in the order. Entries of taken ops stay in the heap.
    first: BinaryHeap<Reverse<u32>>,
}

const OUT: u32 = u32::MAX;

impl Ready {
    fn new(ops: usize) -> Self {
        Self { ops: Vec::new(), position_of: vec![OUT; ops], first: BinaryHeap::new() }
    }

    fn insert(&mut self, op: u32, position: u32) {
        self.position_of[op as usize] = self.ops.len() as u32;
        self.ops.push(op);
        self.first.push(Reverse(position));
    }

    fn take_any(&mut self, rng: &mut ChaCha8Rng) -> Option<u32> {
        let at = (!self.ops.is_empty()).then(|| rng.random_range(0..self.ops.len()))?;
        Some(self.take(at))
    }

    fn take_first(&mut self, order: &[u32]) -> Option<u32> {
        loop {
            let Reverse(position) = self.first.pop()?;
            let at = self.position_of[order[position as usize] as usize];
            if at != OUT {
                return Some(self.take(at as usize));
            }
        }
    }

    fn take(&mut self, at: usize) -> u32 {
        let op = self.ops.swap_remove(at);
        if let Some(&moved) = self.ops.get(at) {
            self.position_of[moved as usize] = at as u32;
        }
        self.position_of[op as usize] = OUT;
        op
    }
}

/// Returns two children. Each takes the first `point` ops of one parent, then the other ops in the order of
/// the other parent. Both children keep the dependencies that both parents keep.
#[must_use]
pub fn cross(one: &[u32], other: &[u32], point: usize) -> [Vec<u32>; 2] {
    let child = |head: &[u32], rest: &[u32]| {
        let mut child = head[..point].to_vec();
        let mut taken = vec![false; head.len()];
        child.iter().for_each(|&op| taken[op as usize] = true);
        child.extend(rest.iter().filter(|&&op| !taken[op as usize]));
        child
    };
    [child(other, one), child(one, other)]
}

#[cfg(test)]
mod tests {
    use super::*;
    use conformance::graphs::graphs;
    use proptest::prelude::*;
    use rand::SeedableRng;

    /// Figure 4, its ops counted from 0: parents 1 2 3 4 5 and 2 3 4 1 5, cut after the third.
    #[test]
    fn orders_are_crossed_as_in_figure_4() {
        let [one, other] = cross(&[0, 1, 2, 3, 4], &[1, 2, 3, 0, 4], 3);
        assert_eq!((one, other), (vec![1, 2, 3, 0, 4], vec![0, 1, 2, 3, 4]));
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]
        #[test]
        fn varied_orders_keep_the_dependencies(graph in graphs(), seed in any::<u64>()) {
            let dependencies = Dependencies::new(&graph.graph().unwrap());
            let rng = &mut ChaCha8Rng::seed_from_u64(seed);
            let [one, other] = [dependencies.random(rng), dependencies.random(rng)];
            let point = rng.random_range(0..=one.len());
            for child in cross(&one, &other, point) {
                let mutated = dependencies.mutate(&child, 0.1, rng);
                prop_assert!(dependencies.keeps(&child) && dependencies.keeps(&mutated));
            }
            prop_assert_eq!(dependencies.mutate(&one, 0.0, rng), one);
        }
    }
}
