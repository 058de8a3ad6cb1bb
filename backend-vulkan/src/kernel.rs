//! How an embedder's kernels reach the device.

use crate::VulkanDevice;
use crate::driver::{Buffer, BufferRange, Memory, Pipeline};
use crate::error::VulkanError;
use ash::vk;
use naga::back::spv;
use naga::proc::{BoundsCheckPolicies, BoundsCheckPolicy};
use naga::valid::{Capabilities, ModuleInfo, ValidationFlags, Validator};
use planner_core::Stream;
use planner_core::backend::DeviceAddress;
use std::ffi::CString;
use std::fmt;

/// A compute shader that a device has compiled, by number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Kernel(usize);

/// What a device keeps of a kernel.
#[derive(Debug)]
pub(crate) struct Compiled {
    pipeline: Pipeline,
    bindings: u32,
    immediates: u32,
}

/// Why a shader is no kernel.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum KernelError {
    /// The source is wrong, and where.
    Source(String),
    /// The driver refuses it.
    Driver(VulkanError),
}

impl fmt::Display for KernelError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Source(text) => f.write_str(text),
            Self::Driver(error) => error.fmt(f),
        }
    }
}

impl std::error::Error for KernelError {}

impl From<VulkanError> for KernelError {
    fn from(error: VulkanError) -> Self {
        Self::Driver(error)
    }
}

/// A shader as SPIR-V, with what has to be known to run it.
struct Shader {
    spirv: Vec<u32>,
    entry: CString,
    bindings: u32,
    immediates: u32,
}

/// Translates WGSL. Accesses out of the bounds of a binding do nothing and read zero.
fn translate(wgsl: &str, entry: &str) -> Result<Shader, KernelError> {
    let wrong = |text: String| KernelError::Source(format!("{entry}: {text}"));
    let module = naga::front::wgsl::parse_str(wgsl);
    let module = module.map_err(|error| wrong(error.emit_to_string(wgsl)))?;
    let mut validator = Validator::new(ValidationFlags::all(), Capabilities::IMMEDIATES);
    let info = validator.validate(&module);
    let info = info.map_err(|error| wrong(error.emit_to_string(wgsl)))?;
    let (bindings, immediates) = interface(&module, &info, entry).map_err(wrong)?;
    let policy = BoundsCheckPolicy::Restrict;
    let options = spv::Options {
        lang_version: (1, 3),
        force_loop_bounding: false,
        bounds_check_policies: BoundsCheckPolicies {
            index: policy,
            buffer: policy,
            image_load: policy,
            binding_array: policy,
        },
        ..spv::Options::default()
    };
    let point = spv::PipelineOptions {
        shader_stage: naga::ShaderStage::Compute,
        entry_point: entry.to_owned(),
    };
    let spirv = spv::write_vec(&module, &info, &options, Some(&point));
    let spirv = spirv.map_err(|error| wrong(error.to_string()))?;
    let entry = CString::new(entry).map_err(|error| wrong(error.to_string()))?;
    Ok(Shader { spirv, entry, bindings, immediates })
}

/// How many storage buffers an entry point binds, and how many words of immediates it has.
fn interface(module: &naga::Module, info: &ModuleInfo, entry: &str) -> Result<(u32, u32), String> {
    let is_entry =
        |point: &naga::EntryPoint| point.name == entry && point.stage == naga::ShaderStage::Compute;
    let index = module.entry_points.iter().position(is_entry);
    let uses = info.get_entry_point(index.ok_or("there is no such compute entry point")?);
    let (mut bindings, mut immediates) = (Vec::new(), 0);
    for (handle, global) in module.global_variables.iter() {
        if uses[handle].is_empty() {
            continue;
        }
        match (global.space, global.binding) {
            (naga::AddressSpace::Storage { .. }, Some(binding)) if binding.group == 0 => {
                bindings.push(binding.binding);
            }
            (naga::AddressSpace::Immediate, _) => {
                immediates = module.types[global.ty].inner.size(module.to_ctx()).div_ceil(4);
            }
            (naga::AddressSpace::WorkGroup | naga::AddressSpace::Private, _) => {}
            _ => return Err("only storage buffers of group 0 and immediates can be bound".into()),
        }
    }
    bindings.sort_unstable();
    if !bindings.iter().copied().eq(0..bindings.len() as u32) {
        return Err(format!("its bindings are {bindings:?}; they must count from 0"));
    }
    Ok((bindings.len() as u32, immediates))
}

impl VulkanDevice {
    /// Compiles a compute shader, for as long as the device lives. It may bind storage buffers,
    /// in group 0 and counted from 0, and have immediates.
    ///
    /// # Errors
    /// Where the source is wrong, and those of the driver.
    pub fn kernel(&mut self, wgsl: &str, entry: &str) -> Result<Kernel, KernelError> {
        let Shader { spirv, entry, bindings, immediates } = translate(wgsl, entry)?;
        let pipeline = Pipeline::new(&self.device, &spirv, &entry, bindings, immediates)?;
        self.kernels.push(Compiled { pipeline, bindings, immediates });
        Ok(Kernel(self.kernels.len() - 1))
    }

