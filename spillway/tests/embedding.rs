//! The code in `docs/embedding.md` and other guides is that of programs that tests run, and what the page says
//! of threads holds.
#![allow(clippy::unwrap_used, reason = "what fails here fails the test")]

use std::fs;
use std::path::Path;

/// A page, a language, the files that its blocks quote, and how many blocks there are at least.
const QUOTES: [(&str, &str, &[&str], usize); 6] = [
    (
        "docs/embedding.md",
        "rust",
        &[
            "spillway/examples/runtime/main.rs",
            "spillway/examples/runtime/device.rs",
            "testing/bare-metal/src/lib.rs",
        ],
        7,
    ),
    ("docs/embedding.md", "c", &["planner-c/examples/train.c"], 1),
    (
        "docs/serving.md",
        "rust",
        &["spillway/examples/serve/main.rs", "spillway/examples/serve/decoder.rs"],
        5,
    ),
    ("docs/start/rust.md", "rust", &["spillway/examples/train.rs"], 3),
    ("docs/start/c.md", "c", &["planner-c/examples/plan.c"], 3),
    ("docs/start/pytorch.md", "python", &["README.md", "python/examples/train_gpt2.py"], 3),
];

fn read(path: &str) -> String {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap();
    fs::read_to_string(root.join(path)).unwrap()
}

/// The blocks of a page in a language.
fn blocks<'p>(page: &'p str, language: &str) -> Vec<&'p str> {
    let start = format!("```{language}\n");
    page.split(&start).skip(1).map(|rest| rest.split("```").next().unwrap()).collect()
}

/// The lines of a text, without the space around them.
fn lines(text: &str) -> Vec<&str> {
    text.lines().map(str::trim).collect()
}

#[test]
fn the_guides_quote_the_programs() {
    for (page, language, paths, least) in QUOTES {
        let programs: Vec<String> = paths.iter().map(|path| read(path)).collect();
        let programs: Vec<Vec<&str>> = programs.iter().map(|program| lines(program)).collect();
        let page_text = read(page);
        let blocks = blocks(&page_text, language);
        assert!(blocks.len() >= least, "{page}, {language}: {} blocks", blocks.len());
        for quote in blocks.iter().flat_map(|block| block.split("// …\n")) {
            let quote = lines(quote.trim());
            let holds =
                |program: &Vec<&str>| program.windows(quote.len()).any(|part| part == quote);
            assert!(programs.iter().any(holds), "none of {paths:?} has\n{}", quote.join("\n"));
        }
    }
}

/// The project outside of the workspace depends on the crates as the page says.
#[test]
fn the_guide_quotes_the_manifest() {
    let manifest = read("templates/runtime/Cargo.toml");
    let manifest = lines(&manifest);
    let page = read("docs/embedding.md");
    let quoted: Vec<_> = blocks(&page, "toml").into_iter().flat_map(lines).collect();
    assert!(quoted.len() >= 2);
    for line in quoted {
        assert!(manifest.contains(&line), "templates/runtime/Cargo.toml has no line {line:?}");
    }
}

#[test]
fn threads_share_graphs_and_plans() {
    fn shared<T: Send + Sync>() {}
    fn sent<T: Send>() {}
    shared::<spillway::Graph>();
    shared::<spillway::OwnedMachine>();
    shared::<spillway::Plan>();
    sent::<spillway::Session<backend_host::HostDevice, ()>>();
}
