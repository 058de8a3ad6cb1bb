//! A device under test, and the little work that checks do with it.

use super::failure::{Failure, Outcome, ensure};
use integrity::{Backend, Reading, Rooms, value};
use planner_core::backend::{
    Addresses, Chunks, DeviceAddress, HostRange, Launch, Paging, Point, Streams, Transfers,
};
use planner_core::planner::{Request, Strategy};
use planner_core::{Graph, HostRooms, Kind, Machine, OpId, Scratch, Stream, TensorId};
use std::ops::Range;
use workloads::{OwnedGraph, planning};

/// Chunks that a rig creates.
pub(super) const CHUNKS: u64 = 32;
/// Launches, or copies, that keep a stream busy.
const BUSY_STEPS: usize = 8;

/// Four states of two and a half chunks and three bytes; [`COPY`] and [`UPDATE`] use them.
pub(super) const A: TensorId = TensorId(0);
/// Another.
pub(super) const B: TensorId = TensorId(1);
/// Another.
pub(super) const C: TensorId = TensorId(2);
/// Another.
pub(super) const D: TensorId = TensorId(3);
/// A state as large as a link copies in a millisecond.
const LOAD: TensorId = TensorId(4);
/// Reads [`A`], writes [`B`].
pub(super) const COPY: OpId = OpId(0);
/// Reads and writes [`C`], reads [`D`].
pub(super) const UPDATE: OpId = OpId(1);
/// Reads and writes [`LOAD`].
const WORK: OpId = OpId(2);

/// A fresh device with a small graph: the states `A` to `D`, each in three chunks, and ops on
/// them. Rooms, chunks and ranges are made when a check asks for them.
pub struct Rig<'g, B: Backend> {
    backend: &'g B,
    graph: Graph<'g>,
    machine: Machine,
    device: B::Device<'g>,
    rooms: Option<Rooms<'g>>,
    /// Chunks that have been mapped by [`Rig::range`].
    used_chunks: u64,
    /// The range of [`LOAD`].
    load: Option<DeviceAddress>,
    iteration: u64,
}

fn work(machine: &Machine) -> OwnedGraph {
    let bytes = 2 * machine.chunk_bytes + machine.chunk_bytes / 2 + 3;
    let load_bytes = machine.h2d_bytes_per_s / 1000;
    let load_bytes = load_bytes.clamp(1, machine.device_bytes / 8);
    let mut graph = OwnedGraph::new("rig");
    for name in ["a", "b", "c", "d"] {
        graph.push_tensor(name, bytes, Kind::State);
    }
    graph.push_tensor("load", load_bytes, Kind::State);
    graph.push_op("copy", 1, 0, &[A], &[B]);
    graph.push_op("update", 1, 0, &[C, D], &[C]);
    graph.push_op("work", 1, 0, &[LOAD], &[LOAD]);
    graph
}

