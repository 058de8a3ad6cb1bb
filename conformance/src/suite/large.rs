//! Tensors of more than 4 GiB: neither their sizes nor offsets in them fit 32 bits.

use super::Bench;
use super::failure::{Failure, Outcome, ensure};
use super::rig::{filled, written};
use integrity::{Backend, value};
use planner_core::backend::{
    Addresses, Chunks, DeviceAddress, HostRange, Kernels, Launch, Paging, Streams, Transfers,
};
use planner_core::{Kind, Machine, MachineParameters, OpId, Stream, TensorId};
use workloads::OwnedGraph;

/// The first offset that 32 bits do not hold.
const BOUNDARY: u64 = 1 << 32;
/// Chunks have at least so many bytes, or there would be a million of them.
const LEAST_CHUNK_BYTES: u64 = 2 << 20;
/// Bytes that are looked at, at each of some offsets; all others are left as they are, so that a
/// device that keeps memory by the page takes little of it.
const MARK_BYTES: u64 = 64;

/// An op reads and writes a state of these bytes each.
const OP: OpId = OpId(0);

/// A device with a range and a host block of this many bytes.
struct Large<T: Backend> {
    device: T::Device,
    at: DeviceAddress,
    bytes: u64,
    chunk_bytes: u64,
}

/// One copy each way may have more than 4 GiB, and copies and launches may begin beyond 4 GiB of a
/// range and of the host block.
pub fn offsets_and_sizes_exceed_32_bits<T: Backend>(bench: &Bench<'_, T>) -> Outcome {
    let mut graph = OwnedGraph::new("large");
    let [from, to] = ["from", "to"].map(|name| graph.push_tensor(name, MARK_BYTES, Kind::State));
    graph.push_op("copy", 1, 0, &[from], &[to]);
    let graph = graph.graph()?;
    let mut large = Large::open(bench)?;
    let chunk = large.chunk_bytes;
    let marks = [0, BOUNDARY - MARK_BYTES / 2, BOUNDARY + chunk, large.bytes - MARK_BYTES];
    // All at once.
    let sent = large.fill(&marks, 1)?;
    large.copy(0, large.bytes, &marks)?;
    large.expect(&marks, &sent, "one copy of more than 4 GiB")?;
    // Each by itself.
    let sent = large.fill(&marks, 2)?;
    for &mark in &marks {
        large.copy(mark, MARK_BYTES, &[mark])?;
    }
    large.expect(&marks, &sent, "copies from beyond 4 GiB")?;
    // From one to another.
    let [near, _, read, write] = marks;
    let mut kernels = bench.backend.kernels(&mut large.device, graph)?;
    let addresses = [read, write].map(|mark| [large.at.0 + mark]);
    let [reads, writes] = addresses.each_ref().map(|address| Addresses::new(address));
    let launch = Launch { op: OP, is_repeat: false, iteration: 1, reads, writes, workspace: None };
    kernels.launch(&mut large.device, &launch)?;
    large.finish(Stream::Compute)?;
    large.download(write, MARK_BYTES)?;
    large.download(near, MARK_BYTES)?;
    let computed = written(&graph, OP, 0, &[&sent[2]]);
    large.expect(&[write], &[computed], "what a launch computes beyond 4 GiB")?;
    large.expect(&[near], &sent[..1], "the first bytes of the range")?;
    drop(kernels);
    bench.backend.close(large.device).map_err(Failure::new)
}

impl<T: Backend> Large<T> {
    /// Opens a device, if it holds as much.
    fn open(bench: &Bench<'_, T>) -> Outcome<Self> {
        let machine = bench.machine;
        let chunk_bytes = LEAST_CHUNK_BYTES.next_multiple_of(machine.chunk_bytes);
        let chunks = BOUNDARY.div_ceil(chunk_bytes) + 3;
        let bytes = chunks * chunk_bytes;
        for (what, has_bytes) in [("device", machine.device_bytes), ("host", machine.host_bytes)] {
            if has_bytes < bytes {
                return Err(Failure::unsupported(format_args!(
                    "the {what} has {has_bytes} bytes, and {bytes} are needed"
                )));
            }
        }
        let machine = Machine::new(MachineParameters { chunk_bytes, ..*machine })?;
        let mut device = bench.backend.open(machine, bench.order).map_err(Failure::new)?;
        let at = Self::set_up(&mut device, chunks, bytes).map_err(|error| {
            Failure::unsupported(format_args!("{bytes} bytes are too much for it: {error}"))
        })?;
        device.map(at, Chunks { first: 0, count: chunks })?;
        Ok(Self { device, at, bytes, chunk_bytes })
    }

    fn set_up(device: &mut T::Device, chunks: u64, bytes: u64) -> Result<DeviceAddress, T::Error> {
        device.create(chunks)?;
        device.create_host(bytes)?;
        device.reserve(chunks)
    }

    fn finish(&mut self, stream: Stream) -> Outcome {
        let point = self.device.signal(stream)?;
        Ok(self.device.block_until(point)?)
    }

    /// Puts bytes drawn from a seed at some offsets of the host block, and returns them.
    fn fill(&mut self, marks: &[u64], seed: u64) -> Outcome<Vec<Vec<u8>>> {
        let mut all = Vec::new();
        for (&mark, number) in marks.iter().zip(0..) {
            let bytes = filled(value::input(TensorId(number), seed, u64::MAX), MARK_BYTES);
            self.device.write_host(mark, &bytes)?;
            all.push(bytes);
        }
        Ok(all)
    }

    /// Fails unless the host block holds these bytes.
    fn expect(&mut self, marks: &[u64], expected: &[Vec<u8>], what: &str) -> Outcome {
        for (&mark, expected) in marks.iter().zip(expected) {
            let mut found = vec![0; expected.len()];
            self.device.read_host(mark, &mut found)?;
            ensure!(found == *expected, "{what}: wrong bytes at offset {mark}");
        }
        Ok(())
    }

    fn download(&mut self, offset_bytes: u64, bytes: u64) -> Outcome {
        let from = DeviceAddress(self.at.0 + offset_bytes);
        self.device.download(from, HostRange { offset_bytes, bytes })?;
        self.finish(Stream::Download)
    }

    /// Copies to the same offset of the range and back, with other bytes at some offsets of the host
    /// block meanwhile.
    fn copy(&mut self, offset_bytes: u64, bytes: u64, marks: &[u64]) -> Outcome {
        let to = DeviceAddress(self.at.0 + offset_bytes);
        self.device.upload(HostRange { offset_bytes, bytes }, to)?;
        self.finish(Stream::Upload)?;
        for &mark in marks {
            self.device.write_host(mark, &[0; MARK_BYTES as usize])?;
        }
        self.download(offset_bytes, bytes)
    }
}
