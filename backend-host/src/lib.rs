//! The smallest backend: a device made of host memory, as an example for other authors.
//!
//! All work is done when it is enqueued, in that order. So whatever a wait might wait for has
//! been done, and streams are three numbers. `docs/backends.md` walks through it.
#![forbid(unsafe_code)]

mod error;
mod paging;
mod stream;
mod transfer;

pub use error::HostError;

use integrity::{Backend, Found, Reading, value};
use paging::Pages;
use planner_core::backend::{ErrorType, Launch};
use planner_core::{Graph, Machine, MachineParameters};

/// A device of host memory.
#[derive(Debug)]
pub struct HostDevice<'g> {
    graph: Graph<'g>,
    pages: Pages,
    /// The host's block, once it is created.
    block: Option<Vec<u8>>,
    /// Signals of each stream.
    signals: [u64; 3],
}

impl ErrorType for HostDevice<'_> {
    type Error = HostError;
}

/// Opens devices of 16 MiB in chunks of 4 KiB.
#[derive(Clone, Copy, Debug, Default)]
pub struct Host;

impl Backend for Host {
    type Error = HostError;
    type Device<'g> = HostDevice<'g>;

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

    fn open<'g>(
        &self,
        graph: Graph<'g>,
        machine: Machine,
        _order: u64,
    ) -> Result<HostDevice<'g>, String> {
        let pages = Pages::new(machine.chunk_bytes, machine.device_bytes);
        Ok(HostDevice { graph, pages, block: None, signals: [0; 3] })
    }

    fn launch(&self, device: &mut HostDevice<'_>, launch: &Launch<'_>) -> Result<(), HostError> {
        let (graph, op) = (device.graph, launch.op);
        let bytes = |tensor| graph.tensor(tensor).bytes;
        let mut readings = Vec::new();
        for (&tensor, at) in graph.reads(op).iter().zip(launch.reads.iter()) {
            readings.push(Reading::of(&device.pages.read(at, bytes(tensor))?));
        }
        let result = value::op_result(op, readings.into_iter());
        let writes = graph.writes(op).iter().zip(launch.writes.iter());
        let writes = writes.map(|(&tensor, at)| (at, bytes(tensor)));
        let workspace = launch.workspace.map(|at| (at, graph.op(op).workspace_bytes));
        for (position, (at, bytes)) in (0..).zip(writes.chain(workspace)) {
            let mut written = vec![0; bytes as usize];
            value::written(result, position, bytes).fill(0, &mut written);
            device.pages.write(at, &written)?;
        }
        Ok(())
    }

    fn write_host(
        &self,
        device: &mut HostDevice<'_>,
        offset_bytes: u64,
        from: &[u8],
    ) -> Result<(), HostError> {
        device.block(offset_bytes, from.len() as u64)?.copy_from_slice(from);
        Ok(())
    }

    fn read_host(
        &self,
        device: &mut HostDevice<'_>,
        offset_bytes: u64,
        into: &mut [u8],
    ) -> Result<(), HostError> {
        into.copy_from_slice(device.block(offset_bytes, into.len() as u64)?);
        Ok(())
    }
}
