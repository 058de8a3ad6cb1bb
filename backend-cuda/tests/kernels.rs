//! The PTX of this crate computes what the crate `integrity` says, as the emulated driver runs
//! it. That it is what the source gives, `compile-kernels --check` shows.
#![cfg(target_os = "linux")]
#![allow(unsafe_code, reason = "what a kernel does, only its text says")]
#![allow(clippy::unwrap_used, reason = "what fails here fails the test")]

use cudarc::driver::{CudaContext, CudaModule, CudaSlice, CudaStream, LaunchConfig, PushKernelArg};
use cudarc::nvrtc::Ptx;
use emulated_cuda::Emulated;
use integrity::{Reading, Value, value};
use planner_core::OpId;
use std::sync::Arc;

/// Blocks and threads, and the words between the starts of their runs.
type Grid = (u32, u32, u64);

/// Some threads take several words and some none.
const GRIDS: [Grid; 3] = [(1, 1, 1), (3, 33, 33), (8, 256, 256)];

struct Device {
    context: Arc<CudaContext>,
    stream: Arc<CudaStream>,
    module: Arc<CudaModule>,
}

impl Device {
    fn new() -> Self {
        Emulated::open(&Emulated::built_path()).unwrap();
        let context = CudaContext::new(0).unwrap();
        let stream = context.new_stream().unwrap();
        let ptx = Ptx::from_src(include_str!("../src/kernels.ptx"));
        let module = context.load_module(ptx).unwrap();
        Self { context, stream, module }
    }

    fn upload(&self, bytes: &[u8]) -> CudaSlice<u8> {
        // SAFETY: it is written before it is read.
        let mut pinned = unsafe { self.context.alloc_pinned(bytes.len()) }.unwrap();
        pinned.as_mut_slice().unwrap().copy_from_slice(bytes);
        let mut into = self.stream.alloc_zeros(bytes.len()).unwrap();
        self.stream.memcpy_htod(&pinned, &mut into).unwrap();
        self.stream.synchronize().unwrap();
        into
    }

    fn download(&self, from: &CudaSlice<u8>) -> Vec<u8> {
        // SAFETY: it is written before it is read.
        let mut pinned = unsafe { self.context.alloc_pinned(from.len()) }.unwrap();
        self.stream.memcpy_dtoh(from, &mut pinned).unwrap();
        self.stream.synchronize().unwrap();
        pinned.as_slice().unwrap().to_vec()
    }

    /// What a kernel is launched with.
    fn grid((blocks, threads, _): Grid) -> LaunchConfig {
        LaunchConfig { grid_dim: (blocks, 1, 1), block_dim: (threads, 1, 1), shared_mem_bytes: 0 }
    }

    /// Two readings of a tensor, one after the other.
    fn read(&self, grid: Grid, tensor: &CudaSlice<u8>, len: u64) -> CudaSlice<u8> {
        let readings = self.stream.alloc_zeros(24).unwrap();
        let kernel = self.module.load_function("integrity_read").unwrap();
        for place in 0..2 {
            let reading = readings.slice(12 * place..);
            let mut launch = self.stream.launch_builder(&kernel);
            launch.arg(tensor).arg(&len).arg(&reading).arg(&grid.2);
            // SAFETY: the kernel has these parameters.
            unsafe { launch.launch(Self::grid(grid)) }.unwrap();
        }
        readings
    }

    /// The results of op 7, whose repeats make so many of the two readings; these are ready for
    /// the next op then.
    fn combine(&self, readings: &mut CudaSlice<u8>, repeated: u32) -> CudaSlice<u8> {
        let results = self.stream.alloc_zeros(16).unwrap();
        let kernel = self.module.load_function("integrity_combine").unwrap();
        let mut launch = self.stream.launch_builder(&kernel);
        launch.arg(readings).arg(&results).arg(&7u32).arg(&repeated).arg(&2u32);
        // SAFETY: the kernel has these parameters.
        unsafe { launch.launch(Self::grid((1, 1, 1))) }.unwrap();
        results
    }

