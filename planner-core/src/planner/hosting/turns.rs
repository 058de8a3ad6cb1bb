//! Finds the ops that the host ends sooner than a device that waits for the link.

#![expect(
    clippy::indexing_slicing,
    reason = "ids are those of the checked graph, and the arrays have an entry for each op and \
              tensor"
)]

use super::choice::WHOLE;
use crate::graph::{Kind, Op, OpId};
use crate::machine::Direction;
use crate::planner::request::Request;
use crate::scratch::{OutOfScratch, Scratch};

/// The fraction of the budget that the link may fill ahead of need. A balance: with more, the
/// device gets whole layers in a row, which need memory at once; with less, the link idles.
const FILLED: u64 = 8;

/// Bits for the processors that wrote a value.
const DEVICE: u8 = 1;
const HOST: u8 = 2;

/// Two processors that run one op at a time. Before the device runs an op, the link uploads a share
/// of each state that the op reads; the rest is resident. The link goes on while the host computes.
struct Turns<'t> {
    request: &'t Request<'t>,
    share: u32,
    /// The processors that wrote the value of each tensor in this iteration.
    made_by: &'t mut [u8],
    /// The time at which the last op ended.
    now_ns: u64,
    /// The time at which the link has uploaded all states of the ops so far.
    link_ns: u64,
    /// The longest time by which the link may be ahead of the ops.
    filled_ns: u64,
    /// The time in which a value reaches the other processor.
    to_device_ns: u64,
    to_host_ns: u64,
}

/// For each op, 1 if the host ends it sooner when ops run in this order, else 0.
pub(super) fn ahead<'s>(
    request: &Request<'_>,
    order: &[OpId],
    share: u32,
    scratch: &mut Scratch<'s>,
) -> Result<&'s [u8], OutOfScratch> {
    let graph = request.graph;
    let taken = scratch.take(graph.ops().len(), 0u8)?;
    let made_by = scratch.take(graph.tensors().len(), 0u8)?;
    let moves_ns = |direction, bytes| moves_ns(request, direction, bytes);
    let mut turns = Turns {
        request,
        share,
        made_by,
        now_ns: 0,
        link_ns: 0,
        filled_ns: moves_ns(Direction::HostToDevice, request.budget_bytes / FILLED),
        // On average, a value waits for half of a chunk that the link is moving.
        to_device_ns: moves_ns(Direction::HostToDevice, request.machine.chunk_bytes / 2),
        to_host_ns: moves_ns(Direction::DeviceToHost, 1),
    };
    // The first iteration shows how far the link is ahead at the start of the second one.
    for _iteration in 0..2 {
        turns.made_by.fill(0);
        for &op in order {
            taken[op.index()] = u8::from(turns.is_on_host(op));
        }
    }
    Ok(taken)
}

impl Turns<'_> {
    /// Runs an op on the processor that ends it sooner; returns whether that is the host. An op
    /// that reads an updated state runs on the processor that updated it.
    fn is_on_host(&mut self, op: OpId) -> bool {
        let graph = self.request.graph;
        let Op { time_ns, host_ns, .. } = graph.op(op);
        let makers = |kind| {
            let read = graph.reads(op).iter().filter(|tensor| graph.tensor(**tensor).kind == kind);
            read.fold(0, |makers, tensor| makers | self.made_by[tensor.index()])
        };
        let (of_states, of_values) = (makers(Kind::State), makers(Kind::Temporary));
        let up_ns = if of_values & HOST == 0 { 0 } else { self.to_device_ns };
        let down_ns = if of_values & DEVICE == 0 { 0 } else { self.to_host_ns };
        let brought_ns = self.link_ns.saturating_add(self.states_upload_ns(op));
        let start_ns = self.now_ns.saturating_add(up_ns).max(brought_ns);
        let device_ns = start_ns.saturating_add(time_ns);
        let host_ns = host_ns.filter(|_| of_states != DEVICE);
        let host_ns = host_ns.map(|ns| self.now_ns.saturating_add(down_ns).saturating_add(ns));
        let sooner = host_ns.filter(|&host_ns| of_states == HOST || host_ns < device_ns);
        self.now_ns = sooner.unwrap_or(device_ns);
        self.link_ns = if sooner.is_some() { self.link_ns } else { brought_ns };
        self.link_ns = self.link_ns.max(self.now_ns.saturating_sub(self.filled_ns));
        for tensor in graph.writes(op) {
            self.made_by[tensor.index()] = if sooner.is_some() { HOST } else { DEVICE };
        }
        sooner.is_some()
    }

    /// The time in which the link uploads the share of the states that an op reads.
    fn states_upload_ns(&self, op: OpId) -> u64 {
        let graph = self.request.graph;
        let tensors = graph.reads(op).iter().map(|&tensor| graph.tensor(tensor));
        let states = tensors.filter(|tensor| tensor.kind == Kind::State);
        let bytes = states.fold(0u64, |sum, state| sum.saturating_add(state.bytes));
        let shared = u128::from(bytes).saturating_mul(self.share.into()).checked_div(WHOLE.into());
        match shared {
            None | Some(0) => 0,
            // A share is at most the whole, so the quotient is at most `bytes`.
            Some(bytes) => moves_ns(self.request, Direction::HostToDevice, bytes as u64),
        }
    }
}

