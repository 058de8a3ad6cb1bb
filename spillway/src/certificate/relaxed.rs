//! The sum of the prices in floating point, and its derivatives.

use super::point::{DOWNLOAD, LAUNCHES, MEMORY, Point, UPLOAD};
use super::repeats::{Repeat, Restored};
use crate::growth::buffer;
use crate::planning::{processors, run_both};
use planner_core::bounds::priced::{
    OnHost, PriceError, Prices, Visit, Visits, begun_by, priced_scratch_words,
};
use planner_core::scratch::{Limits, Scratch};
use planner_core::{Graph, Kind, Machine};
use std::collections::{BTreeMap, HashMap};

/// Bytes that take the same way for any prices.
struct Group {
    visits: Vec<Visit>,
    /// For each interval, whether the mark that begins it touches the bytes.
    is_operand: Vec<bool>,
    kind: Kind,
    /// For each visit, the repeat after it.
    repeats: Vec<Option<Repeat>>,
    bytes: f64,
}

impl Group {
    /// The number of entries that the way of a byte has.
    fn entries(&self, intervals: usize) -> usize {
        let visits = self.visits.iter().map(|visit| (visit.last - visit.first + 1) as usize);
        let last = self.visits.last().map_or(0, |last| last.last as usize - intervals);
        visits.sum::<usize>() + last
    }
}

/// The data of the sum besides the prices.
pub(super) struct Relaxed {
    groups: Vec<Group>,
    /// Times of ops by the intervals in which they may run.
    launches: Vec<([usize; 2], f64)>,
    /// For each interval, the bytes of the operands and the workspace of the mark that begins it, minus the
    /// budget.
    spare: Vec<f64>,
    host_bytes: f64,
    /// The upload and the download time, in ns per byte.
    link_ns: [f64; 2],
    /// Every other group is of the first half, the others are of the second.
    halves: [Half; 2],
    /// The number of entries that one sum computes.
    pub(super) work: usize,
    /// Whether a second thread sums up the second half.
    takes_two: bool,
}

/// The data of a sum over half of the groups.
#[derive(Default)]
struct Half {
    /// The derivatives of its sum.
    change: Vec<Point>,
    /// The step of the cheapest way to each position and visit.
    steps: Vec<Step>,
    /// For each write, the cheapest ways to restore what its repeat needs.
    restored: Vec<Restored>,
}

/// From this many entries on, a sum takes so long that a second thread is worth its start: a few hundred
/// microseconds.
const FOR_TWO: usize = 16_384;

type Bytes = [f64; 4];
const DEVICE: usize = 0;
const BOTH: usize = 1;
const HOST: usize = 2;
const NOWHERE: usize = 3;
const NEVER: f64 = f64::INFINITY;

/// One step of the cheapest way of a byte.
#[derive(Clone, Copy, Default)]
struct Step {
    /// For each of the four places, whether the byte came by the visit before rather than from the interval
    /// before.
    visited: [bool; 4],
    /// For each place after a visit, the place before the visit.
    from: [u8; 4],
    made_device: bool,
    /// 0 if the byte was in both places already; 1 after a download, 2 after an upload, 3 after a repeat.
    both: u8,
    host: bool,
    /// Whether the copy on the host was given up.
    device: bool,
    /// 0 if the byte was nowhere already; 1 if it was on the device, 2 if it was on the host.
    nowhere: u8,
}

/// The end of a way: its cost, the position, and the place before the last visit.
type End = (f64, usize, usize);

