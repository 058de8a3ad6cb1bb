//! The parameters of inference servers that stream weights by groups of layers: some layers of each
//! group are off the device, and are prefetched some layers ahead. (vLLM's prefetch offloading
//! calls them `offload_group_size`, `offload_num_in_group` and `offload_prefetch_step`; it offloads
//! the last layers of each group.)
//!
//! A layer is an op that is the first to use some states, with these states. Such ops are numbered
//! in the order in which they run.
//!
//! * States of the last layers of a group are evicted after each op, unless they are needed again
//!   before they could be prefetched. If the host has their value, they are evicted without a copy.
//! * Everything else stays while memory suffices; if it does not, the least recently used tensor is
//!   evicted.

#![expect(
    clippy::indexing_slicing,
    reason = "tensor ids are those of the sequence, and the arrays have an entry for each"
)]

use super::builder::Builder;
use super::cache::{self, Retention, distance};
use super::list::{Lengths, Stuck};
use super::memory::Memory;
use super::request::Task;
use super::strategy::{Parameter, Rule};
use super::trials::Search;
use crate::graph::{Kind, TensorId};
use crate::scratch::{Limits, OutOfScratch, Scratch, words};

pub(super) const fn scratch_words(limits: &Limits) -> usize {
    words::<u32>(limits.tensors).saturating_add(cache::scratch_words(limits))
}

/// Parameters of [`Strategy::Groups`](super::Strategy::Groups). For each parameter that is not given, several values are
/// tried in the timeline.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Groups {
    /// The number of layers of a group; at least 1.
    pub size: Option<u32>,
    /// The number of layers of each group that are evicted, at its end; at most the size.
    pub leaving: Option<u32>,
    /// The number of ops ahead of a layer at which it is prefetched; at least 1.
    pub ahead: Option<u32>,
}

impl Groups {
    /// The default parameters.
    #[must_use]
    pub const fn new() -> Self {
        Self { size: None, leaving: None, ahead: None }
    }
}

setters!(Groups {
    size: u32 as Some => with_size,
    leaving: u32 as Some => with_leaving,
    ahead: u32 as Some => with_ahead,
});

impl Groups {
    /// Every setting that is tried for `ops` ops if no parameter is given.
    pub fn settings(ops: usize) -> impl Iterator<Item = Self> {
        grid(Self::default(), ops).map(|Setting { size, leaving, ahead }| Self {
            size: Some(size),
            leaving: Some(leaving),
            ahead: Some(ahead),
        })
    }
}

/// One setting of the three parameters.
#[derive(Clone, Copy, Debug)]
struct Setting {
    size: u32,
    leaving: u32,
    ahead: u32,
}

impl Setting {
    /// Whether another setting of the grid moves the same layers, given the number of layers.
    fn is_same_as_another(self, layers: u32) -> bool {
        let Self { size, leaving, .. } = self;
        let staying = size.saturating_sub(leaving);
        let enough = SIZES.into_iter().find(|&size| size >= layers);
        (staying == 0 && size > 1)
            || (staying >= layers && leaving > 1)
            || (staying < layers && enough.is_some_and(|enough| size > enough))
    }

    /// Whether a state of a layer is evicted after an op, given the number of ops to its next use.
    fn evicts(self, layer: u32, distance: u32) -> bool {
        let staying = self.size.saturating_sub(self.leaving);
        let leaves = |layer: u32| layer.checked_rem(self.size).is_some_and(|at| at >= staying);
        layer != NO_LAYER && leaves(layer) && distance > self.ahead.saturating_add(1)
    }
}

/// The sizes of groups that are tried.
const SIZES: [u32; 7] = [1, 2, 3, 4, 8, 16, 32];

/// The distances of prefetches that are tried.
const AHEAD: [u32; 3] = [1, 2, 4];

/// All settings to try: for each size, every number of evicted layers. There are at most as many
/// layers as ops.
fn grid(groups: Groups, ops: usize) -> impl Iterator<Item = Setting> {
    let is_tried = move |&size: &u32| size as usize <= ops && groups.size.is_none();
    let sizes = SIZES.into_iter().filter(is_tried);
    groups.size.into_iter().chain(sizes).flat_map(move |size| {
        let size = size.max(1);
        let [.., most] = SIZES;
        let all = (1..=size.min(most)).filter(move |_| groups.leaving.is_none());
        groups.leaving.into_iter().chain(all).flat_map(move |leaving| {
            let tried = AHEAD.into_iter().filter(move |_| groups.ahead.is_none());
            let ahead = groups.ahead.into_iter().chain(tried);
            ahead.map(move |ahead| Setting { size, leaving, ahead: ahead.max(1) })
        })
    })
}

impl Rule for Groups {
    fn parameters(&self) -> &'static [Parameter] {
        const {
            &[
                Parameter::count("size", "layers"),
                Parameter::count("leaving", "layers"),
                Parameter::count("ahead", "ops"),
            ]
        }
    }

    fn set(&mut self, parameter: &str, value: u64) {
        let value = u32::try_from(value).ok();
        match parameter {
            "size" => self.size = value,
            "leaving" => self.leaving = value,
            "ahead" => self.ahead = value,
            _ => {}
        }
    }

    fn lists(&self, task: &Task<'_>) -> usize {
        grid(*self, task.sequence.len()).count()
    }

    /// The time of the uploads. A setting that moves the same as another one need not be tried.
    fn least_ns(
        &self,
        list: usize,
        (task, memory): (&Task<'_>, &Memory<'_>),
        scratch: &mut Scratch<'_>,
    ) -> Result<u64, OutOfScratch> {
        let sequence = task.sequence;
        let Some(setting) = grid(*self, sequence.len()).nth(list) else { return Ok(0) };
        let mut scratch = scratch.reborrow();
        let layers = scratch.take(sequence.tensors().len(), NO_LAYER)?;
        let count = number(task, layers);
        if self.size.is_none() && self.leaving.is_none() && setting.is_same_as_another(count) {
            return Ok(u64::MAX);
        }
        let leaves = |tensor: TensorId, distance| setting.evicts(layers[tensor.index()], distance);
        cache::uploads_ns(task, memory, leaves, &mut scratch)
    }

    fn write(
        &self,
        list: usize,
        builder: Builder<'_>,
        _: &mut Search<'_>,
        scratch: &mut Scratch<'_>,
    ) -> Result<Lengths, Stuck> {
        let setting = grid(*self, builder.task.sequence.len()).nth(list);
        let setting @ Setting { ahead, .. } = setting.ok_or(Stuck::NoMemory)?;
        let mut scratch = scratch.reborrow();
        let layers = scratch.take(builder.task.sequence.tensors().len(), NO_LAYER)?;
        number(builder.task, layers);
        cache::write(builder, ahead, &mut scratch, |builder, op, tensor| {
            match setting.evicts(layers[tensor.index()], distance(builder, op, tensor)) {
                true => Retention::Leaves,
                false => Retention::Cached,
            }
        })
    }
}

/// The tensor is not a state, or no op uses it.
const NO_LAYER: u32 = u32::MAX;

/// Finds the layer of each state, and returns the number of layers.
fn number(task: &Task<'_>, layers: &mut [u32]) -> u32 {
    let sequence = task.sequence;
    let mut next = 0u32;
    for op in sequence.launches() {
        let layer = next;
        for &tensor in sequence.operands_of(op) {
            let is_state = sequence.tensor(tensor).kind == Kind::State;
            if is_state && layers[tensor.index()] == NO_LAYER {
                layers[tensor.index()] = layer;
                next = layer.saturating_add(1);
            }
        }
    }
    next
}
