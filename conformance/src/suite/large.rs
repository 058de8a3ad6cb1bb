//! Tensors of more than 4 GiB, whose sizes and offsets do not fit 32 bits.

use super::Bench;
use super::failure::{Failure, Outcome, ensure};
use super::rig::{filled, written};
use integrity::{Backend, RUN_WORDS, Reading, value};
use planner_core::backend::{
    Chunks, DeviceAddress, DeviceRanges, HostRange, Kernels, Launch, Paging, Streams, Transfers,
};
use planner_core::{Kind, Machine, OpId, Stream, TensorId};
use workloads::OwnedGraph;

/// The first offset that does not fit 32 bits.
const BOUNDARY: u64 = 1 << 32;
/// The least size of a chunk. With smaller chunks, there would be a million of them.
const LEAST_CHUNK_BYTES: u64 = 2 << 20;
/// The number of bytes that are checked at each of some offsets. All other bytes are never written,
/// so a device that allocates memory by the page needs little of it.
const MARK_BYTES: u64 = 64;

/// The op reads one state and writes another, of [`MARK_BYTES`] each.
const OP: OpId = OpId(0);

/// The distance between the starts of two runs of words. One run lies across 4 GiB, one half on
/// each side.
const SPREAD_WORDS: u64 = (BOUNDARY / 4 - RUN_WORDS / 2) / RUNS_BEFORE;
const RUNS_BEFORE: u64 = 47;
/// The size of a tensor that ends with the run after that one.
const TENSOR_BYTES: u64 = 4 * ((RUNS_BEFORE + 1) * SPREAD_WORDS + RUN_WORDS);

/// A device with a range and a host block of `bytes` bytes.
struct Large<T: Backend> {
    device: T::Device,
    at: DeviceAddress,
    bytes: u64,
    chunk_bytes: u64,
}

/// One copy in each direction may have more than 4 GiB. Copies and launches may begin beyond 4 GiB
/// of a range and of the host block.
pub fn offsets_and_sizes_exceed_32_bits<T: Backend>(bench: &Bench<'_, T>) -> Outcome {
    let mut graph = OwnedGraph::new("large");
    let [from, to] = ["from", "to"].map(|name| graph.push_tensor(name, MARK_BYTES, Kind::State));
    graph.push_op("copy", 1, 0, &[from], &[to]);
    let graph = graph.graph()?;
    let mut large = Large::open(bench, BOUNDARY, None)?;
    let chunk = large.chunk_bytes;
    let marks = [0, BOUNDARY - MARK_BYTES / 2, BOUNDARY + chunk, large.bytes - MARK_BYTES];
    // All marks in one copy.
    let sent = large.fill(&marks, 1)?;
    large.copy(0, large.bytes, &marks)?;
    large.expect(&marks, &sent, "one copy of more than 4 GiB")?;
    // Each mark in its own copy.
    let sent = large.fill(&marks, 2)?;
    for &mark in &marks {
        large.copy(mark, MARK_BYTES, &[mark])?;
    }
    large.expect(&marks, &sent, "copies from beyond 4 GiB")?;
    // From one mark to another.
    let [near, _, read, write] = marks;
    let mut kernels = bench.backend.kernels(&mut large.device, graph)?;
    let ranges = [read, write].map(|mark| [[large.at.0 + mark, MARK_BYTES]]);
    let [reads, writes] = ranges.each_ref().map(|range| DeviceRanges::new(range));
    let launch = Launch::new(OP, reads, writes);
    kernels.launch(&mut large.device, &launch)?;
    large.finish(Stream::Compute)?;
    large.download(write, MARK_BYTES)?;
    large.download(near, MARK_BYTES)?;
    let computed = written(&graph, OP, 0, &[&sent[2]]);
    large.expect(&[write], &[computed], "the bytes that a launch computes beyond 4 GiB")?;
    large.expect(&[near], &sent[..1], "the first bytes of the range")?;
    drop(kernels);
    bench.backend.close(large.device).map_err(Failure::new)
}

