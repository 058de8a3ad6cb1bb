//! Single PTX instructions compute what the manual says (Parallel Thread Execution ISA).
#![cfg(target_os = "linux")]
#![allow(missing_docs)]
#![allow(unsafe_code, reason = "what a kernel does, only its text says")]
#![allow(clippy::unwrap_used, reason = "what fails here fails the test")]

mod common;

use common::device;
use cudarc::driver::{LaunchConfig, PushKernelArg};

const ONE_THREAD: LaunchConfig =
    LaunchConfig { grid_dim: (1, 1, 1), block_dim: (1, 1, 1), shared_mem_bytes: 0 };

/// Checks the 64 bits that each text leaves in `%d0`.
fn check(cases: &[(&str, u64)]) {
    let device = device();
    let entry = |(number, (text, _)): (usize, &(&str, u64))| {
        format!(
            ".visible .entry case{number}(.param .u64 result) {{
                .reg .pred %p<8>; .reg .b16 %h<8>; .reg .b32 %r<8>; .reg .f32 %f<8>;
                .reg .b64 %d<9>; .reg .f64 %g<8>; .local .align 8 .b8 own[16];
                mov.u64 %d0, 0;
                {text}
                ld.param.u64 %d8, [result];
                st.global.u64 [%d8], %d0;
                ret;
            }}\n"
        )
    };
    let text: String = cases.iter().enumerate().map(entry).collect();
    let kernels = device.load(&text);
    for (number, (text, expected)) in cases.iter().enumerate() {
        let result = device.upload(&[0u64]);
        let kernel = kernels.get(&format!("case{number}"));
        // SAFETY: the kernel writes 8 bytes.
        unsafe { device.stream.launch_builder(&kernel).arg(&result).launch(ONE_THREAD) }.unwrap();
        let found = device.download(&result)[0];
        assert_eq!(found, *expected, "{text}: {found:#x} is not {expected:#x}");
    }
}

/// Checks the 32 bits that each text leaves in `%r0`.
fn check_words(cases: &[(&str, u32)]) {
    let texts: Vec<_> =
        cases.iter().map(|(text, _)| format!("{text}; cvt.u64.u32 %d0, %r0;")).collect();
    let cases: Vec<_> =
        texts.iter().zip(cases).map(|(text, case)| (text.as_str(), u64::from(case.1))).collect();
    check(&cases);
}

#[test]
fn integers() {
    check_words(&[
        ("add.u32 %r0, 0xffffffff, 2", 1),
        ("add.sat.s32 %r0, 0x7fffffff, 2", 0x7fff_ffff),
        ("sub.s32 %r0, 3, 5", -2i32 as u32),
        ("mul.lo.s32 %r0, -3, 5", -15i32 as u32),
        ("mul.hi.u32 %r0, 0x80000000, 6", 3),
        ("mul.hi.s32 %r0, -1, 5", u32::MAX),
        ("mad.lo.u32 %r0, 7, 8, 9", 65),
        ("mad.hi.u32 %r0, 0x80000000, 6, 4", 7),
        ("div.s32 %r0, -7, 2", -3i32 as u32),
        ("div.u32 %r0, -7, 2", 0x7fff_fffc),
        ("rem.s32 %r0, -7, 2", -1i32 as u32),
        ("rem.u32 %r0, 17, 5", 2),
        ("min.s32 %r0, -1, 1", u32::MAX),
        ("min.u32 %r0, -1, 1", 1),
        ("max.s32 %r0, -1, 1", 1),
        ("abs.s32 %r0, -9", 9),
        ("neg.s32 %r0, 9", -9i32 as u32),
        ("popc.b32 %r0, 0xf0f1", 9),
        ("clz.b32 %r0, 0x00010000", 15),
        ("brev.b32 %r0, 1", 0x8000_0000),
        ("bfind.u32 %r0, 0x100", 8),
        ("bfind.shiftamt.u32 %r0, 0x100", 23),
        ("bfe.u32 %r0, 0xabcd1234, 8, 8", 0x12),
        ("bfe.s32 %r0, 0x0000f000, 12, 4", u32::MAX),
        ("bfe.s32 %r0, 0x80000000, 28, 8", 0xffff_fff8),
        ("bfe.u32 %r0, 0x80000000, 28, 8", 8),
        ("bfi.b32 %r0, 0xff, 0x11111111, 8, 4", 0x1111_1f11),
        ("mov.b16 %h0, 0xffff; mov.b16 %h1, 2; add.s16 %h0, %h0, %h1; cvt.u32.u16 %r0, %h0", 1),
        ("mov.b16 %h0, 0x8000; mov.b16 %h1, 2; mul.wide.s16 %r0, %h0, %h1", 0xffff_0000),
    ]);
    check(&[
        ("add.s64 %d0, -1, 3;", 2),
        ("mul.wide.u32 %d0, 0xffffffff, 0xffffffff;", 0xffff_fffe_0000_0001),
        ("mul.wide.s32 %d0, -1, 5;", -5i64 as u64),
        ("mad.wide.u32 %d0, 0x80000000, 2, 7;", 0x1_0000_0007),
        ("mul.hi.u64 %d0, 0x8000000000000000, 10;", 5),
        ("mul.hi.s64 %d0, -1, 5;", u64::MAX),
        ("mul.lo.s64 %d0, -3, 5;", -15i64 as u64),
        ("div.s64 %d0, -100, 7;", -14i64 as u64),
        ("rem.u64 %d0, 100, 7;", 2),
        ("bfi.b64 %d0, 3, 0, 62, 2;", 3 << 62),
        ("popc.b64 %r0, -1; cvt.u64.u32 %d0, %r0;", 64),
    ]);
}

