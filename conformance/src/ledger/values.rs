//! Who holds which value: residency, host copies, and what a step may do with them
//! (`docs/format.md`, 5, and rules 2 to 6).

use super::layout::Layout;
use super::order::Order;
use super::{ITERATIONS, Violation};
use planner_core::plan::Place;
use planner_core::{Kind, Launched, OpId, Part, Step, TensorId};
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;

/// One step of one iteration, with what it means for memory.
pub(super) struct StepRecord {
    pub(super) iteration: u32,
    pub(super) step: usize,
    pub(super) action: Step,
    /// The objects it names; none for a launch.
    pub(super) objects: Range<u64>,
    /// Bytes it copies.
    pub(super) bytes: u64,
    /// What it allocates, in the order of its allocations.
    pub(super) taken: Vec<Taken>,
    /// Bytes of objects held after it, and during it for a launch.
    pub(super) held_bytes: u128,
    /// What is really filled of them.
    pub(super) requested_bytes: u64,
    /// Tensors and workspaces of which objects are held.
    pub(super) allocations: usize,
}

/// One allocation.
pub(super) struct Taken {
    pub(super) pool: usize,
    pub(super) objects: Objects,
}

/// What is allocated.
pub(super) enum Objects {
    /// These objects of a tensor.
    Of(TensorId, Vec<u64>),
    /// A workspace of this many objects.
    Workspace(u64),
}

impl StepRecord {
    /// Objects it allocates, by pool.
    pub(super) fn allocated(&self) -> BTreeMap<usize, u64> {
        let mut allocated = BTreeMap::new();
        for Taken { pool, objects } in &self.taken {
            *allocated.entry(*pool).or_insert(0) += match objects {
                Objects::Of(_, objects) => objects.len() as u64,
                Objects::Workspace(count) => *count,
            };
        }
        allocated
    }

    /// 0 for a copy to the device, 1 for one to the host.
    pub(super) const fn direction(&self) -> Option<usize> {
        match self.action {
            Step::Prefetch(_) => Some(0),
            Step::Offload(_) => Some(1),
            Step::Launch(_) | Step::Evict(_) => None,
        }
    }
}

/// Two values are equal when their numbers are.
#[derive(Clone, Copy, PartialEq, Eq)]
struct Value(u64);

type Object = (TensorId, u64);

struct Walk<'a> {
    layout: &'a Layout<'a>,
    order: &'a Order<'a>,
    /// What each resident object holds.
    device: BTreeMap<Object, Value>,
    /// What the host holds of each object.
    host: BTreeMap<Object, Value>,
    /// The value that each tensor should have.
    current: Vec<Value>,
    values: u64,
}

/// Takes the steps of eight iterations in list order, by rules 2 to 6 of a valid plan.
pub(super) fn walk(layout: &Layout<'_>, order: &Order<'_>) -> Result<Vec<StepRecord>, Violation> {
    let mut walk = Walk::new(layout, order);
    walk.start()?;
    let mut records = Vec::new();
    for iteration in 1..=ITERATIONS {
        for (step, &action) in layout.plan.steps.iter().enumerate() {
            records.push(walk.take(iteration, step, action)?);
        }
        walk.end()?;
    }
    Ok(records)
}

impl<'a> Walk<'a> {
    fn new(layout: &'a Layout<'a>, order: &'a Order<'a>) -> Self {
        let tensors = layout.graph.tensors().len();
        Self {
            layout,
            order,
            device: BTreeMap::new(),
            host: BTreeMap::new(),
            current: (0..tensors as u64).map(Value).collect(),
            values: tensors as u64,
        }
    }

    fn new_value(&mut self) -> Value {
        self.values += 1;
        Value(self.values - 1)
    }

    fn current(&self, tensor: TensorId) -> Value {
        self.current[tensor.index()]
    }

    fn kind(&self, tensor: TensorId) -> Kind {
        self.layout.graph.tensor(tensor).kind
    }

    fn objects(&self, tensor: TensorId) -> Range<u64> {
        0..self.layout.objects(tensor)
    }

    fn host_valid(&self, tensor: TensorId, object: u64) -> bool {
        self.host.get(&(tensor, object)) == Some(&self.current(tensor))
    }

    /// The host has every state and input, but for the states that are resident and claim no
    /// host copy. (An input's host copy is valid until an op writes the input, whatever the
    /// plan claims.) Temporaries are never resident at start.
    fn start(&mut self) -> Result<(), Violation> {
        for tensor in self.layout.graph.tensor_ids() {
            if self.kind(tensor) != Kind::Temporary {
                self.give_host(tensor);
            }
        }
        for (place, resident) in (0..).map(Place::Start).zip(self.layout.plan.resident_at_start) {
            let tensor = resident.part.tensor;
            if self.kind(tensor) == Kind::Temporary {
                return Err(Violation::at(place, format!("{tensor} is a temporary")));
            }
            for object in self.layout.named(place, resident.part)? {
                let value = self.current(tensor);
                if self.device.insert((tensor, object), value).is_some() {
                    return Err(Violation::at(place, format!("{tensor} is listed twice")));
                }
                if self.kind(tensor) == Kind::State && !resident.host_copy {
                    self.host.remove(&(tensor, object));
                }
            }
        }
        Ok(())
    }

