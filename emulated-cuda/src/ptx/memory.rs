//! What threads read and write. Every access is checked.
#![allow(unsafe_code, reason = "kernels work on addresses")]

use super::device;
use super::frame::Area;
use crate::clock;
use crate::driver::DRIVER;
use crate::space::Space;
use cudarc::driver::sys::CUresult::{
    self, CUDA_ERROR_ILLEGAL_ADDRESS, CUDA_ERROR_MISALIGNED_ADDRESS,
};
use std::sync::RwLockReadGuard;
use std::time::{Duration, Instant};

/// Where generic addresses of shared and of local memory begin. No device memory is there: the
/// host has no such addresses.
pub(super) const SHARED_WINDOW: u64 = 1 << 56;
pub(super) const LOCAL_WINDOW: u64 = 1 << 57;
const WINDOW_BYTES: u64 = 1 << 32;

/// Why a kernel ends.
#[derive(Debug)]
pub(super) struct Fault {
    pub(super) code: CUresult,
    pub(super) why: String,
}

impl Fault {
    pub(super) fn new(code: CUresult, why: impl Into<String>) -> Self {
        Self { code, why: why.into() }
    }
}

/// Something in memory that has been checked.
#[derive(Clone, Copy)]
enum Place {
    Global(u64),
    Shared(usize),
    Local(usize),
    Parameter(usize),
}

/// The memory of a launch, as the threads of one block see it.
pub(super) struct Memory<'l> {
    /// Held from the first access on, so that nothing is unmapped that is in use.
    space: Option<RwLockReadGuard<'static, Space>>,
    /// What was found to be mapped last.
    known: [u64; 2],
    pub(super) shared: Vec<u8>,
    parameters: &'l [u8],
    local: Vec<u8>,
    local_bytes: u64,
    /// The number in its block of a warp's first thread.
    pub(super) first_thread: usize,
    start: Instant,
    /// Whether the time was asked for since the last way back.
    is_asking: bool,
}

impl<'l> Memory<'l> {
    pub(super) fn new(parameters: &'l [u8], local_bytes: u64, threads: usize) -> Self {
        Self {
            space: None,
            known: [0, 0],
            shared: Vec::new(),
            parameters,
            local: vec![0; local_bytes as usize * threads],
            local_bytes,
            first_thread: 0,
            start: Instant::now(),
            is_asking: false,
        }
    }

    /// Whether an address in device memory is aligned, and where something was found last.
    #[inline(always)]
    fn is_near<const BYTES: u64>(&self, area: Area, at: u64) -> bool {
        let [start, end] = self.known;
        matches!(area, Area::Global | Area::Generic)
            && at.wrapping_sub(start) < end - start
            && at & (BYTES - 1) == 0
    }

    /// Checks an access.
    fn place<const BYTES: u64>(
        &mut self,
        area: Area,
        at: u64,
        lane: usize,
    ) -> Result<Place, Fault> {
        if !at.is_multiple_of(BYTES) {
            let why = format!("{BYTES} bytes at {at:#x}, which is no multiple of that");
            return Err(Fault::new(CUDA_ERROR_MISALIGNED_ADDRESS, why));
        }
        let inside = |end: u64| at.checked_add(BYTES).is_some_and(|behind| behind <= end);
        let (fits, place) = match area {
            Area::Global => (self.is_mapped(at), Place::Global(at)),
            Area::Shared => (inside(self.shared.len() as u64), Place::Shared(at as usize)),
            Area::Local => {
                let first = (self.first_thread + lane) as u64 * self.local_bytes;
                (inside(self.local_bytes), Place::Local(first.wrapping_add(at) as usize))
            }
            Area::Parameter => {
                (inside(self.parameters.len() as u64), Place::Parameter(at as usize))
            }
            Area::Generic => {
                let (area, at) = match at {
                    _ if at.wrapping_sub(SHARED_WINDOW) < WINDOW_BYTES => {
                        (Area::Shared, at - SHARED_WINDOW)
                    }
                    _ if at.wrapping_sub(LOCAL_WINDOW) < WINDOW_BYTES => {
                        (Area::Local, at - LOCAL_WINDOW)
                    }
                    _ => (Area::Global, at),
                };
                return self.place::<BYTES>(area, at, lane);
            }
        };
        if fits {
            return Ok(place);
        }
        let why = format!("{BYTES} bytes at {at:#x}, which is no {area:?} memory");
        Err(Fault::new(CUDA_ERROR_ILLEGAL_ADDRESS, why))
    }

    /// Whether device memory may be used. What is aligned lies in one mapping, or in none.
    fn is_mapped(&mut self, at: u64) -> bool {
        let space = self.space.get_or_insert_with(|| DRIVER.space());
        let found = space.accessible(at);
        self.known = found.unwrap_or(self.known);
        found.is_some()
    }

