//! The shortest period of a chain of layers whose weights are offloaded, by the integer program of
//! Beaumont, Eyraud-Dubois, Shilova & Zhao, section 6 (equations 2 to 8), and its relaxation.
//!
//! The memory of an op counts the resident parts of the *other* layers' weights. (Read literally,
//! equation 4 counts the op's own weights twice and gives no bound.) The resident part of a weight
//! is between 0 and 1. Activations stay resident. Optimizer states are resident during the op that
//! updates them, and move at no cost.

use core::fmt;
use highs::{Col, RowProblem, Sense};
use std::collections::BTreeMap;
use workloads::OwnedChain;

/// Options of the solver.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct WeightOptions {
    /// Whether a weight moves only as a whole. Otherwise, any part of it may move.
    pub whole: bool,
    /// The relative gap at which the integer program counts as solved.
    pub gap: f64,
    /// The time limit in seconds. At the limit, the solver returns its current bound.
    pub most_s: f64,
}

/// A bound on a chain's period.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct WeightBound {
    /// The bound: according to the solver, no schedule is shorter.
    pub period_ns: u64,
    /// The period of the shortest solution, if the solver found one.
    pub found_ns: Option<u64>,
}

/// HiGHS refused the program or found no bound.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Unsolved;

impl fmt::Display for Unsolved {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("HiGHS found no bound of the integer program")
    }
}

impl core::error::Error for Unsolved {}

/// The program under construction. The order of ops is the paper's, from index 0: `B_L` to `B_1`,
/// then `F_1` to `F_L`. Layers count from 0. Amounts are shares of a weight.
struct Program<'c> {
    chain: &'c OwnedChain,
    /// The unit of time, so that numbers are near 1.
    unit_s: f64,
    problem: RowProblem,
    /// Idle time after each op.
    idle: Vec<Col>,
    /// For each layer and op, the shares that are offloaded, prefetched and deleted after the op's
    /// start, and the share that is resident at its start.
    moves: Vec<Vec<[Col; 4]>>,
    /// The choices of each layer with a weight: offloaded, deleted from the forward op to the
    /// backward op, and deleted from the backward op to the next forward op.
    choices: Vec<(usize, [Col; 3])>,
}

/// The integer variables.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Integers {
    None,
    /// The number of chosen weights of each size. These few numbers decide most of the result.
    Counts,
    /// The choice of each weight.
    Choices,
}

/// The margin for the solver's tolerance, in units of time. Constraints hold up to 10^-6.
const TOLERANCE: f64 = 1e-3;

const OFFLOADED: usize = 0;
const PREFETCHED: usize = 1;
const DELETED: usize = 2;
const RESIDENT: usize = 3;

impl<'c> Program<'c> {
    fn new(chain: &'c OwnedChain, integers: Integers) -> Self {
        let ops = 2 * chain.layers.len();
        let mut problem = RowProblem::default();
        // The cost is the whole period, because the solver's gap is relative to the cost.
        problem.add_column(compute_ns(chain) as f64 / 1e9 / unit_s(chain), 1.0..=1.0);
        let idle = (0..ops).map(|_| problem.add_column(1.0, 0.0..)).collect();
        let share = |problem: &mut RowProblem| problem.add_column(0.0, 0.0..=1.0);
        let weighty = chain.layers.iter().map(|layer| layer.weight_bytes > 0);
        let moves = weighty
            .map(|is_weighty| {
                let ops = if is_weighty { ops } else { 0 };
                (0..ops).map(|_| [0; 4].map(|_| share(&mut problem))).collect()
            })
            .collect();
        let unit_s = unit_s(chain);
        let choices = Vec::new();
        let mut program = Self { chain, unit_s, problem, idle, moves, choices };
        program.links();
        program.memory();
        for layer in (0..chain.layers.len()).filter(|&layer| chain.layers[layer].weight_bytes > 0) {
            program.validity(layer);
            program.binaries(layer, integers);
        }
        if integers != Integers::None {
            program.counts();
        }
        program
    }

    fn backward(&self, layer: usize) -> usize {
        self.chain.layers.len() - 1 - layer
    }

    fn forward(&self, layer: usize) -> usize {
        self.chain.layers.len() + layer
    }

    fn layer(&self, op: usize) -> usize {
        let layers = self.chain.layers.len();
        if op < layers { layers - 1 - op } else { op - layers }
    }

