//! `spillway conformance`.

use crate::backend::{self, Entry, Ignored, Report};
use crate::failure::Failure;
use crate::output;
use clap::Args;
use spillway::units::parse_bytes;
use std::fmt::Write;
use workloads::Shown;

const EXAMPLES: &str = "\
Examples:
  spillway conformance --backend sim
  spillway conformance --backend host --json
  spillway conformance --backend host --chunk-bytes 2MiB
  spillway conformance --backend vulkan

Each check tests one promise of the backend traits. On the simulated device, each check runs in
twenty orders of the work, or in two orders with --chunk-bytes. The host backend is an example for
new backends; its device is a part of host memory. On Vulkan, the Khronos validation layer watches
all calls if it is installed, and each of its messages is a failure.";

/// Check a backend with the conformance suite
#[derive(Args, Debug)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Arguments {
    /// The backend to check
    #[arg(long, value_name = "BACKEND", value_parser = backend::parser(backend::all()))]
    backend: &'static Entry,
    /// The device's chunk size, a multiple of the backend's own chunk size (65536, 64KiB, 2MiB)
    /// [default: the backend's own chunk size]
    #[arg(long, value_name = "SIZE", value_parser = chunk_bytes)]
    chunk_bytes: Option<u64>,
    /// Print one JSON object and nothing else
    #[arg(long)]
    pub(crate) json: bool,
}

fn chunk_bytes(text: &str) -> Result<u64, String> {
    let bytes = parse_bytes(text).filter(|&bytes| bytes > 0);
    bytes.ok_or_else(|| "the chunk size must be a size such as 65536 or 2MiB".to_owned())
}

/// Runs the command.
pub(crate) fn run(arguments: &Arguments) -> Result<(), Failure> {
    let report = (arguments.backend.conformance)(arguments.chunk_bytes)?;
    if !arguments.json {
        output::print(shown(&report))?;
    }
    let reason = match (&report.device, report.failed.len()) {
        (None, _) => format!("{} has no device", report.backend),
        (Some(_), 0) if arguments.json => return output::print_json("conformance", &report),
        (Some(_), 0) => return Ok(()),
        (Some(_), failed) => format!("{failed} checks failed"),
    };
    Err(Failure::cannot(reason).with(&report))
}

/// The table, with one line per check. A failed or ignored check has its reason.
fn shown(report: &Report) -> String {
    let device = report.device.as_deref().unwrap_or("no device");
    let mut text = format!("{}: {}\n", report.backend, Shown::message(device));
    let mut lines: Vec<(&str, &str, &str)> = Vec::new();
    lines.extend(report.passed.iter().map(|&name| (name, "passed", "")));
    let reason = |name| report.failures.get(name).map_or("", String::as_str);
    lines.extend(report.failed.iter().map(|&name| (name, "FAILED", reason(name))));
    let ignored = report.ignored.iter();
    lines.extend(ignored.map(|Ignored { name, reason }| (*name, "ignored", reason.as_str())));
    lines.sort_by_key(|(name, ..)| name.split("::").next());
    let mut last = "";
    for (name, verdict, reason) in lines {
        let (subject, promise) = name.split_once("::").unwrap_or(("", name));
        if subject != last {
            // Writing to a string does not fail.
            let _ = writeln!(text, "\n  {subject}");
        }
        last = subject;
        let _ = write!(text, "    {verdict:<9}{}", promise.replace('_', " "));
        let _ = match reason {
            "" => writeln!(text),
            reason => writeln!(text, ": {}", Shown::message(reason)),
        };
    }
    let (passed, failed) = (report.passed.len(), report.failed.len());
    let _ = writeln!(text, "\n{passed} passed, {failed} failed, {} ignored", report.ignored.len());
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeMap;

    #[test]
    fn the_table_says_what_failed_and_why() {
        let report = Report {
            backend: "sim",
            device: Some("a device".to_owned()),
            passed: vec!["streams::one_works"],
            failed: vec!["paging::one_fails"],
            ignored: vec![Ignored { name: "streams::one_cannot", reason: "no ears".to_owned() }],
            failures: BTreeMap::from([("paging::one_fails", "order 3: it hurts".to_owned())]),
        };
        let expected = "sim: a device\n\n  paging\n    FAILED   one fails: order 3: it hurts\n\n  \
                        streams\n    passed   one works\n    ignored  one cannot: no ears\n\n\
                        1 passed, 1 failed, 1 ignored\n";
        assert_eq!(shown(&report), expected);
    }
}
