//! The script that measures a device goes on after a failure and says what it means. The programs
//! it runs are made up here; `check` runs it with the real ones.
#![cfg(target_os = "linux")]
#![allow(clippy::unwrap_used, reason = "what fails here fails the test")]

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Mutex;

/// Held while a program is written and while a process starts: a process that starts during a write
/// keeps the file open, and then the file cannot be run ("Text file busy").
static PROGRAMS: Mutex<()> = Mutex::new(());

/// Writes a program of the shell.
fn program(path: &Path, text: &str) {
    let _writing = PROGRAMS.lock().unwrap();
    fs::write(path, format!("#!/bin/sh\n{text}\n")).unwrap();
    fs::set_permissions(path, fs::Permissions::from_mode(0o755)).unwrap();
}

/// A packed folder whose programs do nothing, and its script.
fn folder(name: &str) -> (PathBuf, PathBuf) {
    let folder = std::env::temp_dir().join(format!("spillway-go-{name}-{}", std::process::id()));
    fs::create_dir_all(folder.join("bin")).unwrap();
    for name in ["suite", "spillway", "cuda-figures", "train-cuda", "hold-cuda"] {
        program(&folder.join("bin").join(name), "exit 0");
    }
    let devices =
        r#"case "$1" in devices) echo '{"devices":[{"backend":"cuda","driver":"1"}]}' ;; esac"#;
    program(&folder.join("bin/spillway"), devices);
    fs::write(folder.join("bin/libemulated_cublas.so"), "").unwrap();
    let baseline = folder.join("backend-cuda/examples/train-cuda");
    fs::create_dir_all(&baseline).unwrap();
    fs::write(baseline.join("torch_baseline.py"), "raise SystemExit(77)").unwrap();
    let steps = folder.join("python/tests/torch");
    fs::create_dir_all(&steps).unwrap();
    fs::write(steps.join("on_gpu.py"), "print('both: the same')").unwrap();
    let script = folder.join("go");
    let _writing = PROGRAMS.lock().unwrap();
    fs::copy(concat!(env!("CARGO_MANIFEST_DIR"), "/go"), &script).unwrap();
    (folder, script)
}

/// Runs the script; its exit status, and the two files of results.
fn go(script: &Path) -> (i32, String, String) {
    let folder = script.parent().unwrap();
    let mut command = Command::new(script);
    command.args(["--emulated", "--short"]).stdout(Stdio::piped()).stderr(Stdio::piped());
    let started = {
        let _starting = PROGRAMS.lock().unwrap();
        command.spawn().unwrap()
    };
    let ran = started.wait_with_output().unwrap();
    let read = |name| fs::read_to_string(folder.join("results").join(name)).unwrap();
    (ran.status.code().unwrap(), read("results.md"), read("results.json"))
}

#[test]
fn a_failure_is_explained_and_the_rest_is_run() {
    let (folder, script) = folder("fails");
    // The results are there before the end: this script may be stopped.
    program(&folder.join("bin/cuda-figures"), "grep -q '| suite | passed |' results/results.md");
    let (status, _, json) = go(&script);
    assert_eq!(status, 0, "{json}");
    assert!(json.contains("\"failed\":0,"), "{json}");
    program(&folder.join("bin/suite"), "echo 'error: a \"promise\" \\ is broken' >&2; exit 101");
    program(&folder.join("bin/cuda-figures"), "kill -SEGV $$");
    program(&folder.join("bin/train-cuda"), "echo '| way |'; echo 'no device' >&2; exit 77");
    let (status, table, json) = go(&script);
    assert_eq!(status, 1);
    for line in [
        "| devices | passed | ",
        "| suite | failed | ",
        "no figure below is to be trusted. It said: error: a \"promise\" \\ is broken |",
        "| small training | not run | ",
        "It cannot run here: no device |",
        "| figures | failed | ",
        "signal 11 ended it.",
        "| plan by the program | passed | ",
        "\n## small training\n\n| way |\n",
    ] {
        assert!(table.contains(line), "{line}\n{table}");
    }
    assert!(json.contains(r#"\"promise\" \\ is broken"#), "{json}");
    let closed = json.matches("{\"name\":").count() == json.matches("}").count() - 1;
    assert!(json.contains("\"failed\":2,") && closed, "{json}");
    fs::remove_dir_all(&folder).unwrap();
}

#[test]
fn failed_checks_run_again_by_themselves() {
    let (folder, script) = folder("again");
    let suite = r#"case "$*" in
        *--exact*) exit 2 ;;
        *streams::order*) echo 'alone: wrong bytes'; exit 101 ;;
        *) echo 'test streams::order ... FAILED'; echo 'test streams::other ... ok'; exit 101 ;;
    esac"#;
    program(&folder.join("bin/suite"), suite);
    let (status, table, _) = go(&script);
    assert_eq!(status, 1);
    assert!(table.contains("streams::order once more:"), "{table}");
    assert!(table.contains("alone: wrong bytes"), "{table}");
    assert!(!table.contains("streams::other once more:"), "{table}");
    fs::remove_dir_all(&folder).unwrap();
}

