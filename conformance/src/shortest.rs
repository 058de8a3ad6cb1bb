//! The shortest period of a small chain whose weights move as a whole and whose activations stay
//! (Beaumont, Eyraud-Dubois, Shilova & Zhao, problem 1), found by trying everything.
//!
//! Time runs in whole units, and every op and transfer takes a whole number of them. For each
//! choice of the weights that leave and each state in which an iteration may begin, the search
//! follows all possible events unit by unit until that state returns. A weight leaves as soon as it
//! may, which is never worse. Whole units lose nothing: if a schedule with a fractional period does
//! its work in some order, a schedule with the next whole period can use the same order.

use std::collections::HashSet;
use workloads::OwnedChain;

/// The place of a weight.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum WeightState {
    /// On the device; the host's copy is out of date.
    Changed,
    /// On the device and on the host.
    Copied,
    Away,
    Coming,
    /// On the device again for its next op.
    Back,
}

/// The states of each layer's weight. More than five layers would take too long.
type WeightStates = [WeightState; 5];

/// A running transfer: its layer, and the time units that are left.
type Flight = Option<(usize, u64)>;

/// A moment of an iteration that begins with the backward op of the last layer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Moment {
    /// The number of ops launched so far, and the time units that are left of the last one.
    launched: usize,
    running: u64,
    upload: Flight,
    download: Flight,
    states: WeightStates,
}

/// When a weight leaves, if it leaves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Leaves {
    around: bool,
    across: bool,
}

/// A chain in units of time. Its ops are in the order of an iteration, from the last backward op
/// on.
struct Search<'c> {
    chain: &'c OwnedChain,
    op_units: Vec<u64>,
    transfer_units: Vec<u64>,
    leaves: Vec<Leaves>,
}

fn units(ns: u64, unit_ns: u64) -> u64 {
    assert!(ns.is_multiple_of(unit_ns), "{ns} ns is not a whole number of units");
    ns / unit_ns
}

/// The shortest period in units of `unit_ns`. All ops and transfers of the chain take whole units,
/// and its memory is large enough to bring each weight for its op. Exponential in the layers.
///
/// # Panics
/// If a time is not a whole number of units, the bandwidth is zero, or there are more than five
/// layers.
#[must_use]
pub fn shortest_period_units(chain: &OwnedChain, unit_ns: u64) -> u64 {
    assert!(chain.layers.len() <= 5, "there are too many layers");
    let (layers, machine) =
        (chain.layers.len(), chain.machine().expect("the link has a speed").machine);
    let link = planner_core::machine::Direction::HostToDevice;
    let transfer = |bytes| units(machine.transfer_ns(link, bytes).unwrap_or(u64::MAX), unit_ns);
    let backward = chain.layers.iter().rev().map(|layer| layer.backward_ns);
    let ops = backward.chain(chain.layers.iter().map(|layer| layer.forward_ns));
    let mut search = Search {
        chain,
        op_units: ops.map(|ns| units(ns, unit_ns)).collect(),
        transfer_units: chain.layers.iter().map(|layer| transfer(layer.weight_bytes)).collect(),
        leaves: Vec::new(),
    };
    // The worst case: each weight comes for each op and leaves after it, and nothing overlaps.
    let transfers: u64 = search.transfer_units.iter().sum();
    let mut best = search.op_units.iter().sum::<u64>() + 2 * transfers + transfers;
    let mut choices: Vec<_> = (0..1usize << (2 * layers)).collect();
    // Choices that move less have fewer schedules, and a short period cuts the work on later
    // choices.
    choices.sort_by_key(|choice| choice.count_ones());
    for choice in choices {
        let leaves = |layer: usize| Leaves {
            around: choice >> (2 * layer) & 1 > 0,
            across: choice >> (2 * layer + 1) & 1 > 0,
        };
        search.leaves = (0..layers).map(leaves).collect();
        if search.is_sensible(best) {
            search.improve(&mut best);
        }
    }
    best
}

