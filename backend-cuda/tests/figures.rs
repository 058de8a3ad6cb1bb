//! The example that measures a GPU runs on the emulated driver, over links of known speed. What
//! it measures is not judged here: times depend on what else the host does.
#![cfg(target_os = "linux")]

#[allow(dead_code, reason = "the work is all that is used")]
mod common;

use libtest_mimic::{Arguments, Completion, Failed, Trial};
use planner_core::Kind;
use std::path::PathBuf;
use std::process::{Command, ExitCode};
use workloads::format;

fn main() -> ExitCode {
    let trial = Trial::ignorable_test("all_tables_are_printed", all_tables_are_printed);
    libtest_mimic::run(&Arguments::from_args(), vec![trial]).exit_code()
}

/// Where cargo puts the example and the emulated driver.
fn built() -> Option<(PathBuf, PathBuf)> {
    let program = std::env::current_exe().ok()?;
    let deps = program.parent()?;
    let example = deps.parent()?.join("examples/cuda-figures");
    let driver = deps.join("libemulated_cuda.so");
    (example.exists() && driver.exists()).then_some((example, driver))
}

fn all_tables_are_printed() -> Result<Completion, Failed> {
    let Some((example, driver)) = built() else {
        return Ok(Completion::ignored_with("the example or the emulated driver is not built"));
    };
    let work = std::env::temp_dir().join(format!("spillway-{}.graph.json", std::process::id()));
    format::save(&work, &format::write_graph(&common::training_step(2 << 20, Kind::Input)))?;
    let output = Command::new(example)
        .arg(&work)
        .env("SPILLWAY_CUDA_DRIVER", driver)
        .env("EMULATED_CUDA_MEMORY", (64 << 20).to_string())
        .env("EMULATED_CUDA_GRANULARITY", (16 << 10).to_string())
        .env("EMULATED_CUDA_H2D_BYTES_PER_S", "20000000000")
        .env("EMULATED_CUDA_D2H_BYTES_PER_S", "10000000000")
        .output();
    std::fs::remove_file(&work)?;
    let output = output?;
    let text = String::from_utf8(output.stdout)?;
    let said = format!("{text}\n{}", String::from_utf8(output.stderr)?);
    let expect = |holds, what: &str| if holds { Ok(()) } else { Err(format!("{what}:\n{said}")) };
    expect(output.status.success(), "it fails")?;
    expect(text.contains("\"format\":\"spillway.machine.v1\""), "no machine")?;
    for way in ["eager", "mapped as it runs", "graph"] {
        expect(text.contains(&format!("| {way} | ")), way)?;
    }
    expect(text.contains(" of 3 within the larger of"), "not all plans have run")?;
    expect(text.contains(" in order: this many"), "no order")?;
    Ok(Completion::Completed)
}
