//! Backends whose devices have larger chunks.

use integrity::{Backend, Exemption, Found, Graphs};
use planner_core::backend::{DeviceAddress, Launch};
use planner_core::{Graph, Machine, OpId};
use std::sync::Arc;

/// The number of orders in which devices with other chunks run: the order of submission, and one
/// more.
const ORDERS: u64 = 2;

/// A backend whose devices have chunks of another size and are otherwise the same.
#[derive(Debug)]
pub struct Chunked<T> {
    backend: Arc<T>,
    /// The size of a chunk. `None` for the chunks of the backend.
    chunk_bytes: Option<u64>,
}

impl<T> Chunked<T> {
    /// The backend with its own chunks, or with chunks of `chunk_bytes` bytes, a multiple of its
    /// own.
    #[must_use]
    pub const fn new(backend: Arc<T>, chunk_bytes: Option<u64>) -> Self {
        Self { backend, chunk_bytes }
    }
}

impl<T: Backend> Backend for Chunked<T> {
    type Error = T::Error;
    type Device = T::Device;
    type Kernels<'g> = T::Kernels<'g>;

    fn name(&self) -> &'static str {
        self.backend.name()
    }

    fn find(&self) -> Result<Found, String> {
        let found = self.backend.find()?;
        let Some(chunk_bytes) = self.chunk_bytes else { return Ok(found) };
        let own_bytes = found.machine.chunk_bytes;
        if chunk_bytes == 0 || !chunk_bytes.is_multiple_of(own_bytes) {
            return Err(format!(
                "chunks of {chunk_bytes} bytes are not a multiple of the device's chunks of {own_bytes} bytes"
            ));
        }
        let machine = Machine::new((*found.machine).with_chunk_bytes(chunk_bytes));
        let machine = machine.map_err(|error| error.to_string())?;
        let device = format!("{}, in chunks of {chunk_bytes} bytes", found.device);
        Ok(Found { device, machine })
    }

    fn open(&self, machine: Machine, order: u64) -> Result<Self::Device, String> {
        self.backend.open(machine, order)
    }

    fn kernels<'g>(
        &self,
        device: &mut Self::Device,
        graph: Graph<'g>,
    ) -> Result<Self::Kernels<'g>, Self::Error> {
        self.backend.kernels(device, graph)
    }

    fn sparse_kernels<'g>(
        &self,
        device: &mut Self::Device,
        graph: Graph<'g>,
        spread_words: u64,
    ) -> Result<Self::Kernels<'g>, String> {
        self.backend.sparse_kernels(device, graph, spread_words)
    }

    fn close(&self, device: Self::Device) -> Result<(), String> {
        self.backend.close(device)
    }

    fn fail_next_wait(&self, device: &mut Self::Device) -> Result<(), String> {
        self.backend.fail_next_wait(device)
    }

    fn fail_host_op(
        &self,
        kernels: &mut Self::Kernels<'_>,
        op: OpId,
        iteration: u64,
    ) -> Result<(), String> {
        self.backend.fail_host_op(kernels, op, iteration)
    }

    fn orders(&self) -> u64 {
        let orders = self.backend.orders();
        if self.chunk_bytes.is_some() { orders.min(ORDERS) } else { orders }
    }

    fn one_at_a_time(&self) -> bool {
        self.backend.one_at_a_time()
    }

    fn exemptions(&self) -> &[Exemption] {
        self.backend.exemptions()
    }
}

impl<T: Graphs> Graphs for Chunked<T> {
    type Graph = T::Graph;

    fn begin_capture(&self, device: &mut Self::Device) -> Result<(), Self::Error> {
        self.backend.begin_capture(device)
    }

    fn end_capture(&self, device: &mut Self::Device) -> Result<Self::Graph, Self::Error> {
        self.backend.end_capture(device)
    }

    fn launch_graph(
        &self,
        device: &mut Self::Device,
        graph: &Self::Graph,
        iterations_later: u64,
    ) -> Result<(), Self::Error> {
        self.backend.launch_graph(device, graph, iterations_later)
    }

    fn write_iteration(
        &self,
        device: &mut Self::Device,
        launch: &Launch<'_>,
        at: DeviceAddress,
    ) -> Result<(), Self::Error> {
        self.backend.write_iteration(device, launch, at)
    }
}