    fn op_units(&self, op: usize) -> f64 {
        let layer = &self.chain.layers[self.layer(op)];
        let is_backward = op < self.chain.layers.len();
        let op_ns = if is_backward { layer.backward_ns } else { layer.forward_ns };
        op_ns as f64 / 1e9 / self.unit_s
    }

    fn transfer_units(&self, layer: usize) -> f64 {
        transfer_s(self.chain, layer) / self.unit_s
    }

    /// Equations 2 and 3.
    fn links(&mut self) {
        for op in 0..self.idle.len() {
            for link in [OFFLOADED, PREFETCHED] {
                let mut terms = vec![(self.idle[op], 1.0)];
                for (layer, moves) in self.moves.iter().enumerate() {
                    let transfer = self.transfer_units(layer);
                    terms.extend(moves.get(op).map(|columns| (columns[link], -transfer)));
                }
                self.problem.add_row(-self.op_units(op).., terms);
            }
        }
        for layer in 0..self.moves.len() {
            let op = self.backward(layer);
            if let Some(columns) = self.moves[layer].get(op) {
                let terms =
                    [(self.idle[op], 1.0), (columns[OFFLOADED], -self.transfer_units(layer))];
                self.problem.add_row(0.0.., terms);
            }
        }
    }

    /// Equation 4, with amounts relative to the device's memory.
    fn memory(&mut self) {
        let device = self.chain.device_bytes as f64;
        for op in 0..self.idle.len() {
            let own = self.layer(op);
            let activations = self.chain.layers[..=own].iter().map(|layer| layer.activation_bytes);
            let alive = self.chain.input_bytes + activations.sum::<u64>();
            let layer = &self.chain.layers[own];
            let beside = match op < self.chain.layers.len() {
                true => layer.weight_bytes + layer.optimizer_bytes,
                false => 0,
            };
            let taken = alive + layer.weight_bytes + beside;
            let others = self.moves.iter().enumerate().filter(|(layer, _)| *layer != own);
            let terms: Vec<_> = others
                .filter_map(|(layer, moves)| {
                    let bytes = self.chain.layers[layer].weight_bytes as f64;
                    Some((moves.get(op)?[RESIDENT], bytes / device))
                })
                .collect();
            self.problem.add_row(..=(device - taken as f64) / device, terms);
        }
    }

    /// Equations 5 and 6: a weight is resident at its ops, its state repeats after a cycle, and no
    /// part of it is lost.
    fn validity(&mut self, layer: usize) {
        let (ops, back, forward) = (self.idle.len(), self.backward(layer), self.forward(layer));
        for op in [back, forward] {
            self.problem.add_row(1.0.., [(self.moves[layer][op][RESIDENT], 1.0)]);
        }
        let mut copied = Vec::new();
        for op in (0..ops).map(|at| (back + at) % ops) {
            let [offloaded, prefetched, deleted, resident] = self.moves[layer][op];
            let next = self.moves[layer][(op + 1) % ops][RESIDENT];
            let change = [(resident, 1.0), (prefetched, 1.0), (deleted, -1.0), (next, -1.0)];
            self.problem.add_row(0.0..=0.0, change);
            copied.push((offloaded, 1.0));
            let lost = copied.iter().copied().chain([(next, 1.0)]);
            if (op + 1) % ops != back {
                self.problem.add_row(1.0.., lost);
            }
        }
    }

    /// Equations 7 and 8.
    fn binaries(&mut self, layer: usize, integers: Integers) {
        let (ops, back, forward) = (self.idle.len(), self.backward(layer), self.forward(layer));
        let spans = [(OFFLOADED, back, back), (DELETED, forward, back), (DELETED, back, forward)];
        let choices = spans.map(|(column, from, to)| {
            let length = match (to + ops - from) % ops {
                0 => ops,
                length => length,
            };
            let chosen = match integers {
                Integers::Choices => self.problem.add_integer_column(0.0, 0.0..=1.0),
                _ => self.problem.add_column(0.0, 0.0..=1.0),
            };
            let terms = (0..length).map(|at| (self.moves[layer][(from + at) % ops][column], 1.0));
            self.problem.add_row(0.0..=0.0, terms.chain([(chosen, -1.0)]));
            chosen
        });
        self.choices.push((layer, choices));
    }

