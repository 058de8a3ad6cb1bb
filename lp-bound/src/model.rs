//! The linear program for a given order; `docs/research/bounds.md` has the proof.
//!
//! Sizes are in units of 2^20 bytes and times in units of 2^20 ns, so that conversions are
//! exact and the solver sees numbers near 1.

use crate::program::{Column, Program};
use crate::spans::{Gap, Spans};
use planner_core::{Graph, Machine};

/// Bytes or nanoseconds in a unit of the program, so that its numbers are near 1.
pub(crate) const UNIT: f64 = (1u64 << 20) as f64;

pub(crate) fn scaled(quantity: u64) -> f64 {
    quantity as f64 / UNIT
}

/// The program of one graph, machine and budget.
#[derive(Debug)]
pub(crate) struct Model {
    pub(crate) program: Program,
    /// The program models only plans whose stalls take at most this time.
    pub(crate) most_stall: f64,
}

/// The variables of one gap.
struct Absence {
    gap: Gap,
    /// The tensor's memory that is absent at some point of the gap.
    absent: Column,
    /// The memory whose first absence after the write is in this gap.
    new: Option<Column>,
    traffic: f64,
}

/// A quantity at each point: the sum of all terms whose span covers the point.
struct RunningSum {
    at: Vec<Column>,
    changes: Vec<Vec<(Column, f64)>>,
}

impl RunningSum {
    fn new(program: &mut Program, points: usize, most: f64) -> Self {
        let at = (0..points).map(|_| program.column(0.0, 0.0, most)).collect();
        Self { at, changes: vec![Vec::new(); points] }
    }

    fn add(&mut self, column: Column, factor: f64, from: usize, to: usize) {
        if from == to {
            return;
        }
        // The sums start at point 0, so a span that wraps around enters there too.
        if from > to && to > 0 {
            self.changes[0].push((column, -factor));
        }
        self.changes[from].push((column, -factor));
        if to != 0 {
            self.changes[to].push((column, factor));
        }
    }

    fn finish(self, program: &mut Program) -> Vec<Column> {
        for (point, mut terms) in self.changes.into_iter().enumerate() {
            terms.push((self.at[point], 1.0));
            if point > 0 {
                terms.push((self.at[point - 1], -1.0));
            }
            program.exactly(0.0, terms);
        }
        self.at
    }
}

impl Model {
    pub(crate) fn new(
        graph: &Graph<'_>,
        machine: &Machine,
        budget_bytes: u64,
        spans: &Spans,
    ) -> Self {
        let mut program = Program::default();
        let absences = absences(&mut program, &spans.gaps);
        let points = spans.alive_bytes.len();
        let total = absences.iter().map(|absence| scaled(absence.gap.memory_bytes)).sum::<f64>();
        let arrivals = spans.arrivals.iter().map(|arrival| scaled(arrival.bytes)).sum::<f64>();
        let most = total + 3.0 * arrivals;
        let per_time = [machine.h2d_bytes_per_s, machine.d2h_bytes_per_s]
            .map(|bytes_per_s| bytes_per_s as f64 / 1e9 * (1.0 + 4.0 * f64::EPSILON));
        let most_stall = most / per_time[0] + most / per_time[1];
        let [upload, download] = segments(&mut program, graph, per_time, most, most_stall);
        let memory = Memory { points, most, needed: spans, budget_bytes };
        memory.write(&mut program, &absences, &upload, &download);
        Self { program, most_stall }
    }
}

fn before(point: usize, points: usize) -> usize {
    (point + points - 1) % points
}

/// A value may leave the device only if the host has a copy, and one download makes the copy. All
/// memory absent in a gap was therefore downloaded in this gap or for an earlier one.
fn absences(program: &mut Program, gaps: &[Gap]) -> Vec<Absence> {
    let mut absences = Vec::with_capacity(gaps.len());
    let mut copied = None;
    for &gap in gaps {
        let most = scaled(gap.memory_bytes);
        let absent = program.column(0.0, 0.0, most);
        let mut new = None;
        copied = match (gap.written, copied) {
            (None, _) => None,
            (Some(_), Some(earlier)) if gap.continues => {
                let fresh = program.column(0.0, 0.0, most);
                let sum = program.column(0.0, 0.0, most);
                program.exactly(0.0, vec![(sum, 1.0), (earlier, -1.0), (fresh, -1.0)]);
                program.at_least(0.0, vec![(sum, 1.0), (absent, -1.0)]);
                new = Some(fresh);
                Some(sum)
            }
            (Some(_), _) => {
                new = Some(absent);
                new
            }
        };
        let traffic = gap.link_bytes as f64 / gap.memory_bytes as f64;
        absences.push(Absence { gap, absent, new, traffic });
    }
    absences
}

