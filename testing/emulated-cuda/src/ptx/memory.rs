//! Memory accesses of threads. Every access is checked.
#![allow(unsafe_code, reason = "kernels work on addresses")]

use super::atomics;
use super::error::KernelError;
use super::symbols::StateSpace;
use crate::clock::Clock;
use crate::space::{AddressSpace, SharedSpace};
use crate::usage::InUse;
use cudarc::driver::sys::CUresult::{CUDA_ERROR_ILLEGAL_ADDRESS, CUDA_ERROR_MISALIGNED_ADDRESS};
use std::collections::BTreeMap;
use std::sync::RwLockReadGuard;
use std::time::{Duration, Instant};

/// Where generic addresses of shared and of local memory begin. No device memory is there: the
/// host does not use such addresses.
pub(super) const SHARED_WINDOW: u64 = 1 << 56;
pub(super) const LOCAL_WINDOW: u64 = 1 << 57;
const WINDOW_BYTES: u64 = 1 << 32;

/// A location that has been checked.
#[derive(Clone, Copy)]
enum Location {
    Global(u64),
    Shared(usize),
    Local(usize),
    Parameter(usize),
}

/// The memory of a launch, as the threads of one block see it.
pub(super) struct Memory<'l, 's> {
    space: &'s SharedSpace,
    /// Held from an access to the next point at which another may map and unmap.
    held: Option<RwLockReadGuard<'s, AddressSpace>>,
    /// The mappings that this launch has accessed, by their starts.
    used: BTreeMap<u64, InUse<'s>>,
    /// The accessible mapping that was found last.
    cached: [u64; 2],
    pub(super) shared: Vec<u8>,
    parameters: &'l [u8],
    local: Vec<u8>,
    local_bytes: u64,
    /// The index in the block of the first thread of the warp that runs.
    pub(super) first_thread: usize,
    clock: &'l mut Clock,
    start: Instant,
    /// Whether the timer was read since the last backward branch.
    has_read_timer: bool,
}

impl<'l, 's> Memory<'l, 's> {
    /// The memory of a block of some threads, which have local memory of `local_bytes` each.
    pub(super) fn new(
        space: &'s SharedSpace,
        clock: &'l mut Clock,
        parameters: &'l [u8],
        local_bytes: u64,
        threads: usize,
    ) -> Self {
        Self {
            space,
            held: None,
            used: BTreeMap::new(),
            cached: [0, 0],
            shared: Vec::new(),
            parameters,
            local: vec![0; local_bytes as usize * threads],
            local_bytes,
            first_thread: 0,
            clock,
            start: Instant::now(),
            has_read_timer: false,
        }
    }