#[test]
fn bits_and_comparisons() {
    check_words(&[
        ("and.b32 %r0, 12, 10", 8),
        ("or.b32 %r0, 12, 10", 14),
        ("xor.b32 %r0, 12, 10", 6),
        ("not.b32 %r0, 0", u32::MAX),
        ("shl.b32 %r0, 3, 31", 1 << 31),
        ("shl.b32 %r0, 3, 32", 0),
        ("shr.u32 %r0, 0x80000000, 31", 1),
        ("shr.s32 %r0, 0x80000000, 31", u32::MAX),
        ("shr.s32 %r0, 0x80000000, 99", u32::MAX),
        ("shr.u32 %r0, 0x80000000, 32", 0),
        ("shf.l.wrap.b32 %r0, 0x80000000, 1, 33", 3),
        ("shf.r.clamp.b32 %r0, 5, 7, 40", 7),
        ("lop3.b32 %r0, 12, 10, 6, 0x80", 0),
        ("lop3.b32 %r0, 12, 10, 6, 0xe8", 14),
        ("prmt.b32 %r0, 0x03020100, 0x07060584, 0x4c17", 0x84ff_0107),
        ("setp.lt.s32 %p0, -1, 1; selp.b32 %r0, 5, 6, %p0", 5),
        ("setp.lt.u32 %p0, -1, 1; selp.b32 %r0, 5, 6, %p0", 6),
        ("setp.hi.u32 %p0, -1, 1; selp.b32 %r0, 5, 6, !%p0", 6),
        ("setp.ge.s32 %p0|%p1, 1, 1; selp.b32 %r0, 5, 6, %p1", 6),
        ("setp.eq.s32 %p1, 0, 1; setp.ne.and.s32 %p0, 1, 2, %p1; selp.b32 %r0, 5, 6, %p0", 6),
        ("setp.eq.s32 %p1, 0, 1; setp.ne.or.s32 %p0, 1, 1, !%p1; selp.b32 %r0, 5, 6, %p0", 5),
        ("mov.pred %p1, 1; not.pred %p0, %p1; selp.b32 %r0, 5, 6, %p0", 6),
        ("mov.pred %p1, 1; xor.pred %p0, %p1, 0; selp.b32 %r0, 5, 6, %p0", 5),
        (
            "mov.b32 %r0, 1; setp.eq.u32 %p0, 1, 2; @%p0 mov.b32 %r0, 2; @!%p0 add.u32 %r0, %r0, 8",
            9,
        ),
        ("setp.lt.f32 %p0, 0f7fc00000, 0f3f800000; selp.b32 %r0, 5, 6, %p0", 6),
        ("setp.ltu.f32 %p0, 0f7fc00000, 0f3f800000; selp.b32 %r0, 5, 6, %p0", 5),
        ("setp.nan.f32 %p0, 0f7fc00000, 0f3f800000; selp.b32 %r0, 5, 6, %p0", 5),
        ("setp.eq.ftz.f32 %p0, 0f00000001, 0f00000000; selp.b32 %r0, 5, 6, %p0", 5),
        ("setp.eq.f32 %p0, 0f00000001, 0f00000000; selp.b32 %r0, 5, 6, %p0", 6),
        ("testp.infinite.f32 %p0, 0fff800000; selp.b32 %r0, 5, 6, %p0", 5),
    ]);
    check(&[
        ("shr.s64 %d0, -8, 1;", -4i64 as u64),
        ("setp.gt.s64 %p0, 1, -1; selp.b64 %d0, 5, 6, %p0;", 5),
    ]);
}

