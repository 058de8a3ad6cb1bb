//! Where files go: never over an input or each other, and whole or not at all.
#![allow(clippy::unwrap_used, reason = "what fails here fails the test")]
#![cfg(unix)]

use crate::common::{Folder, SMALL};
use std::fs;
use std::io::Write;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::{Child, ChildStdin, Command, Output, Stdio};
use std::thread;
use std::time::{Duration, Instant};

const MACHINE: &str = r#"{"format":"spillway.machine.v1","name":"m","device_bytes":17179869184,"host_bytes":61000000000,"chunk_bytes":2097152,"h2d_bytes_per_s":12000000000,"d2h_bytes_per_s":12000000000,"transfer_latency_ns":10000,"map_ns_per_chunk":0,"unmap_ns_per_chunk":0}"#;

/// Runs the program by a shell, which closes and redirects streams.
fn shell(folder: &Folder, line: &str) -> Output {
    Command::new("sh")
        .args(["-c", line])
        .env("SPILLWAY", env!("CARGO_BIN_EXE_spillway"))
        .current_dir(folder.path(""))
        .output()
        .unwrap()
}

fn assert_says(output: &Output, status: i32, words: &str) {
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(status), "{stderr}");
    assert!(stderr.contains(words) && !stderr.contains("panicked"), "{stderr}");
}

/// Each name of an input, by links of both kinds and by other ways.
fn other_names(folder: &Folder, name: &str) -> Vec<String> {
    fs::create_dir_all(folder.path("sub")).unwrap();
    symlink(name, folder.path("soft")).unwrap();
    symlink("../soft", folder.path("sub/softer")).unwrap();
    fs::hard_link(folder.path(name), folder.path("hard")).unwrap();
    let absolute = folder.path(name).to_str().unwrap().to_owned();
    let mut names: Vec<_> = ["soft", "sub/softer", "hard"].map(ToOwned::to_owned).to_vec();
    names.extend([name.to_owned(), format!("./{name}"), format!("sub/../{name}"), absolute]);
    names
}

fn remove_names(folder: &Folder) {
    fs::remove_dir_all(folder.path("sub")).unwrap();
    fs::remove_file(folder.path("soft")).unwrap();
    fs::remove_file(folder.path("hard")).unwrap();
}

#[test]
fn an_output_is_no_input() {
    let folder = Folder::new();
    folder.run(&["model", "gpt:batch=1,layers=2,width=64", "-o", "g.json"]).done();
    folder.run(&["export", "chain", "g.json", "-o", "c.json"]).done();
    folder.write("m.json", MACHINE);
    folder.write("t.json", "{}");
    for (input, arguments) in [
        ("g.json", &["plan", "g.json", "-o"][..]),
        ("g.json", &["plan", "g.json", "--report"]),
        ("g.json", &["plan", "g.json", "-o", "o.json", "--trace"]),
        ("m.json", &["plan", "g.json", "-m", "m.json", "-o"]),
        ("g.json", &["compare", "g.json", "--plot"]),
        ("m.json", &["compare", "g.json", "-m", "m.json", "--plot"]),
        ("g.json", &["export", "chain", "g.json", "-o"]),
        ("m.json", &["export", "chain", "g.json", "-m", "m.json", "-o"]),
        ("c.json", &["import", "chain", "c.json", "-o"]),
        ("t.json", &["import", "pytorch", "t.json", "-o"]),
        ("t.json", &["import", "pytorch", "g.json", "--kineto", "t.json", "-o"]),
    ] {
        let before = fs::read(folder.path(input)).unwrap();
        for name in other_names(&folder, input) {
            let ran = folder.run(&[arguments, &[&name]].concat());
            ran.fails(2, &["this output is the input", input]);
        }
        assert_eq!(fs::read(folder.path(input)).unwrap(), before);
        remove_names(&folder);
    }
    assert_eq!(folder.files(), ["c.json", "g.json", "m.json", "t.json"]);
}

