//! Faults that a real device has seldom, by seed.

use crate::SimDevice;
use crate::error::SimError;
use crate::stream::Chance;

/// What goes wrong, now and then.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Fault {
    /// Chunks, the host block, addresses or a mapping are refused, one in sixteen.
    Allocations,
    /// One copy in sixteen fails when it takes effect, and leaves garbage where it copied to;
    /// then the device reports nothing but that.
    Copies,
    /// One copy in four takes up to sixteen times as long.
    Delays,
    /// The device is lost, in the midst of anything.
    Loss,
}

/// The faults of a device.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Faults {
    fault: Fault,
    chance: Chance,
}

impl Faults {
    pub(crate) const fn new(fault: Fault, seed: u64) -> Self {
        Self { fault, chance: Chance::new(seed) }
    }
}

impl SimDevice {
    /// Whether a fault occurs now.
    fn occurs(&mut self, fault: Fault, one_in: u64) -> bool {
        let faults = self.faults.as_mut().filter(|faults| faults.fault == fault);
        faults.is_some_and(|faults| faults.chance.below(one_in) == 0)
    }

    /// Whether an allocation may go on.
    pub(crate) fn check_allocation(&mut self, on_host: bool) -> Result<(), SimError> {
        if self.occurs(Fault::Allocations, 16) {
            return Err(SimError::AllocationFailed { on_host });
        }
        Ok(())
    }

    pub(crate) fn copy_fails(&mut self) -> bool {
        self.occurs(Fault::Copies, 16)
    }

    pub(crate) fn is_lost(&mut self) -> bool {
        self.occurs(Fault::Loss, 128)
    }

    /// How many times longer than usual the next copy takes.
    pub(crate) fn delay(&mut self) -> u64 {
        if !self.occurs(Fault::Delays, 4) {
            return 0;
        }
        self.faults.as_mut().map_or(0, |faults| 1 + faults.chance.below(15))
    }
}
