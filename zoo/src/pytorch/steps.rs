//! Search for the recorded step in a Kineto trace by the names of its operators, for traces without the
//! numbers of the execution trace.

use super::ImportError;
use super::kineto::Operator;
use super::measured::Threads;
use super::window::Window;
use core::cmp::Reverse;
use hashbrown::HashMap;
use std::collections::BTreeMap;

/// The most threads. More are refused, since each is searched in all host threads.
const MOST_THREADS: usize = 64;

/// Operator names as numbers.
type Names<'a> = HashMap<&'a str, u32>;

/// Consecutive operators on a host thread with the names of a thread of the execution trace.
type Run<'a> = &'a [usize];

/// Returns the node of every operator of the last matching step. In such a step, each thread of the execution
/// trace has a host thread that ran operators with the same names in the same order.
///
/// O(n log n) for n operators and nodes.
///
/// # Errors
/// No step matches, or the execution trace has too many threads.
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

/// Returns the nodes of every thread of the execution trace. The thread that starts first comes first.
/// Annotations and the roots of threads are not operators in Kineto.
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

/// Returns the runs of operators with the wanted names, found from the end of each host thread without
/// overlaps. O(n) (Knuth, Morris, Pratt).
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

/// Returns the number of matched names after this name, if `length` names matched before it. The border of
/// each prefix is the longest shorter prefix that it ends with.
fn matched(wanted: &[u32], borders: &[usize], mut length: usize, name: u32) -> usize {
    while length > 0 && wanted[length] != name {
        length = borders[length - 1];
    }
    length + usize::from(wanted[length] == name)
}

/// Returns one run for each thread from the last complete step. In such a step, the other runs start during
/// the first one, each on its own host thread. `runs` has the runs of each thread by start, the last one
/// first. O(n log n).
fn last_complete<'a>(runs: &[Vec<Run<'a>>], operators: &[Operator<'_>]) -> Option<Vec<Run<'a>>> {
    let (main, others) = runs.split_first()?;
    let start_ns = |run: Run<'_>| operators[run[0]].start_ns;
    let thread = |run: Run<'_>| operators[run[0]].thread;
    main.iter().enumerate().find_map(|(at, &run)| {
        let first_ns = start_ns(run);
        let end_ns = run.iter().map(|&at| operators[at].end_ns).max()?;
        // All threads may run the same operators, so at most `MOST_THREADS` runs belong to one step. A later
        // start belongs to a later step. This bounds the number of steps that look at a run.
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
