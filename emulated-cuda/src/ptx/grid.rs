//! A launch: its blocks one after the other, and in each the warps by turns.

use super::Kernel;
use super::frame::{ALWAYS, Constant, NEVER};
use super::memory::{Fault, Memory};
use super::registers::{LANES, Mask, Registers, Slot};
use super::special::{Position, Special};
use super::warp::{Stop, Warp};
use crate::Outcome;
use crate::driver::DRIVER;
use cudarc::driver::sys::CUresult::CUDA_ERROR_LAUNCH_FAILED;
use std::sync::Arc;

/// What shared and local memory and registers hold at first: nothing to rely on.
const NOISE: u8 = 0xa5;

/// A kernel with its arguments.
#[derive(Debug)]
pub(crate) struct Launch {
    pub(crate) kernel: Arc<Kernel>,
    pub(crate) parameters: Vec<u8>,
    pub(crate) blocks: [u32; 3],
    pub(crate) threads: [u32; 3],
    pub(crate) dynamic_bytes: u32,
}

impl Kernel {
    /// Bytes of the parameters together.
    pub(crate) const fn parameter_bytes(&self) -> u64 {
        self.parameter_bytes
    }

    /// Bytes of shared memory, with so many by the launch.
    pub(crate) fn all_shared_bytes(&self, dynamic_bytes: u32) -> u64 {
        self.shared_bytes + u64::from(dynamic_bytes)
    }

    /// Registers of a warp, with the constants that every launch has.
    fn registers(&self) -> Registers {
        let [words, longs, predicates] = self.registers;
        let word = u32::from_ne_bytes([NOISE; 4]);
        let mut registers = Registers {
            words: vec![[word; LANES]; words],
            longs: vec![[u64::from(word); LANES]; longs],
            predicates: vec![word; predicates],
        };
        registers.predicates[ALWAYS] = Mask::MAX;
        registers.predicates[NEVER] = 0;
        for &constant in &self.constants {
            match constant {
                Constant::Word(slot, value) => registers.words[slot] = [value; LANES],
                Constant::Long(slot, value) => registers.longs[slot] = [value; LANES],
                Constant::Special(..) => {}
            }
        }
        registers
    }
}

impl Launch {
    /// Runs all of it.
    ///
    /// # Errors
    /// The error with which the context ends; the driver's log says why.
    pub(crate) fn run(&self) -> Outcome {
        let count = self.threads.iter().product::<u32>() as usize;
        let mut memory = Memory::new(&self.parameters, self.kernel.local_bytes, count);
        let mut block = Block::new(self, count);
        let [x, y, z] = self.blocks;
        for z in 0..z {
            for y in 0..y {
                for x in 0..x {
                    block.run([x, y, z], &mut memory).map_err(|(line, fault)| {
                        let name = &self.kernel.name;
                        let why = &fault.why;
                        DRIVER.explain(format!("{name}, line {line}, block {x} {y} {z}: {why}"));
                        fault.code
                    })?;
                }
            }
        }
        Ok(())
    }
}

/// A block that runs.
struct Block<'l> {
    launch: &'l Launch,
    /// Threads.
    count: usize,
    warps: Vec<Warp>,
    /// The registers that say which block it is, by their directions.
    places: Vec<(Slot, usize)>,
}

impl<'l> Block<'l> {
    fn new(launch: &'l Launch, count: usize) -> Self {
        let Launch { ref kernel, blocks, threads, dynamic_bytes, .. } = *launch;
        let mut warps = vec![Warp::new(kernel.registers()); count.div_ceil(LANES)];
        let mut places = Vec::new();
        for &constant in &kernel.constants {
            let Constant::Special(slot, special) = constant else { continue };
            if let Special::Block(direction) = special {
                places.push((slot, direction));
                continue;
            }
            for (warp, number) in warps.iter_mut().zip(0..) {
                let position = Position { blocks, threads, warp: number, dynamic_bytes };
                warp.registers.words[slot] = position.row(special);
            }
        }
        Self { launch, count, warps, places }
    }

    fn run(&mut self, block: [u32; 3], memory: &mut Memory<'_>) -> Result<(), (usize, Fault)> {
        self.restart(block, memory);
        let code = &self.launch.kernel.instructions;
        loop {
            let mut is_paused = false;
            for (number, warp) in self.warps.iter_mut().enumerate() {
                if warp.stop == Stop::Paused {
                    memory.first_thread = number * LANES;
                    warp.run(code, memory)?;
                    is_paused |= warp.stop == Stop::Paused;
                }
            }
            if !is_paused && !self.release()? {
                return Ok(());
            }
        }
    }

    /// Goes to the start of the kernel, as another block.
    fn restart(&mut self, block: [u32; 3], memory: &mut Memory<'_>) {
        let Launch { ref kernel, dynamic_bytes, .. } = *self.launch;
        memory.shared.clear();
        memory.shared.resize(kernel.all_shared_bytes(dynamic_bytes) as usize, NOISE);
        for (number, warp) in self.warps.iter_mut().enumerate() {
            for &(slot, direction) in &self.places {
                warp.registers.words[slot] = [block[direction]; LANES];
            }
            let lanes = (self.count - number * LANES).min(LANES);
            warp.restart(Mask::MAX >> (LANES - lanes));
        }
    }

    /// Lets all warps go on that wait at a barrier; false if none does.
    fn release(&mut self) -> Result<bool, (usize, Fault)> {
        let mut numbers = self.warps.iter().filter_map(|warp| match warp.stop {
            Stop::Barrier(number) => Some(number),
            _ => None,
        });
        let code = &self.launch.kernel.instructions;
        let Some(first) = numbers.next() else { return Ok(false) };
        if numbers.any(|number| number != first) {
            let why = "warps of a block wait at barriers of several numbers, for ever";
            let line = self.warps.iter().find_map(|warp| warp.waiting_line(code)).unwrap_or(0);
            return Err((line, Fault::new(CUDA_ERROR_LAUNCH_FAILED, why)));
        }
        for warp in &mut self.warps {
            if matches!(warp.stop, Stop::Barrier(_)) {
                warp.release();
            }
        }
        Ok(true)
    }
}
