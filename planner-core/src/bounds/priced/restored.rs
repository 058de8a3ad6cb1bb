//! What it costs to restore earlier values of a tensor that ops update in place.
//!
//! A repeat of such an op reads the value that it overwrites, and no other place holds this value.

use super::visits::{Earlier, MOST_EARLIER};
use super::{NEVER, PerByte};
use bytemuck::{Pod, Zeroable};
use heapless::Vec;

/// The least prices so far to restore an earlier value of a byte.
#[derive(Clone, Copy, Pod, Zeroable)]
#[repr(C)]
struct Value {
    /// By a repeat of its op at any time so far, without the values that the repeat needs.
    repeated: u64,
    /// On the device.
    device: u64,
    /// On the host, for each read that the copy may serve.
    host: u64,
}

/// The least prices so far to restore the earlier values before one write, the latest first.
#[derive(Clone, Copy, Pod, Zeroable)]
#[repr(C)]
pub(super) struct Restored([Value; MOST_EARLIER]);

impl Restored {
    /// Before the write.
    pub(super) const NONE: Self =
        Self([Value { repeated: NEVER, device: NEVER, host: NEVER }; MOST_EARLIER]);

    /// Goes on to the next interval. `again` is the price of a repeat in it. Returns the least price
    /// to have the latest earlier value on the device; 0 if there is none.
    pub(super) fn step(
        &mut self,
        earlier: impl Iterator<Item = Earlier>,
        price: &PerByte,
        again: impl Fn(&Earlier) -> u64,
    ) -> u64 {
        let earlier: Vec<Earlier, MOST_EARLIER> = earlier.take(MOST_EARLIER).collect();
        let mut before = 0;
        for (value, earlier) in self.0.iter_mut().zip(&earlier).rev() {
            let own = again(earlier);
            value.repeated = value.repeated.min(own);
            let copied = value.repeated.saturating_add(price.download);
            value.host = match copied.checked_div(earlier.copy_reads.into()) {
                None => 0,
                Some(_) if copied == NEVER => value.host,
                Some(share) => value.host.min(share),
            };
            value.device = (value.device.saturating_add(price.memory))
                .min(own.saturating_add(before))
                .min(value.host.saturating_add(price.upload));
            before = value.device;
        }
        before
    }
}