impl Relaxed {
    pub(super) fn new(
        graph: &Graph<'_>,
        machine: &Machine,
        budget_bytes: u64,
        prices: &Prices<'_>,
    ) -> Result<Self, PriceError> {
        let words = priced_scratch_words(&Limits::of_graph(graph), prices.intervals.len());
        let mut memory = buffer(words, 0u64)?;
        let visits = Visits::new(graph, prices, &mut Scratch::new(&mut memory))?;
        let intervals = prices.intervals.len();
        let mut spare = vec![-(budget_bytes as f64); intervals];
        for (number, &mark) in (1..).zip(prices.marks) {
            for at in begun_by(number) {
                spare[at] += graph.op(mark).workspace_bytes as f64;
            }
        }
        let link_ns = [machine.h2d_bytes_per_s, machine.d2h_bytes_per_s]
            .map(|bytes_per_s| 1e9 / bytes_per_s.max(1) as f64);
        let mut known = HashMap::new();
        let mut groups: Vec<Group> = Vec::new();
        for tensor in graph.tensor_ids() {
            let bytes = graph.tensor(tensor).bytes as f64;
            let (of, marks) = (visits.of(tensor), visits.marks_of(tensor));
            let begun = || marks.iter().flat_map(|&number| begun_by(number as usize));
            begun().for_each(|at| spare[at] += bytes);
            if of.is_empty() {
                continue;
            }
            let repeats: Vec<_> =
                (0..of.len()).map(|visit| Repeat::after(visit, tensor, graph, &visits)).collect();
            let kind = graph.tensor(tensor).kind;
            let way: Vec<_> =
                of.iter().map(|visit| (visit.kind, visit.first, visit.last)).collect();
            let again: Vec<_> =
                repeats.iter().map(|repeat| repeat.as_ref().map(Repeat::key)).collect();
            let group = *known.entry((way, marks, again, kind as u8)).or_insert_with(|| {
                let mut is_operand = vec![false; intervals];
                begun().for_each(|at| is_operand[at] = true);
                let visits = of.to_vec();
                groups.push(Group { visits, is_operand, kind, repeats, bytes: 0.0 });
                groups.len() - 1
            });
            groups[group].bytes += bytes;
        }
        leave_out_small(&mut groups, budget_bytes);
        let mut launches = BTreeMap::new();
        for (op, runs) in visits.on_compute(graph) {
            *launches.entry(runs).or_insert(0.0) += graph.op(op).time_ns as f64;
        }
        let launches = launches.into_iter().collect();
        let host_bytes = machine.host_bytes as f64;
        let work = groups.iter().map(|group| group.entries(intervals)).sum();
        let takes_two = work >= FOR_TWO && processors() > 1;
        let halves = Default::default();
        Ok(Self { groups, launches, spare, host_bytes, link_ns, halves, work, takes_two })
    }

    /// Returns the sum in ns, and sets `change` to its derivatives by the prices.
    pub(super) fn sum_ns(&mut self, prices: &[Point], change: &mut [Point]) -> f64 {
        change.fill(Point::default());
        let mut sum_ns = 0.0;
        for (at, (price, spare)) in prices.iter().zip(&self.spare).enumerate() {
            sum_ns += price.memory * spare;
            change[at].memory += spare;
            sum_ns -= price.host * self.host_bytes;
            change[at].host -= self.host_bytes;
        }
        for &([first, last], time_ns) in &self.launches {
            let cheapest = (first..=last).step_by(2).min_by(|&one, &other| {
                prices[one].shares[LAUNCHES].total_cmp(&prices[other].shares[LAUNCHES])
            });
            let at = cheapest.unwrap_or(first);
            sum_ns += time_ns * prices[at].shares[LAUNCHES];
            change[at].shares[LAUNCHES] += time_ns;
        }
        for (half_ns, half) in self.halves_ns(prices).into_iter().zip(&self.halves) {
            sum_ns += half_ns;
            for (all, of_half) in change.iter_mut().zip(&half.change) {
                all.add(of_half);
            }
        }
        sum_ns
    }

    /// The cost of the cheapest ways of the bytes in each half.
    fn halves_ns(&mut self, prices: &[Point]) -> [f64; 2] {
        let Self { groups, halves: [first, second], link_ns, takes_two, .. } = self;
        let (groups, link_ns) = (&*groups, *link_ns);
        let mut first_ns = || first.sum_ns(groups.iter().step_by(2), link_ns, prices);
        let mut second_ns = || second.sum_ns(groups.iter().skip(1).step_by(2), link_ns, prices);
        if !*takes_two {
            return [first_ns(), second_ns()];
        }
        let (mut of_first, mut of_second) = (0.0, None);
        run_both(&mut || of_first = first_ns(), &mut || of_second = Some(second_ns()));
        [of_first, of_second.unwrap_or_else(second_ns)]
    }
}

impl Half {
    /// Returns the cost of the cheapest ways of the bytes in these groups, and sets `change` to its
    /// derivatives by the prices.
    fn sum_ns<'g>(
        &mut self,
        groups: impl Iterator<Item = &'g Group>,
        link_ns: [f64; 2],
        prices: &[Point],
    ) -> f64 {
        let Self { change, steps, restored } = self;
        change.clear();
        change.resize(prices.len(), Point::default());
        let slot_ns = prices.iter().map(|price| price.host).sum();
        let cost_ns = |group: &Group| {
            let mut walk = Walk { group, prices, link_ns, steps, restored };
            group.bytes * walk.cheapest(slot_ns, change)
        };
        groups.map(cost_ns).sum()
    }
}

/// The bytes that are left out take at most one part in this many of the budget.
const LEFT_OUT: f64 = 2000.0;

/// Leaves out the smallest groups: many tensors are so small that all of them together matter little.
fn leave_out_small(groups: &mut Vec<Group>, budget_bytes: u64) {
    groups.sort_by(|one, other| other.bytes.total_cmp(&one.bytes));
    let mut left = budget_bytes as f64 / LEFT_OUT;
    while let Some(last) = groups.last()
        && last.bytes <= left
    {
        left -= last.bytes;
        groups.pop();
    }
}

