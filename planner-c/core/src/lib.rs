//! Spillway's planner for C without an operating system, a C library or an allocator.
//! `include/spillway_core.h` is generated from this crate and documents it for C.
//!
//! One function plans and proves in one buffer of the caller. Another function returns the size
//! that the buffer needs. All input from the caller is checked, except pointers.
//!
//! With the feature `freestanding`, the crate has a panic handler, so that it can be a static
//! library without other crates. The core does not panic. If it did, the processor would trap.
#![no_std]

pub mod error;
mod memory;
pub mod plan;
pub mod work;

#[cfg(feature = "freestanding")]
mod panic {
    use core::arch::asm;
    use core::panic::PanicInfo;

    /// Precompiled code refers to this function, but nothing unwinds.
    #[unsafe(no_mangle)]
    extern "C" fn rust_eh_personality() {}

    #[panic_handler]
    fn panic(_: &PanicInfo<'_>) -> ! {
        loop {
            // SAFETY: the instruction is undefined on purpose and has no operands.
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
