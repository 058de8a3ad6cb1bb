//! Divisions of memory, the second half of a chromosome, and their variation (section 5.3).

use crate::swapping::{self, OwnedClasses};
use planner_core::plan::Pool;
use planner_core::planner::Request;
use planner_core::planner::swap::Classes;
use rand::RngExt;
use rand_chacha::ChaCha8Rng;
use rand_distr::{Distribution, Normal};

/// The most draws of a random division. The search takes the last one even if it does not suffice.
const DRAWS: usize = 64;

/// The classes that a size may belong to.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Mapping {
    /// The class of the size before it, or the next class, as published.
    #[default]
    Consecutive,
    /// Any class.
    Free,
}

/// The sizes in a graph, and the number of tensors and workspaces of each.
#[derive(Clone, Debug)]
pub struct Sizes {
    /// All sizes in ascending order, each once: the published `TS`.
    pub bytes: Vec<u64>,
    /// The number of tensors and workspaces of each size.
    pub users: Vec<u64>,
    budget_bytes: u64,
    mapping: Mapping,
}

/// A division of memory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Division {
    /// The class of each size, counted from 0 (in the paper from 1): the published `CLS`.
    pub class: Vec<u32>,
    /// The number of objects of each class: the published `CNT`.
    pub count: Vec<u64>,
}

impl Division {
    /// The number of objects in the class of each size: the published extended `CNT`.
    fn extended(&self) -> Vec<u64> {
        self.class.iter().map(|&class| self.count[class as usize]).collect()
    }
}

impl Sizes {
    /// Returns the sizes in a graph.
    #[must_use]
    pub fn new(request: &Request<'_>, mapping: Mapping) -> Self {
        let bytes = swapping::sizes(request.graph);
        let mut users = vec![0; bytes.len()];
        let tensors = request.graph.tensors().iter().map(|tensor| tensor.bytes);
        let workspaces = request.graph.ops().iter().map(|op| op.workspace_bytes);
        for size in tensors.chain(workspaces.filter(|&bytes| bytes > 0)) {
            users[bytes.partition_point(|&bytes| bytes < size)] += 1;
        }
        Self { bytes, users, budget_bytes: request.budget_bytes, mapping }
    }

    /// The size of the objects of each class: the largest size in the class.
    fn object_bytes(&self, class: &[u32]) -> Vec<u64> {
        let classes = class.iter().max().map_or(0, |&last| last as usize + 1);
        let mut object_bytes = vec![0; classes];
        for (&class, &bytes) in class.iter().zip(&self.bytes) {
            object_bytes[class as usize] = bytes.max(object_bytes[class as usize]);
        }
        object_bytes
    }

    /// Returns a random division that suffices for the ops, if a few draws find one. Each size begins a class
    /// with random odds, and each class gets a random part of the memory that all its users take together. If
    /// sizes may belong to any class, some sizes change their class.
    #[must_use]
    pub fn random(&self, request: &Request<'_>, rng: &mut ChaCha8Rng) -> Division {
        let mut division = self.draw(rng);
        for _ in 1..DRAWS {
            if self.is_enough(request, &division) {
                break;
            }
            division = self.draw(rng);
        }
        match self.mapping {
            Mapping::Free => {
                let freed = self.mutate(&division, 0.1, rng);
                if self.is_enough(request, &freed) { freed } else { division }
            }
            Mapping::Consecutive => division,
        }
    }

    fn is_enough(&self, request: &Request<'_>, division: &Division) -> bool {
        let mut classes = OwnedClasses::default();
        self.decode(request, division, &mut classes);
        let counts = classes.pools.iter().map(|pool| pool.count);
        Classes::bytes(&classes.pools, counts, request.machine) <= request.budget_bytes
    }

    fn draw(&self, rng: &mut ChaCha8Rng) -> Division {
        let odds = rng.random_range(0.0..1.0);
        let mut last = 0;
        let class: Vec<u32> = (0..self.bytes.len())
            .map(|at| {
                last += u32::from(at > 0 && rng.random_bool(odds));
                last
            })
            .collect();
        let object_bytes = self.object_bytes(&class);
        let mut demand_bytes = vec![0.0; object_bytes.len()];
        for (&class, (&bytes, &users)) in class.iter().zip(self.bytes.iter().zip(&self.users)) {
            demand_bytes[class as usize] += bytes as f64 * users as f64;
        }
        demand_bytes.iter_mut().for_each(|demand| *demand *= rng.random_range(0.01..1.0));
        let all: f64 = demand_bytes.iter().sum();
        let shares = demand_bytes.iter().map(|demand| demand / all * self.budget_bytes as f64);
        let count = shares.zip(&object_bytes).map(|(share, &bytes)| (share / bytes as f64) as u64);
        let count = count.collect();
        self.repaired(Division { class, count })
    }

