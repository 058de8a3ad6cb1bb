//! A backend as `docs/backends.md` describes it. Its device is that of `backend-host`, so that all
//! there is to write is what the suite has to know.

use backend_checks::check_launch;
use backend_host::{HostDevice as MyDevice, HostError as MyError};
use integrity::{Backend, Found, Passes, Read, Reading, Write, value};
use planner_core::backend::{Kernels, Launch};
use planner_core::{Graph, HostLayout, Machine, MachineParameters};

/// Opens devices.
pub struct MyBackend;

/// Kernels in which every wrong byte shows.
pub struct MyKernels<'g> {
    graph: Graph<'g>,
}

impl Backend for MyBackend {
    type Error = MyError;
    type Device = MyDevice;
    type Kernels<'g> = MyKernels<'g>;

    fn name(&self) -> &'static str {
        "mine"
    }

    // Or why there is no device.
    fn find(&self) -> Result<Found, String> {
        let machine = machine().map_err(|error| error.to_string())?;
        Ok(Found { device: "host memory".to_owned(), machine })
    }

    fn open(&self, machine: Machine, _order: u64) -> Result<MyDevice, String> {
        Ok(MyDevice::new(machine.chunk_bytes, machine.device_bytes))
    }

    fn kernels<'g>(
        &self,
        _device: &mut MyDevice,
        graph: Graph<'g>,
    ) -> Result<MyKernels<'g>, MyError> {
        Ok(MyKernels { graph })
    }
}

impl Kernels<MyDevice> for MyKernels<'_> {
    fn launch(&mut self, device: &mut MyDevice, launch: &Launch<'_>) -> Result<(), MyError> {
        check_launch(&self.graph, launch)?;
        let Passes { reads, repeated, writes } = Passes::new(&self.graph, launch);
        let mut readings = Vec::new();
        for Read { at, bytes, .. } in reads {
            let mut read = vec![0; bytes as usize];
            device.read(at, &mut read)?;
            readings.push(Reading::of(&read));
        }
        let results = value::op_results(launch.op, repeated, readings.into_iter());
        for Write { kind, position, at, bytes, .. } in writes {
            let mut written = vec![0; bytes as usize];
            value::written(results.of(kind), position, bytes).fill(0, &mut written);
            device.write(at, &written)?;
        }
        Ok(())
    }

    fn fill_states(
        &mut self,
        device: &mut MyDevice,
        layout: &HostLayout<'_>,
    ) -> Result<(), MyError> {
        integrity::fill_states(&self.graph, device, layout)
    }

    fn fill_inputs(
        &mut self,
        device: &mut MyDevice,
        iteration: u64,
        layout: &HostLayout<'_>,
    ) -> Result<(), MyError> {
        integrity::fill_inputs(&self.graph, device, iteration, layout)
    }
}

fn machine() -> Result<Machine, planner_core::machine::MachineError> {
    Machine::new(MachineParameters {
        device_bytes: 16 << 20,
        host_bytes: 1 << 30,
        chunk_bytes: 4096,
        h2d_bytes_per_s: 1_000_000_000,
        d2h_bytes_per_s: 1_000_000_000,
        transfer_latency_ns: 0,
        map_ns_per_chunk: 0,
        unmap_ns_per_chunk: 0,
    })
}
