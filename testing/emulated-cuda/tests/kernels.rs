//! An embedder's kernels, run by the safe functions of cudarc: many threads, shared memory,
//! barriers, failures.
#![cfg(target_os = "linux")]
#![allow(missing_docs)]
#![allow(unsafe_code, reason = "what a kernel does, only its text says")]
#![allow(clippy::unwrap_used, reason = "what fails here fails the test")]

mod common;

use common::{Device, device};
use cudarc::driver::sys::CUresult::{self, *};
use cudarc::driver::sys::{CUgraphInstantiate_flags, CUstreamCaptureMode};
use cudarc::driver::{DevicePtr, LaunchConfig, PushKernelArg};

const fn grid(blocks: u32, threads: u32, shared_mem_bytes: u32) -> LaunchConfig {
    LaunchConfig { grid_dim: (blocks, 1, 1), block_dim: (threads, 1, 1), shared_mem_bytes }
}

/// `y = a x + y`, many elements in each thread, and the sums of all `y` by block.
const SAXPY: &str = "
.visible .entry saxpy(
    .param .u64 of_x, .param .u64 of_y, .param .u64 sum, .param .f32 a, .param .u32 len
) {
    .reg .pred %p<3>; .reg .b32 %r<12>; .reg .f32 %f<8>; .reg .b64 %d<10>;
    .shared .align 4 .b8 part[512];
    ld.param.u64 %d1, [of_x];
    ld.param.u64 %d2, [of_y];
    ld.param.u64 %d3, [sum];
    ld.param.f32 %f1, [a];
    ld.param.u32 %r1, [len];
    mov.u32 %r2, %tid.x;
    mov.u32 %r3, %ntid.x;
    mov.u32 %r4, %ctaid.x;
    mad.lo.s32 %r5, %r4, %r3, %r2;
    mov.u32 %r6, %nctaid.x;
    mul.lo.s32 %r7, %r6, %r3;
    mov.f32 %f2, 0f00000000;
element:
    setp.ge.u32 %p1, %r5, %r1;
    @%p1 bra summed;
    mul.wide.u32 %d4, %r5, 4;
    add.s64 %d5, %d1, %d4;
    add.s64 %d6, %d2, %d4;
    ld.global.nc.f32 %f3, [%d5];
    ld.global.f32 %f4, [%d6];
    fma.rn.f32 %f4, %f1, %f3, %f4;
    st.global.f32 [%d6], %f4;
    add.f32 %f2, %f2, %f4;
    add.s32 %r5, %r5, %r7;
    bra element;
summed:
    mov.u64 %d7, part;
    mul.wide.u32 %d8, %r2, 4;
    add.s64 %d7, %d7, %d8;
    st.shared.f32 [%d7], %f2;
    shr.u32 %r8, %r3, 1;
halve:
    bar.sync 0;
    setp.ge.u32 %p1, %r2, %r8;
    @%p1 bra beside;
    mul.wide.u32 %d8, %r8, 4;
    add.s64 %d9, %d7, %d8;
    ld.shared.f32 %f5, [%d9];
    ld.shared.f32 %f6, [%d7];
    add.f32 %f6, %f6, %f5;
    st.shared.f32 [%d7], %f6;
beside:
    shr.u32 %r8, %r8, 1;
    setp.ne.u32 %p2, %r8, 0;
    @%p2 bra halve;
    setp.ne.u32 %p1, %r2, 0;
    @%p1 bra end;
    ld.shared.f32 %f7, [part];
    red.global.add.f32 [%d3], %f7;
end:
    ret;
}";

