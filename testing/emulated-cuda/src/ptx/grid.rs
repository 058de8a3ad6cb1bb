//! A launch: blocks run one after the other, and the warps of a block take turns.

use super::error::KernelError;
use super::kernel::{GARBAGE, Kernel};
use super::memory::Memory;
use super::registers::{LANES, Mask, Slot};
use super::special::{Special, WarpPosition};
use super::symbols::Constant;
use super::warp::{Warp, WarpState};
use crate::clock::Clock;
use crate::space::SharedSpace;
use crate::usage::InUse;
use cudarc::driver::sys::CUresult::CUDA_ERROR_LAUNCH_FAILED;
use std::sync::Arc;

/// A kernel with its arguments.
#[derive(Debug)]
pub(crate) struct Launch {
    pub(crate) kernel: Arc<Kernel>,
    pub(crate) parameters: Vec<u8>,
    pub(crate) blocks: [u32; 3],
    pub(crate) threads: [u32; 3],
    pub(crate) dynamic_bytes: u32,
}

impl Launch {
    /// Runs all of it. Returns the device memory that it has accessed, in use until it is dropped.
    ///
    /// # Errors
    /// Says in which line and block the kernel failed, and why.
    pub(crate) fn run<'s>(
        &self,
        space: &'s SharedSpace,
        clock: &mut Clock,
    ) -> Result<Vec<InUse<'s>>, KernelError> {
        let count = self.threads.iter().product::<u32>() as usize;
        let local_bytes = self.kernel.local_bytes;
        let mut memory = Memory::new(space, clock, &self.parameters, local_bytes, count);
        let mut block = Block::new(self, count);
        let [x, y, z] = self.blocks;
        for z in 0..z {
            for y in 0..y {
                for x in 0..x {
                    block.run([x, y, z], &mut memory).map_err(|(line, error)| {
                        let (name, why) = (&self.kernel.name, &error.why);
                        let why = format!("{name}, line {line}, block {x} {y} {z}: {why}");
                        KernelError::new(error.code, why)
                    })?;
                }
            }
        }
        Ok(memory.into_used())
    }
}

/// A block that runs.
struct Block<'l> {
    launch: &'l Launch,
    /// How many threads it has.
    count: usize,
    warps: Vec<Warp>,
    /// The registers that hold the block's index, and their directions.
    block_indices: Vec<(Slot, usize)>,
}

impl<'l> Block<'l> {
    fn new(launch: &'l Launch, count: usize) -> Self {
        let Launch { ref kernel, blocks, threads, dynamic_bytes, .. } = *launch;
        let mut warps = vec![Warp::new(kernel.registers()); count.div_ceil(LANES)];
        let mut block_indices = Vec::new();
        for &constant in &kernel.constants {
            let Constant::Special(slot, special) = constant else { continue };
            if let Special::Block(direction) = special {
                block_indices.push((slot, direction));
                continue;
            }
            for (warp, number) in warps.iter_mut().zip(0..) {
                let position = WarpPosition { blocks, threads, warp: number, dynamic_bytes };
                warp.registers.words[slot] = position.row(special);
            }
        }
        Self { launch, count, warps, block_indices }
    }

    fn run(
        &mut self,
        block: [u32; 3],
        memory: &mut Memory<'_, '_>,
    ) -> Result<(), (usize, KernelError)> {
        memory.pause();
        self.restart(block, memory);
        let code = &self.launch.kernel.instructions;
        loop {
            let mut is_paused = false;
            for (number, warp) in self.warps.iter_mut().enumerate() {
                if warp.state == WarpState::Paused {
                    memory.first_thread = number * LANES;
                    warp.run(code, memory)?;
                    is_paused |= warp.state == WarpState::Paused;
                }
            }
            if !is_paused && !self.release()? {
                return Ok(());
            }
        }
    }

    /// Goes to the start of the kernel, as another block.
    fn restart(&mut self, block: [u32; 3], memory: &mut Memory<'_, '_>) {
        let Launch { ref kernel, dynamic_bytes, .. } = *self.launch;
        memory.shared.clear();
        memory.shared.resize(kernel.all_shared_bytes(dynamic_bytes) as usize, GARBAGE);
        for (number, warp) in self.warps.iter_mut().enumerate() {
            for &(slot, direction) in &self.block_indices {
                warp.registers.words[slot] = [block[direction]; LANES];
            }
            let lanes = (self.count - number * LANES).min(LANES);
            warp.restart(Mask::MAX >> (LANES - lanes));
        }
    }

    /// Releases all warps that wait at a barrier. Returns false if none does.
    fn release(&mut self) -> Result<bool, (usize, KernelError)> {
        let mut numbers = self.warps.iter().filter_map(|warp| match warp.state {
            WarpState::Barrier(number) => Some(number),
            _ => None,
        });
        let code = &self.launch.kernel.instructions;
        let Some(first) = numbers.next() else { return Ok(false) };
        if numbers.any(|number| number != first) {
            let why = "warps of a block wait at barriers of different numbers, forever";
            let line = self.warps.iter().find_map(|warp| warp.waiting_line(code)).unwrap_or(0);
            return Err((line, KernelError::new(CUDA_ERROR_LAUNCH_FAILED, why)));
        }
        for warp in &mut self.warps {
            if matches!(warp.state, WarpState::Barrier(_)) {
                warp.release();
            }
        }
        Ok(true)
    }
}