    /// Returns two children. Each takes the classes of one parent up to a size, then the classes of the other
    /// parent. The count of a class is the mean of the parents' counts over its sizes.
    #[must_use]
    pub fn cross(&self, one: &Division, other: &Division, point: usize) -> [Division; 2] {
        let join = |head: &Division, tail: &Division| {
            let mut class = [&head.class[..point], &tail.class[point..]].concat();
            if self.mapping == Mapping::Consecutive {
                splice(&mut class, point);
            }
            let counts = [&head.extended()[..point], &tail.extended()[point..]].concat();
            self.with_counts(class, &counts)
        };
        [join(other, one), join(one, other)]
    }

    /// Mutates a division. With a probability, a size joins the class before it or begins a new class, and a
    /// count changes to a random value around it.
    #[must_use]
    pub fn mutate(&self, of: &Division, probability: f64, rng: &mut ChaCha8Rng) -> Division {
        let mut class = of.class.clone();
        for at in 1..class.len() {
            if !rng.random_bool(probability) {
                continue;
            }
            match self.mapping {
                Mapping::Free => class[at] = rng.random_range(0..class.len() as u32),
                Mapping::Consecutive if class[at] == class[at - 1] => {
                    class[at..].iter_mut().for_each(|class| *class += 1);
                }
                Mapping::Consecutive => class[at..].iter_mut().for_each(|class| *class -= 1),
            }
        }
        let mut mutated = self.with_counts(class, &of.extended());
        for count in &mut mutated.count {
            if rng.random_bool(probability) {
                let mean = *count as f64;
                let varied = Normal::new(mean, (mean / 2.0).max(1.0));
                *count = varied.map_or(mean, |normal| normal.sample(rng)).round() as u64;
            }
        }
        self.repaired(mutated)
    }

    /// Returns classes with the mean of the counts of their sizes.
    fn with_counts(&self, mut class: Vec<u32>, counts: &[u64]) -> Division {
        self.renumber(&mut class);
        let classes = self.object_bytes(&class).len();
        let mut sums = vec![(0, 0); classes];
        for (&class, &count) in class.iter().zip(counts) {
            let (sum, sizes) = &mut sums[class as usize];
            (*sum, *sizes) = (*sum + count, *sizes + 1);
        }
        let count = sums.into_iter().map(|(sum, sizes)| sum / sizes).collect();
        self.repaired(Division { class, count })
    }

    /// Numbers the classes in the order of their first sizes, without gaps.
    fn renumber(&self, class: &mut [u32]) {
        if self.mapping == Mapping::Free {
            let mut number = vec![None; class.len()];
            let mut next = 0;
            for class in class {
                *class = *number[*class as usize].get_or_insert_with(|| {
                    next += 1;
                    next - 1
                });
            }
        }
    }

    /// Limits counts to the objects that each class can use, and to the budget. Classes give up the excess in
    /// equal numbers of bytes.
    #[must_use]
    pub fn repaired(&self, mut division: Division) -> Division {
        let object_bytes = self.object_bytes(&division.class);
        let mut users = vec![0; object_bytes.len()];
        for (&class, &some) in division.class.iter().zip(&self.users) {
            users[class as usize] += some;
        }
        let count = &mut division.count;
        count.iter_mut().zip(users).for_each(|(count, most)| *count = (*count).clamp(1, most));
        loop {
            let bytes: u64 = count.iter().zip(&object_bytes).map(|(&n, &bytes)| n * bytes).sum();
            let excess_bytes = bytes.saturating_sub(self.budget_bytes);
            let shrinkable = count.iter().filter(|&&count| count > 1).count() as u64;
            if excess_bytes == 0 || shrinkable == 0 {
                return division;
            }
            let each_bytes = excess_bytes.div_ceil(shrinkable);
            // A class of small objects gives up its share. A class whose objects are larger than its share
            // gives up none, unless every class has such objects.
            let fewer = |bytes: u64| each_bytes / bytes;
            let some_can = count.iter().zip(&object_bytes).any(|(&n, &b)| n > 1 && fewer(b) > 0);
            let shrunk = count.iter_mut().zip(&object_bytes).filter(|(count, _)| **count > 1);
            for (count, &bytes) in shrunk {
                let fewer = if some_can { fewer(bytes) } else { 1 };
                *count = count.saturating_sub(fewer).max(1);
            }
        }
    }

