//! The code in `docs/embedding.md` is that of programs that tests run, and what it says of threads
//! holds.
#![allow(clippy::unwrap_used, reason = "what fails here fails the test")]

use std::fs;
use std::path::Path;

const RUST: [&str; 3] = [
    "spillway/examples/runtime/main.rs",
    "spillway/examples/runtime/device.rs",
    "bare-metal/src/lib.rs",
];
const C: [&str; 1] = ["planner-c/examples/train.c"];

/// The lines of a text, without the space around them.
fn lines(text: &str) -> Vec<&str> {
    text.lines().map(str::trim).collect()
}

#[test]
fn the_guide_quotes_the_programs() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap();
    let read = |path: &str| fs::read_to_string(root.join(path)).unwrap();
    let guide = read("docs/embedding.md");
    for (language, paths, least) in [("rust", &RUST[..], 10), ("c", &C[..], 5)] {
        let programs: Vec<String> = paths.iter().map(|path| read(path)).collect();
        let programs: Vec<Vec<&str>> = programs.iter().map(|program| lines(program)).collect();
        let start = format!("```{language}\n");
        let blocks = guide.split(&start).skip(1).map(|rest| rest.split("```").next().unwrap());
        let blocks: Vec<_> = blocks.collect();
        assert!(blocks.len() >= least, "{language}: {} blocks", blocks.len());
        for quote in blocks.iter().flat_map(|block| block.split("// …\n")) {
            let quote = lines(quote.trim());
            let holds =
                |program: &Vec<&str>| program.windows(quote.len()).any(|part| part == quote);
            assert!(programs.iter().any(holds), "none of {paths:?} has\n{}", quote.join("\n"));
        }
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
