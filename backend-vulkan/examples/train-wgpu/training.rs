//! Training under a plan, with wgpu's pipelines as kernels.

use crate::network::{Launched, Network, ROWS};
use crate::text::Text;
use backend_vulkan::{Options, Vulkan, VulkanDevice, VulkanError};
use planner_core::backend::{
    DeviceAddress, FillError, InputWriter, Kernels, Launch, StateWriter, Transfers,
};
use planner_core::executor::Moment;
use planner_core::{ExecuteError, Machine, OpId, TensorId};
use spillway::planning;
use std::collections::HashMap;
use std::error::Error;
use std::time::{Duration, Instant};
use workloads::OwnedPlan;

/// What a training run left.
#[derive(Debug)]
pub(crate) struct Trained {
    pub(crate) losses: Vec<f32>,
    /// The weights of all layers, one after the other.
    pub(crate) weights: Vec<u8>,
    pub(crate) time: Duration,
    /// Calls of `map` after the set-up.
    pub(crate) map_calls: u64,
}

/// The kernels: a pipeline an op, and what has been bound so far.
struct Training<'n> {
    network: &'n Network,
    text: &'n Text,
    pipelines: Vec<wgpu::ComputePipeline>,
    /// By op, and by the addresses of its tensors, of which a plan has few.
    bound: HashMap<(OpId, Vec<u64>), wgpu::BindGroup>,
}

/// Trains for some iterations under a plan.
pub(crate) fn train(
    vulkan: &Vulkan,
    options: &Options<'_>,
    (network, text): (&Network, &Text),
    machine: &Machine,
    plan: &OwnedPlan,
    iterations: u64,
) -> Result<Trained, Box<dyn Error>> {
    let graph = network.graph.graph()?;
    let plan = plan.plan();
    let schedule = planning::schedule(&graph, machine, &plan)?;
    let schedule = schedule.schedule();
    let verified = planning::prove(&graph, machine, &plan, &schedule)?;
    #[allow(unsafe_code, reason = "wgpu uses the queue of the device")]
    // SAFETY: all that follows runs on this thread.
    let mut device = unsafe { vulkan.open_with_wgpu(options) }?;
    let pipelines = pipelines(&device, network);
    let mut training = Training { network, text, pipelines, bound: HashMap::new() };
    let run = planning::with_executor(
        &verified,
        &mut device,
        &mut training,
        |mut executor, device, training| {
            let (start, set_up) = (Instant::now(), device.counters().map_calls);
            executor.run(device, training, iterations)?;
            executor.save_states(device)?;
            let (time, map_calls) = (start.elapsed(), device.counters().map_calls - set_up);
            let mut read = |state: TensorId| {
                let mut bytes = vec![0; graph.tensor(state).bytes as usize];
                let offset_bytes = executor.host_layout().offset_bytes(state, 0, 0);
                let read = device.read_host(offset_bytes, &mut bytes);
                read.map(|()| bytes)
                    .map_err(|error| ExecuteError::Device { at: Moment::Save, error })
            };
            let losses = read(network.losses)?;
            let losses = losses.chunks_exact(4).skip(1).map(bytemuck::pod_read_unaligned).collect();
            let weights = network.weights.iter().map(|&weights| read(weights));
            let weights = weights.collect::<Result<Vec<_>, _>>()?.concat();
            Ok(Trained { losses, weights, time, map_calls })
        },
    );
    Ok(run?)
}

