//! The inputs: a fresh value in each iteration, in two alternating slots on the host.

#![expect(
    clippy::indexing_slicing,
    reason = "tensor ids are those of the verified graph, and the arrays have an entry for each \
              tensor"
)]

use super::points::Points;
use crate::backend::Point;
use crate::graph::{Kind, TensorId};
use crate::plan::{Part, Step};
use crate::schedule::Stream;
use crate::scratch::{Limits, OutOfScratch, Scratch, words};
use crate::verify::Verified;

/// The iteration of each input's value on the device, and the steps that use its slots on the host.
#[derive(Debug)]
pub(super) struct Inputs<'a> {
    /// One more than the position of the last launch that reads each tensor, 0 for none.
    last_read: &'a mut [u32],
    /// The iteration to which the device's value of each tensor belongs.
    pub(super) value: &'a mut [u64],
    /// The last step that prefetches an input's value of the iteration itself, and of the next
    /// iteration.
    last_prefetch: [Option<u32>; 2],
    /// The last offload of an input.
    last_offload: Option<u32>,
    /// The last op on the host that reads an input.
    last_host: Option<u32>,
    /// The first step that prefetches an input's value of the next iteration.
    first_next: Option<u32>,
}

impl<'a> Inputs<'a> {
    pub(super) const fn scratch_words(limits: &Limits) -> usize {
        words::<u32>(limits.tensors).saturating_add(words::<u64>(limits.tensors))
    }

    pub(super) fn new(
        verified: &Verified<'_>,
        scratch: &mut Scratch<'a>,
    ) -> Result<Self, OutOfScratch> {
        let graph = verified.graph();
        let (steps, schedule) = (verified.plan().steps, verified.schedule().of_iteration(0));
        let tensors = graph.tensors().len();
        let mut inputs = Self {
            last_read: scratch.take(tensors, 0)?,
            value: scratch.take(tensors, 0)?,
            last_prefetch: [None; 2],
            last_offload: None,
            last_host: None,
            first_next: None,
        };
        for (position, step) in (1..).zip(steps) {
            if let Some(launched) = step.launched() {
                for tensor in graph.read_by(launched) {
                    inputs.last_read[tensor.index()] = position;
                }
            }
        }
        let is_input = |part: Part| graph.tensor(part.tensor).kind == Kind::Input;
        for (at, (step, entry)) in (0..).zip(steps.iter().zip(schedule)) {
            match *step {
                Step::Prefetch(part) if is_input(part) => {
                    let next = inputs.is_next(part.tensor, at);
                    inputs.last_prefetch[usize::from(next)] = Some(entry.index());
                    if next {
                        inputs.first_next = inputs.first_next.or(Some(at));
                    }
                }
                Step::Offload(part) if is_input(part) => inputs.last_offload = Some(entry.index()),
                Step::Host(op) => {
                    let mut reads = graph.reads(op).iter();
                    if reads.any(|&tensor| graph.tensor(tensor).kind == Kind::Input) {
                        inputs.last_host = Some(entry.index());
                    }
                }
                _ => {}
            }
        }
        Ok(inputs)
    }

    /// Whether a prefetch at a position of the list fetches the next iteration's value.
    pub(super) fn is_next(&self, tensor: TensorId, step: u32) -> bool {
        step >= self.last_read[tensor.index()]
    }

    /// Whether this step of the list is the first that needs the next iteration's values.
    pub(super) fn needs_next(&self, step: u32) -> bool {
        self.first_next == Some(step)
    }

    /// Whether no step needs the next iteration's values.
    pub(super) const fn needs_no_next(&self) -> bool {
        self.first_next.is_none()
    }

    /// Whether an iteration uses the slots of its own inputs, by copies or on the host; and whether
    /// it uses the slots of the next iteration's inputs.
    pub(super) const fn slots_used(&self) -> [bool; 2] {
        let [own, next] = self.last_prefetch;
        let own = own.is_some() || self.last_offload.is_some() || self.last_host.is_some();
        [own, next.is_some()]
    }

    /// The last steps that use a slot, by their streams and positions.
    pub(super) fn last_uses(&self) -> [(Stream, Option<u32>); 4] {
        let [own, next] = self.last_prefetch;
        [
            (Stream::Upload, own),
            (Stream::Upload, next),
            (Stream::Download, self.last_offload),
            (Stream::Host, self.last_host),
        ]
    }

    /// Records a prefetch; returns the iteration whose value it fetches.
    pub(super) fn arrives(&mut self, tensor: TensorId, step: u32, iteration: u64) -> u64 {
        let value = iteration.saturating_add(u64::from(self.is_next(tensor, step)));
        self.value[tensor.index()] = value;
        value
    }

    /// The points to wait for before the values of iteration `iteration + 1` may be written into
    /// their slots: the last copies from and to the slots, and the last op on the host that reads
    /// them.
    pub(super) fn free_slots(
        &self,
        points: &Points<'_>,
        iteration: u64,
    ) -> impl Iterator<Item = Point> + use<> {
        let point = |stream, index: Option<u32>, iterations_back: u64| {
            let iteration =
                iteration.checked_sub(iterations_back).filter(|&iteration| iteration > 0)?;
            Some(Point { stream, value: points.value(stream, index?, iteration) })
        };
        let [own, next] = self.last_prefetch;
        let upload = point(Stream::Upload, own, 1).or(point(Stream::Upload, next, 2));
        let download = point(Stream::Download, self.last_offload, 1);
        let host = point(Stream::Host, self.last_host, 1);
        upload.into_iter().chain(download).chain(host)
    }
}
