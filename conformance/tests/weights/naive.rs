//! The two algorithms again, as plainly as they can be said: a set of choices, and a list of
//! all changes of memory that is sorted whenever somebody asks.

use std::collections::{BTreeMap, BTreeSet};
use workloads::OwnedChain;
use workloads::chain::Layer;

/// A choice `(k, d)`, the layer counted from 1.
type Choice = (usize, u8);

/// The chain in the paper's symbols, each list with an entry for layer 0.
struct Model {
    layers: usize,
    memory: i128,
    weight: Vec<i128>,
    activation: Vec<i128>,
    forward: Vec<i128>,
    backward: Vec<i128>,
    transfer: Vec<i128>,
}

/// An op: whether it runs backward, and its layer.
type Op = (bool, usize);

impl Model {
    fn new(chain: &OwnedChain) -> Self {
        let list = |first: u64, of: fn(&Layer) -> u64| -> Vec<i128> {
            [first].into_iter().chain(chain.layers.iter().map(of)).map(i128::from).collect()
        };
        let weight = list(0, |layer| layer.weight_bytes);
        let bandwidth = i128::from(chain.bandwidth_bytes_per_s);
        let transfer = weight.iter().map(|w| (w * 1_000_000_000 + bandwidth - 1) / bandwidth);
        Self {
            layers: chain.layers.len(),
            memory: chain.device_bytes.into(),
            transfer: transfer.collect(),
            activation: list(chain.input_bytes, |layer| layer.activation_bytes),
            forward: list(0, |layer| layer.forward_ns),
            backward: list(0, |layer| layer.backward_ns),
            weight,
        }
    }

    /// `B_L … B_1, F_1 … F_L`, over and over.
    fn ops(&self) -> Vec<Op> {
        let backward = (1..=self.layers).rev().map(|k| (true, k));
        backward.chain((1..=self.layers).map(|k| (false, k))).collect()
    }

    fn covers(&self, (k, d): Choice) -> Vec<Op> {
        let ops = self.ops();
        let (from, to) = if d == 1 { ((false, k), (true, k)) } else { ((true, k), (false, k)) };
        let around = ops.iter().cycle().skip_while(|op| **op != from).skip(1);
        around.take_while(|op| **op != to).copied().collect()
    }

    fn alive(&self, k: usize) -> i128 {
        self.activation[..=k].iter().sum()
    }

    fn gradient(&self, (backward, k): Op) -> i128 {
        if backward { self.weight[k] } else { 0 }
    }

    /// Algorithm 1; none where memory does not suffice.
    fn select(&self) -> Option<BTreeSet<Choice>> {
        let all: i128 = self.weight.iter().sum();
        let ops = self.ops();
        let mut excess: Vec<i128> = ops
            .iter()
            .map(|&(b, k)| (all + self.alive(k) + self.gradient((b, k)) - self.memory).max(0))
            .collect();
        let mut chosen = BTreeSet::new();
        while excess.iter().any(|e| *e > 0) {
            let mut best: Option<(i128, i128, Choice)> = None;
            for choice in (1..=self.layers).flat_map(|k| [(k, 0), (k, 1)]) {
                let (k, d) = choice;
                if self.weight[k] == 0 || chosen.contains(&choice) {
                    continue;
                }
                let covered = self.covers(choice);
                let relieved = ops.iter().zip(&excess).filter(|(op, _)| covered.contains(op));
                let profit: i128 = relieved.map(|(_, e)| self.weight[k].min(*e)).sum();
                let cost = if chosen.contains(&(k, 1 - d)) { 1 } else { 2 } * self.weight[k];
                if best.is_none_or(|(p, c, _)| profit * c >= p * cost) {
                    best = Some((profit, cost, choice));
                }
            }
            let (profit, _, choice) = best?;
            if profit == 0 {
                return None;
            }
            chosen.insert(choice);
            let covered = self.covers(choice);
            for (op, e) in ops.iter().zip(&mut excess) {
                if covered.contains(op) {
                    *e = (*e - self.weight[choice.0]).max(0);
                }
            }
        }
        Some(chosen)
    }

