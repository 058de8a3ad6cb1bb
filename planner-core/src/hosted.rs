//! Ops that run on the host, and their tensors as the device sees them.
//!
//! To the device, a tensor that the host writes is an input, and a tensor that the host reads is an
//! output, so planning launches and transfers need not know about the host. A tensor may cross once
//! in each direction in an iteration; an op that would make it cross more often stays on the
//! device.

#![expect(
    clippy::indexing_slicing,
    reason = "ops and tensors are those of the checked graph, and the arrays have an entry for \
              each"
)]

use crate::graph::{Graph, Kind, OpId, Tensor, TensorId};
use crate::scratch::{Limits, OutOfScratch, Scratch, total, words};
use bytemuck::{Pod, Zeroable};

/// The number of rounds in which ops are moved back to the device. Each round takes a pass over the
/// operands, and an op that one round moves back may be the reason why another op cannot run on the
/// host either.
const ROUNDS: usize = 16;

/// No op.
const NEVER: u32 = u32::MAX;

/// The ops that run on the host.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Hosted<'a> {
    on_host: &'a [u8],
    /// All tensors, with the kinds that the device sees.
    tensors: &'a [DeviceUse],
    /// The last op on the host that writes each tensor, in every order that keeps the dependencies.
    last_writes: &'a [u32],
}

/// How the device sees a tensor.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Pod, Zeroable)]
#[repr(transparent)]
struct DeviceUse(u8);

impl DeviceUse {
    /// No op on the host uses it.
    const DEVICE: Self = Self(0);
    /// No launch uses it.
    const HOST: Self = Self(1);
    /// Host ops and launches read it, and no op writes it.
    const SHARED: Self = Self(2);
    /// Launches write it before host ops read it. Host ops may update their copy after the last
    /// launch that uses it.
    const COPIED: Self = Self(3);
    /// Host ops write it after the launches that read it: launches read the value of the previous
    /// iteration.
    const RENEWED: Self = Self(4);
    /// Host ops write it before the launches that read it.
    const MADE: Self = Self(5);
    /// It would cross more often: the host ops that use it cannot run there.
    const TORN: Self = Self(6);
}

/// The first and the last op of each kind that uses a tensor.
#[derive(Clone, Copy, Pod, Zeroable)]
#[repr(C)]
struct Touched {
    device: Span,
    device_reads: Span,
    device_writes: Span,
    host: Span,
    host_reads: Span,
    host_writes: Span,
}

/// The first and the last of some ops.
#[derive(Clone, Copy, Pod, Zeroable)]
#[repr(C)]
struct Span {
    first: u32,
    last: u32,
}

impl Span {
    const NONE: Self = Self { first: NEVER, last: NEVER };

    const fn is_none(self) -> bool {
        self.first == NEVER
    }

    const fn add(&mut self, op: OpId) {
        if self.is_none() {
            self.first = op.0;
        }
        self.last = op.0;
    }
}

impl Touched {
    const NONE: Self = Self {
        device: Span::NONE,
        device_reads: Span::NONE,
        device_writes: Span::NONE,
        host: Span::NONE,
        host_reads: Span::NONE,
        host_writes: Span::NONE,
    };

    fn add(&mut self, op: OpId, on_host: bool, writes: bool) {
        let (all, some) = match (on_host, writes) {
            (false, false) => (&mut self.device, &mut self.device_reads),
            (false, true) => (&mut self.device, &mut self.device_writes),
            (true, false) => (&mut self.host, &mut self.host_reads),
            (true, true) => (&mut self.host, &mut self.host_writes),
        };
        all.add(op);
        some.add(op);
    }

    fn seen(self, kind: Kind) -> DeviceUse {
        let Self { device, device_reads, device_writes, host, host_reads, host_writes } = self;
        if host.is_none() {
            return DeviceUse::DEVICE;
        }
        if device.is_none() {
            return DeviceUse::HOST;
        }
        match (device_writes.is_none(), host_writes.is_none()) {
            // The next value of an input must not come before both sides have read the current one.
            (true, true) if kind == Kind::Input => DeviceUse::TORN,
            (true, true) => DeviceUse::SHARED,
            (false, false)
                if kind.is_made()
                    && device_writes.last < host_reads.first
                    && device.last < host_writes.first =>
            {
                DeviceUse::COPIED
            }
            (false, false) => DeviceUse::TORN,
            (true, false) if kind == Kind::State && device.last < host_writes.first => {
                DeviceUse::RENEWED
            }
            (true, false) if host_writes.last < device_reads.first => DeviceUse::MADE,
            // The host's copies of states and inputs are older than a value that a launch writes.
            (false, true) if kind.is_made() && device_writes.last < host_reads.first => {
                DeviceUse::COPIED
            }
            _ => DeviceUse::TORN,
        }
    }
}

impl<'a> Hosted<'a> {
    pub(crate) const fn scratch_words(limits: &Limits) -> usize {
        total([
            words::<u8>(limits.ops),
            words::<DeviceUse>(limits.tensors),
            words::<u32>(limits.tensors),
            words::<Touched>(limits.tensors),
        ])
    }

