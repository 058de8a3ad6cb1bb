//! The measured time of each op. The import follows kernels to launches, operators, nodes and ops.

use super::kineto::{Kineto, Operator, Thread};
use super::ops::TracedOp;
use super::steps;
use super::window::Window;
use super::{Device, ImportError};
use core::cmp::Reverse;
use hashbrown::{HashMap, HashSet};
use std::collections::BTreeMap;

/// The times of all ops, and a report on how well the two traces fit.
pub(super) struct Measured {
    pub(super) op_ns: Vec<u64>,
    pub(super) kernels: usize,
    pub(super) kernels_with_op: usize,
    pub(super) ops_with_kernel: usize,
}

/// The operators of each host thread in the order of their starts, outer operators first.
pub(super) type Threads = BTreeMap<Thread, Vec<usize>>;

/// Gives every op the time of the kernels that it launched, or on a CPU the time of its operators. An op
/// without kernels or operators takes no time.
///
/// # Errors
/// The two traces are of different work.
pub(super) fn measure(
    window: &Window,
    ops: &[TracedOp],
    kineto: &Kineto<'_>,
    device: Device,
) -> Result<Measured, ImportError> {
    let threads = by_thread(&kineto.operators);
    let nodes = if kineto.operators.iter().any(|operator| operator.record_id != 0) {
        nodes_by_record(window, &kineto.operators)
    } else {
        steps::nodes_by_name(window, &kineto.operators, &threads)?
    };
    let mut node_ns: HashMap<usize, u64> = HashMap::new();
    let mut measured =
        Measured { op_ns: vec![0; ops.len()], kernels: 0, kernels_with_op: 0, ops_with_kernel: 0 };
    let has_op: HashSet<usize> = ops.iter().map(|op| op.node).collect();
    let around = window.innermost(|node| has_op.contains(&node));
    let times_ns = match device {
        Device::Cuda => launched(kineto, &threads),
        Device::Cpu => own_times(&kineto.operators, &threads),
    };
    for (operator, duration_ns) in times_ns {
        let Some(node) = nodes[operator] else { continue };
        measured.kernels += 1;
        let of_op = if has_op.contains(&node) { Some(node) } else { around[node] };
        if let Some(node) = of_op {
            measured.kernels_with_op += 1;
            let sum_ns = node_ns.entry(node).or_default();
            *sum_ns = sum_ns.saturating_add(duration_ns);
        }
    }
    if measured.kernels_with_op == 0 {
        return Err(match device {
            Device::Cuda => ImportError::NoKernelMatches,
            Device::Cpu => ImportError::NoStepMatches,
        });
    }
    let mut first = 0;
    for of_node in ops.chunk_by(|a, b| a.node == b.node) {
        let end = first + of_node.len();
        if let Some(&sum_ns) = node_ns.get(&of_node[0].node) {
            measured.ops_with_kernel += of_node.len();
            split(sum_ns, of_node, &mut measured.op_ns[first..end]);
        }
        first = end;
    }
    Ok(measured)
}

fn by_thread(operators: &[Operator<'_>]) -> Threads {
    let mut threads = Threads::new();
    for (at, operator) in operators.iter().enumerate() {
        threads.entry(operator.thread).or_default().push(at);
    }
    for thread in threads.values_mut() {
        thread.sort_by_key(|&at| (operators[at].start_ns, Reverse(operators[at].end_ns)));
    }
    threads
}

/// Divides the time of a node among its ops by the bytes that they move.
fn split(sum_ns: u64, ops: &[TracedOp], op_ns: &mut [u64]) {
    if let [only] = op_ns {
        *only = sum_ns;
        return;
    }
    let total: u128 = ops.iter().map(|op| u128::from(op.traffic_bytes)).sum();
    for (op, op_ns) in ops.iter().zip(op_ns) {
        let share = u128::from(sum_ns) * u128::from(op.traffic_bytes) / total.max(1);
        *op_ns = u64::try_from(share).unwrap_or(u64::MAX);
    }
}

/// Returns the node of every operator, by the number of the call in both traces.
fn nodes_by_record(window: &Window, operators: &[Operator<'_>]) -> Vec<Option<usize>> {
    let records: HashMap<u64, usize> =
        window.nodes.iter().enumerate().map(|(at, node)| (node.record_id, at)).collect();
    let node = |operator: &Operator<'_>| match operator.record_id {
        0 => None,
        record => records.get(&record).copied(),
    };
    operators.iter().map(node).collect()
}

/// Returns the innermost operator around the launch of each kernel, with the kernel's time.
fn launched(kineto: &Kineto<'_>, threads: &Threads) -> Vec<(usize, u64)> {
    let mut launches: Vec<(Thread, i64, u64)> = kineto
        .kernels
        .iter()
        .filter_map(|kernel| {
            let &(thread, launch_ns) = kineto.launches.get(&kernel.correlation)?;
            Some((thread, launch_ns, kernel.duration_ns))
        })
        .collect();
    launches.sort_unstable();
    let mut found = Vec::new();
    for launches in launches.chunk_by(|a, b| a.0 == b.0) {
        let mut to_start = threads.get(&launches[0].0).into_iter().flatten().copied().peekable();
        let mut running: Vec<usize> = Vec::new();
        for &(_, launch_ns, duration_ns) in launches {
            running.extend(core::iter::from_fn(|| {
                to_start.next_if(|&at| kineto.operators[at].start_ns <= launch_ns)
            }));
            while running.pop_if(|&mut at| kineto.operators[at].end_ns < launch_ns).is_some() {}
            found.extend(running.last().map(|&operator| (operator, duration_ns)));
        }
    }
    found
}

/// Returns every operator with its time, without the time of the operators inside it.
fn own_times(operators: &[Operator<'_>], threads: &Threads) -> Vec<(usize, u64)> {
    let duration_ns = |at: usize| operators[at].end_ns.abs_diff(operators[at].start_ns);
    let mut own_ns: Vec<u64> = (0..operators.len()).map(duration_ns).collect();
    for thread in threads.values() {
        let mut running: Vec<usize> = Vec::new();
        for &at in thread {
            let start_ns = operators[at].start_ns;
            while running.pop_if(|&mut outer| operators[outer].end_ns <= start_ns).is_some() {}
            if let Some(&outer) = running.last() {
                own_ns[outer] = own_ns[outer].saturating_sub(duration_ns(at));
            }
            running.push(at);
        }
    }
    own_ns.into_iter().enumerate().collect()
}
