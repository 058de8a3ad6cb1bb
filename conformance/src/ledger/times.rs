//! When each step runs: five streams, the waits between them, and memory in list order
//! (`docs/format.md`, 3.5 and 4).

use super::layout::Layout;
use super::placements::{Changes, Physical};
use super::values::StepRecord;
use super::{Event, Violation, order};
use planner_core::plan::Location;
use planner_core::{Kind, Launched, Machine, OpId, Step, TensorId};
use std::collections::BTreeMap;

/// Memory that one evict or one workspace releases.
struct Release {
    iteration: u32,
    objects: u64,
    completes_ns: u64,
}

/// The allocations and releases in one pool, in list order over all iterations.
struct PoolHistory {
    count: u128,
    allocated: u128,
    releases: Vec<Release>,
}

/// The time at which memory is granted, and the iteration of the release that grants it.
#[derive(Clone, Copy, Default)]
struct Grant {
    ns: u64,
    iteration: Option<u32>,
}

struct Clock<'a> {
    layout: &'a Layout<'a>,
    machine: &'a Machine,
    records: &'a [StepRecord],
    events: Vec<Event>,
    memory: Memory<'a>,
}

/// How memory is handed out.
enum Memory<'a> {
    /// In list order.
    Queued(Vec<PoolHistory>),
    /// As the plan fixes it. Each object has the time and the iteration of its last release.
    Placed(&'a Changes, BTreeMap<Physical, (u64, u32)>),
}

/// Times all steps of eight iterations. A step waits only for steps that are listed earlier, so one
/// pass in list order is enough. All durations together fit into 64 bits.
pub(super) fn run(
    layout: &Layout<'_>,
    machine: &Machine,
    records: &[StepRecord],
    changes: Option<&Changes>,
) -> Result<Vec<Event>, Violation> {
    let memory = match changes {
        None => Memory::Queued(start_pools(layout)?),
        Some(changes) => Memory::Placed(changes, BTreeMap::new()),
    };
    let mut clock = Clock { layout, machine, records, events: Vec::new(), memory };
    let mut sum_ns = 0u64;
    for record in records {
        let event = clock.time(record)?;
        let sum = sum_ns.checked_add(event.end_ns - event.start_ns);
        sum_ns = sum.ok_or_else(Violation::overflow)?;
        clock.release(record, &event);
        clock.events.push(event);
    }
    Ok(clock.events)
}

/// Allocates everything that is resident at start, and checks that it fits.
fn start_pools(layout: &Layout<'_>) -> Result<Vec<PoolHistory>, Violation> {
    let mut histories: Vec<PoolHistory> = layout
        .plan
        .pools
        .iter()
        .map(|pool| PoolHistory { count: pool.count.into(), allocated: 0, releases: Vec::new() })
        .collect();
    for (location, resident) in (0..).map(Location::Start).zip(layout.plan.resident_at_start) {
        let Some(pool) = layout.pool_of(resident.part.tensor) else { continue };
        let objects = layout.named(location, resident.part)?;
        histories[pool]
            .grant(objects.end - objects.start)
            .ok_or_else(|| Violation::at(location, format!("pool {pool} is full")))?;
    }
    Ok(histories)
}

impl PoolHistory {
    /// Grants an allocation when the shortest prefix of the releases that covers the shortage has
    /// completed, or at once if there is no shortage. `None` if the releases so far do not cover
    /// the shortage.
    fn grant(&mut self, objects: u64) -> Option<Grant> {
        self.allocated += u128::from(objects);
        let shortage = self.allocated.saturating_sub(self.count);
        let mut grant = Grant::default();
        let mut released = 0;
        let mut releases = self.releases.iter();
        while released < shortage {
            let release = releases.next()?;
            released += u128::from(release.objects);
            grant.ns = grant.ns.max(release.completes_ns);
            grant.iteration = Some(release.iteration);
        }
        Some(grant)
    }
}

