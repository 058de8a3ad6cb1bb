//! Kernels as functions of the host, by the names and parameters of those in the PTX of
//! `backend-cuda`.
#![allow(unsafe_code, reason = "kernels work on addresses")]

use crate::driver::DRIVER;
use crate::space::Space;
use crate::{Outcome, clock};
use cudarc::driver::sys::CUresult::{
    self, CUDA_ERROR_INVALID_PTX, CUDA_ERROR_MISALIGNED_ADDRESS, CUDA_ERROR_NOT_FOUND,
};
use integrity::Value;
use integrity::value::scramble;
use std::sync::atomic::{AtomicU32, Ordering};

/// A kernel.
pub(crate) struct Kernel {
    name: &'static str,
    /// Sizes of its parameters, in bytes.
    pub(crate) parameters: &'static [usize],
    pub(crate) run: fn(&[u64]) -> Outcome,
}

impl std::fmt::Debug for Kernel {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.name)
    }
}

static KERNELS: [Kernel; 4] = [
    Kernel { name: "integrity_read", parameters: &[8, 8, 8], run: read },
    Kernel { name: "integrity_combine", parameters: &[8, 8, 4, 4], run: combine },
    Kernel { name: "integrity_write", parameters: &[8, 8, 8, 4], run: write },
    Kernel { name: "occupy", parameters: &[8], run: occupy },
];

/// Finds a kernel of a PTX text: the text must have it, with the same parameters.
pub(crate) fn find(ptx: &str, name: &str) -> Outcome<&'static Kernel> {
    let kernel = KERNELS.iter().find(|kernel| kernel.name == name).ok_or(CUDA_ERROR_NOT_FOUND)?;
    let entry = ptx.split_once(&format!(".entry {name}(")).ok_or(CUDA_ERROR_NOT_FOUND)?.1;
    let (list, _) = entry.split_once(')').ok_or(CUDA_ERROR_INVALID_PTX)?;
    let declared = list.split(',').map(|parameter| {
        let kind = parameter.split_whitespace().nth(1)?;
        kind.trim_start_matches(['.', 'u', 's', 'b', 'f']).parse::<usize>().ok()
    });
    let expected = kernel.parameters.iter().map(|bytes| Some(8 * bytes));
    if declared.eq(expected) { Ok(kernel) } else { Err(CUDA_ERROR_INVALID_PTX) }
}

/// Words at an address, which other streams may write at the same time.
struct Words {
    at: u64,
    bytes: u64,
}

impl Words {
    /// A tensor, of which the last word may be cut short.
    fn new(space: &Space, at: u64, bytes: u64) -> Outcome<Self> {
        if !at.is_multiple_of(4) {
            return Err(CUDA_ERROR_MISALIGNED_ADDRESS);
        }
        space.check_access(at, bytes.next_multiple_of(4))?;
        Ok(Self { at, bytes })
    }

    const fn len(&self) -> u64 {
        self.bytes.div_ceil(4)
    }

    fn word(&self, index: u64) -> &AtomicU32 {
        assert!(index < self.len());
        // SAFETY: the word is aligned, was found to be mapped, and stays so while the caller
        // holds the space. Others that use it are atomic as well, or functions of C.
        unsafe { AtomicU32::from_ptr((self.at + 4 * index) as *mut u32) }
    }

    /// A word; bytes behind the tensor's end are zero.
    fn get(&self, index: u64) -> u32 {
        let left = self.bytes.saturating_sub(4 * index);
        let mask = if left >= 4 { u32::MAX } else { (1 << (8 * left)) - 1 };
        if left == 0 { 0 } else { self.word(index).load(Ordering::Relaxed) & mask }
    }

    fn set(&self, index: u64, word: u32) {
        self.word(index).store(word, Ordering::Relaxed);
    }
}

/// `integrity_read(tensor, bytes, reading)`: its value, and the deviation added.
fn read(arguments: &[u64]) -> Outcome {
    let [at, bytes, reading] = arguments else { return Err(CUresult::CUDA_ERROR_INVALID_VALUE) };
    let space = &*DRIVER.space();
    let (tensor, reading) = (Words::new(space, *at, *bytes)?, Words::new(space, *reading, 12)?);
    let value = Value { low: tensor.get(0), high: tensor.get(1) };
    let mut deviation = 0u32;
    for index in 0..tensor.len() {
        let left = *bytes - 4 * index;
        let mask = if left >= 4 { u32::MAX } else { (1 << (8 * left)) - 1 };
        let wrong = tensor.get(index) ^ (value.word(index as u32) & mask);
        deviation = deviation.wrapping_add(scramble(wrong));
    }
    reading.set(0, value.low);
    reading.set(1, value.high);
    reading.word(2).fetch_add(deviation, Ordering::Relaxed);
    Ok(())
}

/// `integrity_combine(readings, result, op, reads)`; deviations are zero afterwards.
fn combine(arguments: &[u64]) -> Outcome {
    let [readings, result, op, reads] = arguments else {
        return Err(CUresult::CUDA_ERROR_INVALID_VALUE);
    };
    let space = &*DRIVER.space();
    let (readings, result) =
        (Words::new(space, *readings, 12 * reads)?, Words::new(space, *result, 8)?);
    let mut value = Value { low: 3, high: 0 }.fold(*op as u32);
    for word in 0..3 * reads {
        value = value.fold(readings.get(word));
        if word % 3 == 2 {
            readings.set(word, 0);
        }
    }
    result.set(0, value.low);
    result.set(1, value.high);
    Ok(())
}

/// `integrity_write(tensor, bytes, result, position)`.
fn write(arguments: &[u64]) -> Outcome {
    let [at, bytes, result, position] = arguments else {
        return Err(CUresult::CUDA_ERROR_INVALID_VALUE);
    };
    let space = &*DRIVER.space();
    let (tensor, result) = (Words::new(space, *at, *bytes)?, Words::new(space, *result, 8)?);
    let value = Value { low: result.get(0), high: result.get(1) };
    let value = value.fold(*position as u32).cut(*bytes);
    for index in 0..tensor.len() {
        tensor.set(index, value.word(index as u32));
    }
    Ok(())
}

/// `occupy(duration_ns)`: does nothing for so long.
fn occupy(arguments: &[u64]) -> Outcome {
    let start = clock::timer_ns();
    while clock::timer_ns() - start < *arguments.first().unwrap_or(&0) {}
    Ok(())
}
