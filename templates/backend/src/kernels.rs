//! What the suite has to know: how to open a device, and kernels in which every wrong byte shows.

use crate::memory::Bytes;
use crate::stream::Work;
use crate::{MyDevice, MyError};
use backend_checks::{check_host_launch, check_launch};
use integrity::{Backend, Found, Passes, Reading, Write, value};
use planner_core::backend::{
    DeviceAddress, FillError, HostKernels, HostLaunch, HostRange, InputWriter, Kernels, Launch,
    StateWriter,
};
use planner_core::{Graph, Machine, MachineParameters, OpId, Stream};

/// The unit of mapping. A driver knows its granularity: 2 MiB on most devices.
const CHUNK_BYTES: u64 = 4096;

/// Opens devices.
#[derive(Clone, Copy, Debug, Default)]
pub struct MyBackend;

impl Backend for MyBackend {
    type Error = MyError;
    type Device = MyDevice;
    type Kernels<'g> = MyKernels<'g>;

    fn name(&self) -> &'static str {
        "mine"
    }

    /// A driver looks for a device, or says why there is none.
    fn find(&self) -> Result<Found, String> {
        // The threads copy about half a gigabyte per second. A wrong speed makes plans slow, never wrong.
        let machine = Machine::new(
            MachineParameters::new()
                .with_device_bytes(1 << 30)
                .with_host_bytes(1 << 30)
                .with_chunk_bytes(CHUNK_BYTES)
                .with_h2d_bytes_per_s(500_000_000)
                .with_d2h_bytes_per_s(500_000_000),
        );
        let machine = machine.map_err(|error| error.to_string())?;
        Ok(Found { device: "threads over host memory".to_owned(), machine })
    }

    fn open(&self, machine: Machine, _order: u64) -> Result<MyDevice, String> {
        MyDevice::open(machine.chunk_bytes, machine.device_bytes).map_err(|error| error.to_string())
    }

    /// A driver compiles or loads its kernels here.
    fn kernels<'g>(
        &self,
        _device: &mut MyDevice,
        graph: Graph<'g>,
    ) -> Result<MyKernels<'g>, MyError> {
        Ok(MyKernels { graph })
    }
}

/// Kernels for every op of a graph.
#[derive(Clone, Copy, Debug)]
pub struct MyKernels<'g> {
    graph: Graph<'g>,
}

impl Kernels<MyDevice> for MyKernels<'_> {
    /// A driver launches a kernel with the addresses of its operands.
    fn launch(&mut self, device: &mut MyDevice, launch: &Launch<'_>) -> Result<(), MyError> {
        check_launch(&self.graph, launch)?;
        let passes = Passes::new(&self.graph, launch);
        let work = compute(launch.op, passes, &|at, bytes| device.on_device(at, bytes))?;
        device.enqueue(launch.stream, work);
        Ok(())
    }

    fn on_host(&mut self) -> Option<&mut dyn HostKernels<MyDevice>> {
        Some(self)
    }

    fn fill_states(
        &mut self,
        states: &mut StateWriter<'_, MyDevice>,
    ) -> Result<(), FillError<MyError>> {
        integrity::fill_states(states)
    }

    fn fill_inputs(
        &mut self,
        inputs: &mut InputWriter<'_, MyDevice>,
    ) -> Result<(), FillError<MyError>> {
        integrity::fill_inputs(inputs)
    }
}

impl HostKernels<MyDevice> for MyKernels<'_> {
    /// A driver enqueues a function of the host: `cuLaunchHostFunc`, or a thread of its own.
    fn launch_on_host(
        &mut self,
        device: &mut MyDevice,
        launch: &HostLaunch<'_>,
    ) -> Result<(), MyError> {
        check_host_launch(&self.graph, launch)?;
        let passes = Passes::on_host(&self.graph, launch);
        let on_host =
            |at: DeviceAddress, bytes| device.on_host(HostRange { offset_bytes: at.0, bytes });
        device.enqueue(Stream::Host, compute(launch.op, passes, &on_host)?);
        Ok(())
    }
}

/// The work of an op, in three passes. A driver has a kernel for each pass, on the same addresses.
fn compute(
    op: OpId,
    Passes { reads, repeated, writes }: Passes,
    bytes_at: &dyn Fn(DeviceAddress, u64) -> Result<Bytes, MyError>,
) -> Result<Work, MyError> {
    let reads = reads.iter().map(|read| bytes_at(read.at, read.bytes));
    let reads = reads.collect::<Result<Vec<_>, _>>()?;
    let writes = writes.into_iter().map(|write| Ok((write, bytes_at(write.at, write.bytes)?)));
    let writes = writes.collect::<Result<Vec<_>, MyError>>()?;
    Ok(Box::new(move || {
        let readings = reads.iter().map(|read| Reading::of(&read.read()));
        let results = value::op_results(op, repeated, readings);
        for (Write { kind, position, bytes, .. }, to) in writes {
            let mut written = vec![0; bytes as usize];
            value::written(results.of(kind), position, bytes).fill(0, &mut written);
            to.write(&written);
        }
    }))
}
