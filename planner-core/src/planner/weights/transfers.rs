//! The transfers of a course: each starts as early as its link, its data and memory allow.

#![expect(
    clippy::indexing_slicing,
    reason = "layers are those of the chain, and the arrays have an entry for each"
)]

use super::chain::Item;
use super::course::Course;
use super::list::Event;
use super::selection::Span;
use core::mem;

impl Course<'_> {
    /// Prefetches the objects of an item that left in a span, part by part, as early as the link
    /// and memory allow. Returns the time at which the last part arrives.
    pub(super) fn prefetch(&mut self, layer: usize, span: Span) -> Option<u64> {
        let mut left = self.selection.moved(layer, span);
        let mut arrived_ns = 0;
        if span == Span::Around {
            let ahead = mem::take(&mut self.ahead[layer]);
            left = left.saturating_sub(ahead);
            arrived_ns = if ahead > 0 { self.upload_ns } else { 0 };
        }
        while left > 0 {
            let objects = self.selection.first_part(left);
            let start_ns = self.profile.earliest(self.upload_from_ns(layer, span), objects)?;
            self.upload((layer, span), objects, start_ns)?;
            arrived_ns = self.upload_ns;
            left = left.saturating_sub(objects);
        }
        Some(arrived_ns)
    }

    fn upload_from_ns(&self, layer: usize, span: Span) -> u64 {
        self.upload_ns.max(self.gone_ns[layer][span.item() as usize])
    }

    fn upload(&mut self, at: (usize, Span), objects: u64, start_ns: u64) -> Option<()> {
        let (layer, item) = (at.0, at.1.item());
        self.upload_ns = start_ns.checked_add(self.chain.up_ns(layer, item, objects))?;
        self.notes.add(Event::Prefetch(item), layer, start_ns);
        self.profile.take(start_ns, objects).then_some(())
    }

    /// Prefetches weights for the forward ops before the last backward op runs, when the input has
    /// its turn; as far as memory also holds the outputs of all ops up to them.
    pub(super) fn prefetch_ahead(&mut self) -> Option<()> {
        let mut handed = 0u64;
        for layer in 0..self.chain.layers() {
            handed = handed.saturating_add(self.chain.handed[layer]);
            let moved = self.selection.moved(layer, Span::Around);
            while let left @ 1.. = moved.saturating_sub(self.ahead[layer]) {
                let objects = self.selection.first_part(left);
                let needed = objects.saturating_add(handed);
                let start_ns =
                    self.profile.earliest(self.upload_from_ns(layer, Span::Around), needed);
                let Some(start_ns) = start_ns.filter(|&start_ns| start_ns < self.started_ns) else {
                    return Some(());
                };
                self.upload((layer, Span::Around), objects, start_ns)?;
                self.ahead[layer] = self.ahead[layer].saturating_add(objects);
            }
        }
        Some(())
    }

    /// Prefetches the next input, at the earliest while the last op that reads the current one
    /// runs.
    pub(super) fn prefetch_input(&mut self) -> Option<u64> {
        let Some(input) = self.chain.input.filter(|_| self.notes.launches() > 0) else {
            return Some(0);
        };
        let from_ns = self.upload_ns.max(self.started_ns);
        let start_ns = self.profile.earliest(from_ns, input.objects)?;
        self.upload_ns = start_ns.checked_add(input.up_ns)?;
        self.notes.add(Event::PrefetchInput, 0, start_ns);
        self.profile.take(start_ns, input.objects).then_some(self.upload_ns)
    }

    /// Offloads waiting weights, the smallest first, as long as that ends before the last launched
    /// op does.
    pub(super) fn copy_ahead(&mut self) {
        const WEIGHT: usize = Item::Weight as usize;
        let weight = |layer: u32| self.chain.size(layer as usize, Item::Weight);
        while let Some(at) = (0..self.waits).min_by_key(|&at| weight(self.waiting[at])) {
            let layer = self.waiting[at] as usize;
            let across = self.selection.moved(layer, Span::Across);
            while let left @ 1.. = across.saturating_sub(self.on_host[layer][WEIGHT]) {
                let objects = self.selection.part.min(left);
                let start_ns = self.download_ns.max(self.updated_ns[layer][WEIGHT]);
                let copying_ns = self.chain.down_ns(layer, Item::Weight, objects);
                if start_ns.saturating_add(copying_ns) > self.compute_ns {
                    return;
                }
                self.offload(layer, Span::Across);
            }
            self.waiting.copy_within(at.saturating_add(1)..self.waits, at);
            self.waits = self.waits.saturating_sub(1);
        }
    }

    /// Evicts the objects to leave in a span that the host already holds.
    pub(super) fn leave(&mut self, layer: usize, span: Span, at_ns: u64) -> Option<()> {
        let on_host = self.on_host[layer][span.item() as usize];
        let mut left = on_host.min(self.selection.moved(layer, span));
        while left > 0 {
            let objects = left.min(self.selection.part);
            self.evict(layer, span, objects, at_ns)?;
            left = left.saturating_sub(objects);
        }
        Some(())
    }

    /// Offloads the objects to leave in a span that the host does not hold, and evicts them.
    pub(super) fn send(&mut self, layer: usize, span: Span) -> Option<()> {
        while self.on_host[layer][span.item() as usize] < self.selection.moved(layer, span) {
            let objects = self.offload(layer, span);
            let copied_ns = self.download_ns;
            // An activation may be offloaded while it is read.
            let done_ns = if span == Span::Saved { self.compute_ns } else { 0 };
            self.evict(layer, span, objects, copied_ns.max(done_ns))?;
        }
        Some(())
    }

    /// Offloads the next part of the objects to leave in a span; returns their number.
    fn offload(&mut self, layer: usize, span: Span) -> u64 {
        let (item, wanted) = (span.item(), self.selection.moved(layer, span));
        let on_host = &mut self.on_host[layer][item as usize];
        let objects = self.selection.part.min(wanted.saturating_sub(*on_host));
        *on_host = on_host.saturating_add(objects);
        let start_ns = self.download_ns.max(self.updated_ns[layer][item as usize]);
        self.download_ns = start_ns.saturating_add(self.chain.down_ns(layer, item, objects));
        self.notes.add(Event::Offload(item), layer, self.download_ns);
        objects
    }

    fn evict(&mut self, layer: usize, span: Span, objects: u64, at_ns: u64) -> Option<()> {
        self.gone_ns[layer][span.item() as usize] = at_ns;
        self.notes.add(Event::Evict(span), layer, at_ns);
        let noted = if self.started_ns == at_ns {
            self.profile.pass(at_ns, 0, objects)
        } else {
            self.profile.release(at_ns, objects)
        };
        noted.then_some(())
    }
}
