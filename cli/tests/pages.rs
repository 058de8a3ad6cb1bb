//! Every shell command of the pages runs here, on small work, or the page says why not: in a
//! comment `<!-- not run: … -->` before the block.
#![allow(clippy::unwrap_used, reason = "what fails here fails the test")]

mod common;

use common::{Folder, SMALL};
use libtest_mimic::{Arguments, Completion, Failed, Trial};
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};
use std::{env, fs};

/// Stands for what a page leaves open, and for work that takes long. The first that fits is taken.
const SMALLER: [(&str, &str); 8] = [
    ("--backend cuda --graph", "--backend cuda --graph --iterations 2"),
    ("resnet50:batch=64", SMALL),
    (
        "llama:billions=8,micro=8 --machine rtx4090 --budget 22GiB",
        "llama:billions=1,micro=2 --machine laptop-8gb --budget 7GiB",
    ),
    ("layers=32,width=4096,sequence=2048", "layers=4,width=256,sequence=128"),
    ("WORK PLAN", "resnet50:batch=2,image=64 plan.json"),
    ("WORK", SMALL),
    ("--budget B", "--budget 35%"),
    ("target/release", "target/debug"),
];

/// The pages whose commands within lines run as well.
const FRONT: &str = "README.md";
const PROGRAM: &str = "docs/start/program.md";

/// Pages and commands without a place for a comment.
const NOT_RUN: [(&str, &str, &str); 6] = [
    ("docs/format.md", "$ spillway check", "cli/tests/format runs it"),
    ("docs/pytorch-estimate.md", "", "it needs PyTorch; python/test-torch has the tests"),
    ("docs/research/pytorch.md", "", "it measures the page; python/test-torch has the tests"),
    (PROGRAM, "spillway import", "it needs a trace; cli/tests/traces has some"),
    (PROGRAM, "spillway measure", "it needs a CUDA device; cli/tests/cuda has an emulated one"),
    (PROGRAM, "spillway conformance", "cli/tests/conformance runs it"),
];

/// What commands begin with, beside paths.
const PROGRAMS: [&str; 6] = ["cargo", "spillway", "cc", "cat", "pip", "python3"];

/// Stands for `cargo`. It builds without optimizations, so that cargo does not build the program again.
/// `SPILLWAY_CARGO_FLAGS` may have the flags with which all packages have been built. Then cargo builds no
/// other package again: libraries are built beside an example, since tests and examples turn on features of
/// dependencies.
const SHIM: &str = r#"#!/bin/bash
set -e
verb=$1 rest=()
shift
for word; do [ "$word" = --release ] || rest+=("$word"); done
[ "$verb ${rest[0]-}" != 'run --' ] || exec "$PROGRAM" "${rest[@]:1}"
build() { "$CARGO" build --offline --manifest-path "$MANIFEST" $SPILLWAY_CARGO_FLAGS "$@"; }
case "${SPILLWAY_CARGO_FLAGS:+$verb ${rest[*]}}" in
'build -p '*) build --lib --example serve ;;
'run -p '*' --example '*)
    build --example "${rest[3]}"
    exec "target/debug/examples/${rest[3]}" "${rest[@]:5}"
    ;;
*) exec "$CARGO" "$verb" --locked --offline --manifest-path "$MANIFEST" "${rest[@]}" ;;
esac
"#;

/// Commands of a page that belong together.
struct Block {
    page: String,
    line: usize,
    script: String,
    /// What the page says.
    not_run: Option<String>,
}

impl Block {
    fn reason(&self) -> Option<&str> {
        let fits = |(page, start, _): &&(&str, &str, &str)| {
            self.page == *page && self.script.starts_with(start)
        };
        self.not_run.as_deref().or_else(|| NOT_RUN.iter().find(fits).map(|(_, _, reason)| *reason))
    }
}

fn main() -> ExitCode {
    let blocks: Vec<_> = pages().iter().flat_map(|page| blocks(page)).collect();
    let mut trials = vec![Trial::test("blocks_are_found", found)];
    trials.extend(blocks.into_iter().map(|block| {
        let name = format!("{}:{}", block.page, block.line);
        Trial::ignorable_test(name, move || match block.reason() {
            Some(reason) => Ok(Completion::ignored_with(reason)),
            None if cfg!(not(unix)) => Ok(Completion::ignored_with("there is no shell")),
            None => run(&block).map(|()| Completion::Completed),
        })
    }));
    libtest_mimic::run(&Arguments::from_args(), trials).exit_code()
}

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap().to_owned()
}

fn pages() -> Vec<String> {
    let mut pages: Vec<String> =
        [FRONT, "ARCHITECTURE.md", "CONTRIBUTING.md"].map(str::to_owned).into();
    let mut folders = vec!["docs".to_owned()];
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(root().join(&folder)).unwrap() {
            let entry = entry.unwrap();
            let name = format!("{folder}/{}", entry.file_name().into_string().unwrap());
            if entry.file_type().unwrap().is_dir() {
                folders.push(name);
            } else if name.ends_with(".md") {
                pages.push(name);
            }
        }
    }
    pages.sort();
    pages
}

