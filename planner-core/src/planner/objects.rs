//! The size of objects: one chunk, or several chunks if a budget has many.
//!
//! Planning, mapping and fixed placements take time for each object, and about a thousand objects
//! divide the memory finely enough.

use super::request::Request;
use crate::machine::Machine;

/// The least number of objects in a budget. A balance: larger objects move more bytes than an op
/// needs, smaller objects take more time to plan.
const FEWEST: u64 = 1024;

/// Rounding up to larger objects may add this fraction of the bytes of all large tensors.
const ROUNDED: u64 = 1024;

/// The most objects of all large tensors, even if rounding to larger objects adds more bytes. If a
/// tensor is allocated twice in an iteration, placements over up to three iterations have at most
/// four million objects in four tries for each.
const MOST: u64 = (4 << 20) / (2 * 4 * (1 + 2 + 3));

/// The same machine with larger chunks. A plan for it has objects of several chunks, and is also a
/// plan for the machine itself. Returns `None` if single chunks are the better objects. O(tensors)
/// for each size.
#[must_use]
pub fn with_larger_objects(request: &Request<'_>) -> Option<Machine> {
    let Request { graph, machine, budget_bytes } = *request;
    // Smaller tensors usually lie in the arena.
    let sizes_bytes = graph.tensors().iter().map(|tensor| tensor.bytes);
    let large_bytes = sizes_bytes.filter(|&bytes| bytes >= machine.chunk_bytes);
    let sum =
        |bytes: &dyn Fn(u64) -> u64| large_bytes.clone().map(bytes).fold(0, u64::saturating_add);
    let in_objects = |object_bytes: u64| {
        sum(&|bytes| bytes.checked_next_multiple_of(object_bytes).unwrap_or(u64::MAX))
    };
    let most_bytes = in_objects(machine.chunk_bytes).saturating_add(sum(&|bytes| bytes / ROUNDED));
    let doublings = (machine.chunks_within(budget_bytes) / FEWEST).checked_ilog2()?;
    let mut sizes = (0..=doublings).map(|doublings| machine.chunk_bytes << doublings);
    let even = sizes.clone().rev().find(|&size| in_objects(size) <= most_bytes);
    let few = sizes.clone().find(|&size| in_objects(size) <= size.saturating_mul(MOST));
    let few = few.or_else(|| sizes.next_back());
    let object_bytes = even.max(few).filter(|&bytes| bytes > machine.chunk_bytes)?;
    Some(machine.with_chunk_bytes(object_bytes))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::graph::{Graph, Kind, Op, Tensor, TensorId};
    use crate::scratch::Scratch;

    const CHUNK_BYTES: u64 = 1 << 20;

    /// The chunks in an object, for some equal weights and a bias.
    fn chunks<const WEIGHTS: usize>(weight_bytes: u64, budget_bytes: u64) -> Option<u64> {
        let weight = Tensor { bytes: weight_bytes, kind: Kind::State };
        let mut tensors = [weight; 100];
        tensors[WEIGHTS].bytes = 100;
        let tensors = &tensors[..=WEIGHTS];
        let operands: [_; 100] = core::array::from_fn(|tensor| TensorId(tensor as u32));
        let operands = &operands[..=WEIGHTS];
        let ops = [Op { time_ns: 1, reads: operands.len() as u32, ..Op::default() }];
        let mut memory = [0; 1000];
        let graph = Graph::new(tensors, &ops, operands, &mut Scratch::new(&mut memory)).unwrap();
        let machine = Machine::of_chunks(CHUNK_BYTES);
        let request = Request { graph: &graph, machine: &machine, budget_bytes };
        with_larger_objects(&request).map(|machine| machine.chunk_bytes / CHUNK_BYTES)
    }

    #[test]
    fn large_budgets_have_large_objects() {
        assert_eq!(chunks::<1>(64 << 20, 1 << 30), None);
        assert_eq!(chunks::<1>(64 << 20, 2 << 30), Some(2));
        assert_eq!(chunks::<1>(64 << 20, 31 << 30), Some(16));
        assert_eq!(chunks::<1>(64 << 20, 0), None);
    }

    #[test]
    fn objects_waste_little() {
        // Of 1,000 MiB, 8 divides all and 16 would waste 8.
        assert_eq!(chunks::<1>(1000 << 20, 31 << 30), Some(8));
        assert_eq!(chunks::<1>(1001 << 20, 31 << 30), None);
    }

    #[test]
    fn there_are_not_too_many_objects() {
        assert_eq!(chunks::<87>(1001 << 20, 31 << 30), None);
        assert_eq!(chunks::<88>(1001 << 20, 31 << 30), Some(2));
        // As large as the budget allows.
        assert_eq!(chunks::<99>(4001 << 20, 4 << 30), Some(4));
        assert_eq!(chunks::<99>(4001 << 20, 1 << 30), None);
    }
}