/// The time of a transfer; `u64::MAX` if it overflows.
pub(super) fn moves_ns(request: &Request<'_>, direction: Direction, bytes: u64) -> u64 {
    request.machine.transfer_ns(direction, bytes).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::graph::{Graph, Tensor, TensorId};
    use crate::machine::Machine;

    const S: u64 = 1_000_000_000;

    /// Whether each of eight layers ends sooner on the host. The device takes a second for a layer,
    /// the link 100 seconds for all of its weights; the link may be two layers ahead.
    fn layers_on_host(share: u32, host_s: u64) -> [bool; 8] {
        let weights = Tensor { bytes: 100, kind: Kind::State };
        let value = Tensor { bytes: 1, kind: Kind::Temporary };
        let mut tensors = [weights; 16];
        tensors[8..].fill(value);
        let mut operands = [TensorId(0); 23];
        let mut ops = [Op { time_ns: S, host_ns: Some(host_s * S), ..Op::default() }; 8];
        let mut at = 0;
        for layer in 0..8u32 {
            let reads = if layer == 0 { &[0][..] } else { &[layer, 7 + layer] };
            let touched = reads.iter().copied().chain([8 + layer]);
            let op = &mut ops[layer as usize];
            (op.first_operand, op.reads, op.writes) = (at as u32, reads.len() as u32, 1);
            for tensor in touched {
                operands[at] = TensorId(tensor);
                at += 1;
            }
        }
        let mut words = [0; 1024];
        let mut scratch = Scratch::new(&mut words);
        let graph = Graph::new(&tensors, &ops, &operands, &mut scratch.reborrow()).unwrap();
        let machine = Machine::of_chunks(1);
        let request = Request { graph: &graph, machine: &machine, budget_bytes: 200 * FILLED };
        let order: [OpId; 8] = core::array::from_fn(|op| OpId(op as u32));
        let taken = ahead(&request, &order, share, &mut scratch).unwrap();
        core::array::from_fn(|layer| taken[layer] == 1)
    }

    #[test]
    fn host_and_device_take_turns_where_the_host_is_little_faster_than_the_link() {
        let on_host = layers_on_host(WHOLE, 60);
        assert_eq!(on_host.iter().filter(|&&on_host| on_host).count(), 4, "{on_host:?}");
        assert!(on_host.windows(2).all(|pair| pair[0] != pair[1]), "{on_host:?}");
    }

    #[test]
    fn a_slow_host_gets_nothing_nor_does_one_whose_device_waits_for_nothing() {
        assert_eq!(layers_on_host(WHOLE, 1000), [false; 8]);
        assert_eq!(layers_on_host(0, 100), [false; 8]);
    }

    #[test]
    fn readers_of_a_state_run_on_the_side_that_updated_it() {
        let tensor = |bytes, kind| Tensor { bytes, kind };
        let tensors = [tensor(100, Kind::State), tensor(1, Kind::State)];
        let op = |first_operand, reads, writes, host_s| {
            let (time_ns, host_ns) = (S, Some(host_s * S));
            Op { time_ns, first_operand, reads, writes, host_ns, ..Op::default() }
        };
        let operands = [0, 1, 1].map(TensorId);
        for (host_s, reader_host_s, side) in [(5, 10_000, 1), (5000, 0, 0)] {
            let ops = [op(0, 1, 1, host_s), op(2, 1, 0, reader_host_s)];
            let mut words = [0; 1024];
            let mut scratch = Scratch::new(&mut words);
            let graph = Graph::new(&tensors, &ops, &operands, &mut scratch.reborrow()).unwrap();
            let machine = Machine::of_chunks(1);
            let request = Request { graph: &graph, machine: &machine, budget_bytes: 100 };
            assert_eq!(
                ahead(&request, &[OpId(0), OpId(1)], WHOLE, &mut scratch).unwrap(),
                [side; 2]
            );
        }
    }
}
