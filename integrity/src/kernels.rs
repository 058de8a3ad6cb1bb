use crate::backend::Backend;
use crate::value::{self, Reading};
use planner_core::backend::{Kernels, Launch};
use planner_core::{Graph, HostRooms, Kind, TensorId};

/// Where the values of states and inputs lie in the host's block.
#[derive(Clone, Debug)]
pub struct Rooms<'g> {
    graph: Graph<'g>,
    /// The rooms of each tensor; those of temporaries are not used.
    offsets_bytes: Vec<[u64; 2]>,
}

impl<'g> Rooms<'g> {
    /// Notes the rooms of a plan.
    #[must_use]
    pub fn new(graph: Graph<'g>, rooms: &HostRooms<'_>) -> Self {
        let offsets = |tensor| [0, 1].map(|room| rooms.offset_bytes(tensor, room, 0));
        Self { graph, offsets_bytes: graph.tensor_ids().map(offsets).collect() }
    }

    /// Where the room of a state begins, or that of an input in an iteration.
    #[must_use]
    pub fn offset_bytes(&self, tensor: TensorId, iteration: u64) -> u64 {
        self.offsets_bytes[tensor.index()][(iteration % 2) as usize]
    }

    fn of_kind(&self, kind: Kind) -> impl Iterator<Item = TensorId> + use<'g> {
        let graph = self.graph;
        graph.tensor_ids().filter(move |&tensor| graph.tensor(tensor).kind == kind)
    }

    /// The digest of what lies in the rooms of all states.
    ///
    /// # Errors
    /// Those of [`Backend::read_host`].
    pub fn digest<B: Backend>(
        &self,
        backend: &B,
        device: &mut B::Device<'g>,
    ) -> Result<u64, B::Error> {
        let mut readings = Vec::new();
        let mut bytes = Vec::new();
        for tensor in self.of_kind(Kind::State) {
            bytes.resize(self.graph.tensor(tensor).bytes as usize, 0);
            backend.read_host(device, self.offset_bytes(tensor, 0), &mut bytes)?;
            readings.push(Reading::of(&bytes));
        }
        Ok(value::digest(readings.into_iter()))
    }
}

/// The kernels of a backend as an executor takes them, with the inputs that they read.
#[derive(Debug)]
pub struct IntegrityKernels<'a, 'g, B> {
    backend: &'a B,
    rooms: &'a Rooms<'g>,
}

impl<'a, 'g, B> IntegrityKernels<'a, 'g, B> {
    /// The kernels for a plan of these rooms.
    #[must_use]
    pub const fn new(backend: &'a B, rooms: &'a Rooms<'g>) -> Self {
        Self { backend, rooms }
    }
}

impl<'g, B: Backend> Kernels<B::Device<'g>> for IntegrityKernels<'_, 'g, B> {
    fn launch(&mut self, device: &mut B::Device<'g>, launch: &Launch<'_>) -> Result<(), B::Error> {
        self.backend.launch(device, launch)
    }

    fn fill_inputs(&mut self, device: &mut B::Device<'g>, iteration: u64) -> Result<(), B::Error> {
        let mut bytes = Vec::new();
        for tensor in self.rooms.of_kind(Kind::Input) {
            bytes.resize(self.rooms.graph.tensor(tensor).bytes as usize, 0);
            value::input(tensor, iteration, bytes.len() as u64).fill(0, &mut bytes);
            self.backend.write_host(device, self.rooms.offset_bytes(tensor, iteration), &bytes)?;
        }
        Ok(())
    }
}
