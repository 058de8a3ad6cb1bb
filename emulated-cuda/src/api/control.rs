//! Functions for tests, beyond those of a driver. [`Emulated`](crate::Emulated) calls them.

use super::call;
use crate::counters::Counters;
use crate::faults::Faults;

#[unsafe(no_mangle)]
extern "C" fn emulated_cuda_counters(into: &mut Counters) {
    *into = call(|driver, _| *driver.counters());
}

#[unsafe(no_mangle)]
extern "C" fn emulated_cuda_set_faults(
    has_seed: bool,
    seed: u64,
    refused_one_in: u64,
    failed_one_in: u64,
) {
    let faults = Faults { seed: has_seed.then_some(seed), refused_one_in, failed_one_in };
    call(|_, caller| caller.set_faults(faults));
}

#[unsafe(no_mangle)]
extern "C" fn emulated_cuda_delay_all() {
    call(|driver, _| driver.delay_all());
}

/// Writes as much of the explanation as there is room for. Returns its length.
///
/// # Safety
/// This many bytes may be written.
#[unsafe(no_mangle)]
unsafe extern "C" fn emulated_cuda_explanation(into: *mut u8, bytes: usize) -> usize {
    let explanation = call(|driver, _| driver.device.explanation());
    let bytes = bytes.min(explanation.len());
    // SAFETY: by the promise above.
    unsafe { into.copy_from_nonoverlapping(explanation.as_ptr(), bytes) };
    bytes
}
