//! Each way in which a file can be wrong is an error that says where.

use workloads::OwnedGraph;
use workloads::format::{
    Document, ErrorKind, FormatError, document, read_chain, read_graph, read_machine, read_plan,
};

const GRAPH: &str = r#"{"format": "spillway.graph.v1", "name": "two", "later": {"x": [1, null]},
"tensors": [{"name": "w", "bytes": 8, "kind": "state"}, {"name": "t", "bytes": 4, "kind": "temporary"}],
"ops": [{"name": "a", "time_ns": 5, "reads": [0], "writes": [1]},
 {"name": "b", "time_ns": 6, "reads": [1], "writes": [0], "workspace_bytes": 3}]}"#;

const MACHINE: &str = r#"{"format": "spillway.machine.v1", "name": "m", "device_bytes": 100,
"host_bytes": 1000, "chunk_bytes": 10, "h2d_bytes_per_s": 7, "d2h_bytes_per_s": 9,
"transfer_latency_ns": 1, "map_ns_per_chunk": 0, "unmap_ns_per_chunk": 0}"#;

const PLAN: &str = r#"{"format": "spillway.plan.v1", "graph": "two", "machine": "m",
"strategy": "by hand", "budget_bytes": 100, "pools": [{"object_bytes": 10, "count": 2}],
"resident_at_start": [{"tensor": 0, "host_copy": true, "first": 0, "count": 1}],
"steps": [["prefetch", 0], ["launch", 0], ["evict", 1, 0, 2]],
"predicted": {"period_ns": 1, "compute_ns": 2, "peak_bytes": 3, "h2d_bytes": 4, "d2h_bytes": 5,
"host_bytes": 6}}"#;

const CHAIN: &str = r#"{"format": "spillway.chain.v1", "name": "c", "device_bytes": 100,
"bandwidth_bytes_per_s": 7, "input_bytes": 0, "published_ms": {"greedy": 3},
"layers": [{"forward_ns": 1, "backward_ns": 2, "weight_bytes": 3, "activation_bytes": 4}]}"#;

/// Replaces `from`, which occurs once, and expects an error that starts with `expected`.
fn broken<T>(
    read: fn(&[u8]) -> Result<T, FormatError>,
    text: &str,
    changes: &[(&str, &str, &str)],
) {
    assert!(read(text.as_bytes()).is_ok());
    for (from, to, expected) in changes {
        assert_eq!(text.matches(from).count(), 1, "{from}");
        let Err(error) = read(text.replace(from, to).as_bytes()) else {
            panic!("{to:?} in place of {from:?} is accepted");
        };
        let shown = error.to_string();
        assert!(shown.starts_with(expected), "{to:?} gives\n  {shown}\nnot\n  {expected}");
        assert_eq!(error.kind(), ErrorKind::Malformed);
    }
}

fn graph(text: &str) -> Result<OwnedGraph, FormatError> {
    read_graph(text.as_bytes())
}

#[test]
fn what_a_file_holds_is_read() {
    let graph = graph(GRAPH).unwrap();
    assert_eq!((graph.name.as_str(), &graph.op_names[..]), ("two", &["a".into(), "b".into()][..]));
    assert_eq!((graph.ops[0].workspace_bytes, graph.ops[1].workspace_bytes), (0, 3));
    let machine = read_machine(MACHINE.as_bytes()).unwrap().machine;
    assert_eq!((machine.h2d_bytes_per_s, machine.d2h_bytes_per_s), (7, 9));
    let plan = read_plan(PLAN.as_bytes()).unwrap();
    assert_eq!((plan.steps.len(), plan.arena_bytes, plan.predicted.host_bytes), (3, 0, 6));
    assert!(plan.steps[2] != plan.steps[0] && plan.tensor_pool.is_empty());
}