#[test]
fn two_outputs_are_two_files() {
    let folder = Folder::new();
    fs::create_dir(folder.path("sub")).unwrap();
    symlink("a", folder.path("link")).unwrap();
    let absolute = folder.path("a").to_str().unwrap().to_owned();
    for other in ["a", "./a", "sub/../a", "link", &absolute] {
        for outputs in [["-o", "a", "--report", other], ["--trace", other, "--report", "a"]] {
            let ran = folder.run(&[&["plan", SMALL][..], &outputs].concat());
            ran.fails(2, &["both outputs are the same file", "a"]);
        }
    }
    assert_eq!(folder.files(), ["link", "sub"]);
    // Devices take everything, and are no files.
    folder.run(&["plan", SMALL, "-o", "/dev/null", "--report", "/dev/null"]).done();
    folder.run(&["plan", SMALL, "-o", "/dev/stdout", "--json"]).fails(2, &["only one output"]);
    let plan = folder.run(&["plan", SMALL, "-o", "/dev/stdout"]).done();
    assert!(plan.json()["steps"].is_array() && plan.stderr.contains("proved safe"));
}

#[test]
fn a_link_is_followed() {
    let folder = Folder::new();
    fs::create_dir(folder.path("sub")).unwrap();
    folder.write("sub/real.json", "old");
    // The last of them leads to a file that is not there yet.
    for (link, to) in [("link", "sub/real.json"), ("sub/link", "../link"), ("new", "sub/new.json")]
    {
        symlink(to, folder.path(link)).unwrap();
    }
    for (link, real) in
        [("link", "sub/real.json"), ("sub/link", "sub/real.json"), ("new", "sub/new.json")]
    {
        let _ = fs::write(folder.path("sub/real.json"), "old");
        folder.run(&["plan", SMALL, "-o", link]).done();
        assert!(fs::symlink_metadata(folder.path(link)).unwrap().is_symlink());
        assert!(fs::symlink_metadata(folder.path(real)).unwrap().is_file());
        folder.run(&["check", SMALL, real]).done();
    }
    symlink("round", folder.path("round")).unwrap();
    symlink("absent/x", folder.path("astray")).unwrap();
    for link in ["round", "astray"] {
        folder.run(&["plan", SMALL, "-o", link]).fails(1, &[link, "cannot be written"]);
    }
    assert_eq!(folder.files(), ["astray", "link", "new", "round", "sub"]);
}

/// The input is read last of all: nothing is waited for.
#[test]
fn what_cannot_be_written_is_refused_before_any_work() {
    let folder = Folder::new();
    folder.write("kept", "kept");
    let mut permissions = fs::metadata(folder.path("kept")).unwrap().permissions();
    permissions.set_mode(0o444);
    fs::set_permissions(folder.path("kept"), permissions).unwrap();
    symlink("kept", folder.path("link")).unwrap();
    fs::create_dir(folder.path("sub")).unwrap();
    let long = "x".repeat(256);
    for (output, words) in [
        ("kept", "read-only"),
        ("link", "read-only"),
        ("sub", "irectory"),
        ("kept/x", "irectory"),
        ("new/", "names no file"),
        ("absent/x", "No such file"),
        (&long, "name too long"),
    ] {
        for arguments in [
            &["plan", "no.json", "-o"][..],
            &["plan", "no.json", "--report"],
            &["compare", "no.json", "--plot"],
            &["model", "resnet50:no=1", "-o"],
            &["import", "chain", "no.json", "-o"],
            &["import", "pytorch", "no.json", "-o"],
            &["export", "chain", "no.json", "-o"],
            &["measure", "--chunk", "1", "-o"],
        ] {
            let ran = folder.run(&[arguments, &[output]].concat());
            ran.fails(1, &[": cannot be written: ", words]);
        }
    }
    assert_eq!(fs::read(folder.path("kept")).unwrap(), b"kept");
    assert_eq!(folder.files(), ["kept", "link", "sub"]);
}