    /// Runs each wanted op on the host if the op has a time there and all its tensors can be there.
    /// Returns `None` if no op stays on the host. O(operands).
    pub(crate) fn new(
        graph: &Graph<'_>,
        wanted: impl Fn(OpId) -> bool,
        scratch: &mut Scratch<'a>,
    ) -> Result<Option<Self>, OutOfScratch> {
        let on_host = scratch.take(graph.ops().len(), 0u8)?;
        let tensors = scratch.take(graph.tensors().len(), DeviceUse::DEVICE)?;
        let last_writes = scratch.take(tensors.len(), NEVER)?;
        let mut scratch = scratch.reborrow();
        let touched = scratch.take(tensors.len(), Touched::NONE)?;
        for op in graph.op_ids() {
            let may = graph.op(op).host_ns.is_some();
            on_host[op.index()] = u8::from(may && wanted(op));
        }
        for _round in 0..ROUNDS {
            classify(graph, on_host, touched, tensors);
            if !send_back(graph, on_host, tensors) {
                let any = on_host.contains(&1);
                for (last, touched) in last_writes.iter_mut().zip(touched) {
                    *last = touched.host_writes.last;
                }
                return Ok(any.then_some(Self { on_host, tensors, last_writes }));
            }
        }
        Ok(None)
    }

    /// Whether an op runs on the host.
    pub(crate) fn contains(&self, op: OpId) -> bool {
        self.on_host[op.index()] == 1
    }

    /// A tensor as the device sees it.
    pub(crate) fn tensor(&self, id: TensorId, tensor: Tensor) -> Tensor {
        let kind = match self.tensors[id.index()] {
            DeviceUse::HOST => Kind::Temporary,
            DeviceUse::COPIED => Kind::Output,
            DeviceUse::RENEWED | DeviceUse::MADE => Kind::Input,
            _ => tensor.kind,
        };
        Tensor { kind, ..tensor }
    }

    /// Whether an op on the host uses a tensor.
    pub(crate) fn touches(&self, tensor: TensorId) -> bool {
        self.tensors[tensor.index()] != DeviceUse::DEVICE
    }

    /// Whether launches read a value that an op on the host writes.
    pub(crate) fn makes(&self, tensor: TensorId) -> bool {
        matches!(self.tensors[tensor.index()], DeviceUse::RENEWED | DeviceUse::MADE)
    }

    /// Whether launches read the value that this op on the host writes, and no later op there
    /// writes it.
    pub(crate) fn completes(&self, op: OpId, tensor: TensorId) -> bool {
        self.makes(tensor) && self.last_writes[tensor.index()] == op.0
    }

    /// Whether launches read a value that an op on the host has written in the same iteration.
    pub(crate) fn makes_first(&self, tensor: TensorId) -> bool {
        self.tensors[tensor.index()] == DeviceUse::MADE
    }

    /// Whether ops on the host read a value that launches write.
    pub(crate) fn copies(&self, tensor: TensorId) -> bool {
        self.tensors[tensor.index()] == DeviceUse::COPIED
    }
}

/// Classifies each tensor by the ops that use it.
fn classify(graph: &Graph<'_>, on_host: &[u8], touched: &mut [Touched], tensors: &mut [DeviceUse]) {
    touched.fill(Touched::NONE);
    for op in graph.op_ids() {
        let is_on_host = on_host[op.index()] == 1;
        for &tensor in graph.reads(op) {
            touched[tensor.index()].add(op, is_on_host, false);
        }
        for &tensor in graph.writes(op) {
            touched[tensor.index()].add(op, is_on_host, true);
        }
    }
    for ((seen, touched), tensor) in tensors.iter_mut().zip(touched).zip(graph.tensors()) {
        *seen = touched.seen(tensor.kind);
    }
}

/// Moves ops back to the device that make a tensor cross too often; returns whether there were any.
fn send_back(graph: &Graph<'_>, on_host: &mut [u8], tensors: &[DeviceUse]) -> bool {
    let mut any = false;
    for op in graph.op_ids() {
        let is_torn = |tensor: &TensorId| tensors[tensor.index()] == DeviceUse::TORN;
        if on_host[op.index()] == 1 && graph.operands_of(op).iter().any(is_torn) {
            on_host[op.index()] = 0;
            any = true;
        }
    }
    any
}

#[cfg(test)]
mod tests {
    extern crate std;

    use super::*;
    use crate::graph::Op;
    use crate::sequence::Sequence;
    use std::vec::Vec;

    const STATE: Kind = Kind::State;
    const TEMPORARY: Kind = Kind::Temporary;

    /// The ops that run on the host, each with the number of launches before it; and the kinds of
    /// all tensors as the device sees them.
    type Found = (Vec<(u32, u32)>, Vec<Kind>);

