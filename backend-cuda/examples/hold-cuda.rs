//! Keeps a CUDA device initialised until standard input ends, so that programs that start meanwhile
//! do not wait for it. The `go` of `backend-cuda/pack` runs it.

use backend_cuda::{Cuda, Integrity, Options};
use std::error::Error;
use std::io;

fn main() -> Result<(), Box<dyn Error>> {
    let Integrity { driver, ordinal } = Integrity::from_environment()?;
    let device = Cuda::load(driver.as_deref())?.open(&Options { ordinal, chunk_bytes: None })?;
    io::copy(&mut io::stdin(), &mut io::sink())?;
    drop(device);
    Ok(())
}