#[test]
fn long_names_are_names() {
    let folder = Folder::new();
    for name in ["x".repeat(250) + ".json", "é".repeat(127), "数".repeat(85)] {
        for _ in 0..2 {
            folder.run(&["plan", SMALL, "-o", &name]).done();
        }
        folder.run(&["check", SMALL, &format!("./{name}")]).done();
    }
    assert_eq!(folder.files().len(), 3);
}

#[test]
fn permissions_stay() {
    let folder = Folder::new();
    let file = folder.write("p.json", "old");
    fs::set_permissions(&file, PermissionsExt::from_mode(0o640)).unwrap();
    folder.run(&["plan", SMALL, "-o", "p.json"]).done();
    assert_eq!(fs::metadata(&file).unwrap().permissions().mode() & 0o777, 0o640);
}

/// The temporary of a file, as long as it is not there yet.
fn temporary(folder: &Folder, name: &str) -> PathBuf {
    folder.path(&format!(".{name}.spillway.tmp"))
}

#[test]
fn what_a_killed_program_left_goes_with_the_next() {
    let folder = Folder::new();
    fs::write(temporary(&folder, "p.json"), "half a plan").unwrap();
    folder.run(&["plan", SMALL, "-o", "p.json"]).done();
    assert_eq!(folder.files(), ["p.json"]);
    // Even where the next has nothing to write.
    fs::write(temporary(&folder, "p.json"), "half a plan").unwrap();
    folder.run(&["plan", SMALL, "-b", "1", "-o", "p.json"]).fails(1, &["too small"]);
    assert_eq!(folder.files(), ["p.json"]);
}

const SPILLWAY: &str = env!("CARGO_BIN_EXE_spillway");

/// A program for which signals do what they do by default, whatever they do here (`nohup`).
#[allow(unsafe_code, reason = "what is called between fork and exec must be safe there")]
fn program(folder: &Folder, path: &str, arguments: &[&str]) -> Command {
    use nix::sys::signal::{SigHandler, Signal, signal};
    let mut program = Command::new(path);
    program.args(arguments).current_dir(folder.path(""));
    let to_default = || {
        for of in [Signal::SIGHUP, Signal::SIGINT, Signal::SIGTERM, Signal::SIGXFSZ] {
            // SAFETY: no handler is set.
            unsafe { signal(of, SigHandler::SigDfl) }?;
        }
        Ok(())
    };
    // SAFETY: `signal` may be called there (POSIX, "async-signal-safe").
    unsafe { program.pre_exec(to_default) };
    program
}

/// Ends the program as soon as its temporary is there; how it ended, if it was in time.
fn interrupted(folder: &Folder, signal: &str) -> Option<i32> {
    let model = ["model", "gpt:batch=1,layers=150,width=64", "-o", "g.json"];
    let mut child = program(folder, SPILLWAY, &model).stdout(Stdio::null()).spawn().unwrap();
    let start = Instant::now();
    // The first one only tries whether there can be one, and is empty.
    let is_written = || fs::metadata(temporary(folder, "g.json")).is_ok_and(|file| file.len() > 0);
    while !is_written() {
        if child.try_wait().unwrap().is_some() || start.elapsed() > Duration::from_secs(60) {
            break;
        }
    }
    let pid = child.id().to_string();
    let _ = Command::new("kill").args([signal, &pid]).status();
    child.wait().unwrap().code()
}

#[test]
fn an_interrupt_leaves_no_half_a_file() {
    let folder = Folder::new();
    let mut in_time = 0;
    for attempt in 0..10 {
        let (signal, ended) = [("-INT", 130), ("-TERM", 143)][attempt % 2];
        let status = interrupted(&folder, signal);
        assert!([Some(0), Some(ended)].contains(&status), "{status:?}");
        in_time += u32::from(status == Some(ended));
        let files = folder.files();
        assert!(files.is_empty() || files == ["g.json"], "{files:?}");
        if let Ok(bytes) = fs::read(folder.path("g.json")) {
            assert!(bytes.ends_with(b"}\n"), "half a file");
            fs::remove_file(folder.path("g.json")).unwrap();
        }
    }
    println!("{in_time} of 10 were in time");
}