/// Opens a device, has a check run on it, and takes leave of it.
pub(super) fn with_rig<B: Backend>(
    backend: &B,
    machine: Machine,
    order: u64,
    check: fn(&mut Rig<'_, B>) -> Outcome,
) -> Outcome {
    let work = work(&machine);
    let graph = work.graph()?;
    let device = backend.open(graph, machine, order).map_err(Failure::new)?;
    let mut rig = Rig {
        backend,
        graph,
        machine,
        device,
        rooms: None,
        used_chunks: 0,
        load: None,
        iteration: 1,
    };
    let outcome = check(&mut rig);
    let closed = backend.close(rig.device).map_err(Failure::new);
    outcome.and(closed)
}

impl<'g, B: Backend> Rig<'g, B> {
    /// The device itself.
    pub fn device(&mut self) -> &mut B::Device<'g> {
        &mut self.device
    }

    /// Creates the host's block and the chunks.
    pub(super) fn set_up(&mut self) -> Outcome {
        self.create_host()?;
        let load_chunks = self.graph.tensor(LOAD).bytes.div_ceil(self.machine.chunk_bytes);
        Ok(self.device.create(CHUNKS + load_chunks)?)
    }

    /// Creates the host's block.
    pub(super) fn create_host(&mut self) -> Outcome {
        let machine = Machine { host_bytes: u64::MAX, ..self.machine };
        let request = Request { graph: &self.graph, machine: &machine, budget_bytes: 0 };
        let (budget_bytes, _) = planning::min_feasible(&request, Strategy::InCore)?;
        let machine = Machine { device_bytes: budget_bytes, ..machine };
        let request = Request { graph: &self.graph, machine: &machine, budget_bytes };
        let plan = planning::plan(&request, Strategy::InCore)?;
        let plan = plan.plan();
        let mut memory = vec![0; HostRooms::scratch_words(&planning::limits(&self.graph, &plan))];
        let scratch = &mut Scratch::new(&mut memory);
        let rooms = HostRooms::new(&self.graph, &machine, &plan, scratch)?;
        self.device.create_host(&rooms)?;
        self.rooms = Some(Rooms::new(self.graph, &rooms));
        Ok(())
    }

    /// Size of a chunk.
    pub(super) fn chunk_bytes(&self) -> u64 {
        self.device.chunk_bytes()
    }

    /// Size of each of the states `A` to `D`.
    pub(super) fn bytes(&self) -> u64 {
        self.graph.tensor(A).bytes
    }

    /// Bytes of a state's room, from its start.
    pub(super) fn host(&self, tensor: TensorId, bytes: Range<u64>) -> HostRange {
        let start = self.rooms.as_ref().map_or(0, |rooms| rooms.offset_bytes(tensor, 0));
        let offset_bytes = start + bytes.start;
        HostRange { tensor, offset_bytes, bytes: bytes.end - bytes.start }
    }

    /// All of a state's room.
    pub(super) fn room(&self, tensor: TensorId) -> HostRange {
        self.host(tensor, 0..self.graph.tensor(tensor).bytes)
    }

    /// Puts bytes drawn from a seed into a range on the host, and returns them.
    pub(super) fn fill(&mut self, range: HostRange, seed: u64) -> Outcome<Vec<u8>> {
        let mut bytes = vec![0; range.bytes as usize];
        value::input(range.tensor, seed, u64::MAX).fill(0, &mut bytes);
        self.backend.write_host(&mut self.device, range.offset_bytes, &bytes)?;
        Ok(bytes)
    }

    /// What lies in a range on the host.
    pub(super) fn read(&mut self, range: HostRange) -> Outcome<Vec<u8>> {
        let mut bytes = vec![0; range.bytes as usize];
        self.backend.read_host(&mut self.device, range.offset_bytes, &mut bytes)?;
        Ok(bytes)
    }

    /// Fails unless a range on the host holds these bytes.
    pub(super) fn expect(&mut self, range: HostRange, expected: &[u8], what: &str) -> Outcome {
        let found = self.read(range)?;
        let wrong = found.iter().zip(expected).position(|(found, expected)| found != expected);
        if let Some(at) = wrong {
            let (found, expected) = (found[at], expected[at]);
            ensure!(false, "{what}: byte {at} is {found:#04x} instead of {expected:#04x}");
        }
        ensure!(
            found.len() == expected.len(),
            "{what}: {} bytes instead of {}",
            found.len(),
            expected.len()
        );
        Ok(())
    }

    /// A range of chunks that nothing else has, all of them mapped.
    pub(super) fn range(&mut self, count: u64) -> Outcome<DeviceAddress> {
        let first = self.used_chunks;
        self.used_chunks += count;
        self.mapped(Chunks { first, count })
    }

    /// A new range, mapped to these chunks.
    pub(super) fn mapped(&mut self, chunks: Chunks) -> Outcome<DeviceAddress> {
        let at = self.device.reserve(chunks.count)?;
        self.device.map(at, chunks)?;
        Ok(at)
    }

    /// Copies a range on the host to the device and waits for it.
    pub(super) fn put(&mut self, from: HostRange, to: DeviceAddress) -> Outcome {
        self.device.upload(from, to)?;
        self.finish(Stream::Upload)
    }

    /// Copies from the device into a range on the host and waits for it.
    pub(super) fn get(&mut self, from: DeviceAddress, to: HostRange) -> Outcome {
        self.device.download(from, to)?;
        self.finish(Stream::Download)
    }

    /// Waits for everything on a stream.
    pub(super) fn finish(&mut self, stream: Stream) -> Outcome {
        let point = self.device.signal(stream)?;
        Ok(self.device.block_until(point)?)
    }

    /// Signals a stream.
    pub(super) fn signal(&mut self, stream: Stream) -> Outcome<Point> {
        Ok(self.device.signal(stream)?)
    }

    /// Enqueues an op.
    pub(super) fn launch(
        &mut self,
        op: OpId,
        reads: &[DeviceAddress],
        writes: &[DeviceAddress],
    ) -> Outcome {
        let [reads, writes] = [reads, writes]
            .map(|addresses| addresses.iter().map(|address| address.0).collect::<Vec<_>>());
        let launch = Launch {
            op,
            iteration: self.iteration,
            reads: Addresses::new(&reads),
            writes: Addresses::new(&writes),
            workspace: None,
        };
        Ok(self.backend.launch(&mut self.device, &launch)?)
    }

    /// What [`COPY`] makes of some bytes.
    pub(super) fn copied(&self, read: &[u8]) -> Vec<u8> {
        let result = value::op_result(COPY, [Reading::of(read)].into_iter());
        let mut written = vec![0; self.bytes() as usize];
        value::written(result, 0, self.bytes()).fill(0, &mut written);
        written
    }

    /// Enqueues work on a stream that takes a real device a while, on memory of its own, so
    /// that what is enqueued there next is late.
    pub(super) fn keep_busy(&mut self, stream: Stream) -> Outcome {
        let load = match self.load {
            Some(load) => load,
            None => {
                let count = self.graph.tensor(LOAD).bytes.div_ceil(self.chunk_bytes());
                let load = self.mapped(Chunks { first: CHUNKS, count })?;
                let room = self.room(LOAD);
                self.put(room, load)?;
                *self.load.insert(load)
            }
        };
        let room = self.room(LOAD);
        for _ in 0..BUSY_STEPS {
            match stream {
                Stream::Compute => self.launch(WORK, &[load], &[load])?,
                Stream::Upload => self.device.upload(room, load)?,
                Stream::Download => self.device.download(load, room)?,
            }
        }
        Ok(())
    }
}