    /// The result for ops, each with whether it may run on the host, its reads and its writes.
    fn hosted<const OPS: usize>(
        kinds: &[Kind],
        ops: [(bool, &[u32], &[u32]); OPS],
    ) -> Option<Found> {
        let tensors: Vec<_> = kinds.iter().map(|&kind| Tensor { bytes: 8, kind }).collect();
        let mut operands = Vec::new();
        let ops = ops.map(|(may, reads, writes)| {
            let first_operand = operands.len() as u32;
            operands.extend(reads.iter().chain(writes).map(|&id| TensorId(id)));
            let (reads, writes) = (reads.len() as u32, writes.len() as u32);
            let host_ns = may.then_some(5);
            Op { time_ns: 1, host_ns, first_operand, reads, writes, ..Op::default() }
        });
        let mut memory = [0; 4096];
        let mut scratch = Scratch::new(&mut memory);
        let graph = Graph::new(&tensors, &ops, &operands, &mut scratch.reborrow()).unwrap();
        let hosted = Hosted::new(&graph, |_| true, &mut scratch).unwrap()?;
        let sequence = Sequence::as_given(&graph, Some(&hosted), &mut scratch).unwrap();
        let steps = sequence.host_steps().iter().map(|step| (step.after, step.op.0));
        Some((steps.collect(), sequence.tensors().map(|tensor| tensor.kind).collect()))
    }

    #[test]
    fn an_update_reads_an_output_and_makes_an_input() {
        let ops: [(bool, &[u32], &[u32]); 3] =
            [(false, &[0], &[1]), (true, &[1, 0, 2], &[0, 2]), (false, &[], &[3])];
        let (steps, kinds) = hosted(&[STATE, TEMPORARY, STATE, STATE], ops).unwrap();
        assert_eq!(steps, [(1, 1)]);
        assert_eq!(kinds, [Kind::Input, Kind::Output, TEMPORARY, STATE]);
    }

    #[test]
    fn ops_run_as_their_gradients_come() {
        let ops: [(bool, &[u32], &[u32]); 4] = [
            (false, &[0, 1], &[2]),
            (false, &[0, 1, 2], &[3]),
            (true, &[3, 0], &[0]),
            (true, &[2, 1], &[1]),
        ];
        let (steps, _) = hosted(&[STATE, STATE, TEMPORARY, TEMPORARY], ops).unwrap();
        assert_eq!(steps, [(2, 2), (2, 3)]);
        let ops: [(bool, &[u32], &[u32]); 4] = [
            (false, &[1], &[2]),
            (false, &[0, 2], &[3]),
            (true, &[3, 0], &[0]),
            (true, &[2, 1], &[1]),
        ];
        let (steps, _) = hosted(&[STATE, STATE, TEMPORARY, TEMPORARY], ops).unwrap();
        assert_eq!(steps, [(1, 3), (2, 2)]);
    }

    #[test]
    fn a_chain_takes_turns() {
        let ops: [(bool, &[u32], &[u32]); 3] =
            [(false, &[], &[0]), (true, &[0], &[1]), (false, &[1], &[2])];
        let (steps, kinds) = hosted(&[TEMPORARY; 3], ops).unwrap();
        assert_eq!(steps, [(1, 1)]);
        assert_eq!(kinds, [Kind::Output, Kind::Input, TEMPORARY]);
    }

    /// A gradient that is clipped in place after the device has read it for the last time.
    #[test]
    fn the_host_updates_its_copy_of_what_launches_have_made() {
        let ops: [(bool, &[u32], &[u32]); 5] = [
            (false, &[1], &[0]),
            (true, &[0], &[2]),
            (false, &[0], &[3]),
            (true, &[0, 2], &[0]),
            (true, &[0, 1], &[1]),
        ];
        let (steps, kinds) = hosted(&[TEMPORARY, STATE, TEMPORARY, STATE], ops).unwrap();
        assert_eq!(steps, [(1, 1), (2, 3), (2, 4)]);
        assert_eq!(kinds, [Kind::Output, Kind::Input, TEMPORARY, STATE]);
    }

    #[test]
    fn a_tensor_crosses_once_in_each_direction() {
        // The host updates a tensor that launches write before and after it.
        let torn: [(bool, &[u32], &[u32]); 3] =
            [(false, &[], &[0]), (true, &[0], &[0]), (false, &[0], &[0])];
        assert_eq!(hosted(&[TEMPORARY], torn), None);
        // The host reads a state that launches write.
        let torn: [(bool, &[u32], &[u32]); 2] = [(false, &[0], &[0]), (true, &[0], &[1])];
        assert_eq!(hosted(&[STATE, TEMPORARY], torn), None);
        // Both sides read an input.
        let torn: [(bool, &[u32], &[u32]); 2] = [(false, &[0], &[1]), (true, &[0], &[2])];
        assert_eq!(hosted(&[Kind::Input, STATE, STATE], torn), None);
        // Only the second op on the host is the reason; without it, the first may stay.
        let ops: [(bool, &[u32], &[u32]); 3] =
            [(true, &[], &[1]), (false, &[0, 1], &[0]), (true, &[0], &[2])];
        let (steps, _) = hosted(&[STATE, TEMPORARY, TEMPORARY], ops).unwrap();
        assert_eq!(steps, [(0, 0)]);
    }
}
