//! Measures what mapping and copying cost on a device, and how long plans take with kernels
//! that wait for the recorded times, as the tables of `docs/cuda.md`. Its arguments are graph
//! files and model specs; `backend-cuda/measure` runs it.
#![allow(clippy::unwrap_used, reason = "what fails here ends the measurement")]

mod copies;
mod mapping;
mod plans;

use backend_cuda::{Cuda, CudaDevice, Options};
use planner_core::backend::{DeviceAddress, HostRange, Paging, Streams, Transfers};
use planner_core::planner::{Request, Strategy};
use planner_core::{HostRooms, Kind, Machine, Scratch, Stream, TensorId};
use std::path::PathBuf;
use std::time::Duration;
use workloads::{OwnedGraph, machines, planning};

/// Names the library that is used as the driver, instead of the system's.
const DRIVER: &str = "SPILLWAY_CUDA_DRIVER";
/// Size of what is mapped and copied, at most.
const MOST_BYTES: u64 = 256 << 20;
const REPEATS: u32 = 7;
/// Chunks of plans, and the smallest that are measured.
const CHUNK_BYTES: u64 = 2 << 20;

/// Where things are measured.
struct Bench {
    cuda: Cuda,
    /// One state of `bytes`.
    graph: OwnedGraph,
    bytes: u64,
}

fn main() {
    let driver = std::env::var_os(DRIVER).filter(|path| !path.is_empty()).map(PathBuf::from);
    let cuda = Cuda::load(driver.as_deref()).unwrap();
    let info = cuda.device(0).unwrap();
    println!("{}, driver {}\n", info.name, info.driver);
    let bytes = (info.free_bytes / 4).min(MOST_BYTES) / CHUNK_BYTES * CHUNK_BYTES;
    let mut graph = OwnedGraph::new("figures");
    graph.push_tensor("t", bytes, Kind::State);
    graph.push_op("o", 1, 0, &[], &[TensorId(0)]);
    let bench = Bench { cuda, graph, bytes };
    mapping::measure(&bench, info.granularity_bytes);
    let machine = copies::measure(&bench, &info);
    plans::measure(&cuda, &machine, std::env::args().skip(1));
}

/// The least of several times.
fn least(mut run: impl FnMut() -> Duration) -> Duration {
    (0..REPEATS).map(|_| run()).min().unwrap()
}

fn finish(device: &mut CudaDevice<'_>, stream: Stream) {
    let point = device.signal(stream).unwrap();
    device.block_until(point).unwrap();
}

impl Bench {
    fn open(&self, chunk_bytes: u64) -> CudaDevice<'_> {
        let options = Options { ordinal: 0, chunk_bytes: Some(chunk_bytes) };
        let states = Box::new(|_, _, bytes: &mut [u8]| bytes.fill(1));
        self.cuda.open(&options, self.graph.graph().unwrap(), states).unwrap()
    }

    /// A device with the tensor mapped, and with its room.
    fn set_up(&self) -> (CudaDevice<'_>, DeviceAddress, HostRange) {
        let mut device = self.open(CHUNK_BYTES);
        let graph = self.graph.graph().unwrap();
        let machine = machines::builtin("v100-pcie3").unwrap().machine;
        let machine = Machine { host_bytes: u64::MAX, chunk_bytes: CHUNK_BYTES, ..machine };
        let budget_bytes = machine.device_bytes;
        let request = Request { graph: &graph, machine: &machine, budget_bytes };
        let plan = planning::plan(&request, Strategy::InCore).unwrap();
        let plan = plan.plan();
        let mut memory = vec![0; HostRooms::scratch_words(&planning::limits(&graph, &plan))];
        let scratch = &mut Scratch::new(&mut memory);
        let rooms = HostRooms::new(&graph, &machine, &plan, scratch).unwrap();
        device.create_host(&rooms).unwrap();
        let count = self.bytes / CHUNK_BYTES;
        device.create(count).unwrap();
        let at = device.reserve(count).unwrap();
        device.map(at, planner_core::backend::Chunks { first: 0, count }).unwrap();
        let offset_bytes = rooms.offset_bytes(TensorId(0), 0, 0);
        (device, at, HostRange { tensor: TensorId(0), offset_bytes, bytes: self.bytes })
    }
}