#[test]
fn many_threads_compute_and_sum_up() {
    let device = device();
    let saxpy = device.load(SAXPY).get("saxpy");
    for (len, blocks, threads) in [(1u32, 1, 2), (1000, 3, 128), (4097, 2, 64)] {
        let x: Vec<f32> = (0..len).map(|at| (at % 13) as f32).collect();
        let y: Vec<f32> = (0..len).map(|at| (at % 7) as f32).collect();
        let (of_x, mut of_y, sum) = (device.upload(&x), device.upload(&y), device.upload(&[0f32]));
        let mut launch = device.stream.launch_builder(&saxpy);
        launch.arg(&of_x).arg(&mut of_y).arg(&sum).arg(&2f32).arg(&len);
        // SAFETY: the kernel has these parameters.
        unsafe { launch.launch(grid(blocks, threads, 0)) }.unwrap();
        let expected: Vec<f32> = x.iter().zip(&y).map(|(x, y)| 2.0 * x + y).collect();
        assert_eq!(device.download(&of_y), expected);
        // All sums are integers, so they are exact.
        assert_eq!(device.download(&sum), [expected.iter().sum::<f32>()]);
    }
}

/// A kernel in which each thread writes the word that this text computes into `%r0` from its
/// index in the block, `%r1`.
fn each(text: &str) -> String {
    format!(
        ".visible .entry each(.param .u64 result) {{
            .reg .pred %p<4>; .reg .b32 %r<9>; .reg .b64 %d<4>;
            ld.param.u64 %d1, [result];
            mov.u32 %r1, %tid.x;
            {text}
            mul.wide.u32 %d2, %r1, 4;
            add.s64 %d3, %d1, %d2;
            st.global.u32 [%d3], %r0;
            ret;
        }}"
    )
}

/// Returns what the threads of one block write.
fn words(device: &Device, text: &str, threads: u32, dynamic_bytes: u32) -> Vec<u32> {
    let each = device.load(text).get("each");
    let result = device.upload(&vec![0u32; threads as usize]);
    let mut launch = device.stream.launch_builder(&each);
    // SAFETY: there is a word for each thread.
    unsafe { launch.arg(&result).launch(grid(1, threads, dynamic_bytes)) }.unwrap();
    device.download(&result)
}

#[test]
fn lanes_shuffle_and_vote() {
    let device = device();
    let way = |how: &str| each(&format!("shfl.sync.{how}, 31, -1;").replace("FROM", "%r0, %r1"));
    assert_eq!(
        words(&device, &way("bfly.b32 FROM, 5"), 32, 0),
        (0..32).map(|t| t ^ 5).collect::<Vec<_>>()
    );
    let down: Vec<_> = (0..32).map(|t| if t < 30 { t + 2 } else { t }).collect();
    assert_eq!(words(&device, &way("down.b32 FROM, 2"), 32, 0), down);
    let up = each("shfl.sync.up.b32 %r0|%p1, %r1, 3, 0, -1; @!%p1 mov.u32 %r0, 99;");
    let expected: Vec<_> = (0..32).map(|t| if t >= 3 { t - 3 } else { 99 }).collect();
    assert_eq!(words(&device, &up, 32, 0), expected);
    // In segments of eight lanes, the last warp with four of them.
    let idx = each("shfl.sync.idx.b32 %r0, %r1, 1, 0x181f, -1;");
    let expected: Vec<_> = (0..36).map(|t| t / 8 * 8 + 1).collect();
    assert_eq!(words(&device, &idx, 36, 0), expected);
    let ballot = each("setp.lt.u32 %p1, %r1, 3; vote.sync.ballot.b32 %r0, %p1, -1;");
    assert_eq!(words(&device, &ballot, 33, 0), [[7; 32].as_slice(), &[0]].concat());
    // Half of the lanes reach the shuffle by a path that lies after it in the text.
    let apart = each(
        "mov.u32 %r2, %r1; setp.lt.u32 %p1, %r1, 16; @%p1 bra first;
         together: shfl.sync.bfly.b32 %r0, %r2, 16, 31, -1; bra done;
         first: add.u32 %r2, %r2, 100; bra together;
         done:",
    );
    let expected: Vec<_> = (0..32).map(|t| if t < 16 { t + 16 } else { t + 84 }).collect();
    assert_eq!(words(&device, &apart, 32, 0), expected);
}