    /// Writes the classes of a division to `into`. Each class has at least the objects that the ops need.
    pub fn decode(&self, request: &Request<'_>, division: &Division, into: &mut OwnedClasses) {
        let object_bytes = self.object_bytes(&division.class);
        into.pools.clear();
        let pools = object_bytes.into_iter().zip(&division.count);
        into.pools.extend(pools.map(|(object_bytes, &count)| Pool { object_bytes, count }));
        let class = |bytes: u64| {
            let at = self.bytes.partition_point(|&size| size < bytes);
            division.class.get(at).copied().unwrap_or(0)
        };
        into.tensor_pool.clear();
        into.tensor_pool.extend(request.graph.tensors().iter().map(|tensor| class(tensor.bytes)));
        into.workspace_pool.clear();
        let workspaces = request.graph.ops().iter().map(|op| class(op.workspace_bytes));
        into.workspace_pool.extend(workspaces);
        self.enlarge(request, into);
    }

    /// Gives each class the objects that the ops need, and takes them from the classes with the most spare
    /// bytes.
    fn enlarge(&self, request: &Request<'_>, classes: &mut OwnedClasses) {
        // If no class is large enough for a tensor, the planner reports it.
        let Ok((needs, _)) = swapping::needs(request.graph, &classes.classes()) else { return };
        let pools = &mut classes.pools;
        pools.iter_mut().zip(&needs).for_each(|(pool, &need)| pool.count = pool.count.max(need));
        loop {
            let counts = pools.iter().map(|pool| pool.count);
            let bytes = Classes::bytes(pools, counts, request.machine);
            if bytes <= request.budget_bytes {
                return;
            }
            let spare = pools
                .iter()
                .zip(&needs)
                .map(|(pool, &need)| (pool.count - need).saturating_mul(pool.object_bytes));
            let most = spare.enumerate().max_by_key(|&(_, bytes)| bytes);
            let Some((at, 1..)) = most else { return };
            let excess = (bytes - request.budget_bytes) / pools[at].object_bytes / 2;
            let spare = pools[at].count - needs[at];
            pools[at].count -= excess.clamp(1, spare.div_ceil(2));
        }
    }
}

/// Shifts the classes from a size on, so that the class of this size is the class before it or the next
/// class.
fn splice(class: &mut [u32], point: usize) {
    let Some(&first) = class.get(point) else { return };
    let before = match point.checked_sub(1) {
        Some(before) => class[before],
        None => 0,
    };
    let wanted = if point == 0 { 0 } else { first.clamp(before, before + 1) };
    class[point..].iter_mut().for_each(|class| *class = *class - first + wanted);
}

#[cfg(test)]
mod tests {
    use super::*;
    use rand::SeedableRng;

    /// Figure 5: 12 MB of memory, and tensors of 1, 2, 3 and 4 MB.
    fn figure_5() -> Sizes {
        Sizes {
            bytes: vec![1, 2, 3, 4],
            users: vec![10; 4],
            budget_bytes: 12,
            mapping: Mapping::Consecutive,
        }
    }

    #[test]
    fn divisions_are_crossed_and_repaired_as_in_figure_5() {
        let one = Division { class: vec![0; 4], count: vec![4] };
        let other = Division { class: vec![0, 1, 1, 1], count: vec![8, 1] };
        assert_eq!((one.extended(), other.extended()), (vec![4; 4], vec![8, 1, 1, 1]));
        let [first, second] = figure_5().cross(&one, &other, 2);
        assert_eq!(first, Division { class: vec![0, 1, 1, 1], count: vec![4, 2] });
        assert_eq!(second.class, [0, 0, 1, 1]);
    }

    #[test]
    fn a_class_that_is_skipped_is_left_out() {
        let mut class = vec![0, 0, 3, 4];
        splice(&mut class, 2);
        assert_eq!(class, [0, 0, 1, 2]);
    }

    #[test]
    fn varied_divisions_keep_to_the_budget() {
        for mapping in [Mapping::Consecutive, Mapping::Free] {
            let sizes = Sizes { mapping, ..figure_5() };
            for seed in 0..200 {
                let rng = &mut ChaCha8Rng::seed_from_u64(seed);
                let [one, other] = [sizes.draw(rng), sizes.draw(rng)];
                let point = rng.random_range(0..=4);
                for child in sizes.cross(&one, &other, point) {
                    let child = sizes.mutate(&child, 0.3, rng);
                    let object_bytes = sizes.object_bytes(&child.class);
                    let objects = child.count.iter().zip(&object_bytes);
                    let bytes: u64 = objects.map(|(count, bytes)| count * bytes).sum();
                    assert!(bytes <= 12 || child.count.iter().all(|&count| count == 1));
                    let steps = child.class.windows(2).map(|pair| pair[1].wrapping_sub(pair[0]));
                    let rises = |step: u32| step <= 1;
                    assert!(mapping == Mapping::Free || steps.clone().all(rises));
                    assert!(object_bytes.iter().all(|&bytes| bytes > 0));
                }
            }
        }
    }
}
