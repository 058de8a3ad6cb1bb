//! Every object that `--json` prints has its format, and `docs/json.md` has its fields.
#![allow(clippy::unwrap_used, reason = "what fails here fails the test")]

use crate::common::{Folder, SMALL};
use serde_json::Value;
use std::fs;
use std::path::Path;

/// The names of all fields, at any depth.
fn names(value: &Value, found: &mut Vec<String>) {
    match value {
        Value::Object(fields) => {
            for (name, value) in fields {
                found.push(name.clone());
                names(value, found);
            }
        }
        Value::Array(values) => values.iter().for_each(|value| names(value, found)),
        _ => {}
    }
}

fn check(object: &Value, command: &str, page: &str) {
    assert_eq!(object["format"], format!("spillway.cli.{command}.v1"));
    let mut found = Vec::new();
    names(object, &mut found);
    for name in found {
        assert!(page.contains(&format!("`{name}`")), "docs/json.md has no `{name}` of {command}");
    }
}

#[test]
fn the_page_has_all_fields() {
    let page = Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/json.md");
    let (page, folder) = (fs::read_to_string(page).unwrap(), Folder::new());
    for arguments in [
        &["plan", SMALL, "--budget", "60%", "-o", "p.json", "--certificate", "c.json"][..],
        &["check", SMALL, "p.json", "--certificate", "c.json"],
        &["check", SMALL, "--certificate", "c.json"],
        &["run", SMALL, "--plan", "p.json", "--iterations", "2"],
        &["compare", SMALL, "--budgets", "60%,1", "--strategies", "auto,fit"],
        &["devices"],
        &["conformance", "--backend", "host"],
    ] {
        let ran = folder.run(&[arguments, &["--json"]].concat()).done();
        let mut object = ran.json();
        if arguments[0] == "devices" {
            // What a driver says is the backend's.
            object["devices"] = Value::Null;
        }
        check(&object, arguments[0], &page);
    }
    let ran = folder.run(&["plan", SMALL, "--budget", "1", "--json"]);
    let object = ran.fails_with_output(1, &["too small"]).json();
    assert!(object["reason"].as_str().unwrap().contains("too small"));
    check(&object, "plan", &page);
}

#[test]
fn shells_complete_every_command_and_each_has_a_page() {
    let folder = Folder::new();
    for shell in ["bash", "zsh", "fish", "elvish", "powershell"] {
        let script = folder.run(&["completions", shell]).done().stdout;
        for word in ["certificate", "conformance", "budgets"] {
            assert!(script.contains(word), "{shell}: {word}");
        }
    }
    assert!(folder.run(&["man"]).done().stdout.contains(".TH spillway 1"));
    fs::create_dir(folder.path("pages")).unwrap();
    folder.run(&["man", "-o", "pages"]).done();
    let page = fs::read_to_string(folder.path("pages/spillway-plan.1")).unwrap();
    assert!(page.contains("\\-\\-budget") && page.contains(".TH"));
    folder.run(&["man", "-o", "missing"]).fails(1, &["missing"]);
}