    fn write(&self, grid: Grid, tensor: &mut CudaSlice<u8>, len: u64, of: &CudaSlice<u8>) {
        let kernel = self.module.load_function("integrity_write").unwrap();
        let mut launch = self.stream.launch_builder(&kernel);
        launch.arg(tensor).arg(&len).arg(of).arg(&3u32).arg(&grid.2);
        // SAFETY: the kernel has these parameters.
        unsafe { launch.launch(Self::grid(grid)) }.unwrap();
    }
}

fn words(bytes: &[u8]) -> Vec<u32> {
    bytes.chunks(4).map(|word| u32::from_le_bytes(word.try_into().unwrap())).collect()
}

#[test]
fn the_ptx_computes_as_defined() {
    let device = Device::new();
    for (len, grid) in (1..40).chain([1000, 4099, 70_001]).zip(GRIDS.into_iter().cycle()) {
        let right = Value { low: 0x1234_5678, high: 0x9abc_def0 ^ len as u32 };
        let mut bytes = vec![0; len];
        right.cut(len as u64).fill(0, &mut bytes);
        assert_eq!(Reading::of(&bytes).deviation, 0);
        for wrong in [None, Some(0), Some(len / 2), Some(len - 1)] {
            if let Some(at) = wrong {
                bytes[at] ^= 0x40;
            }
            agree(&device, grid, &bytes);
        }
    }
}

fn agree(device: &Device, grid: Grid, bytes: &[u8]) {
    let len = bytes.len();
    let expected = Reading::of(bytes);
    // What is after the end is not to matter.
    let mut padded = bytes.to_vec();
    padded.resize(len.next_multiple_of(4), 0xee);
    let mut tensor = device.upload(&padded);
    let mut readings = device.read(grid, &tensor, len as u64);
    let Value { low, high } = expected.value;
    let reading = [low, high, expected.deviation];
    assert_eq!(words(&device.download(&readings)), [reading; 2].concat(), "{len} {grid:?}");

    let repeated = len % 3;
    let computed = device.combine(&mut readings, repeated as u32);
    let results = value::op_results(OpId(7), repeated, [expected; 2].into_iter());
    let expected = [results.repeated, results.all].map(|Value { low, high }| [low, high]).concat();
    assert_eq!(words(&device.download(&computed)), expected, "{repeated} repeated");
    let reading = [low, high, 0];
    assert_eq!(words(&device.download(&readings)), [reading; 2].concat(), "for the next op");

    device.write(grid, &mut tensor, len as u64, &computed);
    let mut expected = vec![0; len];
    value::written(results.repeated, 3, len as u64).fill(0, &mut expected);
    assert_eq!(device.download(&tensor)[..len], expected, "{len} {grid:?}");
}

/// Runs of four words, of which the last is cut short.
#[test]
fn words_between_runs_are_left_alone() {
    let device = Device::new();
    let (grid, len) = ((2, 4, 10), 4 * 993 - 1);
    let is_touched = |index: usize| index % 10 < 4;
    let value = Value { low: 5, high: 6 };
    let mut readings = device.upload(
        &[[5u32, 6, 0], [5, 6, 0]]
            .concat()
            .iter()
            .flat_map(|word| word.to_le_bytes())
            .collect::<Vec<_>>(),
    );
    let results = device.combine(&mut readings, 2);
    let mut tensor = device.upload(&vec![0xee; len + 1]);
    device.write(grid, &mut tensor, len as u64, &results);
    let exact = [Reading::exact(value); 2].into_iter();
    let written = value::written(value::op_results(OpId(7), 2, exact).all, 3, len as u64);
    let found = words(&device.download(&tensor));
    for (index, &word) in found.iter().enumerate().take(992) {
        let expected = if is_touched(index) { written.word(index as u32) } else { 0xeeee_eeee };
        assert_eq!(word, expected, "word {index}");
    }
    let readings = words(&device.download(&device.read(grid, &tensor, len as u64)));
    assert_eq!(readings, [[written.low, written.high, 0]; 2].concat());
}
