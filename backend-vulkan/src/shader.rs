//! Shaders, and their needs of a device.

use ash::vk::PhysicalDeviceLimits;
use std::ffi::CString;

/// A shader as SPIR-V, with the data that are needed to run it.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Shader {
    pub(crate) spirv: Vec<u32>,
    /// The name of the entry point.
    pub(crate) name: CString,
    pub(crate) interface: Interface,
}

/// The operands of an entry point, and its needs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Interface {
    /// The least bytes of a binding for each storage buffer.
    pub(crate) bindings: Vec<u64>,
    /// The number of words of immediates.
    pub(crate) immediates: u32,
    pub(crate) group: [u32; 3],
    pub(crate) shared_bytes: u64,
}

impl Interface {
    /// Fails if the shader needs more than a device has. The error names the need.
    pub(crate) fn check(
        &self,
        limits: &PhysicalDeviceLimits,
        max_push_descriptors: u32,
    ) -> Result<(), String> {
        let threads = self.group.iter().map(|&threads| u64::from(threads)).product();
        let most_bindings = max_push_descriptors
            .min(limits.max_per_stage_descriptor_storage_buffers)
            .min(limits.max_descriptor_set_storage_buffers)
            .min(limits.max_per_stage_resources);
        let [x, y, z] = [0, 1, 2].map(|axis| {
            let most = limits.max_compute_work_group_size[axis];
            (["threads in x", "threads in y", "threads in z"][axis], self.group[axis].into(), most)
        });
        let needs = [
            ("storage buffers", self.bindings.len() as u64, most_bindings),
            ("bytes of immediates", 4 * u64::from(self.immediates), limits.max_push_constants_size),
            x,
            y,
            z,
            ("threads in a group", threads, limits.max_compute_work_group_invocations),
            ("bytes that a group shares", self.shared_bytes, limits.max_compute_shared_memory_size),
        ];
        let exceeded = needs.into_iter().find(|&(_, needed, most)| needed > u64::from(most));
        exceeded.map_or(Ok(()), |(what, needed, most)| {
            Err(format!("it needs {needed} {what}, but the device has at most {most}"))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_device_lacks_is_named() {
        let limits = PhysicalDeviceLimits {
            max_per_stage_descriptor_storage_buffers: 9,
            max_descriptor_set_storage_buffers: 9,
            max_per_stage_resources: 9,
            max_push_constants_size: 128,
            max_compute_work_group_size: [64, 8, 4],
            max_compute_work_group_invocations: 256,
            max_compute_shared_memory_size: 1024,
            ..PhysicalDeviceLimits::default()
        };
        let most = Interface {
            bindings: vec![4; 9],
            immediates: 32,
            group: [64, 1, 4],
            shared_bytes: 1024,
        };
        assert_eq!(most.check(&limits, 9), Ok(()));
        let group = |group| Interface { group, ..most.clone() };
        let refused = [
            (Interface { bindings: vec![4; 10], ..most.clone() }, "10 storage buffers"),
            (Interface { immediates: 33, ..most.clone() }, "132 bytes of immediates"),
            (group([65, 1, 1]), "65 threads in x"),
            (group([1, 9, 1]), "9 threads in y"),
            (group([1, 1, 5]), "5 threads in z"),
            (group([64, 8, 1]), "512 threads in a group"),
            (Interface { shared_bytes: 1040, ..most.clone() }, "1040 bytes that a group shares"),
        ];
        for (interface, needed) in refused {
            let error = interface.check(&limits, 20).unwrap_err();
            assert!(error.starts_with(&format!("it needs {needed}, ")), "{error}");
        }
        assert!(most.check(&limits, 8).is_err());
    }
}
