//! The real program, run in folders of its own.
#![allow(dead_code, reason = "each test program uses its own part")]

use serde_json::Value;
use std::fs;
use std::io::Write;
use std::path::PathBuf;
use std::process::{Command, Output, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};

/// Small work that needs much more memory than its largest op.
pub(crate) const SMALL: &str = "resnet50:batch=2,image=64";

/// A folder that goes away with the test.
pub(crate) struct Folder(PathBuf);

impl Folder {
    pub(crate) fn new() -> Self {
        static COUNTER: AtomicU32 = AtomicU32::new(0);
        let number = COUNTER.fetch_add(1, Ordering::Relaxed);
        let name = format!("spillway-cli-{}-{number}", std::process::id());
        let path = std::env::temp_dir().join(name);
        fs::create_dir_all(&path).unwrap();
        Self(path)
    }

    /// A folder with `machine.json`, a machine with smaller chunks than most tensors of small work.
    pub(crate) fn with_small_chunks() -> Self {
        let folder = Self::new();
        let machine = r#"{"format":"spillway.machine.v1","name":"small chunks",
            "device_bytes":1073741824,"host_bytes":1073741824,"chunk_bytes":65536,
            "h2d_bytes_per_s":12000000000,"d2h_bytes_per_s":12000000000,"transfer_latency_ns":10000,
            "map_ns_per_chunk":0,"unmap_ns_per_chunk":0}"#;
        folder.write("machine.json", machine);
        folder
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.0.join(name)
    }

    pub(crate) fn write(&self, name: &str, bytes: impl AsRef<[u8]>) -> PathBuf {
        let path = self.path(name);
        fs::write(&path, bytes).unwrap();
        path
    }

    /// The names of all files, hidden ones included.
    pub(crate) fn files(&self) -> Vec<String> {
        let entries = fs::read_dir(&self.0).unwrap();
        let names = entries.map(|entry| entry.unwrap().file_name().into_string().unwrap());
        let mut names: Vec<_> = names.collect();
        names.sort();
        names
    }

    /// Runs the program here.
    pub(crate) fn run(&self, arguments: &[&str]) -> Ran {
        self.run_with(arguments, b"")
    }

    /// Runs the program here, with variables in its environment.
    pub(crate) fn run_in(&self, variables: &[(&str, &str)], arguments: &[&str]) -> Ran {
        self.spawn(variables, arguments, b"")
    }

    /// Runs the program here, with something on standard input.
    pub(crate) fn run_with(&self, arguments: &[&str], input: &[u8]) -> Ran {
        self.spawn(&[], arguments, input)
    }

    fn spawn(&self, variables: &[(&str, &str)], arguments: &[&str], input: &[u8]) -> Ran {
        let mut child = Command::new(env!("CARGO_BIN_EXE_spillway"))
            .args(arguments)
            .envs(variables.iter().copied())
            .current_dir(&self.0)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let mut stdin = child.stdin.take().unwrap();
        // A program that refuses its arguments does not read.
        let _ = stdin.write_all(input);
        drop(stdin);
        Ran::new(arguments, child.wait_with_output().unwrap())
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// What a run of the program left.
#[derive(Debug)]
pub(crate) struct Ran {
    arguments: Vec<String>,
    pub(crate) status: i32,
    pub(crate) stdout: String,
    pub(crate) stderr: String,
}

impl Ran {
    fn new(arguments: &[&str], output: Output) -> Self {
        let ran = Self {
            arguments: arguments.iter().map(|&argument| argument.to_owned()).collect(),
            status: output.status.code().expect("no signal ended the program"),
            stdout: String::from_utf8(output.stdout).unwrap(),
            stderr: String::from_utf8(output.stderr).unwrap(),
        };
        assert!(!ran.stderr.contains("panicked"), "{ran:?}");
        ran
    }

    /// Success.
    pub(crate) fn done(self) -> Self {
        assert_eq!(self.status, 0, "{self:?}");
        self
    }

    /// A failure that says all of `words` on standard error, and nothing on standard output.
    pub(crate) fn fails(self, status: i32, words: &[&str]) -> Self {
        assert_eq!(self.stdout, "", "{self:?}");
        self.fails_with_output(status, words)
    }

    pub(crate) fn fails_with_output(self, status: i32, words: &[&str]) -> Self {
        assert_eq!(self.status, status, "{self:?}");
        for word in words {
            assert!(self.stderr.contains(word), "no {word:?} in {self:?}");
        }
        self
    }

    /// The one JSON object on standard output.
    pub(crate) fn json(&self) -> Value {
        let value: Value = serde_json::from_str(&self.stdout).unwrap_or_else(|error| {
            panic!("{error}: {self:?}");
        });
        assert!(value.is_object(), "{self:?}");
        value
    }
}
