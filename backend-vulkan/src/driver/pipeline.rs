//! Kernels, compiled by the driver.

use super::{Device, named};
use crate::error::VulkanError;
use ash::vk;
use std::ffi::CStr;
use std::sync::Arc;

/// A kernel, compiled.
#[derive(Debug)]
pub(crate) struct Pipeline {
    pub(super) raw: vk::Pipeline,
    pub(super) layout: vk::PipelineLayout,
    bindings: vk::DescriptorSetLayout,
    device: Arc<Device>,
}

impl Pipeline {
    /// Compiles SPIR-V that was written from a validated module. It has storage buffers
    /// `0..bindings` in group 0 and `immediates` words of immediates, all within the device's
    /// limits.
    pub(crate) fn new(
        device: &Arc<Device>,
        spirv: &[u32],
        entry: &CStr,
        bindings: u32,
        immediates: u32,
    ) -> Result<Self, VulkanError> {
        let mut pipeline = Self {
            raw: vk::Pipeline::null(),
            layout: vk::PipelineLayout::null(),
            bindings: vk::DescriptorSetLayout::null(),
            device: Arc::clone(device),
        };
        let stage = vk::ShaderStageFlags::COMPUTE;
        let buffers: Vec<_> = (0..bindings)
            .map(|binding| {
                vk::DescriptorSetLayoutBinding::default()
                    .binding(binding)
                    .descriptor_type(vk::DescriptorType::STORAGE_BUFFER)
                    .descriptor_count(1)
                    .stage_flags(stage)
            })
            .collect();
        let info = vk::DescriptorSetLayoutCreateInfo::default()
            .bindings(&buffers)
            .flags(vk::DescriptorSetLayoutCreateFlags::PUSH_DESCRIPTOR_KHR);
        // SAFETY: the device is alive and has push descriptors, at least as many as the caller has
        // checked.
        let layout = unsafe { device.raw.create_descriptor_set_layout(&info, None) };
        pipeline.bindings = named("vkCreateDescriptorSetLayout", layout)?;
        let (layouts, range) = (
            [pipeline.bindings],
            [vk::PushConstantRange::default().stage_flags(stage).size(4 * immediates)],
        );
        let mut info = vk::PipelineLayoutCreateInfo::default().set_layouts(&layouts);
        if immediates > 0 {
            info = info.push_constant_ranges(&range);
        }
        // SAFETY: the layout of bindings is alive, and the caller has checked the size of immediates.
        let layout = unsafe { device.raw.create_pipeline_layout(&info, None) };
        pipeline.layout = named("vkCreatePipelineLayout", layout)?;
        let info = vk::ShaderModuleCreateInfo::default().code(spirv);
        // SAFETY: the code was written from a validated module, and needs no feature that the
        // device was not opened with.
        let module = unsafe { device.raw.create_shader_module(&info, None) };
        let module = named("vkCreateShaderModule", module)?;
        let stage =
            vk::PipelineShaderStageCreateInfo::default().stage(stage).module(module).name(entry);
        let info = vk::ComputePipelineCreateInfo::default().stage(stage).layout(pipeline.layout);
        // SAFETY: module and layout are alive and match, and the caller has checked the needs of a
        // group. The module is not needed once the pipeline is made.
        let raw = unsafe {
            let raw = device.raw.create_compute_pipelines(vk::PipelineCache::null(), &[info], None);
            device.raw.destroy_shader_module(module, None);
            raw
        };
        pipeline.raw = named("vkCreateComputePipelines", raw.map_err(|(_, code)| code))?[0];
        Ok(pipeline)
    }
}

impl Drop for Pipeline {
    fn drop(&mut self) {
        let Some(device) = self.device.to_free() else { return };
        // SAFETY: whoever enqueued the kernel has waited for its end. Null handles are ignored.
        unsafe {
            device.destroy_pipeline(self.raw, None);
            device.destroy_pipeline_layout(self.layout, None);
            device.destroy_descriptor_set_layout(self.bindings, None);
        }
    }
}