#[test]
fn a_chain_is_checked() {
    broken(
        read_chain,
        CHAIN,
        &[
            (r#""forward_ns": 1, "#, "", "layers[0]: missing field `forward_ns`"),
            (": 7", ": 0", "bandwidth_bytes_per_s is zero"),
            (": 3,", ": 18446744073709551615,", "sizes or times add up to more than 64 bits"),
            (": 4}", ": -4}", "layers[0].activation_bytes: "),
        ],
    );
    let from = CHAIN.find(r#"[{"#).unwrap();
    let empty = format!("{}[]}}", &CHAIN[..from]);
    let error = read_chain(empty.as_bytes()).unwrap_err().to_string();
    assert_eq!(error, "layers: the chain has none");
}

#[test]
fn wrong_values_are_named_by_their_path() {
    broken(
        read_graph,
        GRAPH,
        &[
            (r#""bytes": 4"#, r#""bytes": -4"#, "tensors[1].bytes: invalid value: integer `-4`"),
            (r#""bytes": 4"#, r#""bytes": 4.0"#, "tensors[1].bytes: invalid type: floating point"),
            (
                r#""bytes": 4"#,
                r#""bytes": 18446744073709551616"#,
                "tensors[1].bytes: invalid type: floating point",
            ),
            (r#""bytes": 4"#, r#""bytes": "4""#, "tensors[1].bytes: invalid type: string"),
            (r#""bytes": 4"#, r#""bytes": null"#, "tensors[1].bytes: invalid type: null"),
            (r#""bytes": 4, "#, "", "tensors[1]: missing field `bytes`"),
            (r#""bytes": 4"#, r#""bytes": 4, "bytes": 4"#, "tensors[1]: duplicate field `bytes`"),
            ("temporary", "scratch", "tensors[1].kind: invalid value: string \"scratch\""),
            (r#""temporary""#, r#"{"state": null}"#, "tensors[1].kind: invalid type: map"),
            (r#""reads": [0]"#, r#""reads": [0, true]"#, "ops[0].reads[1]: invalid type: boolean"),
            (r#""reads": [0]"#, r#""reads": [4294967296]"#, "ops[0].reads[0]: invalid value"),
            (r#""reads": [0]"#, r#""reads": 0"#, "ops[0].reads: invalid type: integer"),
            (r#", "writes": [1]"#, "", "ops[0]: missing field `writes`"),
            (r#"{"name": "w", "bytes": 8, "kind": "state"}"#, r#"["w", 8, "state"]"#, "tensors[0]"),
            (
                r#""name": "two""#,
                r#""name": "two", "name": "2""#,
                "line 1 column 53: duplicate field `name`",
            ),
            (
                r#""name": "two""#,
                r#""format": "spillway.graph.v1""#,
                "line 1 column 40: duplicate field `format`",
            ),
        ],
    );
}

#[test]
fn a_graph_that_the_core_rejects_is_described_by_name() {
    broken(
        read_graph,
        GRAPH,
        &[
            (r#""bytes": 4"#, r#""bytes": 0"#, r#"tensor 1 ("t") has zero bytes"#),
            (r#""reads": [0]"#, r#""reads": [2]"#, r#"op 0 ("a") names tensor 2, and there are 2"#),
            (
                r#""reads": [0]"#,
                r#""reads": [1]"#,
                r#"op 0 ("a") reads tensor 1 ("t"), which has no value"#,
            ),
            (r#""reads": [0]"#, r#""reads": [0, 0]"#, r#"op 0 ("a") lists tensor 0 ("w") twice"#),
            (
                r#""time_ns": 6"#,
                r#""time_ns": 18446744073709551615"#,
                "sizes or times add up to more than 64 bits",
            ),
        ],
    );
    let no_ops = r#"{"format": "spillway.graph.v1", "name": "", "tensors": [], "ops": []}"#;
    assert_eq!(graph(no_ops).unwrap_err().to_string(), "the graph has no ops");
}

#[test]
fn machines_are_checked() {
    broken(
        read_machine,
        MACHINE,
        &[
            (r#""chunk_bytes": 10"#, r#""chunk_bytes": 0"#, "chunk_bytes is zero"),
            (r#""d2h_bytes_per_s": 9"#, r#""d2h_bytes_per_s": 0"#, "the bandwidth of a link"),
            (r#""host_bytes": 1000, "#, "", "line 3 column 73: missing field `host_bytes`"),
        ],
    );
}

#[test]
fn steps_have_their_form() {
    broken(
        read_plan,
        PLAN,
        &[
            (r#"["launch", 0]"#, r#"["launch"]"#, "steps[1]: invalid length 1, expected [\"launch"),
            (r#"["launch", 0]"#, "[]", "steps[1]: invalid length 0"),
            (r#"["launch", 0]"#, r#"["launch", 0, 0, 1]"#, "steps[1]: invalid length 3"),
            (r#"["launch", 0]"#, r#"["run", 0]"#, "steps[1][0]: invalid value: string \"run\""),
            (r#"["launch", 0]"#, r#"[0, "launch"]"#, "steps[1][0]: invalid type: integer `0`"),
            (r#"["launch", 0]"#, r#"["launch", -1]"#, "steps[1][1]: invalid value: integer `-1`"),
            (r#"["launch", 0]"#, r#"{"launch": 0}"#, "steps[1]: invalid type: map"),
            (r#"["evict", 1, 0, 2]"#, r#"["evict", 1, 0]"#, "steps[2]: invalid length 3"),
            (r#"["evict", 1, 0, 2]"#, r#"["evict", 1, 0, 2, 3]"#, "steps[2]: invalid length 5"),
            (
                r#"["evict", 1, 0, 2]"#,
                r#"["evict", 1, 0, 18446744073709551615]"#,
                "steps[2]: a count of 18446744073709551615 objects is too large",
            ),
            (r#", "count": 1"#, "", "resident_at_start[0]: `first` and `count` go together"),
            (
                r#""first": 0, "count": 1"#,
                r#""first": 0, "count": 18446744073709551615"#,
                "resident_at_start[0]: a count of",
            ),
            (r#""host_copy": true"#, r#""host_copy": 1"#, "resident_at_start[0].host_copy"),
            (r#""predicted""#, r#""promised""#, "line 6 column 17: missing field `predicted`"),
            (r#""compute_ns": 2, "#, "", "predicted: missing field `compute_ns`"),
            (r#""strategy""#, r#""arena": 3, "strategy""#, "arena: invalid type: integer `3`"),
            (r#""strategy""#, r#""arena": {}, "strategy""#, "arena: missing field `bytes`"),
        ],
    );
}

#[test]
fn placements_are_arrays_of_numbers() {
    let with = |fields: &str| {
        read_plan(PLAN.replace(r#""strategy""#, &format!("{fields}, \"strategy\"")).as_bytes())
    };
    let placed = |fields: &str| with(fields).unwrap().placements.unwrap();
    let placements = placed(r#""placements": [[0], [], [1, 2]]"#);
    assert_eq!((placements.iterations, &placements.ends[..]), (1, &[1, 1, 3][..]));
    let table = placements.placements();
    assert_eq!([0, 1, 2, 3].map(|at| table.of(at)), [&[0][..], &[], &[1, 2], &[]]);
    assert_eq!(placed(r#""placement_iterations": 3, "placements": []"#).iterations, 3);
    assert_eq!(with(r#""placements": null"#), read_plan(PLAN.as_bytes()));
    for (fields, expected) in [
        (r#""placements": [0]"#, "placements[0]: invalid type: integer `0`"),
        (r#""placements": [[1], [-1]]"#, "placements[1][0]: invalid value: integer `-1`"),
        (r#""placements": {}"#, "placements: invalid type: map"),
        (r#""placement_iterations": 4294967296"#, "placement_iterations: invalid value"),
        (r#""placement_iterations": 0"#, "placement_iterations is 0; it must be from 1 to 64"),
        (r#""placement_iterations": 65"#, "placement_iterations is 65; it must be from 1 to 64"),
    ] {
        let shown = with(fields).unwrap_err().to_string();
        assert!(shown.starts_with(expected), "{shown}");
    }
}

#[test]
fn the_format_is_found_wherever_it_stands() {
    assert_eq!(document(PLAN.as_bytes()), Ok(Document::Plan));
    assert_eq!(document(br#"{"format": "spillway.chain.v1"}"#), Ok(Document::Chain));
    let last = br#"{"name": "m", "x": [{"format": "y"}], "format": "spillway.machine.v1"}"#;
    assert_eq!(document(last), Ok(Document::Machine));
    for (text, expected) in [
        (r#"{"format": "spillway.graph.v2"}"#, "format \"spillway.graph.v2\" is unknown; known"),
        (r#"{"name": "m"}"#, "the field `format` is missing"),
        (r#"{"format": 1}"#, "format: invalid type: integer `1`, expected a string"),
        ("[]", "line 1 column 0: invalid type: sequence, expected a JSON object"),
        ("{\n \"name\" 1}", "line 2 column 9: expected `:`"),
    ] {
        let shown = document(text.as_bytes()).unwrap_err().to_string();
        assert!(shown.starts_with(expected), "{text} gives {shown}");
    }
    let shown = read_graph(PLAN.as_bytes()).unwrap_err().to_string();
    assert_eq!(shown, "format is spillway.plan.v1, but spillway.graph.v1 is expected here");
}

#[test]
fn broken_text_is_named_by_its_position() {
    let truncated = &GRAPH[..GRAPH.len() - 1];
    let trailing = format!("{GRAPH}\n x");
    let deep = |at: &str, open: &str, close: &str| {
        let (open, close) = (open.repeat(100_000), close.repeat(100_000));
        GRAPH.replace(at, &format!("{open}{close}"))
    };
    for (text, expected) in [
        ("", "the file is empty"),
        (" \n", "the file is empty"),
        (truncated, "line 4 column 80: EOF while parsing an object"),
        (&trailing, "line 5 column 2: trailing characters"),
        (&deep("null", "[", "]"), "line 1 column "),
        (&deep("null", "{\"a\":", "}"), "line 1 column "),
        (&deep("[0]", "[", "]"), "line 3 column "),
    ] {
        let shown = graph(text).unwrap_err().to_string();
        assert!(shown.starts_with(expected), "{shown}");
    }
    assert!(graph(&deep("null", "[", "]")).unwrap_err().to_string().contains("nested deeper"));
    // A bracket inside a string nests nothing.
    graph(&GRAPH.replace("null", &format!("\"\\\"{}\"", "[".repeat(1000)))).unwrap();

    let mut bytes = GRAPH.as_bytes().to_vec();
    let at = GRAPH.find("null").unwrap();
    bytes[at] = b'"';
    bytes[at + 1] = 0xff;
    bytes[at + 2] = b'"';
    bytes[at + 3] = b' ';
    let shown = read_graph(&bytes).unwrap_err().to_string();
    assert_eq!(shown, "line 1 column 68: invalid UTF-8");
}

#[test]
fn a_message_is_one_line_even_where_a_name_is_not() {
    let named =
        GRAPH.replace("\"a\"", r#""x\ny\u2028""#).replace("\"reads\": [0]", "\"reads\": [1]");
    let shown = graph(&named).unwrap_err().in_file("a.json").to_string();
    assert!(shown.starts_with(r#"a.json: op 0 ("x\ny\u{2028}") reads"#), "{shown}");
    let kind = GRAPH.replace("temporary", r"tem\nporary");
    assert!(!graph(&kind).unwrap_err().to_string().contains('\n'));
}
