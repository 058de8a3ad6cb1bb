//! The schedule of weight transfers (algorithm 2). Each transfer starts as soon as its link, its
//! data and memory allow; prefetches run in the order of need, offloads first in, first out.

#![expect(
    clippy::indexing_slicing,
    reason = "layers and ops are those of the chain, and the arrays have an entry for each"
)]

use super::chain::{Chain, Item, most_layers};
use super::list::Notes;
use super::profile::Profile;
use super::selection::{Selection, Span};
use crate::scratch::{Limits, OutOfScratch, Scratch, total, words};

/// The number of iterations in a course without a barrier. The third one is the plan, and the
/// fourth shows the prefetches ahead for it.
pub(super) const ITERATIONS: usize = 4;

/// The most parts of an item. A balance: more parts free memory sooner, but each takes a latency
/// and working memory.
const MOST_PARTS: usize = 32;

/// The timing of transfers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::planner) enum Timing {
    /// As published: every iteration ends when all transfers have ended.
    Barrier {
        /// Whether one offload serves two prefetches.
        discount: bool,
    },
    /// Iterations follow each other; prefetches for the next one begin in this one.
    Cyclic {
        /// Whether forward weights may be prefetched before the input.
        ahead: bool,
    },
}

/// A schedule that is being computed.
pub(super) struct Course<'c> {
    pub(super) chain: &'c Chain<'c>,
    pub(super) selection: &'c Selection<'c>,
    timing: Timing,
    pub(super) profile: Profile<'c>,
    /// The start of the last op, and the time at which each stream has done all scheduled work.
    pub(super) started_ns: u64,
    pub(super) compute_ns: u64,
    pub(super) upload_ns: u64,
    pub(super) download_ns: u64,
    /// The time at which each item of a layer last got its current value, and at which it last
    /// left.
    pub(super) updated_ns: &'c mut [[u64; Item::COUNT]],
    pub(super) gone_ns: &'c mut [[u64; Item::COUNT]],
    /// The number of objects of each item whose current value the host has, and whether a cut has
    /// prefetched the weight early.
    pub(super) on_host: &'c mut [[u64; Item::COUNT]],
    early: &'c mut [u8],
    /// The number of objects of each weight that were prefetched before their turn.
    pub(super) ahead: &'c mut [u64],
    /// Weights that may be offloaded before their forward op.
    pub(super) waiting: &'c mut [u32],
    pub(super) waits: usize,
    pub(super) notes: Notes<'c>,
}

/// The most moments that the memory profile holds; a course that needs more fails.
const fn moments(limits: &Limits) -> usize {
    transfers(limits).saturating_mul(4).saturating_add(8)
}

/// The number of ops; for chains that are short enough, the number of their parts.
pub(super) const fn transfers(limits: &Limits) -> usize {
    const SHORT: usize = 512;
    let short = if limits.ops < SHORT { limits.ops } else { SHORT };
    limits.ops.saturating_add(short.saturating_mul(MOST_PARTS - 1))
}

impl<'c> Course<'c> {
    pub(super) const fn scratch_words(limits: &Limits) -> usize {
        let layers = most_layers(limits);
        total([
            Profile::scratch_words(moments(limits)),
            words::<[u64; Item::COUNT]>(layers).saturating_mul(3),
            layers,
            words::<u8>(layers),
            words::<u32>(layers),
            Notes::scratch_words(limits),
        ])
    }

    pub(super) fn new(
        chain: &'c Chain<'c>,
        selection: &'c Selection<'c>,
        timing: Timing,
        scratch: &mut Scratch<'c>,
    ) -> Result<Self, OutOfScratch> {
        let (layers, ops) = (chain.layers(), chain.ops());
        let limits = Limits { ops, ..Limits::default() };
        Ok(Self {
            chain,
            selection,
            timing,
            profile: Profile::new(moments(&limits), chain.pool_objects, scratch)?,
            started_ns: 0,
            compute_ns: 0,
            upload_ns: 0,
            download_ns: 0,
            updated_ns: scratch.take(layers, [0; Item::COUNT])?,
            gone_ns: scratch.take(layers, [0; Item::COUNT])?,
            on_host: scratch.take(layers, [0; Item::COUNT])?,
            early: scratch.take(layers, 0)?,
            ahead: scratch.take(layers, 0)?,
            waiting: scratch.take(layers, 0)?,
            waits: 0,
            notes: Notes::new(&limits, scratch)?,
        })
    }