    /// The host holds the current value of all of the tensor.
    fn give_host(&mut self, tensor: TensorId) {
        for object in self.objects(tensor) {
            self.host.insert((tensor, object), self.current(tensor));
        }
    }

    fn take(&mut self, iteration: u32, step: usize, action: Step) -> Result<StepRecord, Violation> {
        let place = Place::Step(step as u32);
        let (objects, taken, workspace_bytes) = match action {
            Step::Launch(Launched { op, .. }) => {
                let taken = self.launch(step, op).map_err(|m| Violation::at(place, m))?;
                (0..0, taken, self.layout.graph.op(op).workspace_bytes)
            }
            Step::Prefetch(part) | Step::Offload(part) | Step::Evict(part) => {
                let objects = self.layout.named(place, part)?;
                let taken = self
                    .transfer(step, action, part, &objects)
                    .map_err(|message| Violation::at(place, message))?;
                (objects, taken, 0)
            }
        };
        let bytes = match action {
            Step::Prefetch(part) | Step::Offload(part) => {
                self.layout.copied_bytes(part.tensor, &objects)
            }
            Step::Launch(_) | Step::Evict(_) => 0,
        };
        Ok(StepRecord {
            iteration,
            step,
            action,
            objects,
            bytes,
            taken,
            held_bytes: self.held_bytes() + self.workspace_held_bytes(action),
            requested_bytes: self.requested_bytes() + workspace_bytes,
            allocations: self.tensors_held() + usize::from(workspace_bytes > 0),
        })
    }

    fn held_bytes(&self) -> u128 {
        self.device.keys().map(|&(tensor, _)| u128::from(self.layout.object_bytes(tensor))).sum()
    }

    fn requested_bytes(&self) -> u64 {
        self.device.keys().map(|&(tensor, object)| self.layout.filled_bytes(tensor, object)).sum()
    }

    fn tensors_held(&self) -> usize {
        let tensors = self.device.keys().map(|&(tensor, _)| tensor);
        tensors.filter(|&tensor| !self.layout.in_arena(tensor)).collect::<BTreeSet<_>>().len()
    }

    fn workspace_held_bytes(&self, action: Step) -> u128 {
        let Step::Launch(Launched { op, .. }) = action else { return 0 };
        let Some((pool, objects)) = self.layout.workspace(op) else { return 0 };
        u128::from(objects) * u128::from(self.layout.plan.pools[pool].object_bytes)
    }

    fn transfer(
        &mut self,
        step: usize,
        action: Step,
        part: Part,
        objects: &Range<u64>,
    ) -> Result<Vec<Taken>, String> {
        let tensor = part.tensor;
        let in_arena = self.layout.in_arena(tensor);
        if in_arena && (self.kind(tensor) == Kind::Temporary || matches!(action, Step::Evict(_))) {
            return Err(format!("{tensor} lies in the arena, where this step is not allowed"));
        }
        for object in objects.clone() {
            match action {
                Step::Prefetch(_) => self.prefetch(tensor, object)?,
                Step::Offload(_) => self.offload(step, tensor, object)?,
                Step::Evict(_) => self.evict(step, tensor, object)?,
                Step::Launch(_) => {}
            }
        }
        let allocating = matches!(action, Step::Prefetch(_));
        let pool = self.layout.pool_of(tensor).filter(|_| allocating);
        let taken = |pool| Taken { pool, objects: Objects::Of(tensor, objects.clone().collect()) };
        Ok(pool.map(taken).into_iter().collect())
    }

    /// Rule 2: only what is not resident and has a valid host copy is prefetched.
    fn prefetch(&mut self, tensor: TensorId, object: u64) -> Result<(), String> {
        if !self.host_valid(tensor, object) {
            return Err(format!("the host has no valid copy of {tensor}"));
        }
        match self.device.insert((tensor, object), self.current(tensor)) {
            Some(_) => Err(format!("{tensor} is resident already")),
            None => Ok(()),
        }
    }

    /// Rule 4: only what is resident with its current value is offloaded, but not the next
    /// value of an input, the only one of an input that no launch reads; afterwards the host
    /// copy is valid.
    fn offload(&mut self, step: usize, tensor: TensorId, object: u64) -> Result<(), String> {
        self.check_value(tensor, object)?;
        let is_read = self.order.last_read(tensor).is_some_and(|last_read| step < last_read);
        if self.kind(tensor) == Kind::Input && !is_read {
            return Err(format!("the host has the next value of {tensor}"));
        }
        self.host.insert((tensor, object), self.current(tensor));
        Ok(())
    }

