//! The example that measures a GPU runs on the emulated driver, over links of known speed. What
//! it measures is not judged here: times depend on what else the host does.

use libtest_mimic::{Arguments, Completion, Failed, Trial};
use std::path::PathBuf;
use std::process::{Command, ExitCode};

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
    let output = Command::new(example)
        .arg("gpt:batch=1,layers=1,width=64,sequence=16,vocabulary=128")
        .env("SPILLWAY_CUDA_DRIVER", driver)
        .env("EMULATED_CUDA_MEMORY", (64 << 20).to_string())
        .env("EMULATED_CUDA_GRANULARITY", (16 << 10).to_string())
        .env("EMULATED_CUDA_H2D_BYTES_PER_S", "2000000000")
        .env("EMULATED_CUDA_D2H_BYTES_PER_S", "1000000000")
        .output()?;
    let text = String::from_utf8(output.stdout)?;
    let said = format!("{text}\n{}", String::from_utf8(output.stderr)?);
    let expect = |holds, what: &str| if holds { Ok(()) } else { Err(format!("{what}:\n{said}")) };
    expect(output.status.success(), "it fails")?;
    expect(text.contains("\"format\":\"spillway.machine.v1\""), "no machine")?;
    for way in ["eager", "mapped as it goes", "graph"] {
        expect(text.contains(&format!("| {way} | ")), way)?;
    }
    expect(text.contains(" of 3 within the larger of"), "not all plans have run")?;
    expect(text.contains(" in order: so many"), "no order")?;
    Ok(Completion::Completed)
}
