//! Reports, pictures and traces of plans with names of any characters, beside measured times: all are
//! well-formed. Times that are not those of a run are refused.

use crate::case::Files;
use crate::fault::{Fault, returns};
use crate::numbers::numbers;
use crate::{judge, plans};
use conformance::plans::Case;
use planner_core::{Part, PerStream, Step, Stream};
use proptest::collection::vec;
use proptest::prelude::*;
use proptest::sample::select;
use roxmltree::Document;
use serde_json::Value;
use spillway::report::{Actual, Beside, Budgeted};
use spillway::{Error, OwnedPlan, Plan};

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
    times: Times,
}

/// Measured times, made for a plan once it is known.
#[derive(Clone, Debug)]
struct Times {
    iterations: usize,
    /// How long streams are idle and busy, in turn.
    ns: Vec<u64>,
    /// How many times are taken off the end of each stream.
    missing: [usize; 5],
    /// Times in the place of others: the stream, the step, start and end; none for its own, exchanged.
    wrong: Vec<(usize, usize, Option<[u64; 2]>)>,
}

impl Times {
    /// The times of a run of a plan, or what the damage makes of them.
    fn of(&self, plan: &Plan) -> PerStream<Vec<[u64; 2]>> {
        let mut at = self.ns.iter().cycle();
        let mut after = |ns: u64| ns.saturating_add(at.next().copied().unwrap_or(0));
        let mut steps_ns = PerStream::from_fn(|stream| {
            let graph = plan.graph().graph();
            let is_there = |step: &&Step| Stream::of(&graph, step) == Some(stream);
            let steps = plan.owned().steps.iter().filter(is_there).count();
            let mut free_ns = 0;
            let mut step = |_| {
                let start_ns = after(free_ns);
                free_ns = after(start_ns);
                [start_ns, free_ns]
            };
            (0..self.iterations * steps).map(&mut step).collect::<Vec<_>>()
        });
        for (stream, missing) in Stream::ALL.into_iter().zip(self.missing) {
            let len = steps_ns[stream].len();
            steps_ns[stream].truncate(len - missing.min(len));
        }
        for &(stream, step, ns) in &self.wrong {
            let of_stream = &mut steps_ns.0[stream];
            match (of_stream.len(), ns) {
                (0, ns) => of_stream.extend(ns),
                (len, Some(ns)) => of_stream[step % len] = ns,
                (len, None) => of_stream[step % len].reverse(),
            }
        }
        steps_ns
    }
}

fn times() -> impl Strategy<Value = Times> {
    let ns = vec(prop_oneof![4 => 0..=1u64 << 40, 1 => numbers()], 1..=40);
    let missing = prop_oneof![3 => Just([0; 5]), 1 => [0..=9usize, 0..=9, 0..=9, 0..=9, 0..=9]];
    let wrong = (0..4usize, any::<usize>(), prop::option::of([numbers(), numbers()]));
    let wrong = prop_oneof![1 => Just(Vec::new()), 1 => vec(wrong, 1..=3)];
    (0..=9usize, ns, missing, wrong).prop_map(|(iterations, ns, missing, wrong)| Times {
        iterations,
        ns,
        missing,
        wrong,
    })
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
    let first_iteration = prop_oneof![4 => 0..=1u64 << 40, 1 => numbers()];
    let curve = vec((numbers(), numbers()), 0..=4);
    (plans::plans(), vec(name, 1..=6), curve, first_iteration, times()).prop_map(
        |(case, names, curve, first_iteration, times)| Input {
            case,
            names,
            curve,
            first_iteration,
            times,
        },
    )
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
/// A panic, what no parser reads, or times of a run that are refused.
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
    let actual = Actual::new(name(2), input.first_iteration, input.times.of(&plan));
    let is_run = input.times.wrong.is_empty() && input.first_iteration <= 1 << 40;
    let fault = |what: &str, error: String| {
        Fault::new(format!("{what} is malformed"), format!("{what}: {error}"))
    };
    let picture = returns("picture", || plan.picture())?;
    Document::parse(&picture).map_err(|error| fault("a picture", error.to_string()))?;
    let trace = returns("trace", || plan.trace())?;
    check_trace(Ok(trace), true)?;
    let trace = returns("trace beside", || plan.trace_beside(&actual))?;
    check_trace(trace, is_run)?;
    let budgeted = |&(budget_bytes, period_ns): &(u64, u64)| Budgeted::new(budget_bytes, period_ns);
    let curve: Vec<_> = input.curve.iter().map(budgeted).collect();
    let beside = Beside::new().with_curve(curve).with_actual(actual);
    for (beside, is_run) in [(Beside::default(), true), (beside, is_run)] {
        let page = returns("report", || plan.report_beside(&beside))?;
        if let Some(page) = drawn("a report", page, is_run)? {
            check_page(&page).map_err(|error| fault("a report", error))?;
        }
    }
    Ok(())
}

/// What is drawn; none where the times are not those of a run, and are refused.
fn drawn<T>(what: &str, drawn: Result<T, Error>, is_run: bool) -> Result<Option<T>, Fault> {
    match drawn {
        Ok(drawn) => Ok(Some(drawn)),
        Err(Error::Measured(_)) if !is_run => Ok(None),
        Err(error) => Err(Fault::new(format!("{what} is refused"), format!("{what}: {error}"))),
    }
}

/// A trace is JSON, and no time in it is negative.
fn check_trace(trace: Result<Vec<u8>, Error>, is_run: bool) -> Result<(), Fault> {
    let Some(trace) = drawn("a trace", trace, is_run)? else { return Ok(()) };
    let fault = |error: String| Fault::new("a trace is malformed", format!("a trace: {error}"));
    let trace: Value = serde_json::from_slice(&trace).map_err(|error| fault(error.to_string()))?;
    let events = trace["traceEvents"].as_array().ok_or_else(|| fault("no events".to_owned()))?;
    let is_time = |time: &Value| time.is_null() || time.as_f64().is_some_and(|time| time >= 0.0);
    match events.iter().find(|event| !is_time(&event["ts"]) || !is_time(&event["dur"])) {
        None => Ok(()),
        Some(event) => Err(fault(format!("a negative time: {event}"))),
    }
}

/// What is written of a plan is read as the same plan.
fn check_file(plan: &Plan) -> Result<(), Fault> {
    let read = returns("Plan::from_json", || {
        Plan::from_json(&plan.to_json(), plan.graph(), plan.machine())
    })?;
    match read {
        Ok(read) if *read.owned() == with_whole_parts(plan.owned()) => Ok(()),
        other => {
            let detail = format!("{:?}", other.map(|read| read.owned().clone()));
            Err(Fault::new("a plan file is another plan", detail))
        }
    }
}

/// The plan as it is read: a whole tensor has no first object.
fn with_whole_parts(plan: &OwnedPlan) -> OwnedPlan {
    let canonical = |part: Part| if part.is_whole() { Part::whole(part.tensor) } else { part };
    let mut plan = plan.clone();
    for entry in &mut plan.resident_at_start {
        entry.part = canonical(entry.part);
    }
    for step in &mut plan.steps {
        match step {
            Step::Prefetch(part) | Step::Offload(part) | Step::Evict(part) => {
                *part = canonical(*part);
            }
            Step::Launch(_) | Step::Host(_) => {}
        }
    }
    plan
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
