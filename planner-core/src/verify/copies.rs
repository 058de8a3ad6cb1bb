//! The version of its tensor that each piece holds, on the device and on the host.
//!
//! The trees are segment trees with lazy updates, laid out by [`ranges`](crate::ranges). A pending
//! update of a node may be "copy from the host", so a prefetch of pieces with different versions
//! still costs O(log pieces).

#![expect(
    clippy::indexing_slicing,
    reason = "nodes of a span lie in the tree of its tensor, which has two nodes for each piece"
)]

use crate::ranges::{Span, children};
use crate::scratch::{Limits, OutOfScratch, Scratch, words};
use bytemuck::{Pod, Zeroable};

const AS_DEVICE: u32 = u32::MAX - 3;
const AS_HOST: u32 = u32::MAX - 4;

/// The contents of one copy of a piece.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Pod, Zeroable)]
#[repr(C)]
pub(super) struct Held {
    pub(super) version: u32,
    /// The copy may be used at steps before this one.
    pub(super) valid_until: u32,
}

impl Held {
    /// No value.
    pub(super) const NONE: Self = Self { version: u32::MAX, valid_until: 0 };
    /// The value of an input for the next iteration.
    pub(super) const NEXT: Self = Self { version: u32::MAX - 1, valid_until: u32::MAX };
    /// The version of a range whose pieces hold different versions.
    pub(super) const MIXED: u32 = u32::MAX - 2;
    /// The version of the device copy or of the host copy. Only for changes.
    const AS_DEVICE: Self = Self { version: AS_DEVICE, valid_until: 0 };
    const AS_HOST: Self = Self { version: AS_HOST, valid_until: 0 };

    /// The contents that a change puts in place of a device copy and a host copy.
    const fn after(change: Self, device: Self, host: Self) -> Self {
        // No copy has these two versions, so comparing the version suffices.
        match change.version {
            AS_DEVICE => device,
            AS_HOST => host,
            _ => change,
        }
    }

    fn join(self, other: Self) -> Self {
        let is_same = self.version == other.version;
        Self {
            version: if is_same { self.version } else { Self::MIXED },
            valid_until: self.valid_until.min(other.valid_until),
        }
    }
}

/// The copies of a range of pieces.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Pod, Zeroable)]
#[repr(C)]
pub(super) struct Pair {
    pub(super) device: Held,
    pub(super) host: Held,
    /// 1 if the two copies of any piece differ.
    pub(super) differ: u32,
}

impl Pair {
    const fn new(device: Held, host: Held) -> Self {
        Self { device, host, differ: (device.version != host.version) as u32 }
    }

    fn join(self, other: Self) -> Self {
        Self {
            device: self.device.join(other.device),
            host: self.host.join(other.host),
            differ: self.differ | other.differ,
        }
    }

    fn after(self, change: Change) -> Self {
        let after = |change| Held::after(change, self.device, self.host);
        let changed = Self::new(after(change.device), after(change.host));
        // In general the two versions are compared: a range of mixed versions differs from any
        // single version. The exceptions are a change that keeps both copies, and one that gives
        // both the same contents.
        let differ = match (change.device.version, change.host.version) {
            (AS_DEVICE, AS_HOST) => self.differ,
            (device, host) if device == host => 0,
            _ => changed.differ,
        };
        Self { differ, ..changed }
    }
}

/// An update of the copies of a range of pieces.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Pod, Zeroable)]
#[repr(C)]
pub(super) struct Change {
    device: Held,
    host: Held,
}

impl Change {
    const NONE: Self = Self { device: Held::AS_DEVICE, host: Held::AS_HOST };
    /// The device copy gets the contents of the host copy.
    pub(super) const PREFETCH: Self = Self { device: Held::AS_HOST, host: Held::AS_HOST };
    /// The host copy gets the contents of the device copy.
    pub(super) const OFFLOAD: Self = Self { device: Held::AS_DEVICE, host: Held::AS_DEVICE };

    pub(super) const fn device(held: Held) -> Self {
        Self { device: held, ..Self::NONE }
    }

    pub(super) const fn host(held: Held) -> Self {
        Self { host: held, ..Self::NONE }
    }

