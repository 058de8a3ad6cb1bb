//! Spillway's planner for C without an operating system, a C library or an allocator:
//! `include/spillway_core.h` is made from this crate, and documents it for C.
//!
//! One function plans and proves in one buffer of the caller's, and another says how large that must be.
//! Pointers apart, nothing that a caller passes is trusted.
//!
//! With the feature `freestanding` it has a panic handler, so that it can be a static library by
//! itself. The core does not panic; if it did, the processor would trap.
#![no_std]

pub mod error;
mod memory;
pub mod plan;
pub mod work;

#[cfg(feature = "freestanding")]
mod panic {
    use core::arch::asm;
    use core::panic::PanicInfo;

    /// Precompiled code names it, but nothing unwinds.
    #[unsafe(no_mangle)]
    extern "C" fn rust_eh_personality() {}

    #[panic_handler]
    fn panic(_: &PanicInfo<'_>) -> ! {
        loop {
            // SAFETY: an instruction that is undefined on purpose; it has no operands.
            unsafe {
                #[cfg(any(target_arch = "x86", target_arch = "x86_64"))]
                asm!("ud2");
                #[cfg(any(target_arch = "arm", target_arch = "aarch64"))]
                asm!("udf #0");
                #[cfg(any(target_arch = "riscv32", target_arch = "riscv64"))]
                asm!("unimp");
            }
        }
    }
}