#[test]
fn moves_and_conversions() {
    check_words(&[
        ("mov.b64 %d1, {7, 9}; mov.b64 {%r1, %r0}, %d1", 9),
        ("mov.b32 %r1, 0x12345678; mov.b32 {%h0, %h1}, %r1; mov.b32 %r0, {%h1, %h0}", 0x5678_1234),
        ("cvt.u32.u64 %r0, 0x100000005", 5),
        ("mov.b16 %h0, 0x80ff; cvt.s32.s8 %r0, %h0", u32::MAX),
        ("mov.b16 %h0, 0x80ff; cvt.s32.s16 %r0, %h0", 0xffff_80ff),
        ("mov.b32 %r1, 300; cvt.sat.u8.u32 %r0, %r1", 255),
        ("mov.b32 %r1, -300; cvt.sat.s8.s32 %r0, %r1", -128i32 as u32),
        ("cvt.rzi.s32.f32 %r0, 0fc0200000", -2i32 as u32),
        ("cvt.rni.s32.f32 %r0, 0f40200000", 2),
        ("cvt.rmi.s32.f32 %r0, 0fc0200000", -3i32 as u32),
        ("cvt.rpi.u32.f32 %r0, 0f40200000", 3),
        ("cvt.rzi.u32.f32 %r0, 0fc0200000", 0),
        ("cvt.rzi.s32.f32 %r0, 0f7f800000", 0x7fff_ffff),
        ("cvt.rzi.s32.f32 %r0, 0f7fc00000", 0),
        ("mov.b32 %r1, -3; cvt.rn.f32.s32 %f0, %r1; mov.b32 %r0, %f0", 0xc040_0000),
        ("mov.b32 %r1, 0x01000001; cvt.rn.f32.u32 %f0, %r1; mov.b32 %r0, %f0", 0x4b80_0000),
        ("cvt.rmi.f32.f32 %f0, 0fbf000000; mov.b32 %r0, %f0", 0xbf80_0000),
        ("cvt.sat.f32.f32 %f0, 0f40000000; mov.b32 %r0, %f0", 0x3f80_0000),
        ("cvt.rn.f32.f64 %f0, 0d3ff8000000000000; mov.b32 %r0, %f0", 0x3fc0_0000),
    ]);
    check(&[
        ("mov.b32 %r1, -2; cvt.s64.s32 %d0, %r1;", -2i64 as u64),
        ("mov.b32 %r1, -2; cvt.u64.u32 %d0, %r1;", 0xffff_fffe),
        ("cvt.f64.f32 %g0, 0f3fc00000; mov.b64 %d0, %g0;", 0x3ff8_0000_0000_0000),
        ("cvt.rzi.s64.f32 %d0, 0f7fc00000;", 1 << 63),
        (
            "cvta.local.u64 %d1, 8; st.u32 [%d1], 5; cvta.to.local.u64 %d2, %d1;
             ld.local.u32 %d0, [%d2];",
            5,
        ),
        ("{ .reg .b64 %d1; mov.u64 %d1, 4; mov.u64 %d0, %d1; } mov.u64 %d1, 9;", 4),
        (
            "mov.u64 %d1, 3;
             again: add.u64 %d0, %d0, 2; sub.u64 %d1, %d1, 1;
             setp.ne.u64 %p0, %d1, 0; @%p0 bra again;",
            6,
        ),
    ]);
}

