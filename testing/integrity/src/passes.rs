//! How a launch of an op is computed: the order of its readings, and a pass over each tensor that
//! it writes.

use planner_core::backend::{
    DeviceAddress, DeviceRange, DeviceRanges, HostLaunch, HostRange, Launch,
};
use planner_core::{Graph, Kind, Launched, OpId, TensorId};

/// The order in which an op's readings are folded.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FoldOrder {
    /// Positions in [`Graph::reads`], in the op's order, except that the operands that its repeats
    /// leave alone come last. These are the states, inputs and outputs that a repeatable op updates
    /// in place.
    pub reads: Vec<usize>,
    /// The number of them that repeats also read.
    pub repeated: usize,
}

impl FoldOrder {
    /// Takes the order of an op. O(reads times writes).
    ///
    /// # Panics
    /// If the graph does not have the op.
    #[must_use]
    pub fn new(graph: &Graph<'_>, op: OpId) -> Self {
        let repeat = Launched { op, is_repeat: graph.op(op).repeatable };
        let reads = graph.reads(op);
        let (mut reads, last): (Vec<_>, Vec<_>) =
            (0..reads.len()).partition(|&position| !graph.leaves_alone(repeat, reads[position]));
        let repeated = reads.len();
        reads.extend(last);
        Self { reads, repeated }
    }
}

/// A launch with its addresses, as its kernel computes it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Passes {
    /// The tensors that it reads, in the order in which readings are folded.
    pub reads: Vec<Read>,
    /// The number of reads that repeats of the op also do. For a repeat, all reads.
    pub repeated: usize,
    /// The tensors that it writes, in the op's order, and then its workspace if it has one.
    pub writes: Vec<Write>,
}

/// A tensor that a launch reads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Read {
    /// The tensor.
    pub tensor: TensorId,
    /// The address of its first byte. For an op on the host, the offset in the host block.
    pub at: DeviceAddress,
    /// Its size.
    pub bytes: u64,
}

/// A tensor that a launch writes, or its workspace.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Write {
    /// The tensor. `None` for the workspace.
    pub tensor: Option<TensorId>,
    /// Its kind. A workspace counts as temporary.
    pub kind: Kind,
    /// Its position among all tensors that the op writes.
    pub position: u32,
    /// The address of its first byte.
    pub at: DeviceAddress,
    /// Its size.
    pub bytes: u64,
}

impl Passes {
    /// The passes of an op on the host, which computes the same values as a launch on the device.
    /// All addresses are offsets in the host block.
    ///
    /// # Panics
    /// If the graph does not have the op.
    #[must_use]
    pub fn on_host(graph: &Graph<'_>, launch: &HostLaunch<'_>) -> Self {
        let HostLaunch { op, iteration, .. } = *launch;
        let pair = |range: HostRange| [range.offset_bytes, range.bytes];
        let reads: Vec<_> = launch.reads.iter().map(pair).collect();
        let writes: Vec<_> = launch.writes.iter().map(pair).collect();
        let (reads, writes) = (DeviceRanges::new(&reads), DeviceRanges::new(&writes));
        let mut launch = Launch::new(op, reads, writes);
        launch.iteration = iteration;
        Self::new(graph, &launch)
    }

    /// The passes of a launch that has the operands of its op. A repeat has no pass over the
    /// operands that it leaves alone. O(reads times writes).
    ///
    /// # Panics
    /// If the graph does not have the op.
    #[must_use]
    pub fn new(graph: &Graph<'_>, launch: &Launch<'_>) -> Self {
        let launched = launch.launched();
        let FoldOrder { reads, repeated } = FoldOrder::new(graph, launch.op);
        let read = |position: usize| {
            let tensor = graph.reads(launch.op)[position];
            let DeviceRange { address: at, bytes } = launch.reads.get(position)?;
            let read = Read { tensor, at, bytes };
            Some(read).filter(|_| !graph.leaves_alone(launched, tensor))
        };
        let written = graph.writes(launch.op);
        let writes = (0..).zip(written).zip(launch.writes.iter()).filter_map(
            |((position, &tensor), range)| {
                let DeviceRange { address: at, bytes } = range?;
                let kind = graph.tensor(tensor).kind;
                Some(Write { tensor: Some(tensor), kind, position, at, bytes })
            },
        );
        let workspace = launch.workspace.map(|DeviceRange { address: at, bytes }| Write {
            tensor: None,
            kind: Kind::Temporary,
            position: written.len() as u32,
            at,
            bytes,
        });
        let is_written = |write: &Write| !launch.is_repeat || write.kind == Kind::Temporary;
        Self {
            reads: reads.into_iter().filter_map(read).collect(),
            repeated,
            writes: writes.filter(is_written).chain(workspace).collect(),
        }
    }
}