    /// Algorithm 2 for one cut; none where that does not fit.
    #[allow(clippy::needless_range_loop, reason = "layers are counted as in the paper")]
    fn cycle(&self, chosen: &BTreeSet<Choice>, cut: usize, discount: bool) -> Option<i128> {
        let across = |k| chosen.contains(&(k, 1));
        let around = |k| chosen.contains(&(k, 0));
        let early: Vec<_> = (1..=self.layers).rev().filter(|&k| across(k)).take(cut).collect();
        let resident: i128 = (1..=self.layers)
            .filter(|k| !across(*k) || early.contains(k))
            .map(|k| self.weight[k])
            .sum();
        let used = resident + self.alive(self.layers);
        if used + self.weight[self.layers] > self.memory {
            return None;
        }
        let mut memory =
            Changes { all: vec![(-1, used)], passing: BTreeMap::new(), most: self.memory };
        let (mut time, mut upload, mut download) = (0, 0, 0);
        let mut waiting: Vec<(i128, usize, i128)> = Vec::new();
        let mut on_host = BTreeSet::new();
        let mut gone = vec![0; self.layers + 1];
        for k in (1..=self.layers).rev() {
            let mut ready = time;
            if across(k) && !early.contains(&k) {
                let start = memory.take(upload, self.weight[k])?;
                upload = start + self.transfer[k];
                ready = ready.max(upload);
            }
            let start = memory.take(ready, self.weight[k])?;
            time = start + self.backward[k];
            if self.backward[k] == 0 {
                memory.pass(start, self.weight[k], self.activation[k]);
            }
            memory.all.push((time, -self.weight[k] - self.activation[k]));
            if around(k) {
                waiting.sort_by_key(|&(transfer, ..)| transfer);
                while let Some(&(transfer, j, updated)) = waiting.first() {
                    if download.max(updated) + transfer > time {
                        break;
                    }
                    download = download.max(updated) + transfer;
                    on_host.insert(j);
                    waiting.remove(0);
                }
                download = download.max(time) + self.transfer[k];
                on_host.insert(k);
                gone[k] = download;
                memory.all.push((download, -self.weight[k]));
            } else if across(k) {
                waiting.push((self.transfer[k], k, time));
            }
        }
        for k in 1..=self.layers {
            let mut ready = time;
            if around(k) {
                let start = memory.take(upload.max(gone[k]), self.weight[k])?;
                upload = start + self.transfer[k];
                ready = ready.max(upload);
            }
            let start = memory.take(ready, self.activation[k])?;
            time = start + self.forward[k];
            if across(k) {
                if !on_host.contains(&k) || (around(k) && !discount) {
                    download = download.max(time) + self.transfer[k];
                    gone[k] = download;
                } else {
                    gone[k] = time.max(download);
                }
                if self.forward[k] == 0 && gone[k] == time {
                    memory.pass(time, 0, self.weight[k]);
                }
                memory.all.push((gone[k], -self.weight[k]));
            }
        }
        for k in early {
            let start = memory.take(upload.max(gone[k]), self.weight[k])?;
            upload = start + self.transfer[k];
        }
        Some(time.max(upload).max(download))
    }
}

/// All changes of memory so far, in no order.
struct Changes {
    all: Vec<(i128, i128)>,
    /// What ops without a time take at a moment, beside what stays, from what starts earlier.
    passing: BTreeMap<i128, i128>,
    most: i128,
}

impl Changes {
    /// Takes the memory at the earliest time not before `from` from which on it fits permanently.
    fn take(&mut self, from: i128, bytes: i128) -> Option<i128> {
        let used = |at: i128| -> i128 {
            self.all.iter().filter(|(time, _)| *time <= at).map(|(_, change)| change).sum()
        };
        let passing = |at: i128| self.passing.get(&at).unwrap_or(&0);
        let mut times: Vec<_> = self.all.iter().map(|(time, _)| *time).collect();
        times.push(from);
        times.sort_unstable();
        let fits = |start: i128| {
            let later = || times.iter().filter(|time| **time > start);
            used(start) + bytes <= self.most
                && later().all(|&at| used(at) + passing(at) + bytes <= self.most)
        };
        let start = times.iter().copied().find(|&start| start >= from && fits(start))?;
        self.all.push((start, bytes));
        Some(start)
    }

    fn pass(&mut self, at: i128, bytes: i128, released: i128) {
        let passing = self.passing.entry(at).or_default();
        *passing = bytes.max(*passing) + released;
    }
}

/// The best cycle with and without the discount; none where memory does not suffice.
pub(crate) fn cycles_ns(chain: &OwnedChain) -> Option<[u64; 2]> {
    let model = Model::new(chain);
    let chosen = model.select()?;
    let cuts = chosen.iter().filter(|(_, d)| *d == 1).count();
    Some([true, false].map(|discount| {
        let cycles = (0..=cuts).filter_map(|cut| model.cycle(&chosen, cut, discount));
        cycles.min().and_then(|ns| u64::try_from(ns).ok()).unwrap_or(u64::MAX)
    }))
}