/// A search that would take ten minutes.
fn searching(folder: &Folder) -> Child {
    let search = ["-s", "joint", "--set", "seconds=600", "-b", "60%", "-o", "p.json"];
    let arguments = [&["plan", "resnet50:batch=2"], &search[..]].concat();
    program(folder, SPILLWAY, &arguments).stdout(Stdio::null()).spawn().unwrap()
}

/// An interrupt by the user ends the search with its best plan; other signals end the program.
#[test]
fn signals_end_a_search() {
    let folder = Folder::new();
    for (signal, status) in [("-HUP", 129), ("-TERM", 143)] {
        let mut child = searching(&folder);
        thread::sleep(Duration::from_secs(2));
        let start = Instant::now();
        kill(&child, signal);
        assert_eq!(child.wait().unwrap().code(), Some(status), "{signal}");
        assert!(start.elapsed() < Duration::from_secs(60), "{signal}");
        assert!(folder.files().is_empty(), "{signal} leaves {:?}", folder.files());
    }
    // Before the search begins, it ends the program.
    let searched = (1..8).any(|doublings| {
        let mut child = searching(&folder);
        thread::sleep(Duration::from_millis(500 << doublings));
        kill(&child, "-INT");
        let status = child.wait().unwrap().code();
        assert!([Some(0), Some(130)].contains(&status), "{status:?}");
        status == Some(0)
    });
    assert!(searched);
    assert_eq!(folder.files(), ["p.json"]);
    folder.run(&["check", "resnet50:batch=2", "p.json"]).done();
}

#[test]
fn a_file_beyond_the_limit_leaves_nothing() {
    let folder = Folder::new();
    let line = "ulimit -f 1; exec \"$0\" model gpt:batch=1,layers=20,width=64 -o g.json";
    let ran = program(&folder, "sh", &["-c", line, SPILLWAY]).output().unwrap();
    let message = String::from_utf8(ran.stderr).unwrap();
    assert_eq!(ran.status.code(), Some(1), "{message}");
    assert!(message.contains("g.json: cannot be written: File too large"), "{message}");
    assert!(folder.files().is_empty(), "{:?}", folder.files());
}

#[test]
fn what_never_ends_is_not_read() {
    let refused = Folder::new().run(&["plan", "/dev/urandom"]);
    refused.fails(2, &["/dev/urandom: cannot be read: it begins with neither text nor gzip data"]);
}

/// The work never arrives. Once the program has removed what an earlier one left, it reads.
#[test]
fn a_program_that_waits_for_its_input_can_be_ended() {
    let folder = Folder::new();
    for (signal, status) in [("-HUP", 129), ("-INT", 130), ("-TERM", 143)] {
        let mut waits = program(&folder, SPILLWAY, &["plan", "-", "-o", "p.json"]);
        let (mut child, input) = reading(&folder, &mut waits);
        kill(&child, signal);
        assert_eq!(child.wait().unwrap().code(), Some(status), "{signal}");
        assert!(folder.files().is_empty());
        drop(input);
    }
}

/// Starts a program that plans `p.json` from its standard input, which is returned too, since waiting
/// for the program would close it. Returns once it reads.
fn reading(folder: &Folder, program: &mut Command) -> (Child, Option<ChildStdin>) {
    let left = temporary(folder, "p.json");
    fs::write(&left, "half a plan").unwrap();
    let mut child = program.stdin(Stdio::piped()).stdout(Stdio::null()).spawn().unwrap();
    let input = child.stdin.take();
    let start = Instant::now();
    while left.exists() {
        assert!(start.elapsed() < Duration::from_secs(60), "it does not begin");
    }
    (child, input)
}

