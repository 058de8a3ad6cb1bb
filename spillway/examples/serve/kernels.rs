//! The decoder's kernels, on a device and on the host.

use crate::decoder::{Op, Work, compute};
use backend_host::{HostError, MappedDevice};
use spillway::TensorId;
use spillway::planner_core::Kind;
use spillway::planner_core::backend::{
    DeviceRange, FillError, HostKernels, HostLaunch, InputWriter, Kernels, Launch, StateWriter,
};
use std::convert::Infallible;

/// Kernels of the step that a session runs, and the prompt that comes next.
pub(crate) struct Decoder {
    pub(crate) work: Work,
    pub(crate) prompt: Vec<u8>,
}

impl Decoder {
    fn op(&self, op: spillway::OpId) -> Op {
        self.work.ops[op.index()]
    }
}

impl Kernels<MappedDevice> for Decoder {
    fn launch(&mut self, device: &mut MappedDevice, launch: &Launch<'_>) -> Result<(), HostError> {
        let load = |range: DeviceRange| {
            let mut values = vec![0f32; range.bytes as usize / 4];
            device.read(range, &mut values).map(|()| values)
        };
        let read = launch.reads.iter().flatten().map(load).collect::<Result<Vec<_>, _>>()?;
        let written = compute(self.work.step, self.op(launch.op), read);
        launch
            .writes
            .iter()
            .flatten()
            .zip(written)
            .try_for_each(|(to, values)| device.write(to, &values))
    }

    fn on_host(&mut self) -> Option<&mut dyn HostKernels<MappedDevice>> {
        Some(self)
    }

    /// Weights that look random; caches and the cursor are zeros.
    fn fill_states(
        &mut self,
        states: &mut StateWriter<'_, MappedDevice>,
    ) -> Result<(), FillError<HostError>> {
        let graph = self.work.graph.owned();
        for ((id, tensor), name) in (0..).zip(&graph.tensors).zip(&graph.tensor_names) {
            if tensor.kind == Kind::State {
                let is_weight = !name.starts_with("cache") && !name.starts_with("cursor");
                let scale = if is_weight { 0.5 } else { 0.0 };
                let values = noise(tensor.bytes as usize / 4, name.len() as u64 * 1000 + id);
                let values: Vec<f32> = values.map(|value| scale * value).collect();
                states.write(TensorId(id as u32), &values)?;
            }
        }
        Ok(())
    }

    fn fill_inputs(
        &mut self,
        inputs: &mut InputWriter<'_, MappedDevice>,
    ) -> Result<(), FillError<HostError>> {
        let Some(prompt) = self.work.prompt else { return Ok(()) };
        let numbers = self.work.graph.owned().tensors[prompt.index()].bytes as usize / 4;
        let tokens = self.prompt.iter().map(|&token| f32::from(token));
        let given = [self.prompt.len() as f32].into_iter().chain(tokens);
        let given = given.chain(std::iter::repeat(0.0)).take(numbers);
        inputs.write(prompt, &given.collect::<Vec<f32>>())
    }
}

impl HostKernels<MappedDevice> for Decoder {
    fn launch_on_host(
        &mut self,
        device: &mut MappedDevice,
        launch: &HostLaunch<'_>,
    ) -> Result<(), HostError> {
        let (step, op, count) = (self.work.step, self.op(launch.op), launch.reads.len());
        device.launch_on_host(launch, move |mut run| {
            let read = (0..count).map(|position| floats(run.read(position))).collect();
            for (to, values) in run.writes.iter_mut().zip(compute(step, op, read)) {
                for (to, value) in to.chunks_exact_mut(4).zip(values) {
                    to.copy_from_slice(&value.to_le_bytes());
                }
            }
            Ok::<(), Infallible>(())
        })
    }
}

pub(crate) fn floats(bytes: &[u8]) -> Vec<f32> {
    bytes.chunks_exact(4).map(|b| f32::from_le_bytes([b[0], b[1], b[2], b[3]])).collect()
}

/// Numbers between -1 and 1 that look random.
fn noise(len: usize, seed: u64) -> impl Iterator<Item = f32> {
    (0..len as u64).map(move |at| {
        let hash = (seed << 32 | at).wrapping_add(1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        let hash = (hash ^ hash >> 31).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        (hash >> 40) as f32 / (1 << 23) as f32 - 1.0
    })
}
