//! A least period that holds for every order of the ops; `docs/bounds.md` has the proof.

use planner_core::machine::transmission_ns;
use planner_core::{Graph, Kind, Machine, OpId};

/// A tensor's life: the ops that touch it from where its value begins until it is
/// overwritten unread. Every order keeps which ops these are.
#[derive(Clone, Debug)]
struct Life {
    bytes: u64,
    /// Whether the value comes from the host, so that nothing need go there.
    arrives: bool,
    touches: Vec<OpId>,
}

/// A period that no plan can beat, in whatever order it runs the ops: the larger of compute
/// and what must cross each link within a budget. O(operands × temporaries / 64).
#[must_use]
pub fn any_order_ns(graph: &Graph<'_>, machine: &Machine, budget_bytes: u64) -> u64 {
    let before = dependencies(graph);
    let lives = lives(graph);
    let mut at = Held::new(graph);
    for block in lives.chunks(u64::BITS as usize) {
        at.add(block, &before);
    }
    let excess_bytes =
        |held: &[u64]| held.iter().max().map_or(0, |&held| held.saturating_sub(budget_bytes));
    let arriving_bytes =
        lives.iter().filter(|life| life.arrives).map(|life| life.bytes).sum::<u64>();
    let up_bytes = arriving_bytes.saturating_add(excess_bytes(&at.up_bytes));
    let down_bytes = excess_bytes(&at.down_bytes);
    let link_ns = |bytes, bytes_per_s| transmission_ns(bytes, bytes_per_s).unwrap_or(u64::MAX);
    graph
        .compute_ns()
        .max(link_ns(up_bytes, machine.h2d_bytes_per_s))
        .max(link_ns(down_bytes, machine.d2h_bytes_per_s))
}

/// Which ops must run before each: those that wrote what it touches, and those that touched
/// what it writes.
fn dependencies(graph: &Graph<'_>) -> Vec<Vec<OpId>> {
    let mut writer = vec![None; graph.tensors().len()];
    let mut readers = vec![Vec::new(); graph.tensors().len()];
    let mut before = Vec::with_capacity(graph.ops().len());
    for op in graph.op_ids() {
        let mut earlier: Vec<OpId> =
            graph.touches(op).filter_map(|tensor| writer[tensor.index()]).collect();
        for tensor in graph.writes(op) {
            earlier.append(&mut readers[tensor.index()]);
            writer[tensor.index()] = Some(op);
        }
        for tensor in graph.reads(op) {
            readers[tensor.index()].push(op);
        }
        earlier.retain(|&other| other != op);
        before.push(earlier);
    }
    before
}

fn lives(graph: &Graph<'_>) -> Vec<Life> {
    let mut lives: Vec<Life> = Vec::new();
    let mut current = vec![None; graph.tensors().len()];
    for op in graph.op_ids() {
        for tensor in graph.touches(op) {
            let data = graph.tensor(tensor);
            if data.kind == Kind::State {
                continue;
            }
            let reads = graph.reads(op).contains(&tensor);
            match current[tensor.index()] {
                Some(life) if reads => {
                    let life: &mut Life = &mut lives[life];
                    life.touches.push(op);
                }
                _ => {
                    current[tensor.index()] = Some(lives.len());
                    lives.push(Life { bytes: data.bytes, arrives: reads, touches: vec![op] });
                }
            }
        }
    }
    lives
}

/// For each op, the bytes that are on the device or on the host while it runs, and that have
/// to cross a link once an iteration for every byte that is on the host.
struct Held {
    up_bytes: Vec<u64>,
    down_bytes: Vec<u64>,
}

impl Held {
    /// Workspaces, states, and operands. A state that some op overwrites unread may be dead
    /// wherever it is not touched.
    fn new(graph: &Graph<'_>) -> Self {
        let tensors = graph.tensors().len();
        let (mut read, mut written) = (vec![false; tensors], vec![false; tensors]);
        let mut overwritten = vec![false; tensors];
        for op in graph.op_ids() {
            graph.reads(op).iter().for_each(|tensor| read[tensor.index()] = true);
            for tensor in graph.writes(op) {
                written[tensor.index()] = true;
                overwritten[tensor.index()] |= !graph.reads(op).contains(tensor);
            }
        }
        let held = |moves: &[bool]| {
            let always = |index: usize| moves[index] && !overwritten[index];
            let states = graph.tensors().iter().enumerate();
            let always_bytes = states
                .filter(|&(index, tensor)| tensor.kind == Kind::State && always(index))
                .fold(0u64, |sum, (_, tensor)| sum + tensor.bytes);
            let of_op = |op: OpId| {
                let states = graph.touches(op).filter(|&tensor| {
                    graph.tensor(tensor).kind == Kind::State && !always(tensor.index())
                });
                let bytes = states.fold(0, |sum, tensor| sum + graph.tensor(tensor).bytes);
                always_bytes + bytes + graph.op(op).workspace_bytes
            };
            graph.op_ids().map(of_op).collect()
        };
        Self { up_bytes: held(&read), down_bytes: held(&written) }
    }

    /// Adds up to 64 lives, each at the ops that follow one of its touches and come before
    /// another in every order.
    fn add(&mut self, lives: &[Life], before: &[Vec<OpId>]) {
        let mut follows = vec![0u64; before.len()];
        for (bit, life) in lives.iter().enumerate() {
            life.touches.iter().for_each(|op| follows[op.index()] |= 1 << bit);
        }
        let touches = follows.clone();
        let mut precedes = follows.clone();
        for (op, earlier) in before.iter().enumerate() {
            follows[op] = earlier.iter().fold(follows[op], |bits, e| bits | follows[e.index()]);
        }
        for (op, earlier) in before.iter().enumerate().rev() {
            let bits = precedes[op];
            earlier.iter().for_each(|e| precedes[e.index()] |= bits);
        }
        for op in 0..before.len() {
            for (bit, life) in lives.iter().enumerate() {
                let is = |bits: u64| bits >> bit & 1 == 1;
                let alive = is(follows[op] & precedes[op]);
                self.up_bytes[op] += if alive { life.bytes } else { 0 };
                let dirty = alive && !life.arrives || is(touches[op]);
                self.down_bytes[op] += if dirty { life.bytes } else { 0 };
            }
        }
    }
}