/// A kernel reads and writes a tensor of more than 4 GiB: at its start, across 4 GiB, and at its end.
pub fn kernels_take_offsets_beyond_32_bits<T: Backend>(bench: &Bench<'_, T>) -> Outcome {
    let mut graph = OwnedGraph::new("large");
    let [seed, sum] = ["seed", "sum"].map(|name| graph.push_tensor(name, MARK_BYTES, Kind::State));
    let tensor = graph.push_tensor("tensor", TENSOR_BYTES, Kind::State);
    let [make, read] = [("make", seed, tensor), ("read", tensor, sum)]
        .map(|(name, from, to)| graph.push_op(name, 1, 0, &[from], &[to]));
    let graph = graph.graph()?;
    let mut large = Large::open(bench, TENSOR_BYTES, Some(MARK_BYTES))?;
    // The small states have the chunk after the tensor.
    let small = large.bytes - large.chunk_bytes;
    let (seed, sum) = (small, small + MARK_BYTES);
    let kernels = bench.backend.sparse_kernels(&mut large.device, graph, SPREAD_WORDS);
    let mut kernels = kernels.map_err(Failure::unsupported)?;
    let seeds = large.fill(&[0], 1)?;
    large.upload(HostRange { offset_bytes: 0, bytes: MARK_BYTES }, seed)?;
    for (op, from, to) in [(make, seed, 0), (read, 0, sum)] {
        let range = |tensor: TensorId, offset_bytes| {
            [[large.at.0 + offset_bytes, graph.tensor(tensor).bytes]]
        };
        let (reads, writes) = (range(graph.reads(op)[0], from), range(graph.writes(op)[0], to));
        let (reads, writes) = (DeviceRanges::new(&reads), DeviceRanges::new(&writes));
        let launch = Launch::new(op, reads, writes);
        kernels.launch(&mut large.device, &launch)?;
    }
    large.finish(Stream::Compute)?;
    let result = value::op_results(make, 1, [Reading::of(&seeds[0])].into_iter()).all;
    let made = value::written(result, 0, TENSOR_BYTES);
    for mark in [0, BOUNDARY - MARK_BYTES / 2, TENSOR_BYTES - MARK_BYTES] {
        let mut expected = vec![0; MARK_BYTES as usize];
        made.fill(mark, &mut expected);
        large.expect_on_device(
            mark,
            expected,
            "the bytes that a kernel writes to more than 4 GiB",
        )?;
    }
    let result = value::op_results(read, 1, [Reading::exact(made)].into_iter()).all;
    let expected = filled(value::written(result, 0, MARK_BYTES), MARK_BYTES);
    large.expect_on_device(sum, expected, "the bytes that a kernel makes of more than 4 GiB")?;
    drop(kernels);
    bench.backend.close(large.device).map_err(Failure::new)
}

impl<T: Backend> Large<T> {
    /// Opens a device with at least `least_bytes` bytes and some more chunks, if it has so much
    /// memory. The host block has as many bytes, unless `host_bytes` says otherwise.
    fn open(bench: &Bench<'_, T>, least_bytes: u64, host_bytes: Option<u64>) -> Outcome<Self> {
        let machine = bench.machine;
        let chunk_bytes = LEAST_CHUNK_BYTES.next_multiple_of(machine.chunk_bytes);
        let chunks = least_bytes.div_ceil(chunk_bytes) + 3;
        let bytes = chunks * chunk_bytes;
        let host_bytes = host_bytes.unwrap_or(bytes);
        let needs =
            [("device", machine.device_bytes, bytes), ("host", machine.host_bytes, host_bytes)];
        for (what, has_bytes, bytes) in needs {
            if has_bytes < bytes {
                return Err(Failure::unsupported(format_args!(
                    "the {what} has {has_bytes} bytes, but the check needs {bytes}"
                )));
            }
        }
        let machine = Machine::new((*machine).with_chunk_bytes(chunk_bytes))?;
        let mut device = bench.backend.open(machine, bench.order).map_err(Failure::new)?;
        let at = Self::set_up(&mut device, chunks, host_bytes).map_err(|error| {
            Failure::unsupported(format_args!("the device cannot hold {bytes} bytes: {error}"))
        })?;
        device.map(at, Chunks { first: 0, count: chunks })?;
        Ok(Self { device, at, bytes, chunk_bytes })
    }

    fn set_up(
        device: &mut T::Device,
        chunks: u64,
        host_bytes: u64,
    ) -> Result<DeviceAddress, T::Error> {
        device.create(chunks)?;
        device.create_host(host_bytes)?;
        device.reserve(chunks)
    }

    fn finish(&mut self, stream: Stream) -> Outcome {
        let point = self.device.signal(stream)?;
        Ok(self.device.block_until(point)?)
    }

    /// Writes bytes drawn from a seed at some offsets of the host block, and returns them.
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

    /// Fails unless the range holds these bytes. Downloads them to the start of the host block.
    fn expect_on_device(&mut self, offset_bytes: u64, expected: Vec<u8>, what: &str) -> Outcome {
        let host = HostRange { offset_bytes: 0, bytes: expected.len() as u64 };
        self.device.download(DeviceAddress(self.at.0 + offset_bytes), host)?;
        self.finish(Stream::Download)?;
        self.expect(&[0], &[expected], &format!("{what}, from offset {offset_bytes} on"))
    }

    fn upload(&mut self, host: HostRange, offset_bytes: u64) -> Outcome {
        self.device.upload(host, DeviceAddress(self.at.0 + offset_bytes))?;
        self.finish(Stream::Upload)
    }

    fn download(&mut self, offset_bytes: u64, bytes: u64) -> Outcome {
        let from = DeviceAddress(self.at.0 + offset_bytes);
        self.device.download(from, HostRange { offset_bytes, bytes })?;
        self.finish(Stream::Download)
    }

    /// Copies to the same offset of the range and back. Between the two copies, fills some offsets
    /// of the host block with other bytes.
    fn copy(&mut self, offset_bytes: u64, bytes: u64, marks: &[u64]) -> Outcome {
        self.upload(HostRange { offset_bytes, bytes }, offset_bytes)?;
        for &mark in marks {
            self.device.write_host(mark, &[0; MARK_BYTES as usize])?;
        }
        self.download(offset_bytes, bytes)
    }
}