#[test]
fn memory() {
    check(&[
        ("st.local.u8 [own+3], -1; ld.local.s8 %d0, [own+3];", u64::MAX),
        ("st.local.u16 [own], -2; ld.local.u16 %d0, [own];", 0xfffe),
        ("mov.b32 %r1, -2; st.local.b32 [own], %r1; ld.local.s32 %d0, [own];", -2i64 as u64),
        ("st.local.v2.u32 [own], {1, 2}; ld.local.u64 %d0, [own];", 0x2_0000_0001),
        ("st.local.v4.u32 [own], {1, 2, 3, 4}; ld.local.v4.u32 {_, %r1, _, %d0}, [own];", 4),
        ("ld.param.u8 %d0, [result+7];", 0),
        ("ld.param.u64 %d1, [result]; st.u64 [%d1], 6; atom.add.u64 %d0, [%d1], 1;", 6),
        ("ld.param.u64 %d1, [result]; red.global.add.u64 [%d1], 7; ld.global.u64 %d0, [%d1];", 7),
        (
            "ld.param.u64 %d1, [result]; atom.global.cas.b32 %r0, [%d1], 0, 9;
             atom.global.cas.b32 %r0, [%d1], 0, 8; ld.volatile.global.u32 %d0, [%d1];",
            9,
        ),
        (
            "ld.param.u64 %d1, [result]; st.global.u32 [%d1], -5;
             atom.global.max.s32 %r0, [%d1], 3; ld.global.u32 %d0, [%d1];",
            3,
        ),
        (
            "ld.param.u64 %d1, [result]; st.global.f32 [%d1], 0f3f800000;
             red.global.add.f32 [%d1], 0f40000000; ld.global.u32 %d0, [%d1];",
            0x4040_0000,
        ),
        ("ld.param.u64 %d1, [result]; atom.exch.b64 %d2, [%d1], 4; ld.u64 %d0, [%d1];", 4),
        ("ld.param.u64 %d1, [result]; atom.inc.u32 %r0, [%d1], 0; ld.u32 %d0, [%d1];", 0),
    ]);
}