fn kill(child: &Child, signal: &str) {
    let killed = Command::new("kill").args([signal, &child.id().to_string()]).status();
    assert!(killed.unwrap().success());
}

/// As a shell starts `nohup spillway … &`.
#[test]
fn what_is_ignored_at_first_stays_ignored() {
    let folder = Folder::new();
    let graph = folder.run(&["model", SMALL, "-o", "-"]).done().stdout;
    let line = "trap '' INT HUP; exec \"$0\" plan - -o p.json";
    let mut ignores = program(&folder, "sh", &["-c", line, SPILLWAY]);
    let (mut child, input) = reading(&folder, &mut ignores);
    kill(&child, "-INT");
    kill(&child, "-HUP");
    input.unwrap().write_all(graph.as_bytes()).unwrap();
    assert_eq!(child.wait().unwrap().code(), Some(0));
    assert_eq!(folder.files(), ["p.json"]);
    // The others are caught all the same.
    let (mut child, input) = reading(&folder, &mut ignores);
    kill(&child, "-TERM");
    assert_eq!(child.wait().unwrap().code(), Some(143));
    drop(input);
}

/// A kill cannot be caught. Whatever it leaves, the next one removes.
#[test]
fn a_killed_program_leaves_nothing_for_long() {
    let folder = Folder::new();
    for _ in 0..5 {
        interrupted(&folder, "-KILL");
    }
    folder.run(&["model", SMALL, "-o", "g.json"]).done();
    assert_eq!(folder.files(), ["g.json"]);
    folder.run(&["plan", "g.json"]).done();
}

/// Only Linux tells a closed stream from one that goes nowhere.
#[cfg(target_os = "linux")]
#[test]
fn a_closed_standard_output_is_an_error() {
    let folder = Folder::new();
    for arguments in [
        "plan resnet50:batch=2,image=64",
        "plan resnet50:batch=2,image=64 --json",
        "plan resnet50:batch=2,image=64 -o -",
        "plan resnet50:batch=2,image=64 -o p.json",
        "model resnet50",
        "model list",
        "plan --machine list",
        "devices",
        "--help",
        "--version",
        "help plan",
    ] {
        let closed = shell(&folder, &format!("\"$SPILLWAY\" {arguments} >&-"));
        assert_says(&closed, 1, "error: standard output: cannot be written: it is closed\n");
    }
    assert!(folder.files().is_empty());
    // What goes nowhere was meant to, however it is opened.
    for nowhere in [">/dev/null", "1<>/dev/null"] {
        let ran = shell(&folder, &format!("\"$SPILLWAY\" model list {nowhere}"));
        assert_eq!(ran.status.code(), Some(0));
    }
}

#[test]
fn special_files_end_in_a_sentence() {
    let folder = Folder::new();
    if PathBuf::from("/dev/full").exists() {
        for line in [
            "\"$SPILLWAY\" plan resnet50 --json >/dev/full",
            "\"$SPILLWAY\" plan resnet50 -o /dev/stdout >/dev/full",
            "\"$SPILLWAY\" --help >/dev/full",
        ] {
            assert_says(&shell(&folder, line), 1, "standard output: cannot be written: ");
        }
        folder.run(&["plan", SMALL, "-o", "/dev/full"]).fails(1, &["/dev/full: cannot be written"]);
    }
    // A pipe with a name, and one without.
    let line =
        "mkfifo pipe && { cat pipe >copy & } && \"$SPILLWAY\" model resnet50 -o pipe && wait";
    assert_says(&shell(&folder, line), 0, "");
    folder.run(&["plan", "copy", "-o", "p.json"]).done();
    assert_eq!(folder.files(), ["copy", "p.json", "pipe"]);
    let line = "\"$SPILLWAY\" model resnet50 -o /dev/fd/3 3>&1 >/dev/null | cmp - copy";
    assert_says(&shell(&folder, line), 0, "");
}