    /// Memory for kernels to work in, beside the chunks, for as long as the device lives.
    /// What it holds at first is not known.
    ///
    /// # Errors
    /// Those of the driver.
    pub fn working_memory(&mut self, bytes: u64) -> Result<BufferRange, VulkanError> {
        let bytes = bytes.max(4).next_multiple_of(4);
        let memory_type = |bits| Some(self.device.physical.memory_type_of_device(bits));
        let (buffer, memory): (Buffer, Memory) =
            Buffer::with_memory(&self.device, bytes, false, memory_type)?;
        let range = BufferRange { buffer: buffer.raw, offset_bytes: 0, bytes };
        self.working.push((buffer, memory));
        Ok(range)
    }

    /// The part of a buffer that is at an address, all of it mapped.
    ///
    /// # Errors
    /// A range that is not mapped.
    pub fn range(&self, at: DeviceAddress, bytes: u64) -> Result<BufferRange, VulkanError> {
        self.space.range(at, bytes)
    }

    /// What offsets of bindings must be multiples of.
    #[must_use]
    pub fn binding_alignment_bytes(&self) -> u64 {
        self.device.limits().min_storage_buffer_offset_alignment.max(4)
    }

    /// The most that one binding may hold.
    #[must_use]
    pub fn most_binding_bytes(&self) -> u64 {
        self.device.limits().max_storage_buffer_range.into()
    }

    /// Starts work on the compute stream, after all that is enqueued there.
    ///
    /// # Errors
    /// Those of the driver.
    pub fn compute(&mut self) -> Result<Compute<'_>, VulkanError> {
        self.record(Stream::Compute)?;
        Ok(Compute {
            alignment_bytes: self.binding_alignment_bytes(),
            most_bytes: self.most_binding_bytes(),
            most_groups: self.device.limits().max_compute_work_group_count,
            kernels: &self.kernels,
            commands: self.queued[Stream::Compute as usize].recording(),
        })
    }

    /// The device, for embedders who record commands of their own.
    #[must_use]
    pub fn raw_device(&self) -> &ash::Device {
        self.device.raw()
    }
}

/// Work of the compute stream, being recorded.
#[derive(Debug)]
pub struct Compute<'d> {
    commands: &'d mut crate::driver::Commands,
    kernels: &'d [Compiled],
    alignment_bytes: u64,
    most_bytes: u64,
    most_groups: [u32; 3],
}

impl Compute<'_> {
    /// Runs a kernel, at the same time as whatever else was enqueued since the last barrier.
    ///
    /// # Errors
    /// [`VulkanError::Bindings`]: other numbers of bindings or immediates than the kernel has,
    /// or sizes, offsets or groups beyond the device's limits.
    pub fn dispatch(
        &mut self,
        kernel: Kernel,
        bindings: &[BufferRange],
        immediates: &[u32],
        groups: [u32; 3],
    ) -> Result<(), VulkanError> {
        let compiled = self.kernels.get(kernel.0).ok_or(VulkanError::Bindings)?;
        let fits = |range: &BufferRange| {
            range.offset_bytes.is_multiple_of(self.alignment_bytes)
                && range.bytes.is_multiple_of(4)
                && (4..=self.most_bytes).contains(&range.bytes)
        };
        let is_launchable = bindings.len() == compiled.bindings as usize
            && immediates.len() == compiled.immediates as usize
            && bindings.iter().all(fits)
            && groups.iter().zip(self.most_groups).all(|(&groups, most)| groups <= most);
        if !is_launchable {
            return Err(VulkanError::Bindings);
        }
        self.commands.dispatch(&compiled.pipeline, bindings, immediates, groups);
        Ok(())
    }

    /// Fills a range, a whole number of words, with a word.
    pub fn fill(&mut self, range: BufferRange, word: u32) {
        self.commands.fill(range, word);
    }

    /// What follows starts after all that came before, and sees its effects.
    pub fn barrier(&mut self) {
        self.commands.barrier();
    }

    /// The command buffer, for embedders who record commands of their own.
    #[must_use]
    pub fn raw(&self) -> vk::CommandBuffer {
        self.commands.raw()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refused(wgsl: &str) -> String {
        translate(wgsl, "main").err().unwrap().to_string()
    }

    #[test]
    fn wrong_shaders_are_refused_with_the_place() {
        assert!(refused("fn main() {").contains("wgsl:1:"));
        assert!(refused("@compute @workgroup_size(1) fn other() {}").contains("no such compute"));
        let gap = "@group(0) @binding(1) var<storage, read_write> x: array<u32>;
            @compute @workgroup_size(1) fn main() { x[0] = 1u; }";
        assert_eq!(refused(gap), "main: its bindings are [1]; they must count from 0");
    }

    #[test]
    fn only_what_an_entry_point_uses_counts() {
        let wgsl = "var<immediate> p: vec3u;
            @group(0) @binding(0) var<storage, read_write> x: array<u32>;
            @group(0) @binding(1) var<storage, read_write> y: array<u32>;
            @compute @workgroup_size(1) fn main() { x[0] = p.x; }
            @compute @workgroup_size(1) fn both() { x[0] = y[0]; }";
        let interface = |entry| {
            let shader = translate(wgsl, entry).unwrap();
            (shader.bindings, shader.immediates)
        };
        assert_eq!(interface("main"), (1, 3));
        assert_eq!(interface("both"), (2, 0));
    }
}
