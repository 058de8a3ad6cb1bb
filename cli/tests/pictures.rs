//! The trace and the report: both show what was planned, and need nothing from elsewhere.
#![allow(clippy::unwrap_used, reason = "what fails here fails the test")]

use crate::common::{Folder, SMALL};
use serde_json::Value;
use std::fs;

#[test]
fn the_trace_shows_three_streams_and_the_memory() {
    let folder = Folder::new();
    let arguments = ["plan", SMALL, "-b", "30%", "-s", "on-demand", "--trace", "t.json", "--json"];
    let figures = folder.run(&arguments).done().json();
    let trace: Value = serde_json::from_slice(&fs::read(folder.path("t.json")).unwrap()).unwrap();
    let events = trace["traceEvents"].as_array().unwrap();
    let track = |name: &str| {
        let named =
            |event: &&Value| event["name"] == "thread_name" && event["args"]["name"] == name;
        events.iter().find(named).unwrap()["tid"].clone()
    };
    let slices = |name: &str| {
        let track = track(name);
        let on_track = events.iter().filter(move |e| e["ph"] == "X" && e["tid"] == track);
        let span = |event: &Value| (event["ts"].as_f64().unwrap(), event["dur"].as_f64().unwrap());
        on_track.map(span).collect::<Vec<_>>()
    };
    for stream in ["compute", "upload", "download"] {
        let slices = slices(stream);
        assert!(slices.len() > 4, "{stream}");
        let apart = |pair: &[(f64, f64)]| pair[0].0 + pair[0].1 <= pair[1].0 + 1e-6;
        assert!(slices.windows(2).all(apart), "{stream}");
    }
    // Four iterations of the predicted period.
    let compute = slices("compute");
    assert!(events.iter().any(|event| event["args"]["what"] == "launch of op 0 (\"conv1\")"));
    let (start, duration) = compute[compute.len() - 1];
    let period_us = figures["period_ns"].as_f64().unwrap() / 1e3;
    assert!((start + duration - 4.0 * period_us).abs() < 0.01 * period_us);

    let held = events.iter().filter(|event| event["ph"] == "C");
    let most = held.map(|event| event["args"]["held"].as_f64().unwrap()).fold(0.0, f64::max);
    let budget = figures["budget_bytes"].as_f64().unwrap() / f64::from(1 << 20);
    assert!(most <= budget && most > 0.8 * budget, "{most} of {budget}");
}

#[test]
fn the_report_needs_nothing_from_elsewhere() {
    let folder = Folder::new();
    folder.run(&["plan", SMALL, "-b", "30%", "--report", "r.html"]).done();
    let page = fs::read_to_string(folder.path("r.html")).unwrap();
    assert!(page.starts_with("<!DOCTYPE html>") && page.trim_end().ends_with("</html>"));
    for foreign in ["http", "src=", "url(", "import", "fetch(", "<link", "NaN"] {
        assert!(!page.contains(foreign), "{foreign}");
    }
    for part in ["<svg", "class=\"budget\"", "Largest traffic", "Stalls", "upload of "] {
        assert!(page.contains(part), "{part}");
    }
    for stream in ["compute", "upload", "download", "stall"] {
        assert!(page.contains(&format!("<rect class=\"b {stream}")), "{stream}");
    }
}

/// The times in the report's table, in nanoseconds.
fn stalls_ns(page: &str) -> Vec<f64> {
    let table = page.split("<h2>Stalls</h2>").nth(1).unwrap();
    let cells = table.split("<td class=\"n\">").skip(1).map(|cell| cell.split('<').next().unwrap());
    cells
        .map(|cell| {
            let (number, unit) = cell.split_once(' ').unwrap();
            let units = [("ns", 1.0), ("µs", 1e3), ("ms", 1e6)];
            let (_, ns) = units.into_iter().find(|&(name, _)| name == unit).unwrap();
            number.parse::<f64>().unwrap() * ns
        })
        .collect()
}