    pub(super) const fn both(device: Held, host: Held) -> Self {
        Self { device, host }
    }

    /// The composition of this change and a later change.
    const fn then(self, other: Self) -> Self {
        Self {
            device: Held::after(other.device, self.device, self.host),
            host: Held::after(other.host, self.device, self.host),
        }
    }
}

#[derive(Clone, Copy, Debug, Pod, Zeroable)]
#[repr(C)]
struct Node {
    pair: Pair,
    /// The change that is still to be applied to the children.
    pending: Change,
}

impl Node {
    #[inline]
    fn change(&mut self, change: Change, is_leaf: bool) {
        self.pair = self.pair.after(change);
        if !is_leaf {
            self.pending = self.pending.then(change);
        }
    }
}

/// The copies of each piece.
#[derive(Debug)]
pub(super) struct Copies<'a> {
    nodes: &'a mut [Node],
}

impl<'a> Copies<'a> {
    pub(super) const fn scratch_words(limits: &Limits) -> usize {
        words::<Node>(limits.pieces.saturating_mul(2))
    }

    /// Creates the trees. No piece has a value.
    pub(super) fn new(pieces: usize, scratch: &mut Scratch<'a>) -> Result<Self, OutOfScratch> {
        let empty = Node { pair: Pair::new(Held::NONE, Held::NONE), pending: Change::NONE };
        Ok(Self { nodes: scratch.take(pieces.saturating_mul(2), empty)? })
    }

    /// The copies of the pieces of a span.
    pub(super) fn query(&mut self, span: Span) -> Pair {
        self.push_down(span);
        let mut joined = None;
        span.cover(|node| {
            let pair = self.nodes[span.slot(node)].pair;
            joined = Some(joined.map_or(pair, |joined: Pair| joined.join(pair)));
        });
        joined.unwrap_or(Pair::new(Held::NONE, Held::NONE))
    }

    /// Applies a change to all pieces of a span.
    pub(super) fn change(&mut self, span: Span, change: Change) {
        self.push_down(span);
        span.cover(|node| self.nodes[span.slot(node)].change(change, span.is_leaf(node)));
        span.bottom_up(|node| {
            let [one, other] = children(node).map(|child| span.slot(child));
            let joined = self.nodes[one].pair.join(self.nodes[other].pair);
            let node = &mut self.nodes[span.slot(node)];
            node.pair = joined.after(node.pending);
        });
    }

    /// Applies the pending changes of all nodes above a span to their children.
    fn push_down(&mut self, span: Span) {
        span.top_down(|node| {
            let parent = &mut self.nodes[span.slot(node)];
            let pending = core::mem::replace(&mut parent.pending, Change::NONE);
            if pending != Change::NONE {
                for child in children(node) {
                    self.nodes[span.slot(child)].change(pending, span.is_leaf(child));
                }
            }
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn copies_agree_with_an_array() {
        let mut memory = [0; 2 * 39 * size_of::<Node>() / 8];
        let mut copies = Copies::new(39, &mut Scratch::new(&mut memory)).unwrap();
        let mut plain = [Pair::new(Held::NONE, Held::NONE); 39];
        let mut seed = 1u64;
        let mut draw = |below: usize| {
            seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            (seed >> 33) as usize % below
        };
        for _ in 0..5000 {
            let of = [0..1, 1..9, 9..18, 18..39][draw(4)].clone();
            let start = of.start + draw(of.len());
            let range = start..start + 1 + draw(of.end - start);
            let seen = plain[range.clone()].iter().copied().reduce(Pair::join).unwrap();
            assert_eq!(copies.query(Span::new(&of, &range)), seen);
            let version = draw(3) as u32;
            let held = Held { version, valid_until: 9 - version };
            let changes =
                [Change::PREFETCH, Change::OFFLOAD, Change::device(held), Change::host(held)];
            let change = changes[draw(4)];
            copies.change(Span::new(&of, &range), change);
            for pair in &mut plain[range] {
                let after = |change| Held::after(change, pair.device, pair.host);
                *pair = Pair::new(after(change.device), after(change.host));
            }
        }
    }
}
