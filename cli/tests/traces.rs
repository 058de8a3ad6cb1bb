//! Traces of PyTorch: how they are recorded, and what an import says of them.
#![allow(clippy::unwrap_used, reason = "what fails here fails the test")]

use crate::common::Folder;
use serde_json::{Value, json};

const PAGE: &str = include_str!("../../docs/pytorch-traces.md");

/// A trace of annotations, and of operators on the first tensor that return the second.
fn trace(device: &str, names: &[&str]) -> Vec<u8> {
    let tensor = |storage: u64| json!([storage + 100, storage, 0, 4, 4, device]);
    let mut nodes =
        vec![json!({ "name": "root", "id": 1, "parent": 1, "inputs": [], "outputs": [] })];
    for name in names {
        let schema = match name.strip_prefix("aten::") {
            Some(_) => format!("{name}(Tensor self) -> Tensor"),
            None => String::new(),
        };
        nodes.push(json!({
            "name": name, "id": nodes.len() + 1, "parent": 1, "op_schema": schema,
            "inputs": [tensor(1)], "input_shapes": [[4]],
            "outputs": [tensor(2)], "output_shapes": [[4]],
        }));
    }
    json!({ "schema": "1.0.1", "nodes": nodes }).to_string().into_bytes()
}

#[test]
fn the_help_and_the_page_record_a_trace_alike() {
    let help = Folder::new().run(&["import", "pytorch", "--help"]).done().stdout;
    let recipe = PAGE.split("```python\n").nth(1).unwrap().split("```").next().unwrap();
    assert!(recipe.lines().count() >= 10, "{recipe}");
    let indented = |line: &str| if line.is_empty() { "\n".into() } else { format!("  {line}\n") };
    let recipe: String = recipe.lines().map(indented).collect();
    assert!(help.contains(&recipe), "{help}");
}

#[test]
fn a_trace_is_no_graph_yet() {
    let folder = Folder::new();
    folder.write("t.json", trace("cpu", &["aten::relu"]));
    folder.write("none.json", "{}");
    let sentence =
        "error: t.json: an execution trace: import it first with `spillway import pytorch`";
    for command in [&["plan", "t.json", "-b", "50%"][..], &["check", "t.json", "p.json"]] {
        folder.run(command).fails(2, &[sentence]);
    }
    folder.run(&["plan", "none.json"]).fails(2, &["none.json: the field `format` is missing"]);
}

#[test]
fn a_trace_of_a_cpu_needs_the_option() {
    let folder = Folder::new();
    folder.write("t.json", trace("cpu", &["aten::relu"]));
    let sentence =
        "error: t.json: the trace has tensors only on the CPU: import it with --device cpu";
    folder.run(&["import", "pytorch", "t.json"]).fails(2, &[sentence]);
    let imported = folder.run(&["import", "pytorch", "t.json", "--device", "cpu"]).done().json();
    assert_eq!(imported["ops"].as_array().map(Vec::len), Some(1));
}

#[test]
fn warnings_go_to_standard_error() {
    let folder = Folder::new();
    let region = "Torch-Compiled Region: 0/0";
    folder.write("t.json", trace("cuda:0", &[region, "aten::item", "aten::relu", region]));
    let imported = folder.run(&["import", "pytorch", "t.json"]).done();
    assert_eq!(imported.json()["format"], Value::from("spillway.graph.v1"));
    for warning in [
        "\nwarning: compiled regions: 2, the first is Torch-Compiled Region: 0/0@2; ",
        "\nwarning: synchronisations: 1, the first is item@3; ",
    ] {
        assert!(imported.stderr.contains(warning), "{}", imported.stderr);
    }
    folder.write("t.json", trace("cuda:0", &["aten::relu"]));
    let imported = folder.run(&["import", "pytorch", "t.json", "-o", "g.json"]).done();
    assert_eq!(imported.stderr, "");
}