struct Walk<'w> {
    group: &'w Group,
    prices: &'w [Point],
    link_ns: [f64; 2],
    steps: &'w mut Vec<Step>,
    restored: &'w mut Vec<Restored>,
}

impl<'w> Walk<'w> {
    /// Returns the cost of the cheapest way of a byte, as in the core, and adds the resources on this way to
    /// `change`. A slot on the host costs `slot_ns` for all intervals.
    fn cheapest(&mut self, slot_ns: f64, change: &mut [Point]) -> f64 {
        let on_host = match self.group.kind {
            Kind::State if slot_ns > 0.0 => {
                let (staying_ns, ..) = self.way(OnHost::Never);
                let moving @ (moving_ns, ..) = self.way(OnHost::IsPaid);
                if moving_ns + slot_ns <= staying_ns {
                    for used in &mut *change {
                        used.host += self.group.bytes;
                    }
                    self.follow(moving, OnHost::IsPaid, change);
                    return moving_ns + slot_ns;
                }
                OnHost::Never
            }
            Kind::Temporary => OnHost::Pays,
            Kind::State | Kind::Input | Kind::Output => OnHost::IsPaid,
        };
        let end @ (cost, ..) = self.way(on_host);
        if cost < NEVER {
            self.follow(end, on_host, change);
        }
        cost
    }

    /// The first position of a way.
    fn begin(&self) -> usize {
        match self.group.kind {
            Kind::Input => self.prices.len(),
            _ => self.group.visits[0].first as usize,
        }
    }

    /// The interval in which an upload is cheapest.
    fn early(&self) -> usize {
        let price = |at: usize| self.prices[at].shares[UPLOAD];
        let intervals = 0..self.prices.len();
        intervals.min_by(|&a, &b| price(a).total_cmp(&price(b))).unwrap_or(0)
    }

    /// Finds the cheapest way of one kind, and notes its steps.
    fn way(&mut self, on_host: OnHost) -> End {
        let group = self.group;
        let (visits, intervals) = (&group.visits, self.prices.len());
        let width = visits.len();
        let begin = self.begin();
        let end = visits[width - 1].last as usize;
        self.restored.resize_with(width.max(self.restored.len()), Restored::default);
        self.restored[..width].iter_mut().for_each(Restored::clear);
        self.steps.clear();
        self.steps.resize((end + 1 - begin) * width, Step::default());
        let mut rows = vec![[NEVER; 4]; width];
        rows[0][NOWHERE] = 0.0;
        if group.kind == Kind::Input {
            let early = self.prices[self.early()].shares[UPLOAD] * self.link_ns[UPLOAD];
            rows[0] = [NEVER, early, 0.0, NEVER];
        }
        let (mut least, mut most) = (0, 0);
        let mut best = (NEVER, 0, 0);
        for position in begin..=end {
            let interval = position % intervals;
            let price = self.prices[interval];
            let memory = if group.is_operand[interval] { 0.0 } else { price.memory };
            if position > begin {
                let host = if on_host == OnHost::Pays { price.host } else { 0.0 };
                for row in &mut rows[least..=most] {
                    row[DEVICE] += memory;
                    row[BOTH] += memory + host;
                    row[HOST] += host;
                }
            }
            let upload = price.shares[UPLOAD] * self.link_ns[UPLOAD];
            let download = match on_host {
                OnHost::Never => NEVER,
                OnHost::Pays | OnHost::IsPaid => price.shares[DOWNLOAD] * self.link_ns[DOWNLOAD],
            };
            let (mut write, mut again) = (None, NEVER);
            let mut made = least;
            while made <= most {
                let step = (position - begin) * width + made;
                let repeat = self.repeat(made);
                if repeat.map(|repeat| repeat.write) != write {
                    write = repeat.map(|repeat| repeat.write);
                    again = repeat.map_or(NEVER, |repeat| {
                        let restored = &mut self.restored[repeat.write];
                        restored.step(repeat, (position, interval), &price, memory, self.link_ns)
                    });
                }
                let row = &mut rows[made];
                moves(row, upload, download, again, &mut self.steps[step]);
                let visit = visits[made];
                if visit.may_be_at(position as u32, interval) {
                    let (after, from) = visited(*row, visit.kind, on_host);
                    if made + 1 == width {
                        for (state, &cost) in after.iter().enumerate() {
                            if cost < best.0 {
                                best = (cost, position, usize::from(from[state]));
                            }
                        }
                    } else {
                        most = most.max(made + 1);
                        let step = &mut self.steps[step + 1];
                        for state in 0..4 {
                            if after[state] < rows[made + 1][state] {
                                rows[made + 1][state] = after[state];
                                (step.visited[state], step.from[state]) = (true, from[state]);
                            }
                        }
                    }
                }
                made += 1;
            }
            while least < width && visits[least].last as usize <= position {
                least += 1;
            }
            if least == width || least > most {
                break;
            }
        }
        best
    }