impl Search<'_> {
    fn layers(&self) -> usize {
        self.chain.layers.len()
    }

    fn weight(&self, layer: usize) -> u64 {
        self.chain.layers[layer].weight_bytes
    }

    fn layer(&self, op: usize) -> usize {
        if op < self.layers() { self.layers() - 1 - op } else { op - self.layers() }
    }

    fn backward(&self, layer: usize) -> usize {
        self.layers() - 1 - layer
    }

    fn forward(&self, layer: usize) -> usize {
        self.layers() + layer
    }

    /// Whether all weights that leave have bytes, and the links need less than `best` for all
    /// transfers.
    fn is_sensible(&self, best: u64) -> bool {
        let (mut upload, mut download) = (0, 0);
        for (layer, leaves) in self.leaves.iter().enumerate() {
            let times = u64::from(leaves.around) + u64::from(leaves.across);
            if times > 0 && self.weight(layer) == 0 {
                return false;
            }
            upload += times * self.transfer_units[layer];
            download += times.min(1) * self.transfer_units[layer];
        }
        upload.max(download) < best
    }

    fn ended(&self, moment: &Moment, op: usize) -> bool {
        moment.launched > op + usize::from(moment.running > 0)
    }

    /// The memory in use, in bytes.
    fn used(&self, moment: &Moment) -> u64 {
        let last = (moment.launched + 2 * self.layers() - 1) % (2 * self.layers());
        let (layer, backward) = (self.layer(last), last < self.layers());
        let runs = moment.running > 0;
        let alive = if backward && !runs { layer } else { layer + 1 };
        let weights = moment.states[..self.layers()].iter().enumerate();
        let weights = weights.filter(|(_, state)| **state != WeightState::Away);
        self.chain.input_bytes
            + self.chain.layers[..alive].iter().map(|layer| layer.activation_bytes).sum::<u64>()
            + weights.map(|(layer, _)| self.weight(layer)).sum::<u64>()
            + if backward && runs { self.weight(layer) } else { 0 }
    }

    fn fits(&self, moment: &Moment) -> bool {
        self.used(moment) <= self.chain.device_bytes
    }

    /// Lets all weights leave that can leave.
    fn settle(&self, moment: &mut Moment) {
        for layer in 0..self.layers() {
            let (back, forward) = (self.backward(layer), self.forward(layer));
            let around = self.ended(moment, back) && moment.launched <= forward;
            let across = self.ended(moment, forward) || moment.launched <= back;
            let leaves = self.leaves[layer];
            let may = (around && leaves.around) || (across && leaves.across);
            if may && moment.states[layer] == WeightState::Copied {
                moment.states[layer] = WeightState::Away;
            }
        }
    }

    fn end_op(&self, moment: &mut Moment) {
        let op = moment.launched - 1;
        let state = &mut moment.states[self.layer(op)];
        if op < self.layers() {
            *state = WeightState::Changed;
        } else if *state == WeightState::Back {
            *state = WeightState::Copied;
        }
    }

    /// The moment one unit of time later.
    fn advance(&self, mut moment: Moment) -> Moment {
        if moment.running == 1 {
            moment.running = 0;
            self.end_op(&mut moment);
        }
        moment.running = moment.running.saturating_sub(1);
        let later = |(layer, left): (usize, u64)| (layer, left - 1);
        (moment.upload, moment.download) = (moment.upload.map(later), moment.download.map(later));
        if let Some((layer, 0)) = moment.upload {
            (moment.upload, moment.states[layer]) = (None, WeightState::Back);
        }
        if let Some((layer, 0)) = moment.download {
            (moment.download, moment.states[layer]) = (None, WeightState::Copied);
        }
        self.settle(&mut moment);
        moment
    }

    /// All moments to which one decision at this moment can lead.
    fn decide(&self, moment: &Moment) -> Vec<Moment> {
        let mut next = Vec::new();
        for (layer, state) in moment.states[..self.layers()].iter().enumerate() {
            let flight = Some((layer, self.transfer_units[layer]));
            let leaves = self.leaves[layer].around || self.leaves[layer].across;
            let updates = moment.running > 0 && moment.launched == self.backward(layer) + 1;
            if *state == WeightState::Away && moment.upload.is_none() {
                let mut states = moment.states;
                states[layer] = WeightState::Coming;
                next.push(Moment { upload: flight, states, ..*moment });
            }
            if *state == WeightState::Changed && leaves && moment.download.is_none() && !updates {
                next.push(Moment { download: flight, ..*moment });
            }
        }
        next.extend(self.launch(moment));
        next.retain(|moment| self.fits(moment));
        next
    }

    fn launch(&self, moment: &Moment) -> Option<Moment> {
        let op = moment.launched;
        if moment.running > 0 || op == 2 * self.layers() {
            return None;
        }
        let layer = self.layer(op);
        let copying = moment.download.is_some_and(|(copied, _)| copied == layer);
        let there = !matches!(moment.states[layer], WeightState::Away | WeightState::Coming);
        if !there || (copying && op < self.layers()) {
            return None;
        }
        // An op without a time takes its memory only for this moment.
        let mut next = Moment { launched: op + 1, running: 1, ..*moment };
        if self.op_units[op] == 0 {
            if !self.fits(&next) {
                return None;
            }
            next.running = 0;
            self.end_op(&mut next);
            self.settle(&mut next);
        } else {
            next.running = self.op_units[op];
        }
        Some(next)
    }

    /// The states in which an iteration may begin.
    fn starts(&self) -> Vec<Moment> {
        let empty = Moment {
            launched: 0,
            running: 0,
            upload: None,
            download: None,
            states: [WeightState::Away; 5],
        };
        let mut starts = vec![empty];
        for (layer, leaves) in self.leaves.iter().enumerate() {
            let states: Vec<_> = match leaves {
                Leaves { across: true, around } => {
                    let changed = (!around).then_some(WeightState::Changed);
                    let states = [WeightState::Away, WeightState::Coming, WeightState::Back];
                    states.into_iter().chain(changed).collect()
                }
                Leaves { across: false, around: true } => vec![WeightState::Copied],
                Leaves { across: false, around: false } => vec![WeightState::Changed],
            };
            let mut longer = Vec::new();
            for (mut start, &state) in
                starts.iter().flat_map(|s| states.iter().map(move |p| (*s, p)))
            {
                start.states[layer] = state;
                let underway = (1..self.transfer_units[layer]).map(|left| Some((layer, left)));
                match state {
                    WeightState::Coming if start.upload.is_some() => continue,
                    WeightState::Coming => {
                        longer.extend(underway.map(|upload| Moment { upload, ..start }));
                        continue;
                    }
                    WeightState::Changed if leaves.across && start.download.is_none() => {
                        longer.extend(underway.map(|download| Moment { download, ..start }));
                    }
                    _ => {}
                }
                longer.push(start);
            }
            starts = longer;
        }
        starts.retain(|start| self.fits(start));
        starts
    }

    /// Follows all events from each start that take less than `best`.
    fn improve(&self, best: &mut u64) {
        let all: u64 = self.op_units.iter().sum();
        for start in self.starts() {
            let goal = Moment { launched: 2 * self.layers(), ..start };
            let mut now = HashSet::from([start]);
            for time in 0..*best {
                let mut open: Vec<_> = now.iter().copied().collect();
                while let Some(moment) = open.pop() {
                    for next in self.decide(&moment) {
                        if now.insert(next) {
                            open.push(next);
                        }
                    }
                }
                if now.contains(&goal) {
                    *best = time;
                    break;
                }
                let done = |moment: &Moment| {
                    self.op_units[..moment.launched].iter().sum::<u64>() - moment.running
                };
                now.retain(|moment| time + all - done(moment) < *best);
                now = now.into_iter().map(|moment| self.advance(moment)).collect();
                if now.is_empty() {
                    break;
                }
            }
        }
    }
}
