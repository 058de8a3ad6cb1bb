//! Finding the recorded step in a Kineto trace that does not know the execution trace's
//! numbers: by the names of its operators.

use super::ImportError;
use super::kineto::Operator;
use super::measured::Threads;
use super::window::Window;
use core::cmp::Reverse;
use hashbrown::HashMap;
use std::collections::BTreeMap;

/// Operator names as numbers.
type Names<'a> = HashMap<&'a str, u32>;

/// Operators that follow each other on a host thread, named as a thread of the execution
/// trace wants them.
type Run<'a> = &'a [usize];

/// The node of every operator of the last step in which each thread of the execution trace
/// finds a host thread that ran operators of the same names in the same order.
///
/// # Errors
/// There is no such step.
pub(super) fn nodes_by_name(
    window: &Window,
    operators: &[Operator<'_>],
    threads: &Threads,
) -> Result<Vec<Option<usize>>, ImportError> {
    let mut names = Names::new();
    for operator in operators {
        let next = names.len() as u32;
        names.entry(&operator.name).or_insert(next);
    }
    let host: Vec<(Run<'_>, Vec<u32>)> = threads
        .values()
        .map(|thread| (&**thread, thread.iter().map(|&at| names[&*operators[at].name]).collect()))
        .collect();
    let traced = traced_threads(window, &names);
    let runs: Vec<Vec<Run<'_>>> = traced
        .iter()
        .map(|nodes| {
            let wanted: Vec<u32> =
                nodes.iter().map(|&node| names[&*window.nodes[node].name]).collect();
            let mut runs = runs(&host, &wanted);
            runs.sort_by_key(|run| Reverse(operators[run[0]].start_ns));
            runs
        })
        .collect();
    let step = last_complete(&runs, operators).ok_or(ImportError::NoStepMatches)?;
    let mut node_of = vec![None; operators.len()];
    for (run, nodes) in step.into_iter().zip(&traced) {
        run.iter().zip(nodes).for_each(|(&operator, &node)| node_of[operator] = Some(node));
    }
    Ok(node_of)
}

/// The nodes of every thread of the execution trace, the thread that starts first in front.
/// Annotations and the roots of threads are no operators to Kineto.
fn traced_threads(window: &Window, names: &Names<'_>) -> Vec<Vec<usize>> {
    let mut threads: BTreeMap<u64, Vec<usize>> = BTreeMap::new();
    for (at, node) in window.nodes.iter().enumerate() {
        if names.contains_key(&*node.name) {
            threads.entry(node.thread).or_default().push(at);
        }
    }
    let mut threads: Vec<_> = threads.into_values().collect();
    threads.sort_by_key(|nodes| nodes[0]);
    threads
}

/// Every run of operators with the wanted names.
fn runs<'a>(host: &[(Run<'a>, Vec<u32>)], wanted: &[u32]) -> Vec<Run<'a>> {
    let mut runs = Vec::new();
    for (thread, names) in host {
        let found = names.windows(wanted.len()).enumerate().filter(|(_, run)| *run == wanted);
        runs.extend(found.map(|(at, _)| &thread[at..at + wanted.len()]));
    }
    runs
}

/// One run for each thread, of the last step that has them all: the others start while the
/// first one lasts, each on a host thread of its own.
fn last_complete<'a>(runs: &[Vec<Run<'a>>], operators: &[Operator<'_>]) -> Option<Vec<Run<'a>>> {
    let (main, others) = runs.split_first()?;
    let thread = |run: Run<'_>| operators[run[0]].thread;
    main.iter().find_map(|&run| {
        let start_ns = operators[run[0]].start_ns;
        let end_ns = run.iter().map(|&at| operators[at].end_ns).max()?;
        let mut step = vec![run];
        for runs in others {
            let fits = |run: &&Run<'a>| {
                (start_ns..=end_ns).contains(&operators[run[0]].start_ns)
                    && step.iter().all(|taken| thread(taken) != thread(run))
            };
            step.push(runs.iter().find(fits)?);
        }
        Some(step)
    })
}