#[test]
fn the_longest_stalls_come_first() {
    let folder = Folder::new();
    folder.run(&["plan", SMALL, "-b", "30%", "-s", "on-demand", "--report", "r.html"]).done();
    let page = fs::read_to_string(folder.path("r.html")).unwrap();
    let stalls_ns = stalls_ns(&page);
    assert!(
        stalls_ns.len() > 4 && stalls_ns.is_sorted_by(|one, other| one >= other),
        "{stalls_ns:?}"
    );
    assert!(stalls_ns[0] > 1.5 * stalls_ns[stalls_ns.len() - 1], "{stalls_ns:?}");
}

/// Names come from files, and files from anywhere.
#[test]
fn names_are_escaped() {
    let folder = Folder::new();
    let graph = r#"{"format":"spillway.graph.v1","name":"<script>g</script>","tensors":[{"name":"<u>","bytes":9000000,"kind":"input"}],"ops":[{"name":"<i>","time_ns":100000,"reads":[0],"writes":[]}]}"#;
    folder.write("g.json", graph);
    folder.run(&["plan", "g.json", "-s", "on-demand", "--report", "r.html"]).done();
    let page = fs::read_to_string(folder.path("r.html")).unwrap();
    assert!(page.contains("&lt;script&gt;g") && page.contains("&lt;u&gt;"));
    for tag in ["<script>g", "<u>", "<i>"] {
        assert!(!page.contains(tag), "{tag}");
    }
}

/// Work that takes no time, or moves nothing, has no timeline to divide by.
#[test]
fn empty_timelines_are_drawn() {
    let folder = Folder::new();
    for (time_ns, bytes) in [(0, 1), (5, 1), (u64::MAX / 8, 1)] {
        let graph = format!(
            r#"{{"format":"spillway.graph.v1","name":"g","tensors":[{{"name":"w","bytes":{bytes},"kind":"state"}}],"ops":[{{"name":"o","time_ns":{time_ns},"reads":[0],"writes":[]}}]}}"#
        );
        folder.write("g.json", graph);
        folder.run(&["plan", "g.json", "--report", "r.html", "--trace", "t.json"]).done();
        let page = fs::read_to_string(folder.path("r.html")).unwrap();
        assert!(page.contains("Nothing moves") && page.contains("Compute never waits"));
        assert!(!page.contains("NaN") && !page.contains("inf "));
    }
}

#[test]
fn the_report_draws_other_budgets() {
    let folder = Folder::new();
    let plan = ["plan", SMALL, "-b", "50%", "-s", "on-demand", "--report", "r.html"];
    folder.run(&plan).done();
    let points = || {
        let page = fs::read_to_string(folder.path("r.html")).unwrap();
        page.matches("<circle class=\"point").count()
    };
    assert_eq!(points(), 6);
    folder.run(&[&plan[..], &["--curve", "1MiB,80%,50%,80%"]].concat()).done();
    assert_eq!(points(), 2, "one has no plan, one is there twice");
    folder.run(&["plan", SMALL, "--curve", "80%"]).fails(2, &["--report"]);
}

#[test]
fn a_run_is_drawn_beside_its_plan() {
    let folder = Folder::new();
    let run = ["run", SMALL, "-b", "35%", "--report", "r.html", "--trace", "t.json"];
    folder.run(&run).done();
    let page = fs::read_to_string(folder.path("r.html")).unwrap();
    assert!(page.contains("Every step took as long as predicted"), "nothing disturbs it");
    let ran = folder.run(&[&run[..], &["--delays", "3"]].concat()).done();
    assert!(ran.stdout.contains("more than predicted"), "{}", ran.stdout);
    let page = fs::read_to_string(folder.path("r.html")).unwrap();
    assert!(page.contains("<td class=\"n\">+"), "copies take longer");
    let trace: Value = serde_json::from_slice(&fs::read(folder.path("t.json")).unwrap()).unwrap();
    let events = trace["traceEvents"].as_array().unwrap();
    let slower = |event: &&Value| {
        let (took, planned) = (event["dur"].as_f64(), event["args"]["planned_ns"].as_f64());
        took.zip(planned).is_some_and(|(took, planned)| took > 1.5 * planned / 1e3)
    };
    let slow: Vec<_> = events.iter().filter(slower).collect();
    assert!(slow.len() > 4 && slow.iter().all(|event| event["pid"] == 2 && event["tid"] != 1));
    folder.run(&["run", SMALL, "--backend", "cuda", "--delays", "1"]).fails(2, &["simulated"]);
}