#[test]
fn lanes_that_part_meet_again() {
    let device = device();
    // Each lane loops as often as its index says; then the warp has reconverged.
    let text = each(
        "mov.u32 %r0, 0; mov.u32 %r2, %r1;
         again: setp.eq.u32 %p1, %r2, 0; @%p1 bra done;
         add.u32 %r0, %r0, 3; sub.u32 %r2, %r2, 1; bra again;
         done: activemask.b32 %r3; shl.b32 %r3, %r3, 16; and.b32 %r3, %r3, 0x10000;
         or.b32 %r0, %r0, %r3;",
    );
    let expected: Vec<_> = (0..32).map(|t| (3 * t) | 0x10000).collect();
    assert_eq!(words(&device, &text, 32, 0), expected, "the lowest lane is there when all are");
}

#[test]
fn dynamic_shared_memory_is_after_the_static() {
    let device = device();
    let text = format!(
        ".extern .shared .align 16 .b8 dynamic[];\n{}",
        each(
            ".shared .align 4 .u32 fixed; st.shared.u32 [fixed], 50;
             mov.u64 %d2, dynamic; mul.wide.u32 %d3, %r1, 4; add.s64 %d2, %d2, %d3;
             cvta.shared.u64 %d2, %d2; st.u32 [%d2], %r1; bar.sync 0;
             xor.b32 %r2, %r1, 40; mov.u32 %r3, dynamic; mad.lo.u32 %r3, %r2, 4, %r3;
             ld.shared.u32 %r0, [%r3]; ld.shared.u32 %r4, [fixed]; add.u32 %r0, %r0, %r4;"
        )
    );
    let expected: Vec<_> = (0..64).map(|t| (t ^ 40) + 50).collect();
    assert_eq!(words(&device, &text, 64, 256), expected);
    let each = device.load(&text).get("each");
    // SAFETY: it is refused.
    let refused =
        unsafe { device.stream.launch_builder(&each).arg(&0u64).launch(grid(1, 1, 48 << 10)) };
    assert_eq!(refused.unwrap_err().0, CUDA_ERROR_INVALID_VALUE, "more than a block has");
}

#[test]
fn modules_have_their_own_kernels_and_variables() {
    let device = device();
    let text = |first: u32| {
        let each = each(
            "atom.global.add.u32 %r0, [count], 1; ld.const.u32 %r2, [table+4]; add.u32 %r0, %r0, %r2;",
        );
        format!(
            ".global .u32 count = {first};\n.const .align 4 .b8 table[8] = {{0, 0, 0, 0, 0, 1}};\n{each}"
        )
    };
    let (first, second) = (text(5), text(7));
    assert_eq!(words(&device, &first, 2, 0), [0x105, 0x106]);
    assert_eq!(words(&device, &second, 2, 0), [0x107, 0x108]);
    assert!(!device.load(&first).has("saxpy"), "a kernel that the text lacks");
}

#[test]
fn kernels_run_in_graphs() {
    let device = device();
    let each = device.load(&each("ld.global.u32 %r0, [%d1]; add.u32 %r0, %r0, 1;")).get("each");
    let result = device.upload(&[5u32]);
    let at = result.device_ptr(&device.stream).0;
    let launch = || {
        // SAFETY: the kernel has this parameter.
        unsafe { device.stream.launch_builder(&each).arg(&at).launch(grid(1, 1, 0)) }.unwrap();
    };
    // A capture loads no kernel.
    launch();
    device.stream.begin_capture(CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_RELAXED).unwrap();
    (0..3).for_each(|_| launch());
    let graph = device.stream.end_capture(CUgraphInstantiate_flags(0)).unwrap().unwrap();
    assert_eq!(device.download(&result), [6], "nothing has run yet");
    graph.launch().unwrap();
    graph.launch().unwrap();
    assert_eq!(device.download(&result), [12]);
}

