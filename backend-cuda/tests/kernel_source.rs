//! The source of the kernels computes what the crate `integrity` says: compiled by the host's
//! own C++ compiler, one thread after the other. That the PTX does is for a GPU to show.
#![cfg(target_os = "linux")]
#![allow(unsafe_code, reason = "the kernels are called as functions of C")]
#![allow(clippy::unwrap_used, reason = "what fails here fails the test")]

use integrity::{Reading, Value, value};
use libloading::Library;
use libtest_mimic::{Arguments, Completion, Trial};
use planner_core::OpId;
use std::path::Path;
use std::process::{Command, ExitCode};

/// What CUDA brings beside C++, for blocks of one thread.
const SHIM: &str = r#"
#define __device__
#define __global__
#define __shared__ static
struct Index { unsigned x; };
static Index blockIdx, threadIdx, blockDim = {1}, gridDim = {3};
static void __syncthreads() {}
static unsigned atomicAdd(unsigned *at, unsigned more) { *at += more; return *at - more; }
#include "kernels.cu"
extern "C" void read_all(const u32 *tensor, u64 bytes, Reading *reading) {
    for (blockIdx.x = 0; blockIdx.x < gridDim.x; blockIdx.x++) integrity_read(tensor, bytes, reading);
}
extern "C" void write_all(u32 *tensor, u64 bytes, const Value *result, u32 position) {
    for (blockIdx.x = 0; blockIdx.x < gridDim.x; blockIdx.x++)
        integrity_write(tensor, bytes, result, position);
}
"#;

type Read = unsafe extern "C" fn(*const u32, u64, *mut [u32; 3]);
type Combine = unsafe extern "C" fn(*mut [u32; 3], *mut [u32; 2], u32, u32);
type Write = unsafe extern "C" fn(*mut u32, u64, *const [u32; 2], u32);

struct Kernels {
    read: Read,
    combine: Combine,
    write: Write,
}

fn main() -> ExitCode {
    let trial = Trial::ignorable_test("the_source_computes_as_defined", || match compiled() {
        None => Ok(Completion::ignored_with("there is no C++ compiler")),
        Some(kernels) => {
            agree(&kernels);
            Ok(Completion::Completed)
        }
    });
    libtest_mimic::run(&Arguments::from_args(), vec![trial]).exit_code()
}

/// The kernels by the host's compiler; none where it has none.
fn compiled() -> Option<Kernels> {
    Command::new("c++").arg("--version").output().ok()?;
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR"));
    let (source, library) = (folder.join("kernels.cpp"), folder.join("kernels.so"));
    std::fs::write(&source, SHIM).unwrap();
    let kernels = Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
    let compiler = Command::new("c++")
        .args(["-shared", "-fPIC", "-O1", "-w", "-o"])
        .args([&library, &source])
        .arg("-I")
        .arg(kernels)
        .status();
    assert!(compiler.unwrap().success(), "the source is C++ but for what the shim brings");
    // SAFETY: nothing runs when it is opened. It stays open.
    let library: &Library = Box::leak(Box::new(unsafe { Library::new(library) }.unwrap()));
    // SAFETY: the functions have these parameters.
    unsafe {
        Some(Kernels {
            read: *library.get(b"read_all").unwrap(),
            combine: *library.get(b"integrity_combine").unwrap(),
            write: *library.get(b"write_all").unwrap(),
        })
    }
}

/// Words of a tensor with these bytes.
fn words(bytes: &[u8]) -> Vec<u32> {
    // What is behind the end is not to matter.
    let mut padded = bytes.to_vec();
    padded.resize(bytes.len().next_multiple_of(4), 0xee);
    padded.chunks(4).map(|word| u32::from_le_bytes(word.try_into().unwrap())).collect()
}

fn agree(kernels: &Kernels) {
    for len in (1..40).chain([1000, 4099]) {
        let right = Value { low: 0x1234_5678, high: 0x9abc_def0 ^ len as u32 };
        let mut bytes = vec![0; len];
        right.fill(0, &mut bytes);
        for wrong in [None, Some(0), Some(len / 2), Some(len - 1)] {
            if let Some(at) = wrong {
                bytes[at] ^= 0x40;
            }
            let expected = Reading::of(&bytes);
            let mut found = [[0; 3]; 2];
            for reading in &mut found {
                // SAFETY: the tensor has these bytes and is padded to words.
                unsafe { (kernels.read)(words(&bytes).as_ptr(), len as u64, reading) };
                let value = Value { low: reading[0], high: reading[1] };
                assert_eq!(Reading { value, deviation: reading[2] }, expected, "{len} {wrong:?}");
            }
            let mut result = [0; 2];
            // SAFETY: there are two readings.
            unsafe { (kernels.combine)(found.as_mut_ptr(), &raw mut result, 7, 2) };
            let op_result = value::op_result(OpId(7), [expected; 2].into_iter());
            assert_eq!(result, [op_result.low, op_result.high]);
            assert_eq!(found.map(|reading| reading[2]), [0; 2], "ready for the next op");

            let mut written = words(&bytes);
            // SAFETY: the tensor has these bytes and is padded to words.
            unsafe { (kernels.write)(written.as_mut_ptr(), len as u64, &raw const result, 3) };
            let mut expected = vec![0; len];
            value::written(op_result, 3, len as u64).fill(0, &mut expected);
            let bytes: Vec<u8> = written.iter().flat_map(|word| word.to_le_bytes()).collect();
            assert_eq!(bytes[..len], expected, "{len}");
        }
    }
}