fn pipelines(device: &VulkanDevice, network: &Network) -> Vec<wgpu::ComputePipeline> {
    let device = device.wgpu().expect("the device was opened for wgpu");
    let module = device.create_shader_module(wgpu::include_wgsl!("kernels.wgsl"));
    let pipeline = |op: &Launched| {
        let constants = [
            ("ROWS", ROWS as f64),
            ("INPUTS", op.inputs as f64),
            ("OUTPUTS", op.outputs as f64),
            ("CUT", f64::from(u8::from(op.cut))),
        ];
        device.create_compute_pipeline(&wgpu::ComputePipelineDescriptor {
            label: Some(op.entry),
            layout: None,
            module: &module,
            entry_point: Some(op.entry),
            compilation_options: wgpu::PipelineCompilationOptions {
                constants: &constants,
                ..wgpu::PipelineCompilationOptions::default()
            },
            cache: None,
        })
    };
    network.ops.iter().map(pipeline).collect()
}

impl Training<'_> {
    /// Binds the tensors of an op where they are now, if they have not been bound there.
    fn bind(
        &mut self,
        device: &mut VulkanDevice,
        op: OpId,
        addresses: &[u64],
    ) -> Result<(), VulkanError> {
        let key = (op, addresses.to_vec());
        if self.bound.contains_key(&key) {
            return Ok(());
        }
        let mut parts = Vec::new();
        for (&at, tensor) in addresses.iter().zip(self.network.bound(op)) {
            let bytes = self.network.graph.tensors[tensor.index()].bytes;
            let (buffer, offset) = device.lend(DeviceAddress(at), bytes)?;
            parts.push((buffer, offset, wgpu::BufferSize::new(bytes)));
        }
        let mut entries = Vec::new();
        for (binding, (buffer, offset, size)) in (0..).zip(&parts) {
            let part = wgpu::BufferBinding { buffer, offset: *offset, size: *size };
            entries.push(wgpu::BindGroupEntry {
                binding,
                resource: wgpu::BindingResource::Buffer(part),
            });
        }
        let device = device.wgpu().expect("the device was opened for wgpu");
        let group = device.create_bind_group(&wgpu::BindGroupDescriptor {
            label: None,
            layout: &self.pipelines[op.index()].get_bind_group_layout(0),
            entries: &entries,
        });
        self.bound.insert(key, group);
        Ok(())
    }
}

impl Kernels<VulkanDevice> for Training<'_> {
    fn launch(
        &mut self,
        device: &mut VulkanDevice,
        launch: &Launch<'_>,
    ) -> Result<(), VulkanError> {
        let op = launch.op;
        let mut addresses: Vec<_> =
            launch.reads.iter().flatten().map(|range| range.address.0).collect();
        // A tensor that is updated in place has one address.
        let written = launch.writes.iter().flatten().map(|range| range.address.0);
        let written: Vec<_> = written.filter(|at| !addresses.contains(at)).collect();
        addresses.extend(written);
        self.bind(device, op, &addresses)?;
        let opened = device.wgpu().expect("the device was opened for wgpu");
        let mut encoder = opened.create_command_encoder(&wgpu::CommandEncoderDescriptor::default());
        {
            let mut pass = encoder.begin_compute_pass(&wgpu::ComputePassDescriptor::default());
            pass.set_pipeline(&self.pipelines[op.index()]);
            pass.set_bind_group(0, &self.bound[&(op, addresses)], &[]);
            // The loss is one group, all others have threads in groups of 64.
            let groups = self.network.ops[op.index()].threads.div_ceil(64) as u32;
            pass.dispatch_workgroups(groups, 1, 1);
        }
        device.submit_wgpu([encoder.finish()])
    }

    fn fill_states(
        &mut self,
        states: &mut StateWriter<'_, VulkanDevice>,
    ) -> Result<(), FillError<VulkanError>> {
        let all: Vec<_> = states.tensors().collect();
        all.into_iter().try_for_each(|state| states.write(state, self.network.state(state)))
    }

    fn fill_inputs(
        &mut self,
        inputs: &mut InputWriter<'_, VulkanDevice>,
    ) -> Result<(), FillError<VulkanError>> {
        let (ones, targets) = self.text.batch(inputs.iteration(), ROWS);
        inputs.write(self.network.ones, &ones)?;
        inputs.write(self.network.targets, &targets)
    }
}
