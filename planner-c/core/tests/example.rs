//! The static library and the example link without a C library, and the program runs.

use libtest_mimic::{Arguments, Completion, Failed, Trial};
use std::env;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};

fn main() -> ExitCode {
    let trial = Trial::ignorable_test("without_libc", || match reason() {
        Some(reason) => Ok(Completion::ignored_with(reason)),
        None => Ok(run().map(|()| Completion::Completed).map_err(Failed::from)?),
    });
    libtest_mimic::run(&Arguments::from_args(), vec![trial]).exit_code()
}

/// Why the example cannot run here.
fn reason() -> Option<&'static str> {
    let compiler = Command::new("cc").arg("--version").output();
    match cfg!(all(target_os = "linux", target_arch = "x86_64")) {
        false => Some("the example is for Linux on x86-64"),
        true if compiler.is_err() => Some("there is no C compiler"),
        true => None,
    }
}

fn folder() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

/// A folder beside this program that only this program uses.
fn built() -> PathBuf {
    let program = env::current_exe().expect("a path");
    program.parent().expect("a program lies in a folder").join("freestanding")
}

fn output(command: &mut Command) -> Result<String, String> {
    let output = command.output().map_err(|error| format!("{command:?}: {error}"))?;
    match output.status.success() {
        true => Ok(String::from_utf8_lossy(&output.stdout).into_owned()),
        false => Err(format!("{command:?}\n{}", String::from_utf8_lossy(&output.stderr))),
    }
}

fn run() -> Result<(), String> {
    let mut cargo = Command::new(env!("CARGO"));
    cargo.current_dir(folder()).args(["rustc", "--quiet", "--locked", "-p", "spillway-c-core"]);
    cargo.args(["--profile", "freestanding", "--features", "freestanding", "--lib"]);
    cargo.args(["--crate-type", "staticlib", "--target-dir"]).arg(built());
    output(&mut cargo)?;
    let (source, program) = (folder().join("examples/bare.c"), built().join("bare"));
    let mut compiler = Command::new("cc");
    compiler.args(["-std=c11", "-Wall", "-Wextra", "-Werror", "-O1", "-ffreestanding"]);
    compiler.args(["-nostdlib", "-static", "-fno-stack-protector", "-I"]);
    compiler.arg(folder().join("include")).arg(source).arg("-o").arg(&program);
    compiler.arg(built().join("freestanding/libspillway_c_core.a"));
    output(&mut compiler)?;
    let printed = output(&mut Command::new(program))?;
    let says = "the budget is too small";
    match printed.contains("launch") && printed.contains("period") && printed.contains(says) {
        true => Ok(()),
        false => Err(printed),
    }
}