/// Returns the error that ends the context, and the driver's explanation.
fn failure(text: &str, threads: u32) -> (CUresult, String) {
    let device = device();
    let each = device.load(&each(text)).get("each");
    let result = device.upload(&[0u32; 64]);
    // As an address: cudarc tracks the use of its own memory by calls, which fail as well.
    let at = result.device_ptr(&device.stream).0;
    let mut launch = device.stream.launch_builder(&each);
    // SAFETY: it fails.
    unsafe { launch.arg(&at).launch(grid(1, threads, 0)) }.unwrap();
    let error = device.stream.synchronize().unwrap_err().0;
    assert_eq!(device.context.new_stream().unwrap_err().0, error, "it stays");
    (error, device.emulated.explanation())
}

#[test]
fn wrong_kernels_end_the_context() {
    let shared = ".shared .align 4 .b8 part[8];";
    for (text, error, why) in [
        ("st.global.u32 [%d1+1], 0;", CUDA_ERROR_MISALIGNED_ADDRESS, "not aligned"),
        ("ld.global.v2.u32 {%r0, %r2}, [%d1+4];", CUDA_ERROR_MISALIGNED_ADDRESS, "not aligned"),
        (
            "st.global.u32 [%d1+0x1000000000], 0;",
            CUDA_ERROR_ILLEGAL_ADDRESS,
            "outside of Global memory",
        ),
        ("ld.global.u32 %r0, [8];", CUDA_ERROR_ILLEGAL_ADDRESS, "outside of Global memory"),
        ("ld.u32 %r0, [8];", CUDA_ERROR_ILLEGAL_ADDRESS, "outside of Global memory"),
        ("st.shared.u32 [part+8], 0;", CUDA_ERROR_ILLEGAL_ADDRESS, "outside of Shared memory"),
        ("trap;", CUDA_ERROR_LAUNCH_FAILED, "a trap"),
        (
            "setp.lt.u32 %p1, %r1, 7; @%p1 bra low; bar.sync 0; bra out; low: bar.sync 0; out:",
            CUDA_ERROR_LAUNCH_FAILED,
            "reach this instruction",
        ),
        (
            "setp.lt.u32 %p1, %r1, 32; @%p1 bra low; bar.sync 1; bra out; low: bar.sync 0; out:",
            CUDA_ERROR_LAUNCH_FAILED,
            "different numbers",
        ),
        (
            "setp.lt.u32 %p1, %r1, 7; @%p1 bra low; shfl.sync.bfly.b32 %r0, %r1, 1, 31, -1;
             low: bar.sync 0;",
            CUDA_ERROR_LAUNCH_FAILED,
            "reach this instruction",
        ),
    ] {
        let (found, explanation) = failure(&format!("{shared} {text}"), 64);
        assert_eq!(found, error, "{text}: {explanation}");
        assert!(explanation.starts_with("each, ") && explanation.contains(why), "{explanation}");
    }
}

#[test]
fn threads_that_have_ended_are_waited_for_no_longer() {
    let device = device();
    let text = each("mov.u32 %r0, 4; setp.lt.u32 %p1, %r1, 7; @%p1 ret; bar.sync 0;");
    let found = words(&device, &text, 40, 0);
    assert_eq!(found, [[0; 7].as_slice(), &[4; 33]].concat());
}

#[test]
fn warps_that_wait_for_each_other_get_their_turns() {
    let device = device();
    // The first warp waits for what the second writes.
    let text = each(
        ".shared .align 4 .u32 flag;
         setp.eq.u32 %p1, %r1, 0; @%p1 st.shared.u32 [flag], 0; bar.sync 0;
         setp.lt.u32 %p1, %r1, 32; @%p1 bra wait;
         st.volatile.shared.u32 [flag], 8; bra out;
         wait: ld.volatile.shared.u32 %r2, [flag]; setp.eq.u32 %p2, %r2, 0; @%p2 bra wait;
         out: ld.volatile.shared.u32 %r0, [flag];",
    );
    assert_eq!(words(&device, &text, 64, 0), [8; 64]);
}