    /// The repeat after this number of visits.
    fn repeat(&self, made: usize) -> Option<&'w Repeat> {
        self.group.repeats[made.checked_sub(1)?].as_ref()
    }

    /// Follows the way back, and adds the resources of each move to `change`.
    fn follow(&self, (_, mut position, mut state): End, on_host: OnHost, change: &mut [Point]) {
        let group = self.group;
        let (width, bytes, begin) = (group.visits.len(), group.bytes, self.begin());
        let mut made = width - 1;
        loop {
            let step = self.steps[(position - begin) * width + made];
            let interval = position % self.prices.len();
            let mut charge = |position: usize, resource: usize, ns: f64| {
                let at = position % self.prices.len();
                match resource {
                    MEMORY if group.is_operand[at] => {}
                    MEMORY => change[at].memory += ns * bytes,
                    _ => change[at].shares[resource] += ns * bytes,
                }
            };
            let repeat = |charge: &mut dyn FnMut(usize, usize, f64)| {
                if let Some(repeat) = self.repeat(made) {
                    self.restored[repeat.write].charge(repeat, position, self.link_ns, charge);
                }
            };
            if state == NOWHERE && step.nowhere > 0 {
                state = if step.nowhere == 1 { DEVICE } else { HOST };
            }
            if state == DEVICE && step.device {
                state = BOTH;
            }
            if state == HOST && step.host {
                state = BOTH;
            }
            if state == BOTH {
                match step.both {
                    1 => {
                        charge(interval, DOWNLOAD, self.link_ns[DOWNLOAD]);
                        state = DEVICE;
                    }
                    2 => {
                        charge(interval, UPLOAD, self.link_ns[UPLOAD]);
                        state = HOST;
                    }
                    3 => {
                        repeat(&mut charge);
                        state = HOST;
                    }
                    _ => {}
                }
            }
            if state == DEVICE && step.made_device {
                repeat(&mut charge);
                state = NOWHERE;
            }
            if step.visited[state] {
                (made, state) = (made - 1, usize::from(step.from[state]));
                continue;
            }
            if position == begin {
                break;
            }
            if state == DEVICE || state == BOTH {
                charge(interval, MEMORY, 1.0);
            }
            if (state == HOST || state == BOTH) && on_host == OnHost::Pays {
                change[interval].host += bytes;
            }
            position -= 1;
        }
        if group.kind == Kind::Input && state == BOTH {
            change[self.early()].shares[UPLOAD] += self.link_ns[UPLOAD] * bytes;
        }
    }
}

/// Applies the transfers and repeats within an interval.
fn moves(row: &mut Bytes, upload: f64, download: f64, again: f64, step: &mut Step) {
    if row[NOWHERE] + again < row[DEVICE] {
        (row[DEVICE], step.made_device) = (row[NOWHERE] + again, true);
    }
    for (from, price, how) in [(DEVICE, download, 1), (HOST, upload, 2), (HOST, again, 3)] {
        if row[from] + price < row[BOTH] {
            (row[BOTH], step.both) = (row[from] + price, how);
        }
    }
    if row[BOTH] < row[HOST] {
        (row[HOST], step.host) = (row[BOTH], true);
    }
    if row[BOTH] < row[DEVICE] {
        (row[DEVICE], step.device) = (row[BOTH], true);
    }
    for (from, how) in [(DEVICE, 1), (HOST, 2)] {
        if row[from] < row[NOWHERE] {
            (row[NOWHERE], step.nowhere) = (row[from], how);
        }
    }
}

/// Returns the costs after a visit, and the place before it for each place after it.
fn visited(row: Bytes, kind: u32, on_host: OnHost) -> (Bytes, [u8; 4]) {
    let least = |states: &[usize]| {
        let cheaper = |&&one: &&usize, &&other: &&usize| row[one].total_cmp(&row[other]);
        let state = states.iter().min_by(cheaper).copied().unwrap_or(0);
        (row[state], state as u8)
    };
    let (mut after, mut from) = ([NEVER; 4], [0u8, 1, 2, 3]);
    let all = [DEVICE, BOTH, HOST, NOWHERE];
    match kind {
        Visit::READ => (after[DEVICE], after[BOTH]) = (row[DEVICE], row[BOTH]),
        Visit::UPDATE => (after[DEVICE], from[DEVICE]) = least(&[DEVICE, BOTH]),
        Visit::FETCHED if on_host == OnHost::Never => (after[DEVICE], from[DEVICE]) = least(&all),
        Visit::FETCHED => (after[BOTH], from[BOTH]) = least(&all),
        Visit::SAVED => (after[HOST], from[HOST]) = least(&[BOTH, HOST]),
        _ => (after[DEVICE], from[DEVICE]) = least(&all),
    }
    (after, from)
}
