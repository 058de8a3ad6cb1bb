//! The examples and a test in C compile without a warning, and run with and without sanitizers.

use libtest_mimic::{Arguments, Completion, Failed, Trial};
use std::env::consts::EXE_SUFFIX;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};
use std::{env, fs};

const PROGRAMS: [(&str, &str); 5] = [
    ("examples/execute", "the weights are right"),
    ("examples/plan", "launch   op 3"),
    ("examples/stream", "the weights are right"),
    ("examples/train", "the weights are right"),
    ("tests/sizes", "all sizes are checked"),
];
const WATCHED: [&str; 2] = ["-fsanitize=address,undefined", "-fno-sanitize-recover=all"];

fn main() -> ExitCode {
    let plain = PROGRAMS
        .map(|(name, says)| Trial::test(name, move || run(name, says, &[]).map_err(Failed::from)));
    let watched = PROGRAMS.map(|(name, says)| {
        Trial::ignorable_test(format!("{name}, watched"), move || match can_watch() {
            true => Ok(run(name, says, &WATCHED).map(|()| Completion::Completed)?),
            false => Ok(Completion::ignored_with("the C compiler has no sanitizers")),
        })
    });
    let trials = plain.into_iter().chain(watched).collect();
    libtest_mimic::run(&Arguments::from_args(), trials).exit_code()
}

fn folder() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

/// The folder of this program, which also has the library.
fn built() -> PathBuf {
    let program = env::current_exe().expect("a path");
    program.parent().expect("a program lies in a folder").to_owned()
}

fn compile(source: &Path, into: &Path, options: &[&str]) -> Result<(), String> {
    let mut compiler = Command::new("cc");
    compiler.args(["-std=c11", "-Wall", "-Wextra", "-Werror", "-g"]).args(options).arg(source);
    compiler.arg("-I").arg(folder().join("include")).arg("-o").arg(into);
    compiler.arg(built().join("libspillway_c.a")).args(["-lpthread", "-ldl", "-lm"]);
    let output = compiler.output().map_err(|error| format!("cc: {error}"))?;
    if output.status.success() {
        return Ok(());
    }
    Err(format!("{compiler:?}\n{}", String::from_utf8_lossy(&output.stderr)))
}

fn can_watch() -> bool {
    let source = built().join("watched.c");
    fs::write(&source, "int main(void) { return 0; }\n").is_ok()
        && compile(&source, &source.with_extension(""), &WATCHED).is_ok()
}

fn run(name: &str, says: &str, options: &[&str]) -> Result<(), String> {
    let program = format!("c-{}-{}{EXE_SUFFIX}", name.replace('/', "-"), options.len());
    let program = built().join(program);
    compile(&folder().join(name).with_extension("c"), &program, options)?;
    let output = Command::new(&program).output().map_err(|error| error.to_string())?;
    let (printed, complained) =
        (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    if output.status.success() && printed.contains(says) && complained.is_empty() {
        return Ok(());
    }
    Err(format!("{}\n{printed}{complained}", output.status))
}