    /// Reads 1, 2, 4 or 8 bytes.
    #[inline(always)]
    pub(super) fn load<const BYTES: u64>(
        &mut self,
        area: Area,
        at: u64,
        lane: usize,
    ) -> Result<u64, Fault> {
        if !self.is_near::<BYTES>(area, at) {
            return self.load_far::<BYTES>(area, at, lane);
        }
        // SAFETY: it is aligned and mapped, and stays so while the space is held. Others that
        // use it are atomic as well, or functions of C.
        Ok(unsafe { device::load::<BYTES>(at) })
    }

    fn load_far<const BYTES: u64>(
        &mut self,
        area: Area,
        at: u64,
        lane: usize,
    ) -> Result<u64, Fault> {
        let (memory, at) = match self.place::<BYTES>(area, at, lane)? {
            // SAFETY: as above.
            Place::Global(at) => return Ok(unsafe { device::load::<BYTES>(at) }),
            Place::Shared(at) => (&self.shared[..], at),
            Place::Local(at) => (&self.local[..], at),
            Place::Parameter(at) => (self.parameters, at),
        };
        let mut read = [0; 8];
        read[..BYTES as usize].copy_from_slice(&memory[at..at + BYTES as usize]);
        Ok(u64::from_le_bytes(read))
    }

    /// Writes 1, 2, 4 or 8 bytes.
    #[inline(always)]
    pub(super) fn store<const BYTES: u64>(
        &mut self,
        area: Area,
        at: u64,
        lane: usize,
        value: u64,
    ) -> Result<(), Fault> {
        if !self.is_near::<BYTES>(area, at) {
            return self.store_far::<BYTES>(area, at, lane, value);
        }
        // SAFETY: as above.
        unsafe { device::store::<BYTES>(at, value) };
        Ok(())
    }

    fn store_far<const BYTES: u64>(
        &mut self,
        area: Area,
        at: u64,
        lane: usize,
        value: u64,
    ) -> Result<(), Fault> {
        let (memory, at) = match self.place::<BYTES>(area, at, lane)? {
            Place::Global(at) => {
                // SAFETY: as above.
                unsafe { device::store::<BYTES>(at, value) };
                return Ok(());
            }
            Place::Shared(at) => (&mut self.shared, at),
            Place::Local(at) => (&mut self.local, at),
            Place::Parameter(_) => {
                let why = "parameters cannot be written";
                return Err(Fault::new(CUDA_ERROR_ILLEGAL_ADDRESS, why));
            }
        };
        memory[at..at + BYTES as usize].copy_from_slice(&value.to_le_bytes()[..BYTES as usize]);
        Ok(())
    }

    /// Changes 4 or 8 bytes at once; what was there before.
    pub(super) fn update<const BYTES: u64>(
        &mut self,
        area: Area,
        at: u64,
        lane: usize,
        change: impl Fn(u64) -> u64,
    ) -> Result<u64, Fault> {
        if let Place::Global(at) = self.place::<BYTES>(area, at, lane)? {
            // SAFETY: as above.
            return Ok(unsafe { device::update::<BYTES>(at, change) });
        }
        let old = self.load_far::<BYTES>(area, at, lane)?;
        self.store_far::<BYTES>(area, at, lane, change(old))?;
        Ok(old)
    }

    /// Nanoseconds of a clock that is never set, which moves when it is read.
    pub(super) fn time_ns(&mut self) -> u64 {
        self.is_asking = true;
        clock::timer_ns()
    }

    /// Nanoseconds of this launch, as its clock cycles.
    pub(super) fn cycles(&self) -> u64 {
        self.start.elapsed().as_nanos() as u64
    }

    /// What happens where a thread goes back: if it has asked for the time, others may map and
    /// unmap.
    pub(super) fn go_back(&mut self) {
        if std::mem::take(&mut self.is_asking) {
            (self.space, self.known) = (None, [0, 0]);
        }
    }

    pub(super) fn pause(&mut self, duration: Duration) {
        (self.space, self.known) = (None, [0, 0]);
        std::thread::sleep(duration);
    }
}

/// Sets a variable in device memory, which nothing else uses yet.
pub(super) fn initialize(at: u64, bytes: u64, initial: &[u8]) {
    let mut memory = Memory::new(&[], 0, 0);
    let values = initial.iter().copied().chain(std::iter::repeat(0));
    for (at, value) in (at..at + bytes).zip(values) {
        // It has just been allocated.
        let _ = memory.store::<1>(Area::Global, at, 0, value.into());
    }
}