    /// Integers that follow from the choices: for the weights of each size, the numbers offloaded,
    /// deleted in each span, and deleted in both spans together.
    fn counts(&mut self) {
        let mut sizes: BTreeMap<u64, Vec<[Col; 3]>> = BTreeMap::new();
        for (layer, choices) in &self.choices {
            sizes.entry(self.chain.layers[*layer].weight_bytes).or_default().push(*choices);
        }
        for choices in sizes.into_values() {
            for counted in [&[0][..], &[1], &[2], &[1, 2]] {
                let most = (choices.len() * counted.len()) as f64;
                let count = self.problem.add_integer_column(0.0, 0.0..=most);
                let terms = choices.iter().flat_map(|c| counted.iter().map(|&at| (c[at], 1.0)));
                self.problem.add_row(0.0..=0.0, terms.chain([(count, -1.0)]));
            }
        }
    }

    /// Adds a known bound, in units of time.
    fn at_least(&mut self, period: f64) {
        let compute = compute_ns(self.chain) as f64 / 1e9 / self.unit_s;
        let idle = self.idle.iter().map(|&idle| (idle, 1.0));
        self.problem.add_row(period - compute.., idle);
    }
}

fn transfer_s(chain: &OwnedChain, layer: usize) -> f64 {
    chain.layers[layer].weight_bytes as f64 / chain.bandwidth_bytes_per_s as f64
}

fn compute_ns(chain: &OwnedChain) -> u64 {
    chain.layers.iter().map(|layer| layer.forward_ns + layer.backward_ns).sum()
}

/// One hundredth of the time of all compute and transfers.
fn unit_s(chain: &OwnedChain) -> f64 {
    let transfers_s = (0..chain.layers.len()).map(|layer| transfer_s(chain, layer)).sum::<f64>();
    ((compute_ns(chain) as f64 / 1e9 + transfers_s) / 100.0).max(1e-12)
}

/// Returns a period that no schedule of a chain can beat if it moves only weights.
///
/// For whole weights, it first solves a program in which only the numbers of weights are integers.
/// The bound of this program becomes a row of the full program, which alone would take long to
/// reach it.
///
/// # Errors
/// The solver fails. It also fails if a layer does not fit.
pub fn weights_period_ns(
    chain: &OwnedChain,
    options: WeightOptions,
) -> Result<WeightBound, Unsolved> {
    let unit_s = unit_s(chain);
    let (bound, found) = if options.whole {
        let (least, _) = solve(Program::new(chain, Integers::Counts), options)?;
        let mut program = Program::new(chain, Integers::Choices);
        program.at_least(least - TOLERANCE);
        let (bound, found) = solve(program, options)?;
        (bound.max(least), found)
    } else {
        solve(Program::new(chain, Integers::None), options)?
    };
    let ns = |units: f64| ((units.max(0.0) * unit_s * 1e9) as u64).max(compute_ns(chain));
    // Constraints hold only up to the solver's tolerance.
    Ok(WeightBound { period_ns: ns(bound - TOLERANCE), found_ns: found.map(ns) })
}

/// The bound, and the period of the best solution if there is one, in units of time.
fn solve(program: Program<'_>, options: WeightOptions) -> Result<(f64, Option<f64>), Unsolved> {
    let is_integer = !program.choices.is_empty() && options.whole;
    let mut model = program.problem.try_optimise(Sense::Minimise).map_err(|_| Unsolved)?;
    model.make_quiet();
    model.try_set_option("time_limit", options.most_s).map_err(|_| Unsolved)?;
    model.try_set_option("mip_rel_gap", options.gap).map_err(|_| Unsolved)?;
    let solved = model.try_solve().map_err(|_| Unsolved)?;
    let cost = solved.objective_value();
    let bound = if is_integer {
        solved.double_info_value(c"mip_dual_bound").map_err(|_| Unsolved)?
    } else if solved.status() == highs::HighsModelStatus::Optimal {
        cost
    } else {
        return Err(Unsolved);
    };
    // The bound of an integer program without a solution is meaningless.
    if !bound.is_finite() || solved.status() == highs::HighsModelStatus::Infeasible {
        return Err(Unsolved);
    }
    Ok((bound, (cost.is_finite() && cost < 1e20).then_some(cost)))
}
