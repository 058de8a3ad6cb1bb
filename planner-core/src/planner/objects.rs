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

/// The most objects of all large tensors, even if rounding to larger objects adds more bytes. If an
/// iteration allocates each tensor twice, four tries each over one, two and three iterations place
/// at most four million objects, as many as `spillway::placing` tries in a few seconds.
const MOST: u64 = (4 << 20) / (2 * 4 * (1 + 2 + 3));

/// The same machine with larger chunks. A plan for it has objects of several chunks, and is also a
/// plan for the machine itself. Returns `None` if single chunks are the better objects. O(tensors)
/// for each size.
#[must_use]
pub fn with_larger_objects(request: &Request<'_>) -> Option<Machine> {
    let machine = request.machine;
    let most_bytes = in_objects(request, machine.chunk_bytes).saturating_add(
        large_bytes(request).map(|bytes| bytes / ROUNDED).fold(0, u64::saturating_add),
    );
    let even = sizes(request)?.rev().find(|&size| in_objects(request, size) <= most_bytes);
    even.max(size_of_few(request)).map(|size| machine.with_chunk_bytes(size))
}

/// Does the same for memory that is so tight that objects of several chunks serve only if there are too
/// many single chunks.
#[must_use]
pub fn with_fewer_objects(request: &Request<'_>) -> Option<Machine> {
    size_of_few(request).map(|size| request.machine.with_chunk_bytes(size))
}

/// The smallest size of which there are not too many objects, or the largest size. `None` if there are
/// not too many chunks.
fn size_of_few(request: &Request<'_>) -> Option<u64> {
    let is_fine = |size: u64| in_objects(request, size) <= size.saturating_mul(MOST);
    if is_fine(request.machine.chunk_bytes) {
        return None;
    }
    let mut sizes = sizes(request)?;
    sizes.clone().find(|&size| is_fine(size)).or_else(|| sizes.next_back())
}

/// The sizes of several chunks that divide the budget into enough objects.
fn sizes(request: &Request<'_>) -> Option<impl DoubleEndedIterator<Item = u64> + Clone> {
    let machine = request.machine;
    let doublings = (machine.chunks_within(request.budget_bytes) / FEWEST).checked_ilog2()?;
    Some((1..=doublings).map(|doublings| machine.chunk_bytes << doublings))
}

/// The bytes of each tensor of a chunk or more. Smaller tensors usually lie in the arena.
fn large_bytes(request: &Request<'_>) -> impl Iterator<Item = u64> {
    let sizes_bytes = request.graph.tensors().iter().map(|tensor| tensor.bytes);
    sizes_bytes.filter(|&bytes| bytes >= request.machine.chunk_bytes)
}

/// The bytes of all large tensors, in objects of their own.
fn in_objects(request: &Request<'_>, object_bytes: u64) -> u64 {
    large_bytes(request)
        .map(|bytes| bytes.checked_next_multiple_of(object_bytes).unwrap_or(u64::MAX))
        .fold(0, u64::saturating_add)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::graph::{Graph, Kind, Op, Tensor, TensorId};
    use crate::scratch::Scratch;

    const CHUNK_BYTES: u64 = 1 << 20;

    /// The chunks in an object, for some equal weights and a bias.
    fn chunks<const WEIGHTS: usize>(weight_bytes: u64, budget_bytes: u64) -> Option<u64> {
        found::<WEIGHTS>(with_larger_objects, weight_bytes, budget_bytes)
    }

    /// The same, for one of the two functions.
    fn found<const WEIGHTS: usize>(
        with_objects: fn(&Request<'_>) -> Option<Machine>,
        weight_bytes: u64,
        budget_bytes: u64,
    ) -> Option<u64> {
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
        with_objects(&request).map(|machine| machine.chunk_bytes / CHUNK_BYTES)
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
        // In tight memory, it is the only reason.
        assert_eq!(found::<1>(with_fewer_objects, 64 << 20, 31 << 30), None);
        assert_eq!(found::<87>(with_fewer_objects, 1000 << 20, 31 << 30), None);
        assert_eq!(found::<88>(with_fewer_objects, 1000 << 20, 31 << 30), Some(2));
    }
}