/// Adds the traffic of each op and of each stall, which fits into the time of the op or stall.
fn segments(
    program: &mut Program,
    graph: &Graph<'_>,
    per_time: [f64; 2],
    most: f64,
    most_stall: f64,
) -> [Vec<Column>; 2] {
    let mut flows = [Vec::new(), Vec::new()];
    for op in graph.ops() {
        let stall = program.column(1.0, 0.0, most_stall);
        for (flow, per_time) in flows.iter_mut().zip(per_time) {
            flow.push(program.column(0.0, 0.0, most.min(scaled(op.time_ns) * per_time)));
            let waiting = program.column(0.0, 0.0, most);
            program.at_least(0.0, vec![(stall, per_time), (waiting, -1.0)]);
            flow.push(waiting);
        }
    }
    flows
}

/// Writes the constraints that link traffic and memory.
struct Memory<'s> {
    points: usize,
    most: f64,
    needed: &'s Spans,
    budget_bytes: u64,
}

impl Memory<'_> {
    fn write(
        &self,
        program: &mut Program,
        absences: &[Absence],
        upload: &[Column],
        download: &[Column],
    ) {
        let mut sum = || RunningSum::new(program, self.points, self.most);
        let (mut open, mut early, mut late) = (sum(), sum(), sum());
        let mut due = vec![Vec::new(); self.points];
        let mut released = vec![Vec::new(); self.points];
        for absence in absences {
            let Gap { opens, closes, written, .. } = absence.gap;
            open.add(absence.absent, 1.0, opens, closes);
            due[closes].push((absence.absent, absence.traffic));
            if let (Some(new), Some(written)) = (absence.new, written) {
                released[written].push((new, -absence.traffic));
                early.add(new, absence.traffic, written, opens);
                late.add(new, absence.traffic, opens, before(closes, self.points));
            }
        }
        let (open, early, late) =
            (open.finish(program), early.finish(program), late.finish(program));
        let ahead = self.ahead(program, due, upload);
        let waiting = self.waiting(program, released, download);
        for point in 0..self.points {
            let alive = self.needed.alive_bytes[point];
            let needed = match alive.checked_sub(self.budget_bytes) {
                Some(bytes) => scaled(bytes),
                None => -scaled(self.budget_bytes - alive),
            };
            let (open, ahead, waiting) = (open[point], ahead[point], waiting[point]);
            let (early, late) = (early[point], late[point]);
            program.at_least(needed, vec![(open, 1.0), (ahead, -1.0)]);
            program
                .at_least(needed, vec![(open, 1.0), (ahead, -1.0), (waiting, -1.0), (early, 1.0)]);
            program.at_least(0.0, vec![(early, 1.0), (late, 1.0), (waiting, -1.0)]);
        }
    }

    /// The bytes uploaded before they are due, at each point.
    fn ahead(
        &self,
        program: &mut Program,
        due: Vec<Vec<(Column, f64)>>,
        upload: &[Column],
    ) -> Vec<Column> {
        let ahead: Vec<Column> =
            (0..self.points).map(|_| program.column(0.0, 0.0, self.most)).collect();
        let mut arriving = vec![0.0; self.points];
        for arrival in &self.needed.arrivals {
            arriving[arrival.due] += scaled(arrival.bytes);
        }
        for (point, mut terms) in due.into_iter().enumerate() {
            let last = before(point, self.points);
            terms.extend([(ahead[point], 1.0), (ahead[last], -1.0), (upload[last], -1.0)]);
            program.exactly(-arriving[point], terms);
        }
        ahead
    }

    /// The written bytes that wait for their download, at each point.
    fn waiting(
        &self,
        program: &mut Program,
        released: Vec<Vec<(Column, f64)>>,
        download: &[Column],
    ) -> Vec<Column> {
        let waiting: Vec<Column> =
            (0..self.points).map(|_| program.column(0.0, 0.0, self.most)).collect();
        for (point, mut terms) in released.into_iter().enumerate() {
            let last = before(point, self.points);
            if !terms.is_empty() {
                // Bytes written at this point cannot be downloaded before it.
                program.at_least(0.0, vec![(waiting[last], 1.0), (download[last], -1.0)]);
            }
            terms.extend([(waiting[point], 1.0), (waiting[last], -1.0), (download[last], 1.0)]);
            program.exactly(0.0, terms);
        }
        waiting
    }
}
