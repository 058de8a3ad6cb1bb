//! Every name in `docs/names.md` is one of its language.
#![allow(clippy::unwrap_used, reason = "what fails here fails the test")]

use std::collections::HashSet;
use std::fs;
use std::path::Path;

/// A language, by its column, and the files or folders that have its names.
const LANGUAGES: [(&str, &[&str]); 4] = [
    (
        "Rust",
        &["spillway/src", "workloads/src", "planner-core/src", "backend-cuda/src/graph_session.rs"],
    ),
    ("C", &["planner-c/include/spillway.h"]),
    (
        "Python",
        &[
            "python/spillway/_core.pyi",
            "python/spillway/streaming.py",
            "python/tests/typed_client.py",
        ],
    ),
    ("JSON", &["docs/json.md", "docs/format.md", "cli/src"]),
];

/// The words of a text that may be names, without the prefix of C.
fn words(text: &str) -> impl Iterator<Item = String> {
    let is_name = |c: char| c.is_ascii_alphanumeric() || c == '_';
    text.split(move |c| !is_name(c)).filter(|word| !word.is_empty()).map(|word| {
        let word = word.strip_prefix("SPILLWAY_").unwrap_or(word);
        word.strip_prefix("spillway_").unwrap_or(word).trim_start_matches('_').to_owned()
    })
}

fn add(path: &Path, names: &mut HashSet<String>) {
    if path.is_dir() {
        fs::read_dir(path).unwrap().for_each(|entry| add(&entry.unwrap().path(), names));
    } else {
        names.extend(words(&fs::read_to_string(path).unwrap()));
    }
}

/// The parts of a cell between backticks.
fn quoted(cell: &str) -> impl Iterator<Item = &str> {
    cell.split('`').skip(1).step_by(2)
}

#[test]
fn the_table_has_names_of_each_language() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap();
    let known = LANGUAGES.map(|(_, paths)| {
        let mut names = HashSet::new();
        paths.iter().for_each(|path| add(&root.join(path), &mut names));
        names
    });
    let page = fs::read_to_string(root.join("docs/names.md")).unwrap();
    let (mut columns, mut checked, mut wrong) = (Vec::new(), 0, Vec::new());
    for line in page.lines().filter(|line| line.starts_with('|')) {
        let cells: Vec<_> = line.trim_matches('|').split('|').map(str::trim).collect();
        if cells[0] == "concept" {
            columns = cells.iter().map(|&cell| cell.to_owned()).collect();
        }
        for (column, cell) in columns.iter().zip(&cells).skip(1) {
            let language = LANGUAGES.iter().position(|(name, _)| name == column).unwrap();
            // An empty cell has the names of Rust, which is the first language.
            let cell = if cell.is_empty() { cells[1] } else { cell };
            for name in quoted(cell).flat_map(words) {
                // Numbers and types in examples are no names.
                let is_value = name.starts_with(|c: char| c.is_ascii_digit()) || name == "f32";
                checked += 1;
                if !is_value && !known[language].contains(&name) {
                    wrong.push(format!("{column} has no {name}: {line}"));
                }
            }
        }
    }
    assert!(checked > 300, "{checked}");
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}
