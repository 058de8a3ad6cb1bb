//! The linear program for plans that repeat ops; `docs/research/bounds.md` has the proof. The units
//! are the same as in the program for plans without repeats.

use super::values::{Read, Repeat, Source, Value, Values};
use crate::model::scaled;
use crate::program::{Column, Program};
use core::ops::Range;
use planner_core::{Graph, Machine};

/// The program of one graph, machine, budget and choice of marks.
#[derive(Debug)]
pub(crate) struct Model {
    pub(crate) program: Program,
    /// The program models only plans whose stalls and repeats take at most this time.
    pub(crate) most: f64,
}

/// The variables of a value, as shares of its bytes. Entry `j` is for interval `first + j`.
struct Shares {
    /// The share on the device when the interval begins. Unused if an op writes the value in it.
    present: Vec<Column>,
    uploaded: Vec<Column>,
    /// The share on the host by the end of the interval. Empty if the host always has the value.
    copied: Vec<Column>,
}

/// The shares of a repeat in each interval, from the interval of its op's first launch.
struct Runs {
    shares: Vec<Column>,
    total: Column,
}

impl Model {
    pub(crate) fn new(
        graph: &Graph<'_>,
        machine: &Machine,
        budget_bytes: u64,
        values: &Values,
    ) -> Self {
        let per_time = [machine.h2d_bytes_per_s, machine.d2h_bytes_per_s]
            .map(|bytes_per_s| bytes_per_s as f64 / 1e9 * (1.0 + 4.0 * f64::EPSILON));
        let moved = values.values.iter().map(|value| scaled(value.bytes) * most_moves(value));
        let most_bytes: f64 = moved.sum();
        let most_stall = most_bytes / per_time[0] + most_bytes / per_time[1];
        let mut program = Program::default();
        let runs = runs(&mut program, &values.repeats);
        let shares: Vec<Shares> =
            values.values.iter().map(|value| shares(&mut program, value, values)).collect();
        let mut rows = Rows { program, values, shares, runs };
        let makers = makers(values);
        for (at, value) in values.values.iter().enumerate() {
            rows.write_value(at, value, makers[at]);
        }
        for at in 0..values.repeats.len() {
            rows.write_repeat(at, &makers);
        }
        for window in windows(values.marks.len()) {
            rows.write_window(window, &makers);
        }
        rows.write_memory(graph, budget_bytes);
        rows.write_links(graph, per_time, most_bytes, most_stall);
        Self { program: rows.program, most: most_stall }
    }
}

/// Windows of 2, 4, 8 ... intervals. The windows of one length lie side by side.
fn windows(intervals: usize) -> impl Iterator<Item = Range<usize>> {
    let lengths = core::iter::successors(Some(2), |length| Some(2 * length));
    lengths.take_while(move |&length| length < intervals).flat_map(move |length| {
        (0..intervals).step_by(length).map(move |from| from..(from + length).min(intervals))
    })
}

/// The most transfers of a value in each direction in a plan without repeats.
fn most_moves(value: &Value) -> f64 {
    value.reads.len() as f64 + 1.0
}

/// The repeat that makes each value.
fn makers(values: &Values) -> Vec<Option<usize>> {
    let mut makers = vec![None; values.values.len()];
    for (at, repeat) in values.repeats.iter().enumerate() {
        for &value in &repeat.writes {
            makers[value] = Some(at);
        }
    }
    makers
}

fn runs(program: &mut Program, repeats: &[Repeat]) -> Vec<Runs> {
    let mut runs = Vec::with_capacity(repeats.len());
    for repeat in repeats {
        let intervals = repeat.last - repeat.first + 1;
        let shares: Vec<Column> =
            (0..intervals).map(|_| program.column(scaled(repeat.time_ns), 0.0, 1.0)).collect();
        let total = program.column(0.0, 0.0, intervals as f64);
        let mut terms: Vec<_> = shares.iter().map(|&share| (share, -1.0)).collect();
        terms.push((total, 1.0));
        program.exactly(0.0, terms);
        runs.push(Runs { shares, total });
    }
    runs
}

fn shares(program: &mut Program, value: &Value, values: &Values) -> Shares {
    let intervals = match value.source {
        Source::Constant => values.marks.len(),
        // No later op uses the value.
        Source::Written(first) if value.last == first => 0,
        Source::Written(_) | Source::Arrives => value.last - value.first() + 1,
    };
    let present = (value.first()..value.first() + intervals).map(|interval| {
        // A mark finds its inputs completely present, and overwrites its outputs completely.
        let is_read = value.read_by_marks.contains(&interval);
        let is_operand = values.is_operand(value, interval);
        let (least, most) = (f64::from(is_read), f64::from(is_read || !is_operand));
        program.column(0.0, least, most)
    });
    let present = present.collect();
    let mut share = || (0..intervals).map(|_| program.column(0.0, 0.0, 1.0)).collect::<Vec<_>>();
    let uploaded = share();
    let copied = if matches!(value.source, Source::Written(_)) { share() } else { Vec::new() };
    Shares { present, uploaded, copied }
}

