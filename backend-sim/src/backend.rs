//! The simulated device as integrity kernels and the conformance suite use it.

use crate::{SimDevice, SimError, SimKernels};
use integrity::{Backend, Found};
use planner_core::{Graph, Machine, MachineParameters, OpId};

/// Opens simulated devices with real bytes, which take only as much memory as is written to them.
#[derive(Clone, Copy, Debug)]
pub struct Sim {
    /// The machine to simulate.
    pub machine: Machine,
    /// The number of orders in which each check runs. The first order is the order of submission.
    /// All others are drawn at random.
    pub orders: u64,
    /// Whether devices are [forgiving](SimDevice::forgiving).
    pub is_forgiving: bool,
}

impl Default for Sim {
    /// A device of 8 GiB in chunks of 256 bytes, in twenty orders.
    fn default() -> Self {
        let machine = Machine::new(
            MachineParameters::new()
                .with_device_bytes(8 << 30)
                .with_host_bytes(8 << 30)
                .with_chunk_bytes(256)
                .with_h2d_bytes_per_s(1_000_000)
                .with_d2h_bytes_per_s(1_000_000)
                .with_transfer_latency_ns(10)
                .with_map_ns_per_chunk(40)
                .with_unmap_ns_per_chunk(40),
        )
        .expect("a chunk has bytes and a link has a speed");
        Self { machine, orders: 20, is_forgiving: false }
    }
}

impl Backend for Sim {
    type Error = SimError;
    type Device = SimDevice;
    type Kernels<'g> = SimKernels<'g>;

    fn name(&self) -> &'static str {
        "sim"
    }

    fn find(&self) -> Result<Found, String> {
        let MachineParameters { device_bytes, chunk_bytes, .. } = *self.machine;
        let device = format!("simulated, {device_bytes} bytes in chunks of {chunk_bytes}");
        Ok(Found { device, machine: self.machine })
    }

    fn open(&self, machine: Machine, order: u64) -> Result<SimDevice, String> {
        let device = match order {
            0 => SimDevice::new(machine),
            seed => SimDevice::adversarial(machine, seed),
        };
        let device = device.with_bytes();
        Ok(if self.is_forgiving { device.forgiving() } else { device })
    }

    fn kernels<'g>(
        &self,
        _device: &mut SimDevice,
        graph: Graph<'g>,
    ) -> Result<SimKernels<'g>, SimError> {
        Ok(SimKernels::new(graph))
    }

    fn fail_host_op(
        &self,
        kernels: &mut SimKernels<'_>,
        op: OpId,
        iteration: u64,
    ) -> Result<(), String> {
        kernels.fail_on_host(op, iteration);
        Ok(())
    }

    fn orders(&self) -> u64 {
        self.orders
    }
}