#[test]
fn nothing_runs_on_a_lost_device() {
    let (folder, script) = folder("lost");
    program(&folder.join("bin/suite"), "touch lost; exit 101");
    let devices = r#"[ -e lost ] && [ "$1" = devices ] && echo '{"unavailable":[]}' || exit 0"#;
    program(&folder.join("bin/spillway"), devices);
    program(&folder.join("bin/cuda-figures"), "touch ran");
    let (status, table, json) = go(&script);
    assert_eq!(status, 1);
    assert!(table.contains("| figures | not run | 0 s"), "{table}");
    assert!(table.contains("since an earlier part, the device is lost"), "{table}");
    assert!(json.contains("\"failed\":1,"), "{json}");
    assert!(!folder.join("ran").exists());
    fs::remove_dir_all(&folder).unwrap();
}

#[test]
fn vulkan_is_checked_where_a_device_can_be_used() {
    let (folder, script) = folder("vulkan");
    let device = |refusal| {
        format!(
            r#"{{"api_version":"1.4.312","backend":"vulkan","name":"NVIDIA H100","refusal":{refusal},"stream_queues":{{"compute":[0,0],"download":[1,1],"upload":[1,0]}}}}"#
        )
    };
    let (usable, refused) = (device("null"), device(r#""its driver lacks sparse binding""#));
    let cuda = r#"{"backend":"cuda","driver":"13.0","refusal":null}"#;
    let missing = r#"{"backend":"vulkan","reason":"a loader is needed"}"#;
    for (devices, unavailable, verdict) in [
        (format!("{usable},{cuda}"), "", "failed"),
        (format!("{refused},{usable}"), "", "failed"),
        (format!("{refused},{cuda}"), "", "not run"),
        (cuda.to_owned(), missing, "not run"),
    ] {
        // The suite fails, so that a part that ran it does not look like one that ran nothing.
        let program_text = format!(
            r#"case "$*" in
            "devices --json") echo '{{"devices":[{devices}],"unavailable":[{unavailable}]}}' ;;
            "conformance --backend vulkan") exit 1 ;;
            esac"#
        );
        program(&folder.join("bin/spillway"), &program_text);
        let (_, table, json) = go(&script);
        assert!(table.contains(&format!("| Vulkan | {verdict} |")), "{devices}\n{table}\n{json}");
    }
    fs::remove_dir_all(&folder).unwrap();
}

#[test]
fn all_limits_together_leave_each_part_its_time() {
    let script = fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/go")).unwrap();
    let page = fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/../docs/cuda.md")).unwrap();
    let limits = script.lines().filter_map(|line| {
        let words = line.strip_prefix("part ")?.split(' ');
        Some(words.filter_map(|word| word.parse().ok()).next().unwrap())
    });
    let mut limits: Vec<u64> = limits.collect();
    assert!(limits.iter().sum::<u64>() <= 575, "ten minutes, and the script's own work");
    let table = page.split("| part | at most |").nth(1).unwrap();
    let rows = table.lines().skip(2).take_while(|line| line.starts_with('|'));
    let cells = rows.flat_map(|row| row.split('|').nth(2).unwrap().split(','));
    let mut documented: Vec<u64> =
        cells.map(|cell| cell.trim().strip_suffix(" s").unwrap().parse().unwrap()).collect();
    limits.sort_unstable();
    documented.sort_unstable();
    assert_eq!(documented, limits, "the page names the limits of the script");
}