#[test]
fn floats() {
    let mut texts = Vec::new();
    for &(text, expected) in &[
        ("add.f32 %f0, 1.5, 2.25", 3.75f32),
        ("sub.f32 %f0, 1.5, 2.25", -0.75),
        ("mul.f32 %f0, 1.5, 2.25", 3.375),
        ("mul.f32 %f0, 0f7f000000, 4.0", f32::INFINITY),
        ("add.sat.f32 %f0, 1.5, 2.25", 1.0),
        ("mul.ftz.f32 %f0, 0f00800000, 0.5", 0.0),
        ("mul.f32 %f0, 0f00800000, 0.5", f32::MIN_POSITIVE / 2.0),
        // The product needs 48 bits.
        ("fma.rn.f32 %f0, 0f3f800001, 0f3f800001, 0fbf800002", 1.421_085_5e-14),
        ("fma.rm.f32 %f0, 1.0, 1.0, 0f33000000", 1.0),
        ("fma.rp.f32 %f0, 1.0, 1.0, 0f33000000", 1.000_000_1),
        ("add.rz.f32 %f0, -1.0, 0fb3000000", -1.0),
        ("add.rm.f32 %f0, -1.0, 0fb3000000", -1.000_000_1),
        ("mul.rm.f32 %f0, 0f7f000000, 4.0", f32::MAX),
        ("add.rm.f32 %f0, 1.0, -1.0", -0.0),
        ("div.rn.f32 %f0, 1.0, 3.0", 0.333_333_34),
        ("div.full.f32 %f0, 6.0, 3.0", 2.0),
        ("rcp.approx.ftz.f32 %f0, 4.0", 0.25),
        ("sqrt.rn.f32 %f0, 2.0", std::f32::consts::SQRT_2),
        ("rsqrt.approx.f32 %f0, 4.0", 0.5),
        ("ex2.approx.f32 %f0, 3.0", 8.0),
        ("lg2.approx.f32 %f0, 8.0", 3.0),
        ("sin.approx.f32 %f0, 0.0", 0.0),
        ("cos.approx.f32 %f0, 0.0", 1.0),
        ("tanh.approx.f32 %f0, 0.0", 0.0),
        ("min.f32 %f0, 0f7fc00000, 2.0", 2.0),
        ("max.f32 %f0, -3.0, 2.0", 2.0),
        ("max.f32 %f0, 2.0, 0f7fc00000", 2.0),
        ("min.f32 %f0, 0f00000000, 0f80000000", -0.0),
        ("max.f32 %f0, 0f80000000, 0f00000000", 0.0),
        ("neg.f32 %f0, 2.0", -2.0),
        ("abs.f32 %f0, -2.0", 2.0),
        ("copysign.f32 %f0, -1.0, 5.0", -5.0),
    ] {
        texts.push((format!("{text}; mov.b32 %r0, %f0"), expected.to_bits()));
    }
    texts.push(("sub.f32 %f0, 0f7f800000, 0f7f800000; mov.b32 %r0, %f0".into(), 0x7fff_ffff));
    check_words(&texts.iter().map(|(text, bits)| (text.as_str(), *bits)).collect::<Vec<_>>());
    let double = |text: &'static str, expected: f64| (text, expected.to_bits());
    check(&[
        double("add.f64 %g0, 1.5, 2.25; mov.b64 %d0, %g0;", 3.75),
        double("fma.rn.f64 %g0, 3.0, 5.0, 7.0; mov.b64 %d0, %g0;", 22.0),
        double("div.rn.f64 %g0, 1.0, 3.0; mov.b64 %d0, %g0;", 1.0 / 3.0),
        double("sqrt.rn.f64 %g0, 16.0; mov.b64 %d0, %g0;", 4.0),
        double("max.f64 %g0, -3.0, 2.0; mov.b64 %d0, %g0;", 2.0),
    ]);
}

#[test]
fn what_is_not_known_is_refused_with_its_line() {
    use cudarc::driver::sys::CUresult::CUDA_ERROR_INVALID_PTX;
    let device = device();
    for (text, why) in [
        ("frobnicate.u32 %r0, %r1;", "`frobnicate`"),
        ("add.odd.u32 %r0, %r0, 1;", ""),
        ("add.u32 %r0, %r9, 1;", "`%r9`"),
        ("add.u64 %r0, %r0, 1;", "`%r0` has another size"),
        ("add.u32 %r0, %r0;", "operands"),
        ("bra nowhere;", "`nowhere`"),
        ("setp.like.u32 %p0, %r0, 1;", "`.like`"),
        ("add.f32 %f0, %f0, 1;", "the number is not of this type"),
        ("mov.u32 %r0, %nothing;", "`%nothing`"),
        ("add.u32 %r0, %r0, 1", "`;` is missing"),
        ("call.uni f;", "`call`"),
    ] {
        let entry = format!(
            ".entry f() {{ .reg .b32 %r<2>; .reg .f32 %f<2>; .reg .pred %p<2>;\n{text}\n}}"
        );
        let refused = device.try_load(&entry).err().unwrap_or_else(|| panic!("{text}"));
        assert_eq!(refused.0, CUDA_ERROR_INVALID_PTX);
        let explanation = device.emulated.explanation();
        let line = if text.ends_with(';') { format!("line 5: `{text}`") } else { "line 6".into() };
        assert!(explanation.starts_with(&line), "{explanation}");
        assert!(explanation.contains(why), "{explanation}");
    }
}
