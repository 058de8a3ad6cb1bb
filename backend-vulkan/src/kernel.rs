//! The interface of an embedder's kernels to the device.

use crate::VulkanDevice;
use crate::driver::{Buffer, BufferRange, Commands, Device, Memory, Pipeline};
use crate::error::VulkanError;
use crate::shader::{Interface, Shader};
#[cfg(feature = "wgsl")]
use crate::wgsl::translate;
use ash::vk;
use planner_core::Stream;
use planner_core::backend::DeviceAddress;
use std::fmt;

/// A compute shader that a device has compiled. Only that device runs it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Kernel {
    /// The number of the device.
    device: u64,
    index: usize,
}

/// The data of a kernel that a device keeps.
#[derive(Debug)]
pub(crate) struct Compiled {
    pipeline: Pipeline,
    interface: Interface,
}

/// Why a shader cannot become a kernel.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum KernelError {
    /// The source is wrong. The text says where.
    Source(String),
    /// The shader needs more than the device has.
    Limits(String),
    /// The driver refuses the shader.
    Driver(VulkanError),
}

impl fmt::Display for KernelError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Source(text) | Self::Limits(text) => f.write_str(text),
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

impl VulkanDevice {
    /// Compiles a compute shader, which lives as long as the device. The shader may bind storage
    /// buffers in group 0, counted from 0, and may have immediates. An index out of bounds is
    /// replaced by one in bounds.
    ///
    /// # Errors
    /// The source is wrong or needs more than the device has, and the errors of the driver.
    #[cfg(feature = "wgsl")]
    pub fn kernel(&mut self, wgsl: &str, entry: &str) -> Result<Kernel, KernelError> {
        self.compile(translate(wgsl, entry).map_err(KernelError::Source)?)
    }

    /// # Errors
    /// The shader needs more than the device has, and the errors of the driver.
    pub(crate) fn compile(&mut self, shader: Shader) -> Result<Kernel, KernelError> {
        let Shader { spirv, name, interface } = shader;
        let pushed = self.device.physical.max_push_descriptors.unwrap_or(0);
        let checked = interface.check(self.device.limits(), pushed);
        checked
            .map_err(|text| KernelError::Limits(format!("{}: {text}", name.to_string_lossy())))?;
        let (bindings, immediates) = (interface.bindings.len() as u32, interface.immediates);
        let pipeline = Pipeline::new(&self.device, &spirv, &name, bindings, immediates)?;
        self.kernels.push(Compiled { pipeline, interface });
        Ok(Kernel { device: self.device.number, index: self.kernels.len() - 1 })
    }

    /// Allocates working memory for kernels, beside the chunks, which lives as long as the device.
    /// Its first contents are undefined.
    ///
    /// # Errors
    /// The size is more than one buffer can have, and the errors of the driver.
    pub fn working_memory(&mut self, bytes: u64) -> Result<BufferRange, VulkanError> {
        let bytes = bytes.max(4).checked_next_multiple_of(4).unwrap_or(u64::MAX);
        let memory_type = |bits| Some(self.device.physical.memory_type_of_device(bits));
        let (buffer, memory): (Buffer, Memory) =
            Buffer::with_memory(&self.device, bytes, false, memory_type)?;
        let (device, raw) = (self.device.number, buffer.raw);
        self.working.push((buffer, memory));
        Ok(BufferRange { device, buffer: raw, offset_bytes: 0, bytes })
    }

    /// The part of a buffer at an address. All of it must be mapped. If some of it is unmapped
    /// later, writes there are lost and reads are undefined.
    ///
    /// # Errors
    /// The range is not completely mapped.
    pub fn range(&self, at: DeviceAddress, bytes: u64) -> Result<BufferRange, VulkanError> {
        self.space.range(at, bytes)
    }

    /// Offsets of bindings must be multiples of this.
    #[must_use]
    pub fn binding_alignment_bytes(&self) -> u64 {
        self.device.binding_alignment_bytes()
    }

