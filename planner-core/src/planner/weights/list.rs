//! Writes a course as a list of steps.
//!
//! Memory is freed in list order, so an evict is listed where it completes: before the op that runs
//! then, and before its workspace. A prefetch is listed after the ops that run when it starts. So a
//! step is listed after exactly the steps that it waits for.

#![expect(
    clippy::indexing_slicing,
    reason = "launches and entries are below the lengths that have been recorded"
)]

use super::chain::{Chain, Item};
use super::course::{ITERATIONS, transfers};
use super::selection::{Selection, Span};
use crate::planner::builder::Builder;
use crate::planner::list::{Lengths, Stuck};
use crate::scratch::{Limits, OutOfScratch, Scratch, words};

/// An event of a course. At one position of a list, prefetches come last.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Event {
    /// The end of an offload.
    Offload(Item),
    Evict(Span),
    /// The start of a prefetch.
    Prefetch(Item),
    PrefetchInput,
}

impl Event {
    const ITEMS: [Item; 3] = [Item::Weight, Item::Optimizer, Item::Handed];
    const SPANS: [Span; 4] = [Span::Around, Span::Across, Span::Updates, Span::Saved];

    const fn to_bits(self) -> u64 {
        match self {
            Self::Offload(item) => item as u64,
            Self::Evict(span) => 4 | span as u64,
            Self::Prefetch(item) => 8 | item as u64,
            Self::PrefetchInput => 12,
        }
    }

    const fn from_bits(bits: u64) -> Self {
        match bits {
            0..=2 => Self::Offload(Self::ITEMS[bits as usize]),
            4..=7 => Self::Evict(Self::SPANS[bits as usize & 3]),
            8..=10 => Self::Prefetch(Self::ITEMS[bits as usize & 3]),
            _ => Self::PrefetchInput,
        }
    }
}

/// The record of a course: its launches, and the events between them.
#[derive(Debug)]
pub(super) struct Notes<'n> {
    /// The start and end of each launch, over all iterations.
    launches: &'n mut [[u64; 2]],
    launched: usize,
    /// A time; and the preceding launch, the layer and the event, packed into a word.
    entries: &'n mut [[u64; 2]],
    len: usize,
    full: bool,
    /// Whether events are recorded now.
    on: bool,
}

const LAYER_BITS: u32 = 28;
const EVENT_BITS: u32 = 4;

const fn pack(launch: usize, layer: usize, event: Event) -> u64 {
    (launch as u64) << (LAYER_BITS + EVENT_BITS) | (layer as u64) << EVENT_BITS | event.to_bits()
}

const fn unpack(entry: u64) -> (usize, usize, Event) {
    let layer = (entry >> EVENT_BITS) & ((1 << LAYER_BITS) - 1);
    let event = Event::from_bits(entry & ((1 << EVENT_BITS) - 1));
    ((entry >> (LAYER_BITS + EVENT_BITS)) as usize, layer as usize, event)
}

/// The position of an entry in the list.
fn key([time_ns, entry]: &[u64; 2]) -> (usize, bool, u64) {
    let (launch, _, event) = unpack(*entry);
    (launch, matches!(event, Event::Prefetch(_) | Event::PrefetchInput), *time_ns)
}

impl<'n> Notes<'n> {
    /// For three iterations, up to twelve entries for each layer or part.
    const fn entries(limits: &Limits) -> usize {
        transfers(limits).saturating_mul(3 * 6).saturating_add(3)
    }

    pub(super) const fn scratch_words(limits: &Limits) -> usize {
        words::<[u64; 2]>(limits.ops.saturating_mul(ITERATIONS))
            .saturating_add(words::<[u64; 2]>(Self::entries(limits)))
    }

    pub(super) fn new(limits: &Limits, scratch: &mut Scratch<'n>) -> Result<Self, OutOfScratch> {
        let launches = scratch.take(limits.ops.saturating_mul(ITERATIONS), [0; 2])?;
        let entries = scratch.take(Self::entries(limits), [0; 2])?;
        // Layers and launches must fit into `LAYER_BITS`.
        let full = limits.ops >= 1 << LAYER_BITS;
        Ok(Self { launches, launched: 0, entries, len: 0, full, on: false })
    }

    /// Starts recording; `launched` launches came before.
    pub(super) const fn start(&mut self, launched: usize) {
        self.on = true;
        self.launched = launched;
    }

    pub(super) const fn launches(&self) -> usize {
        self.launched
    }

