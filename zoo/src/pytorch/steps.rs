//! Finding the recorded step in a Kineto trace that does not know the execution trace's
//! numbers: by the names of its operators.

use super::ImportError;
use super::kineto::Operator;
use super::measured::Threads;
use super::window::Window;
use core::cmp::Reverse;
use hashbrown::HashMap;
use std::collections::BTreeMap;

/// More threads than this are refused: each is searched for in all host threads.
const MOST_THREADS: usize = 64;

/// Operator names as numbers.
type Names<'a> = HashMap<&'a str, u32>;

/// Operators that follow each other on a host thread, named as a thread of the execution
/// trace wants them.
type Run<'a> = &'a [usize];

/// The node of every operator of the last step in which each thread of the execution trace
/// finds a host thread that ran operators of the same names in the same order.
///
/// O(n log n) for n operators and nodes.
///
/// # Errors
/// There is no such step, or the execution trace has too many threads.
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
    if traced.len() > MOST_THREADS {
        return Err(ImportError::ManyThreads { threads: traced.len(), most: MOST_THREADS });
    }
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

/// The runs of operators with the wanted names that are found from the end of each host thread
/// and do not overlap. O(n) (Knuth, Morris, Pratt).
fn runs<'a>(host: &[(Run<'a>, Vec<u32>)], wanted: &[u32]) -> Vec<Run<'a>> {
    let wanted: Vec<u32> = wanted.iter().rev().copied().collect();
    let mut borders = vec![0; wanted.len()];
    for at in 1..wanted.len() {
        borders[at] = matched(&wanted, &borders, borders[at - 1], wanted[at]);
    }
    let mut runs = Vec::new();
    for (thread, names) in host {
        let mut length = 0;
        for (at, &name) in names.iter().enumerate().rev() {
            length = matched(&wanted, &borders, length, name);
            if length == wanted.len() {
                runs.push(&thread[at..at + length]);
                length = 0;
            }
        }
    }
    runs
}

/// How many wanted names match, if `length` of them did before this name. The border of each
/// prefix is the longest shorter prefix that it ends with.
fn matched(wanted: &[u32], borders: &[usize], mut length: usize, name: u32) -> usize {
    while length > 0 && wanted[length] != name {
        length = borders[length - 1];
    }
    length + usize::from(wanted[length] == name)
}

/// One run for each thread, of the last step that has them all: the others start while the
/// first one lasts, each on a host thread of its own. The runs of each thread are in the order of
/// their starts, the last one first. O(n log n).
fn last_complete<'a>(runs: &[Vec<Run<'a>>], operators: &[Operator<'_>]) -> Option<Vec<Run<'a>>> {
    let (main, others) = runs.split_first()?;
    let start_ns = |run: Run<'_>| operators[run[0]].start_ns;
    let thread = |run: Run<'_>| operators[run[0]].thread;
    main.iter().enumerate().find_map(|(at, &run)| {
        let first_ns = start_ns(run);
        let end_ns = run.iter().map(|&at| operators[at].end_ns).max()?;
        // All threads may run the same. Beyond that, one that has started again is a later step;
        // so no run is looked at for more steps than this.
        let later_ns = at.checked_sub(MOST_THREADS).map_or(i64::MAX, |at| start_ns(main[at]));
        let mut step = vec![run];
        for runs in others {
            let late = runs.partition_point(|run| start_ns(run) > end_ns.min(later_ns));
            let mut inside = runs[late..].iter().take_while(|run| start_ns(run) >= first_ns);
            step.push(inside.find(|run| step.iter().all(|taken| thread(taken) != thread(run)))?);
        }
        Some(step)
    })
}
