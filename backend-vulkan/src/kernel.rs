//! How an embedder's kernels reach the device.

use crate::VulkanDevice;
use crate::driver::{Buffer, BufferRange, Commands, Device, Memory, Pipeline};
use crate::error::VulkanError;
use crate::shader::{Interface, Shader, translate};
use ash::vk;
use planner_core::Stream;
use planner_core::backend::DeviceAddress;
use std::fmt;

/// A compute shader that a device has compiled. Only that device runs it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Kernel {
    /// The device's number.
    device: u64,
    index: usize,
}

/// What a device keeps of a kernel.
#[derive(Debug)]
pub(crate) struct Compiled {
    pipeline: Pipeline,
    interface: Interface,
}

/// Why a shader is no kernel.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum KernelError {
    /// The source is wrong, and where.
    Source(String),
    /// It needs more than the device has.
    Limits(String),
    /// The driver refuses it.
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
    /// Compiles a compute shader, for as long as the device lives. It may bind storage buffers,
    /// in group 0 and counted from 0, and have immediates. It uses no index out of bounds.
    ///
    /// # Errors
    /// Where the source is wrong or needs more than the device has, and those of the driver.
    pub fn kernel(&mut self, wgsl: &str, entry: &str) -> Result<Kernel, KernelError> {
        let Shader { spirv, name, interface } =
            translate(wgsl, entry).map_err(KernelError::Source)?;
        let pushed = self.device.physical.max_push_descriptors.unwrap_or(0);
        let checked = interface.check(self.device.limits(), pushed);
        checked.map_err(|text| KernelError::Limits(format!("{entry}: {text}")))?;
        let (bindings, immediates) = (interface.bindings.len() as u32, interface.immediates);
        let pipeline = Pipeline::new(&self.device, &spirv, &name, bindings, immediates)?;
        self.kernels.push(Compiled { pipeline, interface });
        Ok(Kernel { device: self.device.number, index: self.kernels.len() - 1 })
    }

    /// Memory for kernels to work in, beside the chunks, for as long as the device lives.
    /// What it holds at first is not known.
    ///
    /// # Errors
    /// More bytes than one buffer can have, and those of the driver.
    pub fn working_memory(&mut self, bytes: u64) -> Result<BufferRange, VulkanError> {
        let bytes = bytes.max(4).checked_next_multiple_of(4).unwrap_or(u64::MAX);
        let memory_type = |bits| Some(self.device.physical.memory_type_of_device(bits));
        let (buffer, memory): (Buffer, Memory) =
            Buffer::with_memory(&self.device, bytes, false, memory_type)?;
        let (device, raw) = (self.device.number, buffer.raw);
        self.working.push((buffer, memory));
        Ok(BufferRange { device, buffer: raw, offset_bytes: 0, bytes })
    }

    /// The part of a buffer that is at an address, all of it mapped. If some of it is unmapped
    /// later, what is written there is lost, and what is read there is undefined.
    ///
    /// # Errors
    /// A range that is not mapped.
    pub fn range(&self, at: DeviceAddress, bytes: u64) -> Result<BufferRange, VulkanError> {
        self.space.range(at, bytes)
    }

    /// What offsets of bindings must be multiples of.
    #[must_use]
    pub fn binding_alignment_bytes(&self) -> u64 {
        self.device.binding_alignment_bytes()
    }

    /// The most that one binding may hold.
    #[must_use]
    pub fn most_binding_bytes(&self) -> u64 {
        self.device.most_binding_bytes()
    }

    /// Starts work on the compute stream, after all that is enqueued there.
    ///
    /// # Errors
    /// Those of the driver.
    pub fn compute(&mut self) -> Result<Compute<'_>, VulkanError> {
        self.record(Stream::Compute)?;
        Ok(Compute {
            device: &self.device,
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
    commands: &'d mut Commands,
    kernels: &'d [Compiled],
    device: &'d Device,
}

impl Compute<'_> {
    /// Runs a kernel, at the same time as whatever else was enqueued since the last barrier.
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

    /// Whether a range can be bound where a kernel accesses these first bytes at least.
    fn is_bindable(&self, range: &BufferRange, least_bytes: u64) -> bool {
        range.offset_bytes.is_multiple_of(self.device.binding_alignment_bytes())
            && range.bytes.is_multiple_of(4)
            && (least_bytes..=self.device.most_binding_bytes()).contains(&range.bytes)
    }

    /// Fills a range, a whole number of words, with a word.
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
