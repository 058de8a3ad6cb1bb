//! Which layers are streamed, through what memory, and an estimate of the period.

use planner_core::machine::Direction;
use planner_core::{Graph, Machine};
use std::collections::VecDeque;

/// Objects that all layers together take at most, unless chunks are larger: a balance. More of them
/// waste less memory where sizes differ, and planning takes longer.
const MOST_OBJECTS: u64 = 4096;

/// Iterations that an estimate follows. The last one is like all that come after it, as a rule.
const ITERATIONS: usize = 4;

/// The layers, as numbers.
#[derive(Debug)]
pub(super) struct Layers {
    /// Sizes in whole chunks.
    pub(super) bytes: Vec<u64>,
    pub(super) time_ns: Vec<u64>,
    /// How long the upload of each takes.
    pub(super) upload_ns: Vec<u64>,
    pub(super) budget_bytes: u64,
    /// What divides all sizes, or nearly.
    unit_bytes: u64,
}

/// Memory for the layers that are streamed: objects of one size, numbered from 0.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Slots {
    pub(super) object_bytes: u64,
    pub(super) count: u64,
    /// For each layer that is streamed, how many objects it takes with what it leaves unused.
    pub(super) taken: Vec<u64>,
    /// Its first object, if that is fixed.
    pub(super) first: Option<Vec<u64>>,
}

/// How the memory for streamed layers is divided.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Shape {
    /// Into slots as large as the largest of them.
    Slots,
    /// One layer after the other, from the beginning again where the next does not fit, and in each
    /// iteration. What is left at the end counts as the next layer's, so that the layers take and
    /// release the memory in turn as if it were in one piece.
    Ring,
    /// As each layer needs it, if they can be laid out so: the estimate does not know.
    Packed,
}

/// Some layers to stream.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Streamed {
    /// Whether each layer is streamed.
    pub(super) is_streamed: Vec<bool>,
    pub(super) shape: Shape,
    /// At least the period.
    pub(super) period_ns: u64,
    pub(super) upload_ns: u64,
}

impl Streamed {
    /// What makes one choice better than another.
    pub(super) const fn cost(&self) -> (u64, u64) {
        (self.period_ns, self.upload_ns)
    }
}

impl Layers {
    /// Reads the layers of a checked graph.
    pub(super) fn new(graph: &Graph<'_>, machine: &Machine, budget_bytes: u64) -> Self {
        let rounded = |bytes| machine.round_up_to_chunks(bytes).unwrap_or(u64::MAX);
        let upload_ns = |bytes| machine.transfer_ns(Direction::HostToDevice, bytes);
        let tensors = graph.tensors().iter();
        let bytes: Vec<_> = tensors.clone().map(|tensor| rounded(tensor.bytes)).collect();
        let whole = bytes.iter().copied().fold(0, gcd).max(1);
        let total = bytes.iter().copied().fold(0, u64::saturating_add);
        let coarse = rounded(total / MOST_OBJECTS);
        Self {
            time_ns: graph.ops().iter().map(|op| op.time_ns).collect(),
            upload_ns: tensors.map(|tensor| upload_ns(tensor.bytes).unwrap_or(u64::MAX)).collect(),
            budget_bytes,
            unit_bytes: if total / whole > MOST_OBJECTS { coarse } else { whole },
            bytes,
        }
    }

    pub(super) fn len(&self) -> usize {
        self.bytes.len()
    }

    /// The sum of some quantity over the layers that are streamed, or over the others.
    pub(super) fn sum(&self, of: &[u64], is_streamed: &[bool], streamed: bool) -> u64 {
        let of = of.iter().zip(is_streamed).filter(|&(_, &is)| is == streamed);
        of.fold(0, |sum, (&value, _)| sum.saturating_add(value))
    }

