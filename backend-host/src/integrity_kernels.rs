//! Kernels in which every wrong byte shows, and the device as the conformance suite takes it.

use crate::{HostDevice, HostError};
use backend_checks::check_launch;
use integrity::{Backend, Found, Passes, Read, Reading, Write, fill_inputs, fill_states, value};
use planner_core::backend::{Kernels, Launch};
use planner_core::{Graph, HostLayout, Machine, MachineParameters};

/// Kernels for every op of a graph, with the arithmetic of the crate `integrity`.
#[derive(Clone, Copy, Debug)]
pub struct IntegrityKernels<'g> {
    graph: Graph<'g>,
}

impl Kernels<HostDevice> for IntegrityKernels<'_> {
    fn launch(&mut self, device: &mut HostDevice, launch: &Launch<'_>) -> Result<(), HostError> {
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
        device: &mut HostDevice,
        layout: &HostLayout<'_>,
    ) -> Result<(), HostError> {
        fill_states(&self.graph, device, layout)
    }

    fn fill_inputs(
        &mut self,
        device: &mut HostDevice,
        iteration: u64,
        layout: &HostLayout<'_>,
    ) -> Result<(), HostError> {
        fill_inputs(&self.graph, device, iteration, layout)
    }
}

/// Opens devices of 16 MiB in chunks of 4 KiB.
#[derive(Clone, Copy, Debug, Default)]
pub struct Host;

impl Backend for Host {
    type Error = HostError;
    type Device = HostDevice;
    type Kernels<'g> = IntegrityKernels<'g>;

    fn name(&self) -> &'static str {
        "host"
    }

    fn find(&self) -> Result<Found, String> {
        let parameters = MachineParameters {
            device_bytes: 16 << 20,
            host_bytes: 1 << 30,
            chunk_bytes: 4096,
            h2d_bytes_per_s: 1_000_000_000,
            d2h_bytes_per_s: 1_000_000_000,
            transfer_latency_ns: 0,
            map_ns_per_chunk: 0,
            unmap_ns_per_chunk: 0,
        };
        let machine = Machine::new(parameters).map_err(|error| error.to_string())?;
        Ok(Found { device: "host memory".to_owned(), machine })
    }

    fn open(&self, machine: Machine, _order: u64) -> Result<HostDevice, String> {
        Ok(HostDevice::new(machine.chunk_bytes, machine.device_bytes))
    }

    fn kernels<'g>(
        &self,
        _device: &mut HostDevice,
        graph: Graph<'g>,
    ) -> Result<IntegrityKernels<'g>, HostError> {
        Ok(IntegrityKernels { graph })
    }
}