    fn check_value(&self, tensor: TensorId, object: u64) -> Result<(), String> {
        match self.device.get(&(tensor, object)) {
            None => Err(format!("{tensor} is not resident")),
            Some(&value) if value != self.current(tensor) => {
                Err(format!("the device does not hold the current value of {tensor}"))
            }
            Some(_) => Ok(()),
        }
    }

    /// Rule 5: only what is resident is evicted, and only with a valid host copy or when the
    /// value is never read again, by a later op or, for a state, by the next iteration.
    fn evict(&mut self, step: usize, tensor: TensorId, object: u64) -> Result<(), String> {
        let read_by_next = self.kind(tensor) == Kind::State;
        let read_again = self.order.next_touch_reads(tensor, step).unwrap_or(read_by_next);
        if self.device.remove(&(tensor, object)).is_none() {
            return Err(format!("{tensor} is not resident"));
        }
        if read_again && !self.host_valid(tensor, object) {
            return Err(format!("the only copy of {tensor} would be lost"));
        }
        Ok(())
    }

    /// Rule 3: what an op reads is resident with its current value. What is not resident of
    /// what it writes is allocated, and the host copies of that become stale.
    fn launch(&mut self, step: usize, op: OpId) -> Result<Vec<Taken>, String> {
        let graph = self.layout.graph;
        for &tensor in graph.reads(op) {
            self.objects(tensor).try_for_each(|object| self.check_value(tensor, object))?;
        }
        let mut taken = Vec::new();
        for &tensor in graph.writes(op) {
            let written = self.new_value();
            let mut absent = Vec::new();
            for object in self.objects(tensor) {
                if self.device.insert((tensor, object), written).is_none() {
                    absent.push(object);
                }
            }
            if let Some(pool) = self.layout.pool_of(tensor).filter(|_| !absent.is_empty()) {
                taken.push(Taken { pool, objects: Objects::Of(tensor, absent) });
            }
            if !self.belongs_to_next(step, tensor) {
                self.current[tensor.index()] = written;
            }
        }
        if let Some((pool, objects)) = self.layout.workspace(op) {
            taken.push(Taken { pool, objects: Objects::Workspace(objects) });
        }
        for tensor in graph.touches(op) {
            self.forget(step, tensor);
        }
        Ok(taken)
    }

    /// After an input's last read its value is the next iteration's: a write there is seen
    /// by nobody, leaves the host copy alone and only spoils what the device holds.
    fn belongs_to_next(&self, step: usize, tensor: TensorId) -> bool {
        let last_read = self.order.last_read(tensor);
        self.kind(tensor) == Kind::Input && last_read.is_some_and(|last_read| last_read < step)
    }

    /// After its last read an input's host copy is the next iteration's, and the device copy
    /// holds no value; in the arena it is resident no more. A temporary in the arena holds a
    /// value until its last touch.
    fn forget(&mut self, step: usize, tensor: TensorId) {
        let last_touch = self.order.span(tensor).map(|(_, last)| last);
        let ends = match self.kind(tensor) {
            Kind::State => false,
            Kind::Input => self.order.last_read(tensor) == Some(step),
            Kind::Temporary => last_touch == Some(step),
        };
        if ends && self.layout.in_arena(tensor) {
            self.device.remove(&(tensor, 0));
        }
        if ends && self.kind(tensor) == Kind::Input {
            self.current[tensor.index()] = self.new_value();
            self.give_host(tensor);
        }
    }

    /// Rule 6: what is resident at start is resident at the end and nothing else, with a
    /// host copy where it claims one. Then temporaries are forgotten, and the inputs that no
    /// op reads as well.
    fn end(&mut self) -> Result<(), Violation> {
        let mut others = self.device.clone();
        for resident in self.layout.plan.resident_at_start {
            let tensor = resident.part.tensor;
            for object in self.layout.named(Place::End, resident.part)? {
                if others.remove(&(tensor, object)).is_none() {
                    return Err(Violation::at(Place::End, format!("{tensor} is not resident")));
                }
                if resident.host_copy && !self.host_valid(tensor, object) {
                    let message = format!("{tensor} has no host copy and claims one");
                    return Err(Violation::at(Place::End, message));
                }
            }
        }
        if let Some((tensor, _)) = others.into_keys().next() {
            return Err(Violation::at(Place::End, format!("{tensor} is still resident")));
        }
        for tensor in self.layout.graph.tensor_ids() {
            let unread = self.order.last_read(tensor).is_none();
            match self.kind(tensor) {
                Kind::Temporary => self.current[tensor.index()] = self.new_value(),
                Kind::Input if unread => {
                    self.current[tensor.index()] = self.new_value();
                    self.give_host(tensor);
                }
                Kind::Input | Kind::State => {}
            }
        }
        Ok(())
    }
}
