//! Functions for tests, beyond those of a driver. [`Emulated`](crate::Emulated) calls them.

use super::call;
use crate::counters::Counters;
use crate::faults::Faults;
use crate::variables::Variable;

#[unsafe(no_mangle)]
extern "C" fn emulated_cuda_counters(into: &mut Counters) {
    *into = call(|driver, _| driver.counted());
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
extern "C" fn emulated_cuda_set_variable(number: u32, value: u64) {
    if let Some(variable) = Variable::of_number(number) {
        call(|driver, _| driver.device.variables.set(variable, value));
    }
}

/// Lets this thread's next call of a function do nothing and return a code.
///
/// # Safety
/// The name may be read for as long as the process.
#[unsafe(no_mangle)]
unsafe extern "C" fn emulated_cuda_inject(function: *const u8, bytes: usize, code: u32) {
    // SAFETY: by the promise above.
    let function = unsafe { std::slice::from_raw_parts(function, bytes) };
    let function = std::str::from_utf8(function).unwrap_or_default();
    call(|_, caller| caller.inject(function, code));
}

/// Lets the next module that this thread loads be another text.
///
/// # Safety
/// The text may be read for as long as the process.
#[unsafe(no_mangle)]
unsafe extern "C" fn emulated_cuda_load_instead(text: *const u8, bytes: usize) {
    // SAFETY: by the promise above.
    let text = unsafe { std::slice::from_raw_parts(text, bytes) };
    let text = std::str::from_utf8(text).unwrap_or_default();
    call(|_, caller| caller.load_instead(text));
}

#[unsafe(no_mangle)]
extern "C" fn emulated_cuda_restart() {
    call(|driver, _| driver.restart());
}

/// Returns false where something is reserved or allocated.
#[unsafe(no_mangle)]
extern "C" fn emulated_cuda_resize(memory_bytes: u64, granularity_bytes: u64) -> bool {
    call(|driver, _| driver.device.resize(memory_bytes, granularity_bytes))
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