/// The indented and fenced blocks of a page that are commands; on the front page and that of the program, also
/// those within lines.
fn blocks(page: &str) -> Vec<Block> {
    let text = fs::read_to_string(root().join(page)).unwrap();
    let mut lines = text.lines().enumerate().peekable();
    let (mut found, mut not_run, mut before) = (Vec::new(), None, "");
    while let Some((at, line)) = lines.next() {
        let mut block = Vec::new();
        let is_shell = if let Some(language) = line.trim_start().strip_prefix("```") {
            block.extend(
                lines.by_ref().map(|(_, line)| line).take_while(|line| line.trim() != "```"),
            );
            ["sh", "bash", "console"].contains(&language)
        } else if line.starts_with("    ") && before.is_empty() {
            block.push(line.trim_start());
            while let Some((_, next)) = lines.next_if(|(_, next)| next.starts_with("    ")) {
                block.push(&next[4..]);
            }
            is_command(line)
        } else {
            false
        };
        if is_shell {
            let (page, script) = (page.to_owned(), block.join("\n"));
            found.push(Block { page, line: at + 1, script, not_run: not_run.take() });
        } else if [FRONT, PROGRAM].contains(&page) && block.is_empty() {
            found.extend(inline(line).map(|script| Block {
                page: page.to_owned(),
                line: at + 1,
                script,
                not_run: None,
            }));
        }
        before = line;
        if !line.is_empty() {
            let comment =
                line.strip_prefix("<!-- not run: ").and_then(|rest| rest.strip_suffix(" -->"));
            not_run = comment.map(str::to_owned);
        }
    }
    found
}

/// Whether a line begins with a program, after variables and a prompt.
fn is_command(line: &str) -> bool {
    let mut words = line.split_whitespace().skip_while(|word| *word == "$" || word.contains('='));
    words.next().is_some_and(|word| {
        let is_path = word.contains('/') && word.chars().all(|c| c.is_ascii_graphic());
        PROGRAMS.contains(&word) || is_path
    })
}

/// Whole commands between the backticks of a line.
fn inline(line: &str) -> impl Iterator<Item = String> {
    let spans: Vec<_> = line.split('`').skip(1).step_by(2).map(str::to_owned).collect();
    let is_whole = |span: &String| {
        let words = span.split(' ').count();
        (span.starts_with("spillway ") && words > 1) || span.starts_with("cargo run ")
    };
    spans.into_iter().filter(is_whole)
}

fn found() -> Result<(), Failed> {
    let blocks: Vec<_> = pages().iter().flat_map(|page| blocks(page)).collect();
    let run = blocks.iter().filter(|block| block.reason().is_none()).count();
    if blocks.len() < 50 || run < 10 {
        return Err(format!("{run} of {} blocks are run", blocks.len()).into());
    }
    // The shim of `cargo` relies on it.
    let manifest = fs::read_to_string(root().join("Cargo.toml")).unwrap();
    assert!(manifest.contains("default-members = [\"cli\"]"));
    Ok(())
}

/// Runs a block in a copy of the checkout that is made of links, where `docs` is empty.
fn run(block: &Block) -> Result<(), Failed> {
    let folder = Folder::new();
    for entry in fs::read_dir(root()).unwrap() {
        let name = entry.unwrap().file_name().into_string().unwrap();
        if name != "docs" && name != "target" && !name.starts_with('.') {
            link(&root().join(&name), &folder.path(&name));
        }
    }
    fs::create_dir(folder.path("docs")).unwrap();
    let program = Path::new(env!("CARGO_BIN_EXE_spillway"));
    let target = program.parent().and_then(Path::parent).unwrap();
    link(target, &folder.path("target"));
    folder.run(&["plan", SMALL, "--budget", "50%", "-o", "plan.json"]).done();
    shims(&folder);
    let mut script = block.script.clone();
    for (long, short) in SMALLER {
        script = script.replace(long, short);
    }
    let path = format!("{}:{}", folder.path("bin").display(), env::var("PATH").unwrap());
    let output = Command::new("bash")
        .args(["-euo", "pipefail", "-c", &script])
        .current_dir(folder.path("."))
        .env("PATH", path)
        .env("PROGRAM", program)
        .env("CARGO", env!("CARGO"))
        .env("MANIFEST", root().join("Cargo.toml"))
        .env("CARGO_TARGET_DIR", target)
        .output()?;
    if output.status.success() {
        return Ok(());
    }
    let said =
        [output.stdout, output.stderr].map(|text| String::from_utf8_lossy(&text).into_owned());
    Err(format!("{}\n{script}\n{}", output.status, said.concat()).into())
}

/// Commands for `spillway` and for `cargo`.
fn shims(folder: &Folder) {
    fs::create_dir(folder.path("bin")).unwrap();
    for (name, text) in [("spillway", "#!/bin/sh\nexec \"$PROGRAM\" \"$@\"\n"), ("cargo", SHIM)] {
        let path = folder.write(&format!("bin/{name}"), text);
        executable(&path);
    }
}

#[cfg(unix)]
fn link(to: &Path, at: &Path) {
    std::os::unix::fs::symlink(to, at).unwrap();
}

#[cfg(unix)]
fn executable(path: &Path) {
    use std::os::unix::fs::PermissionsExt;
    fs::set_permissions(path, fs::Permissions::from_mode(0o755)).unwrap();
}

#[cfg(not(unix))]
fn link(_: &Path, _: &Path) {}

#[cfg(not(unix))]
fn executable(_: &Path) {}