/// The rows under construction.
struct Rows<'v> {
    program: Program,
    values: &'v Values,
    shares: Vec<Shares>,
    runs: Vec<Runs>,
}

impl Rows<'_> {
    /// The shares of a value that a launch in an interval may read: the share present when the
    /// interval begins, and the shares uploaded or made again in the interval.
    fn available(&self, at: usize, interval: usize, maker: Option<usize>) -> Vec<(Column, f64)> {
        let value = &self.values.values[at];
        let shares = &self.shares[at];
        let entry = interval - value.first();
        let mut terms = vec![(shares.present[entry], 1.0), (shares.uploaded[entry], 1.0)];
        terms.extend(self.made_again(interval, maker));
        terms
    }

    fn made_again(&self, interval: usize, maker: Option<usize>) -> Option<(Column, f64)> {
        let repeat = &self.values.repeats[maker?];
        let share = self.runs[maker?].shares.get(interval - repeat.first)?;
        Some((*share, 1.0))
    }

    fn is_written_in(&self, at: usize, interval: usize) -> bool {
        self.values.values[at].source == Source::Written(interval)
    }

    fn write_value(&mut self, at: usize, value: &Value, maker: Option<usize>) {
        let intervals = self.shares[at].present.len();
        let first = value.first();
        for &interval in &value.reads {
            if !self.is_written_in(at, interval) {
                let terms = self.available(at, interval, maker);
                self.program.at_least(1.0, terms);
            }
        }
        for entry in 0..intervals {
            let interval = first + entry;
            let next = match value.source {
                Source::Constant => (entry + 1) % intervals,
                _ if entry + 1 == intervals => continue,
                _ => entry + 1,
            };
            let is_overwritten = value.overwritten == Some(interval);
            if self.is_written_in(at, interval) && !is_overwritten {
                continue;
            }
            let mut terms = self.available(at, interval, maker);
            if is_overwritten {
                // A launch overwrites the whole tensor, so nothing of the old value stays present.
                terms.remove(0);
            }
            terms.push((self.shares[at].present[next], -1.0));
            self.program.at_least(0.0, terms);
        }
        self.write_copies(at, maker);
    }

    /// A value is uploaded only after its download. If a launch still reads it, it is present, on
    /// the host, or made again later. If it is still to be downloaded, it is present or made again.
    fn write_copies(&mut self, at: usize, maker: Option<usize>) {
        let value = &self.values.values[at];
        let last_read = value.reads.iter().max().copied().unwrap_or(0);
        let Shares { present, uploaded, copied } = &self.shares[at];
        for (entry, &copy) in copied.iter().enumerate() {
            self.program.at_least(0.0, vec![(copy, 1.0), (uploaded[entry], -1.0)]);
            let Some(&next) = copied.get(entry + 1) else { continue };
            self.program.at_least(0.0, vec![(next, 1.0), (copy, -1.0)]);
            let mut kept = vec![(present[entry + 1], 1.0), (copy, 1.0)];
            kept.extend(maker.map(|maker| (self.runs[maker].total, 1.0)));
            if value.first() + entry < last_read {
                self.program.at_least(1.0, kept);
            } else {
                kept.push((copied[copied.len() - 1], -1.0));
                self.program.at_least(0.0, kept);
            }
        }
    }

    fn write_repeat(&mut self, at: usize, makers: &[Option<usize>]) {
        let repeat = &self.values.repeats[at];
        for (entry, &run) in self.runs[at].shares.iter().enumerate() {
            for read in &repeat.reads {
                let interval = repeat.first + entry + read.later;
                if self.is_written_in(read.value, interval) {
                    continue;
                }
                let mut terms = self.available(read.value, interval, makers[read.value]);
                terms.push((run, -1.0));
                self.program.at_least(0.0, terms);
            }
        }
    }

    /// A repeat runs whole, from whole inputs. Over the intervals of a window, its shares must
    /// therefore not count the same part of an input twice.
    fn write_window(&mut self, window: Range<usize>, makers: &[Option<usize>]) {
        let values = self.values;
        let is_begun = |repeat: &Repeat| repeat.first < window.start && window.start <= repeat.last;
        let mut made = vec![None; values.repeats.len()];
        for (at, repeat) in values.repeats.iter().enumerate().filter(|(_, it)| is_begun(it)) {
            let share = self.program.column(0.0, 0.0, 1.0);
            let from = window.start - repeat.first;
            let runs = self.runs[at].shares[from..].iter().take(window.len());
            let mut terms: Vec<_> = runs.map(|&run| (run, 1.0)).collect();
            terms.push((share, -1.0));
            self.program.at_least(0.0, terms);
            made[at] = Some(share);
        }
        let available = |rows: &Self, value: usize, from: usize| {
            let Shares { present, uploaded, .. } = &rows.shares[value];
            let entry = from - values.values[value].first();
            let mut terms = vec![(present[entry], 1.0)];
            terms.extend(uploaded[entry..].iter().take(window.len()).map(|&share| (share, 1.0)));
            terms.extend(makers[value].and_then(|maker| made[maker]).map(|share| (share, 1.0)));
            terms
        };
        for (repeat, made) in values.repeats.iter().zip(&made) {
            let Some(made) = *made else { continue };
            for &Read { value, later } in &repeat.reads {
                let mut terms = available(self, value, window.start + later);
                terms.push((made, -1.0));
                self.program.at_least(0.0, terms);
            }
            for &at in &repeat.writes {
                let value = &values.values[at];
                if value.last < window.start {
                    continue;
                }
                let mut terms = available(self, at, window.start);
                if value.reads.iter().any(|read| window.contains(read)) {
                    self.program.at_least(1.0, terms.clone());
                }
                if value.last >= window.end {
                    let is_overwritten = value.overwritten.is_some_and(|at| window.contains(&at));
                    if is_overwritten {
                        terms.remove(0);
                    }
                    let next = self.shares[at].present[window.end - value.first()];
                    terms.push((next, -1.0));
                    self.program.at_least(0.0, terms);
                }
            }
        }
    }

    /// When a mark starts, its operands, its workspace and the present shares of all other values
    /// are on the device.
    fn write_memory(&mut self, graph: &Graph<'_>, budget_bytes: u64) {
        let marks = &self.values.marks;
        let mut present: Vec<Vec<(Column, f64)>> = vec![Vec::new(); marks.len()];
        for (value, shares) in self.values.values.iter().zip(&self.shares) {
            for (interval, &share) in (value.first()..).zip(&shares.present) {
                let is_written = value.source == Source::Written(interval);
                if !is_written && !self.values.is_operand(value, interval) {
                    present[interval % marks.len()].push((share, -scaled(value.bytes)));
                }
            }
        }
        for (&mark, present) in marks.iter().zip(present) {
            let operands = graph.touches(mark).map(|tensor| graph.tensor(tensor).bytes);
            let held_bytes = graph.op(mark).workspace_bytes + operands.sum::<u64>();
            let spare_bytes = budget_bytes.saturating_sub(held_bytes);
            self.program.at_least(-scaled(spare_bytes), present);
        }
    }

    /// The traffic of each link in an interval fits into the time of the interval: its ops, its
    /// repeats and a stall.
    fn write_links(
        &mut self,
        graph: &Graph<'_>,
        per_time: [f64; 2],
        most_bytes: f64,
        most_stall: f64,
    ) {
        let intervals = self.values.marks.len();
        let stalls: Vec<Column> =
            (0..intervals).map(|_| self.program.column(1.0, 0.0, most_stall)).collect();
        let ends = self.values.marks.iter().skip(1).map(|mark| mark.index());
        let ends = ends.chain([graph.ops().len()]);
        let mut carried: [Vec<Vec<(Column, f64)>>; 2] = [(); 2].map(|()| Vec::new());
        for (carried, per_time) in carried.iter_mut().zip(per_time) {
            *carried = stalls.iter().map(|&stall| vec![(stall, per_time)]).collect();
            for (repeat, runs) in self.values.repeats.iter().zip(&self.runs) {
                let share = scaled(repeat.time_ns) * per_time;
                for (entry, &run) in runs.shares.iter().enumerate() {
                    carried[(repeat.first + entry) % intervals].push((run, share));
                }
            }
        }
        let [mut uploads, mut downloads] = carried;
        let mut ahead = Vec::new();
        for (value, shares) in self.values.values.iter().zip(&self.shares) {
            let bytes = scaled(value.bytes);
            for (entry, &uploaded) in shares.uploaded.iter().enumerate() {
                uploads[(value.first() + entry) % intervals].push((uploaded, -bytes));
            }
            for (entry, &copied) in shares.copied.iter().enumerate() {
                let interval = value.first() + entry;
                downloads[interval % intervals].push((copied, -bytes));
                if entry + 1 < shares.copied.len() {
                    downloads[(interval + 1) % intervals].push((copied, bytes));
                }
            }
            if value.source == Source::Arrives {
                ahead.push((shares.present[0], -bytes));
            }
        }
        // Inputs that are present when the iteration begins arrived in the iteration before.
        for uploads in &mut uploads {
            let arriving = self.program.column(0.0, 0.0, most_bytes);
            uploads.push((arriving, -1.0));
            ahead.push((arriving, 1.0));
        }
        self.program.exactly(0.0, ahead);
        let mut op = 0;
        for ((end, uploads), downloads) in ends.zip(uploads).zip(downloads) {
            let compute_ns: u64 = graph.ops()[op..end].iter().map(|op| op.time_ns).sum();
            op = end;
            for (terms, per_time) in [(uploads, per_time[0]), (downloads, per_time[1])] {
                self.program.at_least(-scaled(compute_ns) * per_time, terms);
            }
        }
    }
}
