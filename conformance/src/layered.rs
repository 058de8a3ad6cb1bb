//! Backends with middleware over their devices.

use integrity::{Backend, Exemption, Found};
use middleware::{Layer, Layered, LayeredKernels};
use planner_core::backend::BackendError;
use planner_core::{Graph, Machine, OpId};

/// A backend with a layer over each device.
#[derive(Clone, Copy, Debug)]
pub struct LayeredBackend<T, F> {
    backend: T,
    layer: F,
}

impl<T, F> LayeredBackend<T, F> {
    /// Puts a layer over each device. `layer` makes it for the order in which the device runs.
    #[must_use]
    pub const fn new(backend: T, layer: F) -> Self {
        Self { backend, layer }
    }
}

impl<T, F, L, E> Backend for LayeredBackend<T, F>
where
    T: Backend,
    F: Fn(u64) -> L + Send + Sync + 'static,
    L: Layer<T::Device, Error = E> + 'static,
    E: BackendError + From<T::Error> + 'static,
{
    type Error = E;
    type Device = Layered<T::Device, L>;
    type Kernels<'g> = LayeredKernels<T::Kernels<'g>>;

    fn name(&self) -> &'static str {
        self.backend.name()
    }

    fn find(&self) -> Result<Found, String> {
        self.backend.find()
    }

    fn open(&self, machine: Machine, order: u64) -> Result<Self::Device, String> {
        let device = self.backend.open(machine, order)?;
        Ok(Layered::new(device, (self.layer)(order)))
    }

    fn kernels<'g>(
        &self,
        device: &mut Self::Device,
        graph: Graph<'g>,
    ) -> Result<Self::Kernels<'g>, E> {
        Ok(LayeredKernels(self.backend.kernels(&mut device.device, graph)?))
    }

    fn sparse_kernels<'g>(
        &self,
        device: &mut Self::Device,
        graph: Graph<'g>,
        spread_words: u64,
    ) -> Result<Self::Kernels<'g>, String> {
        let kernels = self.backend.sparse_kernels(&mut device.device, graph, spread_words)?;
        Ok(LayeredKernels(kernels))
    }

    fn close(&self, device: Self::Device) -> Result<(), String> {
        self.backend.close(device.device)
    }

    fn fail_next_wait(&self, device: &mut Self::Device) -> Result<(), String> {
        self.backend.fail_next_wait(&mut device.device)
    }

    fn fail_host_op(
        &self,
        kernels: &mut Self::Kernels<'_>,
        op: OpId,
        iteration: u64,
    ) -> Result<(), String> {
        self.backend.fail_host_op(&mut kernels.0, op, iteration)
    }

    fn orders(&self) -> u64 {
        self.backend.orders()
    }

    fn one_at_a_time(&self) -> bool {
        self.backend.one_at_a_time()
    }

    fn exemptions(&self) -> &[Exemption] {
        self.backend.exemptions()
    }
}