    /// Returns what was accessed.
    pub(super) fn into_used(self) -> Vec<InUse<'s>> {
        self.used.into_values().collect()
    }

    /// Whether an address in device memory is aligned, and in the mapping found last.
    #[inline(always)]
    fn is_cached<const BYTES: u64>(&self, state_space: StateSpace, at: u64) -> bool {
        let [start, end] = self.cached;
        matches!(state_space, StateSpace::Global | StateSpace::Generic)
            && at.wrapping_sub(start) < end - start
            && at & (BYTES - 1) == 0
    }

    /// Checks an access. Returns its location.
    fn locate<const BYTES: u64>(
        &mut self,
        state_space: StateSpace,
        at: u64,
        lane: usize,
    ) -> Result<Location, KernelError> {
        if !at.is_multiple_of(BYTES) {
            let why = format!("{BYTES} bytes at {at:#x}, which is not aligned");
            return Err(KernelError::new(CUDA_ERROR_MISALIGNED_ADDRESS, why));
        }
        let inside = |end: u64| at.checked_add(BYTES).is_some_and(|after| after <= end);
        let (fits, location) = match state_space {
            StateSpace::Global => (self.is_mapped(at), Location::Global(at)),
            StateSpace::Shared => (inside(self.shared.len() as u64), Location::Shared(at as usize)),
            StateSpace::Local => {
                let first = (self.first_thread + lane) as u64 * self.local_bytes;
                (inside(self.local_bytes), Location::Local(first.wrapping_add(at) as usize))
            }
            StateSpace::Parameter => {
                (inside(self.parameters.len() as u64), Location::Parameter(at as usize))
            }
            StateSpace::Generic => {
                let (state_space, at) = match at {
                    _ if at.wrapping_sub(SHARED_WINDOW) < WINDOW_BYTES => {
                        (StateSpace::Shared, at - SHARED_WINDOW)
                    }
                    _ if at.wrapping_sub(LOCAL_WINDOW) < WINDOW_BYTES => {
                        (StateSpace::Local, at - LOCAL_WINDOW)
                    }
                    _ => (StateSpace::Global, at),
                };
                return self.locate::<BYTES>(state_space, at, lane);
            }
        };
        if fits {
            return Ok(location);
        }
        let why = format!("{BYTES} bytes at {at:#x}, outside of {state_space:?} memory");
        Err(KernelError::new(CUDA_ERROR_ILLEGAL_ADDRESS, why))
    }

    /// Whether device memory may be used. An aligned value lies in one mapping or in none.
    fn is_mapped(&mut self, at: u64) -> bool {
        let held = self.held.get_or_insert_with(|| self.space.read());
        let found = held.accessible(at);
        if let Some([start, end]) = found {
            self.cached = [start, end];
            self.used.entry(start).or_insert_with(|| self.space.usage.begin(start..end));
        }
        found.is_some()
    }

    /// Reads 1, 2, 4 or 8 bytes.
    #[inline(always)]
    pub(super) fn load<const BYTES: u64>(
        &mut self,
        state_space: StateSpace,
        at: u64,
        lane: usize,
    ) -> Result<u64, KernelError> {
        if !self.is_cached::<BYTES>(state_space, at) {
            return self.load_checked::<BYTES>(state_space, at, lane);
        }
        // SAFETY: it is aligned and mapped, and stays so while the space is held. All other
        // accesses are atomic as well, or by functions of C.
        Ok(unsafe { atomics::load::<BYTES>(at) })
    }

    fn load_checked<const BYTES: u64>(
        &mut self,
        state_space: StateSpace,
        at: u64,
        lane: usize,
    ) -> Result<u64, KernelError> {
        let (memory, at) = match self.locate::<BYTES>(state_space, at, lane)? {
            // SAFETY: as above.
            Location::Global(at) => return Ok(unsafe { atomics::load::<BYTES>(at) }),
            Location::Shared(at) => (&self.shared[..], at),
            Location::Local(at) => (&self.local[..], at),
            Location::Parameter(at) => (self.parameters, at),
        };
        let mut read = [0; 8];
        read[..BYTES as usize].copy_from_slice(&memory[at..at + BYTES as usize]);
        Ok(u64::from_le_bytes(read))
    }

    /// Writes 1, 2, 4 or 8 bytes.
    #[inline(always)]
    pub(super) fn store<const BYTES: u64>(
        &mut self,
        state_space: StateSpace,
        at: u64,
        lane: usize,
        value: u64,
    ) -> Result<(), KernelError> {
        if !self.is_cached::<BYTES>(state_space, at) {
            return self.store_checked::<BYTES>(state_space, at, lane, value);
        }
        // SAFETY: as above.
        unsafe { atomics::store::<BYTES>(at, value) };
        Ok(())
    }

    fn store_checked<const BYTES: u64>(
        &mut self,
        state_space: StateSpace,
        at: u64,
        lane: usize,
        value: u64,
    ) -> Result<(), KernelError> {
        let (memory, at) = match self.locate::<BYTES>(state_space, at, lane)? {
            Location::Global(at) => {
                // SAFETY: as above.
                unsafe { atomics::store::<BYTES>(at, value) };
                return Ok(());
            }
            Location::Shared(at) => (&mut self.shared, at),
            Location::Local(at) => (&mut self.local, at),
            Location::Parameter(_) => {
                let why = "parameters cannot be written";
                return Err(KernelError::new(CUDA_ERROR_ILLEGAL_ADDRESS, why));
            }
        };
        memory[at..at + BYTES as usize].copy_from_slice(&value.to_le_bytes()[..BYTES as usize]);
        Ok(())
    }

    /// Changes 4 or 8 bytes atomically. Returns what was there before.
    pub(super) fn update<const BYTES: u64>(
        &mut self,
        state_space: StateSpace,
        at: u64,
        lane: usize,
        change: impl Fn(u64) -> u64,
    ) -> Result<u64, KernelError> {
        if let Location::Global(at) = self.locate::<BYTES>(state_space, at, lane)? {
            // SAFETY: as above.
            return Ok(unsafe { atomics::update::<BYTES>(at, change) });
        }
        let old = self.load_checked::<BYTES>(state_space, at, lane)?;
        self.store_checked::<BYTES>(state_space, at, lane, change(old))?;
        Ok(old)
    }

    /// Reads the device's timer.
    pub(super) fn timer_ns(&mut self) -> u64 {
        self.has_read_timer = true;
        self.clock.timer_ns()
    }

    /// Returns the nanoseconds of this launch, as its clock cycles.
    pub(super) fn cycles(&self) -> u64 {
        self.start.elapsed().as_nanos() as u64
    }

    /// Called at a backward branch and between blocks. Those who want to may map and unmap, and a
    /// loop that reads the timer may wait for them.
    pub(super) fn pause(&mut self) {
        if std::mem::take(&mut self.has_read_timer) || self.space.is_wanted() {
            self.let_go();
        }
    }

    /// Sleeps. Others may map and unmap.
    pub(super) fn sleep(&mut self, duration: Duration) {
        self.let_go();
        std::thread::sleep(duration);
    }

    fn let_go(&mut self) {
        (self.held, self.cached) = (None, [0, 0]);
    }
}