    /// The most bytes of one binding.
    #[must_use]
    pub fn most_binding_bytes(&self) -> u64 {
        self.device.most_binding_bytes()
    }

    /// Starts work on the compute stream, after all work that is enqueued there.
    ///
    /// # Errors
    /// The errors of the driver.
    pub fn compute(&mut self) -> Result<Compute<'_>, VulkanError> {
        self.record(Stream::Compute)?;
        Ok(Compute {
            device: &self.device,
            kernels: &self.kernels,
            commands: self.queued[Stream::Compute as usize].recording(),
        })
    }

    /// The raw device, for embedders who record their own commands.
    #[must_use]
    pub fn raw_device(&self) -> &ash::Device {
        self.device.raw()
    }
}

/// Work of the compute stream that is being recorded.
#[derive(Debug)]
pub struct Compute<'d> {
    commands: &'d mut Commands,
    kernels: &'d [Compiled],
    device: &'d Device,
}

impl Compute<'_> {
    /// Runs a kernel at the same time as other work since the last barrier.
    ///
    /// # Errors
    /// [`VulkanError::Foreign`], [`VulkanError::Bindings`], [`VulkanError::Binding`] and
    /// [`VulkanError::Groups`]; then nothing is enqueued.
    pub fn dispatch(
        &mut self,
        kernel: Kernel,
        bindings: &[BufferRange],
        immediates: &[u32],
        groups: [u32; 3],
    ) -> Result<(), VulkanError> {
        let is_own = |number| number == self.device.number;
        if !is_own(kernel.device) || !bindings.iter().all(|range| is_own(range.device)) {
            return Err(VulkanError::Foreign);
        }
        let Compiled { pipeline, interface } = &self.kernels[kernel.index];
        if bindings.len() != interface.bindings.len()
            || immediates.len() != interface.immediates as usize
        {
            return Err(VulkanError::Bindings);
        }
        let wrong = bindings
            .iter()
            .zip(&interface.bindings)
            .position(|(range, &least_bytes)| !self.is_bindable(range, least_bytes));
        if let Some(binding) = wrong {
            return Err(VulkanError::Binding(binding as u32));
        }
        let most = self.device.limits().max_compute_work_group_count;
        if groups.iter().zip(most).any(|(&groups, most)| groups > most) {
            return Err(VulkanError::Groups(groups));
        }
        self.commands.dispatch(pipeline, bindings, immediates, groups);
        Ok(())
    }

    /// Whether a range can be bound for a kernel that accesses its first `least_bytes` bytes.
    fn is_bindable(&self, range: &BufferRange, least_bytes: u64) -> bool {
        range.offset_bytes.is_multiple_of(self.device.binding_alignment_bytes())
            && range.bytes.is_multiple_of(4)
            && (least_bytes..=self.device.most_binding_bytes()).contains(&range.bytes)
    }

    /// Fills a range of whole words with a word.
    ///
    /// # Errors
    /// [`VulkanError::Foreign`] and [`VulkanError::Fill`]; then nothing is enqueued.
    pub fn fill(&mut self, range: BufferRange, word: u32) -> Result<(), VulkanError> {
        let BufferRange { device, offset_bytes, bytes, .. } = range;
        if device != self.device.number {
            return Err(VulkanError::Foreign);
        }
        if bytes == 0 || !bytes.is_multiple_of(4) || !offset_bytes.is_multiple_of(4) {
            return Err(VulkanError::Fill { offset_bytes, bytes });
        }
        self.commands.fill(range, word);
        Ok(())
    }

    /// Lets later work start after all earlier work and see its effects.
    pub fn barrier(&mut self) {
        self.commands.barrier();
    }

    /// The raw command buffer, for embedders who record their own commands.
    #[must_use]
    pub fn raw(&self) -> vk::CommandBuffer {
        self.commands.raw()
    }
}
