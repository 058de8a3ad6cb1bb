//! Vulkan devices as real ones.

use crate::names::Names;
use crate::real::{Mapping, Real};
use backend_vulkan::{Integrity, VulkanDevice, VulkanError};
use planner_core::ExecuteError;

impl Real for Integrity {
    fn mapping(device: &VulkanDevice) -> Mapping {
        let counters = device.counters();
        Mapping { ranges: counters.ranges, calls: counters.map_calls, ns: counters.mapping_ns }
    }

    fn wait_idle(device: &mut VulkanDevice) -> Result<(), VulkanError> {
        device.wait_idle()
    }

    fn explain(names: &Names<'_>, error: &ExecuteError<VulkanError>) -> String {
        names.vulkan_execute_error(error)
    }

    fn lacks_addresses(error: &VulkanError) -> bool {
        matches!(error, VulkanError::AddressSpace { .. })
    }
}