    pub(super) fn launch(&mut self, start_ns: u64, end_ns: u64) {
        if self.on
            && let Some(slot) = self.launches.get_mut(self.launched)
        {
            *slot = [start_ns, end_ns];
            self.launched = self.launched.saturating_add(1);
        }
    }

    /// Adds an event after the last launch. The first iteration is not needed.
    pub(super) fn add(&mut self, event: Event, layer: usize, at_ns: u64) {
        if !self.on || self.full || self.launched < self.launches.len() / ITERATIONS {
            return;
        }
        match self.entries.get_mut(self.len) {
            Some(slot) => *slot = [at_ns, pack(self.launched, layer, event)],
            None => self.full = true,
        }
        self.len = self.len.saturating_add(1);
    }

    /// Sorts all entries by their positions in the list.
    fn sort(&mut self) {
        let entries = &mut self.entries[..self.len];
        for [at_ns, packed] in &mut *entries {
            let (after, layer, event) = unpack(*packed);
            let launches = &self.launches[..self.launched];
            let before = match event {
                Event::Offload(_) | Event::Evict(_) => {
                    let done = |[start, end]: &[u64; 2]| *start < *at_ns && *end <= *at_ns;
                    after.saturating_add(launches[after..].partition_point(done))
                }
                Event::Prefetch(_) | Event::PrefetchInput => {
                    launches.partition_point(|[start, _]| *start <= *at_ns)
                }
            };
            *packed = pack(before, layer, event);
        }
        entries.sort_unstable_by_key(|entry| (key(entry), entry[1]));
    }

    /// Writes the third iteration as a list; the second one provides its residents at start.
    pub(super) fn write(
        &mut self,
        chain: &Chain<'_>,
        selection: &Selection<'_>,
        mut builder: Builder<'_>,
        copy_again: bool,
    ) -> Result<Lengths, Stuck> {
        if self.full {
            return Err(Stuck::NoMemory);
        }
        self.sort();
        let source = Source { chain, selection, copy_again };
        let ops = chain.ops();
        let entries = &self.entries[..self.len];
        let mut next = entries.partition_point(|entry| key(entry).0 < ops);
        let iterations = builder.task.sequence.iterations(2);
        for (launch, (_, op)) in (ops..).zip(iterations) {
            builder.reach(op);
            while let Some(&[_, entry]) = entries.get(next) {
                let (before, layer, event) = unpack(entry);
                if before > launch {
                    break;
                }
                source.step(&mut builder, layer, event)?;
                next = next.saturating_add(1);
            }
            let sequence = builder.task.sequence;
            for &tensor in sequence.reads(op) {
                builder.prefetch(tensor)?;
            }
            builder.launch(op)?;
        }
        builder.finish()
    }
}

/// The chain and the selection from which steps are written.
struct Source<'s> {
    chain: &'s Chain<'s>,
    selection: &'s Selection<'s>,
    /// Whether a weight is offloaded even if the host holds it.
    copy_again: bool,
}

impl Source<'_> {
    fn step(&self, builder: &mut Builder<'_>, layer: usize, event: Event) -> Result<(), Stuck> {
        let Self { chain, selection, copy_again } = *self;
        let item = match event {
            Event::PrefetchInput => {
                return chain.input.map_or(Ok(()), |input| builder.prefetch(input.tensor));
            }
            Event::Offload(item) | Event::Prefetch(item) => item,
            Event::Evict(span) => span.item(),
        };
        let (tensor, all, part) =
            (chain.tensor(layer, item), chain.size(layer, item), selection.part);
        let held = builder.held(tensor);
        let kept = |span| selection.kept(chain, layer, span);
        match event {
            // A tensor that an op writes is not prefetched before that op.
            Event::Offload(_) if held < all && builder.copied(tensor) == all => {}
            Event::Offload(Item::Weight) if copy_again => builder.offload_again(tensor),
            Event::Offload(item) => {
                let kept = match item {
                    Item::Weight => kept(Span::Around).min(kept(Span::Across)),
                    Item::Optimizer => kept(Span::Updates),
                    Item::Handed => kept(Span::Saved),
                };
                let from = builder.first_copied(tensor).saturating_sub(part);
                builder.offload_from(tensor, from.max(kept));
            }
            Event::Evict(span) => {
                builder.evict_from(tensor, held.saturating_sub(part).max(kept(span)));
            }
            Event::Prefetch(_) | Event::PrefetchInput => {
                let missing = all.saturating_sub(held);
                if missing > 0 {
                    let to = held.saturating_add(selection.first_part(missing));
                    builder.prefetch_to(tensor, to)?;
                }
            }
        }
        Ok(())
    }
}