impl Clock<'_> {
    fn time(&mut self, record: &StepRecord) -> Result<Event, Violation> {
        let (ready_ns, duration_ns) = match record.action {
            Step::Evict(_) => (self.evict_completes_ns(record), Some(0)),
            Step::Prefetch(_) => {
                let duration_ns = self.transfer_ns(record.bytes, self.machine.h2d_bytes_per_s);
                (self.prefetch_ready_ns(record), duration_ns)
            }
            Step::Offload(_) => {
                let duration_ns = self.transfer_ns(record.bytes, self.machine.d2h_bytes_per_s);
                (self.offload_ready_ns(record), duration_ns)
            }
            Step::Host(op) => (self.host_ready_ns(op), self.layout.graph.op(op).host_ns),
            Step::Launch(launched) => {
                let duration_ns = self.layout.graph.op(launched.op).time_ns;
                (self.launch_ready_ns(launched), Some(duration_ns))
            }
        };
        let grant = self.grant(record)?;
        let start_ns = ready_ns.max(grant.ns).max(self.stream_free_ns(record.action));
        let end_ns = duration_ns.and_then(|duration_ns| start_ns.checked_add(duration_ns));
        Ok(Event {
            iteration: record.iteration,
            step: record.step,
            start_ns,
            end_ns: end_ns.ok_or_else(Violation::overflow)?,
            memory_lag: grant.iteration.map(|iteration| record.iteration - iteration),
        })
    }

    /// `transfer_latency_ns + ceil(bytes * 10^9 / bandwidth)`.
    fn transfer_ns(&self, bytes: u64, bytes_per_s: u64) -> Option<u64> {
        let copy_ns = (u128::from(bytes) * 1_000_000_000).div_ceil(u128::from(bytes_per_s));
        u64::try_from(copy_ns).ok()?.checked_add(self.machine.transfer_latency_ns)
    }

    /// A launch's allocations in one pool are one grant. Fixed objects are granted once their
    /// previous holders have released them.
    fn grant(&mut self, record: &StepRecord) -> Result<Grant, Violation> {
        let mut grants = Vec::new();
        match &mut self.memory {
            Memory::Queued(pools) => {
                for (pool, objects) in record.allocated() {
                    grants.push(pools[pool].grant(objects).ok_or_else(|| {
                        let location = Location::Step(record.step as u32);
                        Violation::at(
                            location,
                            format!("pool {pool} never has enough free objects"),
                        )
                    })?);
                }
            }
            Memory::Placed(changes, released) => {
                let taken = &changes.of(record, self.layout.plan.steps.len()).taken;
                let released = taken.iter().filter_map(|object| released.get(object));
                grants.extend(
                    released.map(|&(ns, iteration)| Grant { ns, iteration: Some(iteration) }),
                );
            }
        }
        let ns = grants.iter().map(|grant| grant.ns).max().unwrap_or(0);
        Ok(Grant { ns, iteration: grants.iter().filter_map(|grant| grant.iteration).max() })
    }

    /// A workspace is released at its launch's own position, and the release completes when the op
    /// ends.
    fn release(&mut self, record: &StepRecord, event: &Event) {
        let released = match record.action {
            Step::Evict(part) => self
                .layout
                .pool_of(part.tensor)
                .map(|pool| (pool, record.objects.end - record.objects.start)),
            Step::Launch(Launched { op, .. }) => self.layout.workspace(op),
            Step::Prefetch(_) | Step::Offload(_) | Step::Host(_) => None,
        };
        let Some((pool, objects)) = released else { return };
        match &mut self.memory {
            Memory::Queued(pools) => {
                let release =
                    Release { iteration: record.iteration, objects, completes_ns: event.end_ns };
                pools[pool].releases.push(release);
            }
            Memory::Placed(changes, released) => {
                let given = &changes.of(record, self.layout.plan.steps.len()).given;
                released
                    .extend(given.iter().map(|&object| (object, (event.end_ns, record.iteration))));
            }
        }
    }

    /// The end of the last listed step that matches. Each stream ends its steps in list order, so
    /// of one stream's steps the last one ends last.
    fn last_end_ns(&self, matches: impl Fn(&StepRecord) -> bool) -> u64 {
        let done = self.records.iter().zip(&self.events).filter(|(record, _)| matches(record));
        done.map(|(_, event)| event.end_ns).max().unwrap_or(0)
    }

    fn last_launch_ends_ns(&self, matches: impl Fn(Launched) -> bool) -> u64 {
        self.last_end_ns(
            |record| matches!(record.action, Step::Launch(launched) if matches(launched)),
        )
    }

    fn touches(&self, launched: Launched, tensor: TensorId) -> bool {
        order::touches(self.layout.graph, launched, tensor)
    }

    /// Each stream takes its steps in list order, one after the other.
    fn stream_free_ns(&self, action: Step) -> u64 {
        self.last_end_ns(|record| match action {
            Step::Launch(launched) => {
                let is_collective = |op: OpId| self.layout.graph.op(op).collective;
                matches!(record.action, Step::Launch(other)
                    if is_collective(other.op) == is_collective(launched.op))
            }
            Step::Prefetch(_) => matches!(record.action, Step::Prefetch(_)),
            Step::Offload(_) => matches!(record.action, Step::Offload(_)),
            Step::Host(_) => matches!(record.action, Step::Host(_)),
            Step::Evict(_) => false,
        })
    }

    /// The end of the last listed step on the host whose op matches.
    fn last_on_host_ns(&self, matches: impl Fn(OpId) -> bool) -> u64 {
        self.last_end_ns(|record| matches!(record.action, Step::Host(op) if matches(op)))
    }

    /// A step on the host waits for the last offload of every object of the tensors that it touches, and
    /// for the last prefetch of every object of the tensors that it writes.
    fn host_ready_ns(&self, op: OpId) -> u64 {
        let graph = self.layout.graph;
        self.last_end_ns(|record| match record.action {
            Step::Offload(part) => graph.touches(op).any(|tensor| tensor == part.tensor),
            Step::Prefetch(part) => graph.writes(op).contains(&part.tensor),
            Step::Launch(_) | Step::Host(_) | Step::Evict(_) => false,
        })
    }

    /// A prefetch waits for the last offload of the same objects, the last launch that touches the
    /// tensor, and the last step on the host that writes it.
    fn prefetch_ready_ns(&self, record: &StepRecord) -> u64 {
        let Step::Prefetch(part) = record.action else { return 0 };
        let offloaded_ns = self
            .last_end_ns(|other| matches!(other.action, Step::Offload(_)) && share(record, other));
        let kind = self.layout.graph.tensor(part.tensor).kind;
        let whole = record.objects == (0..self.layout.objects(part.tensor));
        let unused_ns = if kind == Kind::Input && whole && !self.layout.in_arena(part.tensor) {
            self.second_copy_free_ns(part.tensor)
        } else {
            self.last_launch_ends_ns(|launched| self.touches(launched, part.tensor))
        };
        let graph = self.layout.graph;
        let written_ns = self.last_on_host_ns(|op| graph.writes(op).contains(&part.tensor));
        offloaded_ns.max(unused_ns).max(written_ns)
    }

    /// THE RULE OF TWO COPIES. A whole input may arrive while an earlier copy of it is in use, but
    /// an input has at most two copies, so the copy before that must be out of use. It is out of
    /// use once the last launch that touches the input and is listed before the input's previous
    /// prefetch has ended.
    fn second_copy_free_ns(&self, tensor: TensorId) -> u64 {
        let listed = &self.records[..self.events.len()];
        let previous = listed.iter().rposition(
            |record| matches!(record.action, Step::Prefetch(part) if part.tensor == tensor),
        );
        let before = self.records[..previous.unwrap_or(0)].iter().zip(&self.events);
        let touching = before.filter(
            |(record, _)| matches!(record.action, Step::Launch(launched) if self.touches(launched, tensor)),
        );
        touching.map(|(_, event)| event.end_ns).max().unwrap_or(0)
    }

    /// A launch waits until every tensor that it touches has arrived, and until no tensor that it
    /// writes is still being offloaded. It also waits for each earlier launch that writes a tensor
    /// that it touches, or that touches a tensor that it writes.
    fn launch_ready_ns(&self, launched: Launched) -> u64 {
        let graph = self.layout.graph;
        self.last_end_ns(|record| match record.action {
            Step::Prefetch(part) => self.touches(launched, part.tensor),
            Step::Offload(part) => order::is_written(graph, launched, part.tensor),
            Step::Launch(earlier) => {
                let mut writes = order::writes(graph, launched);
                let mut earlier_writes = order::writes(graph, earlier);
                writes.any(|tensor| self.touches(earlier, tensor))
                    || earlier_writes.any(|tensor| self.touches(launched, tensor))
            }
            Step::Host(_) | Step::Evict(_) => false,
        })
    }

    /// An offload waits for the last write of the tensor on the device, the last prefetch of the same
    /// objects, and the last step on the host that touches the tensor.
    fn offload_ready_ns(&self, record: &StepRecord) -> u64 {
        let Step::Offload(part) = record.action else { return 0 };
        let written_ns = self.last_launch_ends_ns(|launched| {
            order::is_written(self.layout.graph, launched, part.tensor)
        });
        let arrived_ns = self
            .last_end_ns(|other| matches!(other.action, Step::Prefetch(_)) && share(record, other));
        let graph = self.layout.graph;
        let used_ns =
            self.last_on_host_ns(|op| graph.touches(op).any(|tensor| tensor == part.tensor));
        written_ns.max(arrived_ns).max(used_ns)
    }

    /// An evict completes when the last launch that touches the tensor, and the last offload
    /// and prefetch of each of its objects, have ended.
    fn evict_completes_ns(&self, record: &StepRecord) -> u64 {
        let Step::Evict(part) = record.action else { return 0 };
        let used_ns = self.last_launch_ends_ns(|launched| self.touches(launched, part.tensor));
        let copied_ns =
            self.last_end_ns(|other| other.direction().is_some() && share(record, other));
        used_ns.max(copied_ns)
    }
}

/// Whether two steps name some object in common.
fn share(one: &StepRecord, other: &StepRecord) -> bool {
    let tensor = |record: &StepRecord| match record.action {
        Step::Prefetch(part) | Step::Offload(part) | Step::Evict(part) => Some(part.tensor),
        Step::Launch(_) | Step::Host(_) => None,
    };
    tensor(one).is_some()
        && tensor(one) == tensor(other)
        && one.objects.start < other.objects.end
        && other.objects.start < one.objects.end
}