    /// The objects of states that are resident during such a span of all weights.
    fn staying(&self, span: Span) -> u64 {
        let of = |layer, span| self.selection.kept(self.chain, layer, span);
        let layers = 0..self.chain.layers();
        let stays = layers.flat_map(|layer| [of(layer, span), of(layer, Span::Updates)]);
        stays.fold(0u64, u64::saturating_add)
    }

    /// The number of cuts, without the cut at the very start.
    fn cuts(&self) -> usize {
        (0..self.chain.layers()).filter(|&layer| self.selection.leaves(layer, Span::Across)).count()
    }

    /// The shortest cycle with a barrier at its end, and its cut; among equal cycles, the first.
    /// `None` if an op needs more memory than there is. O(layers²) in practice: each of the cuts,
    /// at most as many as layers, takes as many steps as there are transfers in flight.
    pub(super) fn best_cut(&mut self) -> Option<(u64, usize)> {
        let mut best: Option<(u64, usize)> = None;
        for cut in 0..=self.cuts() {
            if let Some(cycle_ns) = self.cycle(0, cut)
                && best.is_none_or(|(best_ns, _)| cycle_ns < best_ns)
            {
                best = Some((cycle_ns, cut));
            }
        }
        best
    }

    /// Records the cycle, often enough for a list of steps.
    pub(super) fn write_cycle(&mut self, cut: usize) -> Option<()> {
        let layers = self.chain.layers();
        let mut origin_ns = 0;
        for iteration in 0..ITERATIONS - 1 {
            let launched = self.chain.ops().saturating_mul(iteration).saturating_add(layers);
            self.notes.start(launched);
            origin_ns = self.cycle(origin_ns, cut)?;
        }
        Some(())
    }

    /// Schedules one cycle, starting at the backward ops, with the first `cut` prefetches already
    /// done. Returns its end; `None` if memory does not suffice.
    fn cycle(&mut self, origin_ns: u64, cut: usize) -> Option<u64> {
        let chain = self.chain;
        let mut used = self.staying(Span::Across);
        let mut left = cut;
        for layer in (0..chain.layers()).rev() {
            let cut = left > 0 && self.selection.leaves(layer, Span::Across);
            self.early[layer] = u8::from(cut);
            left = left.saturating_sub(cut.into());
            used = used.saturating_add(if cut { chain.size(layer, Item::Weight) } else { 0 });
        }
        let last = chain.layers().checked_sub(1)?;
        used = used.saturating_add(chain.alive[last]);
        let at_first = used.checked_add(chain.workspaces[chain.backward(last)])?;
        if at_first > chain.pool_objects {
            return None;
        }
        self.profile.restart(used);
        self.gone_ns.fill([origin_ns; Item::COUNT]);
        (self.compute_ns, self.upload_ns, self.download_ns) = (origin_ns, origin_ns, origin_ns);
        self.all_backward()?;
        self.all_forward()?;
        for layer in (0..chain.layers()).rev() {
            if self.early[layer] != 0 {
                self.prefetch(layer, Span::Across)?;
            }
        }
        Some(self.compute_ns.max(self.upload_ns).max(self.download_ns))
    }

    /// Records iterations that follow each other without a barrier.
    pub(super) fn write_iterations(&mut self) -> Option<()> {
        let input = self.chain.input.map_or(0, |input| input.objects);
        self.profile.restart(self.staying(Span::Around).saturating_add(input));
        self.notes.start(0);
        for _ in 0..ITERATIONS {
            self.all_forward()?;
            self.all_backward()?;
        }
        Some(())
    }

