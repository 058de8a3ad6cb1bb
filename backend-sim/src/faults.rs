//! Faults that seldom occur on a real device, drawn from a seed.

use crate::SimDevice;
use crate::error::SimError;
use crate::stream::Chance;

/// The kind of fault that occurs now and then.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Fault {
    /// One allocation in sixteen is refused: chunks, the host block, addresses or a mapping.
    Allocations,
    /// One copy in sixteen fails when it takes effect, and leaves garbage in its destination. From
    /// then on the device reports only this failure.
    Copies,
    /// One copy in four takes up to sixteen times as long.
    Delays,
    /// The device is lost at a random moment.
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

    /// Fails if a fault stops this allocation.
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

    /// The delay of the next copy, as a multiple of its usual time.
    pub(crate) fn delay(&mut self) -> u64 {
        if !self.occurs(Fault::Delays, 4) {
            return 0;
        }
        self.faults.as_mut().map_or(0, |faults| 1 + faults.chance.below(15))
    }
}
