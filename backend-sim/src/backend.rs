//! The simulated device as integrity kernels and the conformance suite take it.

use crate::{SimDevice, SimError};
use integrity::{Backend, Found};
use planner_core::backend::Launch;
use planner_core::{Graph, Machine, MachineParameters};

/// Simulated devices with real bytes, for small work.
#[derive(Clone, Copy, Debug)]
pub struct Sim {
    /// What is simulated.
    pub machine: Machine,
    /// In how many orders checks run. The first is the order of submission, all others are
    /// drawn at random.
    pub orders: u64,
    /// Whether devices are [forgiving](SimDevice::forgiving).
    pub is_forgiving: bool,
}

impl Default for Sim {
    /// A device of 1 MiB in chunks of 256 bytes, in twenty orders.
    fn default() -> Self {
        let machine = Machine::new(MachineParameters {
            device_bytes: 1 << 20,
            host_bytes: 1 << 20,
            chunk_bytes: 256,
            h2d_bytes_per_s: 1_000_000,
            d2h_bytes_per_s: 1_000_000,
            transfer_latency_ns: 10,
            map_ns_per_chunk: 40,
            unmap_ns_per_chunk: 40,
        })
        .expect("a chunk has bytes and a link has a speed");
        Self { machine, orders: 20, is_forgiving: false }
    }
}

impl Backend for Sim {
    type Error = SimError;
    type Device<'g> = SimDevice<'g>;

    fn name(&self) -> &'static str {
        "sim"
    }

    fn find(&self) -> Result<Found, String> {
        let MachineParameters { device_bytes, chunk_bytes, .. } = *self.machine;
        let device = format!("simulated, {device_bytes} bytes in chunks of {chunk_bytes}");
        Ok(Found { device, machine: self.machine })
    }

    fn open<'g>(
        &self,
        graph: Graph<'g>,
        machine: Machine,
        order: u64,
    ) -> Result<SimDevice<'g>, String> {
        let device = match order {
            0 => SimDevice::new(graph, machine),
            seed => SimDevice::adversarial(graph, machine, seed),
        };
        let device = device.with_bytes();
        Ok(if self.is_forgiving { device.forgiving() } else { device })
    }

    fn launch<'g>(&self, device: &mut SimDevice<'g>, launch: &Launch<'_>) -> Result<(), SimError> {
        device.launch(launch)
    }

    fn write_host(
        &self,
        device: &mut SimDevice<'_>,
        offset_bytes: u64,
        from: &[u8],
    ) -> Result<(), SimError> {
        device.write_host(offset_bytes, from)
    }

    fn read_host(
        &self,
        device: &mut SimDevice<'_>,
        offset_bytes: u64,
        into: &mut [u8],
    ) -> Result<(), SimError> {
        device.read_host(offset_bytes, into)
    }

    fn orders(&self) -> u64 {
        self.orders
    }
}