    /// What is left for streamed layers, if that is enough for the largest of them.
    pub(super) fn slots(&self, is_streamed: &[bool], shape: Shape) -> Option<Slots> {
        let resident_bytes = self.sum(&self.bytes, is_streamed, false);
        // Sums of whole chunks may exceed 64 bits.
        let left_bytes = self.budget_bytes.checked_sub(resident_bytes)?;
        if resident_bytes == u64::MAX {
            return None;
        }
        let streamed = || self.bytes.iter().zip(is_streamed).filter(|&(_, &is)| is);
        let largest = streamed().map(|(&bytes, _)| bytes).max().unwrap_or(0);
        let object_bytes = match shape {
            Shape::Slots => largest.max(1),
            Shape::Ring | Shape::Packed => self.unit_bytes,
        };
        let objects = streamed().map(|(&bytes, _)| bytes.div_ceil(object_bytes));
        let all = objects.clone().fold(0, u64::saturating_add);
        // More than all of them take is of no use.
        let count = all.min(left_bytes / object_bytes);
        if largest.div_ceil(object_bytes) > count {
            return None;
        }
        let (taken, first) = match shape {
            Shape::Slots | Shape::Packed => (objects.collect(), None),
            Shape::Ring => {
                let (taken, first) = ring(&objects.collect::<Vec<_>>(), count)?;
                (taken, Some(first))
            }
        };
        Some(Slots { object_bytes, count, taken, first })
    }

    /// The choice with an estimate of its period: what it takes if every upload starts as soon as it
    /// has memory. None where it does not fit.
    pub(super) fn judge(&self, is_streamed: Vec<bool>, shape: Shape) -> Option<Streamed> {
        let slots = self.slots(&is_streamed, shape)?;
        let upload_ns = self.sum(&self.upload_ns, &is_streamed, true);
        let period_ns = self.period_ns(&is_streamed, &slots);
        Some(Streamed { is_streamed, shape, period_ns, upload_ns })
    }

    fn period_ns(&self, is_streamed: &[bool], slots: &Slots) -> u64 {
        // What is on the device: objects, and when they are free.
        let mut held = VecDeque::with_capacity(self.len());
        let (mut free, mut uploaded_ns, mut now_ns, mut period_ns) = (slots.count, 0u64, 0u64, 0);
        for _ in 0..ITERATIONS {
            let (began_ns, last_ns) = (now_ns, period_ns);
            let mut taken = slots.taken.iter();
            for (layer, &is_streamed) in is_streamed.iter().enumerate() {
                let Some(&objects) = is_streamed.then(|| taken.next()).flatten() else {
                    now_ns = now_ns.saturating_add(self.time_ns[layer]);
                    continue;
                };
                while free < objects
                    && let Some((released, free_ns)) = held.pop_front()
                {
                    free += released;
                    uploaded_ns = uploaded_ns.max(free_ns);
                }
                free = free.saturating_sub(objects);
                uploaded_ns = uploaded_ns.saturating_add(self.upload_ns[layer]);
                now_ns = now_ns.max(uploaded_ns).saturating_add(self.time_ns[layer]);
                held.push_back((objects, now_ns));
            }
            period_ns = now_ns - began_ns;
            if period_ns == last_ns {
                break;
            }
        }
        period_ns
    }
}

/// Lays out layers of so many objects around a ring: what each takes, with what is left unused before
/// or after it, and where it begins. None where a layer would take more than all.
fn ring(objects: &[u64], count: u64) -> Option<(Vec<u64>, Vec<u64>)> {
    let (mut taken, mut first) = (objects.to_owned(), Vec::with_capacity(objects.len()));
    let mut end = 0;
    for (at, &size) in objects.iter().enumerate() {
        if end + size > count {
            leave(&mut taken, at, at - 1, count - end, count)?;
            end = 0;
        }
        first.push(end);
        end += size;
    }
    if let Some(last) = objects.len().checked_sub(1) {
        leave(&mut taken, 0, last, count - end, count)?;
    }
    Some((taken, first))
}

/// Objects are left unused between two layers: the next takes them, unless it is too large.
fn leave(taken: &mut [u64], next: usize, last: usize, objects: u64, count: u64) -> Option<()> {
    let with = |layer: usize| taken[layer].checked_add(objects).filter(|&taken| taken <= count);
    let by = if with(next).is_some() { next } else { last };
    taken[by] = with(by)?;
    Some(())
}

const fn gcd(mut one: u64, mut other: u64) -> u64 {
    while other > 0 {
        (one, other) = (other, one % other);
    }
    one
}
