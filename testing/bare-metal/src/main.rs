//! The proof that the planning core needs no operating system, no allocator and no panic
//! machinery beyond a handler: it links for a Cortex-M3, and under an emulator it prints
//! the digest of its plan.
#![cfg_attr(target_os = "none", no_std, no_main)]

#[cfg(target_os = "none")]
mod target {
    use bare_metal::{EXPECTED, WORDS, digest};
    use cortex_m_rt::entry;
    use cortex_m_semihosting::{debug, hprintln};
    use panic_semihosting as _;

    #[entry]
    fn main() -> ! {
        let memory = cortex_m::singleton!(: [u64; WORDS] = [0; WORDS]);
        let result = memory.map(digest);
        hprintln!("{:016x?}", result);
        let status = match result {
            Some(Ok(EXPECTED)) => debug::EXIT_SUCCESS,
            _ => debug::EXIT_FAILURE,
        };
        loop {
            debug::exit(status);
        }
    }
}

#[cfg(not(target_os = "none"))]
fn main() {
    println!("{:016x?}", bare_metal::digest(&mut [0; bare_metal::WORDS]));
}