    pub(super) const fn is_cyclic(&self) -> bool {
        matches!(self.timing, Timing::Cyclic { .. })
    }

    fn all_backward(&mut self) -> Option<()> {
        self.waits = 0;
        (0..self.chain.layers()).rev().try_for_each(|layer| self.backward(layer))
    }

    fn all_forward(&mut self) -> Option<()> {
        (0..self.chain.layers()).try_for_each(|layer| self.forward(layer))
    }

    fn backward(&mut self, layer: usize) -> Option<()> {
        let chain = self.chain;
        let mut ready_ns = self.compute_ns;
        if self.early[layer] == 0 {
            ready_ns = ready_ns.max(self.prefetch(layer, Span::Across)?);
        }
        for span in [Span::Updates, Span::Saved] {
            ready_ns = ready_ns.max(self.prefetch(layer, span)?);
        }
        let op = chain.backward(layer);
        // The next input takes the memory of this one.
        let input = match chain.input {
            Some(input) if layer == 0 && self.is_cyclic() => input.objects,
            _ => 0,
        };
        self.launch(op, ready_ns, 0, chain.handed[layer].saturating_add(input))?;
        self.updated_ns[layer] = [self.compute_ns; Item::COUNT];
        self.on_host[layer] = [0; Item::COUNT];
        let around = self.selection.moved(layer, Span::Around);
        if around > 0 || self.is_cyclic() {
            self.copy_ahead();
        }
        self.send(layer, Span::Around)?;
        self.send(layer, Span::Updates)?;
        if self.selection.moved(layer, Span::Across) > around {
            self.waiting[self.waits] = layer as u32;
            self.waits = self.waits.saturating_add(1);
        }
        Some(())
    }

    fn forward(&mut self, layer: usize) -> Option<()> {
        let chain = self.chain;
        if layer == 0 && self.timing == (Timing::Cyclic { ahead: true }) {
            self.prefetch_ahead()?;
        }
        let handed_ns = self.compute_ns;
        let mut ready_ns = handed_ns.max(self.prefetch(layer, Span::Around)?);
        if layer == 0 && self.is_cyclic() {
            ready_ns = ready_ns.max(self.prefetch_input()?);
        }
        self.launch(layer, ready_ns, chain.handed[layer], 0)?;
        if self.timing == (Timing::Barrier { discount: false })
            && self.selection.leaves(layer, Span::Around)
        {
            self.on_host[layer][Item::Weight as usize] = 0;
        }
        let done_ns = match self.timing {
            Timing::Barrier { .. } => self.compute_ns.max(self.download_ns),
            Timing::Cyclic { .. } => self.compute_ns,
        };
        if layer == 0 {
            self.on_host[layer][Item::Handed as usize] = chain.size(layer, Item::Handed);
        }
        self.leave(layer, Span::Saved, self.compute_ns)?;
        self.leave(layer, Span::Across, done_ns)?;
        // The input activation of the layer is as old as the op before.
        self.updated_ns[layer] = [self.compute_ns, self.compute_ns, handed_ns];
        self.send(layer, Span::Saved)?;
        self.send(layer, Span::Across)
    }

    /// Runs an op that keeps and frees objects in addition to its workspace.
    fn launch(&mut self, op: usize, ready_ns: u64, keeps: u64, gives: u64) -> Option<()> {
        self.profile.forget(self.upload_ns.min(self.compute_ns));
        let workspace = self.chain.workspaces[op];
        let taken = workspace.saturating_add(keeps);
        let start_ns = self.profile.earliest(ready_ns, taken)?;
        self.started_ns = start_ns;
        self.compute_ns = start_ns.checked_add(self.chain.op_ns[op])?;
        self.notes.launch(start_ns, self.compute_ns);
        let noted = if start_ns == self.compute_ns {
            self.profile.take(start_ns, keeps) && self.profile.pass(start_ns, workspace, gives)
        } else {
            self.profile.take(start_ns, taken)
                && self.profile.release(self.compute_ns, workspace.saturating_add(gives))
        };
        noted.then_some(())
    }
}
