//! Backends held to the suite, from the command line.
#![allow(clippy::unwrap_used, reason = "what fails here fails the test")]

use crate::common::Folder;

#[test]
fn all_backends_that_are_built_pass() {
    let folder = Folder::new();
    // Neither lets a wait fail or has kernels of a part of a tensor, and the second is small.
    for (backend, device, ignored) in [("sim", "simulated", 2), ("host", "host memory", 3)] {
        let report = folder.run(&["conformance", "--backend", backend, "--json"]).done().json();
        assert_eq!(report["backend"], backend);
        assert!(report["device"].as_str().unwrap().contains(device));
        let names = |list: &str| report[list].as_array().unwrap().len();
        assert_eq!((names("failed"), names("ignored")), (0, ignored));
        assert!(report["passed"].as_array().unwrap().contains(&"plans::on_demand".into()));
        assert!(names("passed") > 50);
    }
}

/// Whoever sees a crash knows what ran.
#[test]
fn checks_are_named_before_they_run() {
    let arguments = ["conformance", "--backend", "host", "--chunk-bytes", "64KiB", "--json"];
    let ran = Folder::new().run(&arguments);
    let stderr = ran.stderr.clone();
    let named: Vec<_> = stderr.lines().filter_map(|line| line.strip_prefix("checking ")).collect();
    let report = ran.done().json();
    assert!(report["device"].as_str().unwrap().ends_with("in chunks of 65536 bytes"), "{report}");
    let passed = report["passed"].as_array().unwrap();
    let ignored = report["ignored"].as_array().unwrap();
    assert_eq!(named.len(), passed.len() + ignored.len());
    assert!(passed.iter().all(|name| named.contains(&name.as_str().unwrap())));
    let odd = ["conformance", "--backend", "host", "--chunk-bytes", "300"];
    Folder::new().run(&odd).fails_with_output(1, &["host has no device"]);
}

#[test]
fn a_person_sees_a_table() {
    let table = Folder::new().run(&["conformance", "--backend", "host"]).done().stdout;
    assert!(table.starts_with("host: host memory\n"), "{table}");
    assert!(table.contains("\n  streams\n    passed   points are counted from one\n"), "{table}");
    assert!(table.ends_with(" passed, 0 failed, 3 ignored\n"), "{table}");
}
