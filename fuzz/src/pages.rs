//! Reports and pictures of plans with names of any characters: all are well-formed.

use crate::case::Files;
use crate::fault::{Fault, returns};
use crate::numbers::numbers;
use crate::{judge, plans};
use conformance::plans::Case;
use planner_core::PerStream;
use proptest::collection::vec;
use proptest::prelude::*;
use proptest::sample::select;
use roxmltree::Document;
use serde_json::Value;
use spillway::Plan;
use spillway::report::{Actual, Beside, Budgeted};

/// Texts that end or open something in a page, a script, a picture or a file.
const HOSTILE: [&str; 14] = [
    "",
    "</script><script>",
    "]]>",
    "<!--",
    "-->",
    "&lt;&#0;",
    "\"'`",
    "\\u0000\\",
    "\0\u{1}\u{7f}",
    "\n\r\t",
    "\u{202e}\u{2028}\u{feff}",
    "\u{fffe}\u{ffff}",
    "\u{1f600}e\u{301}",
    "{{%s}}${x}",
];

/// A plan with names, and what is shown beside it.
#[derive(Clone, Debug)]
pub struct Input {
    case: Case,
    names: Vec<String>,
    curve: Vec<(u64, u64)>,
    first_iteration: u64,
    /// Starts and ends, dealt to the streams in turn.
    steps_ns: Vec<[u64; 2]>,
}

/// Any input.
pub fn inputs() -> impl Strategy<Value = Input> {
    let hostile = || select(HOSTILE.to_vec()).prop_map(str::to_owned);
    let any = || vec(any::<char>(), 0..=40).prop_map(|chars| chars.into_iter().collect::<String>());
    let name = prop_oneof![
        3 => (hostile(), any(), hostile()).prop_map(|(one, any, other)| one + &any + &other),
        1 => any(),
        1 => (hostile(), 0..=300usize).prop_map(|(text, times)| text.repeat(times)),
    ];
    // A device's clock goes forward.
    let spans = vec(0..=1u64 << 40, 0..=120).prop_map(|mut times_ns| {
        times_ns.sort_unstable();
        times_ns.chunks_exact(2).map(|pair| [pair[0], pair[1]]).collect::<Vec<_>>()
    });
    (plans::plans(), vec(name, 1..=6), vec((numbers(), numbers()), 0..=4), 0..=1u64 << 40, spans)
        .prop_map(|(case, names, curve, first_iteration, steps_ns)| Input {
            case,
            names,
            curve,
            first_iteration,
            steps_ns,
        })
}

/// The plan's files, and all of the input in words.
#[must_use]
pub fn files(input: &Input) -> Files {
    let mut files = plans::files(&input.case);
    files.push(("input.txt", format!("{input:#?}").into_bytes()));
    files
}

/// Writes and parses all.
///
/// # Errors
/// A panic, or what no parser reads.
pub fn check(input: &Input) -> Result<(), Fault> {
    let name = |number: usize| input.names[number % input.names.len()].clone();
    let mut case = input.case.clone();
    case.graph.name = name(0);
    let names = case.graph.tensor_names.iter_mut().chain(&mut case.graph.op_names);
    names.enumerate().for_each(|(number, it)| *it = name(number));
    let machine = plans::named(&name(1), case.machine);
    let proved = returns("proving", || judge::proved(&case, &machine))?;
    let Some(plan) = proved else { return Ok(()) };
    check_file(&plan)?;
    let streams = [0, 1, 2, 3]
        .map(|stream| input.steps_ns.iter().skip(stream).step_by(4).copied().collect::<Vec<_>>());
    let actual = Actual {
        device: name(2),
        first_iteration: input.first_iteration,
        steps_ns: PerStream(streams),
    };
    let budgeted = |&(budget_bytes, period_ns): &(u64, u64)| Budgeted { budget_bytes, period_ns };
    let curve: Vec<_> = input.curve.iter().map(budgeted).collect();
    let beside = Beside { curve, actual: Some(actual) };
    let fault = |what: &str, error: String| {
        Fault::new(format!("{what} is malformed"), format!("{what}: {error}"))
    };
    let picture = returns("picture", || plan.picture())?;
    let picture = picture.map_err(|error| fault("a picture", error.to_string()))?;
    Document::parse(&picture).map_err(|error| fault("a picture", error.to_string()))?;
    for beside in [Beside::default(), beside] {
        let page = returns("report", || plan.report_beside(&beside))?;
        let page = page.map_err(|error| fault("a report", error.to_string()))?;
        check_page(&page).map_err(|error| fault("a report", error))?;
    }
    Ok(())
}

/// What is written of a plan is read as the same plan.
fn check_file(plan: &Plan) -> Result<(), Fault> {
    let read = returns("Plan::from_json", || {
        Plan::from_json(&plan.to_json(), plan.graph(), plan.machine())
    })?;
    match read {
        Ok(read) if read.owned() == plan.owned() => Ok(()),
        other => {
            let detail = format!("{:?}", other.map(|read| read.owned().clone()));
            Err(Fault::new("a plan file is another plan", detail))
        }
    }
}

/// A page without its scripts is XML, and the names among these are JSON.
fn check_page(page: &str) -> Result<(), String> {
    let mut rest = page.strip_prefix("<!DOCTYPE html>\n").ok_or("no HTML")?;
    let mut markup = String::new();
    while let Some((before, script)) = rest.split_once("<script") {
        markup.push_str(before);
        let (opening, script) = script.split_once('>').ok_or("an open tag")?;
        let (text, after) = script.split_once("</script>").ok_or("an open script")?;
        if opening.contains("application/json") {
            serde_json::from_str::<Value>(text).map_err(|error| error.to_string())?;
        }
        rest = after;
    }
    markup.push_str(rest);
    Document::parse(&markup).map(|_| ()).map_err(|error| error.to_string())
}
