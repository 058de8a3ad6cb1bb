//! Backends with middleware over their devices.

use integrity::{Backend, Exemption, Found};
use middleware::{Layer, Layered};
use planner_core::backend::{BackendError, Launch};
use planner_core::{Graph, Machine};

/// A backend whose devices have a layer each.
#[derive(Clone, Copy, Debug)]
pub struct LayeredBackend<T, F> {
    backend: T,
    layer: F,
}

impl<T, F> LayeredBackend<T, F> {
    /// Puts `layer` over each device; it is made for the order in which the device runs.
    #[must_use]
    pub const fn new(backend: T, layer: F) -> Self {
        Self { backend, layer }
    }
}

impl<T, F, L, E> Backend for LayeredBackend<T, F>
where
    T: Backend,
    F: Fn(u64) -> L + Send + Sync + 'static,
    L: for<'g> Layer<T::Device<'g>, Error = E> + 'static,
    E: BackendError + From<T::Error> + 'static,
{
    type Error = E;
    type Device<'g> = Layered<T::Device<'g>, L>;

    fn name(&self) -> &'static str {
        self.backend.name()
    }

    fn find(&self) -> Result<Found, String> {
        self.backend.find()
    }

    fn open<'g>(
        &self,
        graph: Graph<'g>,
        machine: Machine,
        order: u64,
    ) -> Result<Self::Device<'g>, String> {
        let device = self.backend.open(graph, machine, order)?;
        Ok(Layered::new(device, (self.layer)(order)))
    }

    fn launch(&self, device: &mut Self::Device<'_>, launch: &Launch<'_>) -> Result<(), E> {
        let Layered { device, layer } = device;
        layer.launch(device, launch, |device, launch| self.backend.launch(device, launch))
    }

    fn write_host(
        &self,
        device: &mut Self::Device<'_>,
        offset_bytes: u64,
        from: &[u8],
    ) -> Result<(), E> {
        Ok(self.backend.write_host(&mut device.device, offset_bytes, from)?)
    }

    fn read_host(
        &self,
        device: &mut Self::Device<'_>,
        offset_bytes: u64,
        into: &mut [u8],
    ) -> Result<(), E> {
        Ok(self.backend.read_host(&mut device.device, offset_bytes, into)?)
    }

    fn close(&self, device: Self::Device<'_>) -> Result<(), String> {
        self.backend.close(device.device)
    }

    fn orders(&self) -> u64 {
        self.backend.orders()
    }

    fn exemptions(&self) -> &[Exemption] {
        self.backend.exemptions()
    }
}
