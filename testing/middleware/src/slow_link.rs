//! A link that is slower than the device's.

use crate::Layer;
use planner_core::backend::{DeviceAddress, HostRange, Paging, Transfers};

/// A link that takes several times as long, because each copy is repeated. This works on any
/// device, takes the device's own time, and delays only work that waits for the copy.
#[derive(Clone, Copy, Debug)]
pub struct SlowLink {
    /// How often each copy is made. 0 counts as 1.
    pub times: u32,
}

impl<D: Transfers + Paging> Layer<D> for SlowLink {
    type Error = D::Error;

    fn upload(
        &mut self,
        device: &mut D,
        from: HostRange,
        to: DeviceAddress,
    ) -> Result<(), D::Error> {
        (0..self.times.max(1)).try_for_each(|_| device.upload(from, to))
    }

    fn download(
        &mut self,
        device: &mut D,
        from: DeviceAddress,
        to: HostRange,
    ) -> Result<(), D::Error> {
        (0..self.times.max(1)).try_for_each(|_| device.download(from, to))
    }
}
