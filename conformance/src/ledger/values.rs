//! Which copy holds which value: residency, host copies, and the legal steps (`docs/format.md`, 5,
//! and rules 2 to 6).

use super::layout::Layout;
use super::order::Order;
use super::{ITERATIONS, Violation, order};
use planner_core::plan::Location;
use planner_core::{Kind, Launched, OpId, Part, Step, TensorId};
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;

/// One step of one iteration, and its effect on memory.
pub(super) struct StepRecord {
    pub(super) iteration: u32,
    pub(super) step: usize,
    pub(super) action: Step,
    /// The objects that it names. Empty for a launch.
    pub(super) objects: Range<u64>,
    /// The bytes that it copies.
    pub(super) bytes: u64,
    /// Its allocations, in order.
    pub(super) taken: Vec<Taken>,
    /// Bytes of all held objects after the step, or during the step for a launch.
    pub(super) held_bytes: u128,
    /// The bytes of them that tensors and workspaces fill.
    pub(super) requested_bytes: u64,
    /// The number of tensors and workspaces of which objects are held.
    pub(super) allocations: usize,
}

/// One allocation.
pub(super) struct Taken {
    pub(super) pool: usize,
    pub(super) objects: Objects,
}

/// The objects of an allocation.
pub(super) enum Objects {
    /// These objects of a tensor.
    Of(TensorId, Vec<u64>),
    /// A workspace of this many objects.
    Workspace(u64),
}

impl StepRecord {
    /// The number of objects that it allocates, by pool.
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
            Step::Launch(_) | Step::Host(_) | Step::Evict(_) => None,
        }
    }
}

/// A value of a tensor, named by its origin.
#[derive(Clone, Copy, PartialEq, Eq)]
struct Value {
    /// The iteration that makes it or for which it is supplied.
    iteration: u32,
    /// The op that makes it. `None` if no op does. A repeat makes the value of the first launch.
    maker: Option<OpId>,
}

type Object = (TensorId, u64);

struct Walk<'a> {
    layout: &'a Layout<'a>,
    order: &'a Order<'a>,
    /// The value of each resident object.
    device: BTreeMap<Object, Value>,
    /// The value that the host holds of each object.
    host: BTreeMap<Object, Value>,
    /// The value that the last first launch gave each tensor, or the value at the start of the
    /// iteration.
    current: Vec<Value>,
    /// The value of each tensor at the start of the iteration.
    at_start: Vec<Value>,
    iteration: u32,
}

/// Takes the steps of eight iterations in list order, by rules 2 to 6 of a valid plan.
pub(super) fn walk(layout: &Layout<'_>, order: &Order<'_>) -> Result<Vec<StepRecord>, Violation> {
    let mut walk = Walk::new(layout, order);
    walk.start()?;
    let mut records = Vec::new();
    for iteration in 1..=ITERATIONS {
        walk.begin(iteration);
        for (step, &action) in layout.plan.steps.iter().enumerate() {
            records.push(walk.take(step, action)?);
        }
        walk.end()?;
    }
    Ok(records)
}

impl<'a> Walk<'a> {
    fn new(layout: &'a Layout<'a>, order: &'a Order<'a>) -> Self {
        let first = Value { iteration: 1, maker: None };
        let values = vec![first; layout.graph.tensors().len()];
        Self {
            layout,
            order,
            device: BTreeMap::new(),
            host: BTreeMap::new(),
            current: values.clone(),
            at_start: values,
            iteration: 1,
        }
    }

    fn begin(&mut self, iteration: u32) {
        self.iteration = iteration;
        self.at_start.clone_from(&self.current);
    }

    /// The value that the first launch of an op reads, and that each repeat reads again.
    fn read_by(&self, op: OpId, tensor: TensorId) -> Value {
        match self.order.maker(op, tensor) {
            None => self.at_start[tensor.index()],
            maker => Value { iteration: self.iteration, maker },
        }
    }

    /// A copy is valid while it holds the current value, or a value that a later launch reads.
    fn is_valid(&self, step: usize, tensor: TensorId, value: Value) -> bool {
        let reads = |launched: Launched| {
            order::is_read(self.layout.graph, launched, tensor)
                && self.read_by(launched.op, tensor) == value
        };
        value == self.current(tensor) || self.order.after(step).any(reads)
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

    fn host_is_current(&self, tensor: TensorId, object: u64) -> bool {
        self.host.get(&(tensor, object)) == Some(&self.current(tensor))
    }

    /// At start the host has every state and input, except states that are resident and claim no
    /// host copy. An input's host copy is valid until an op writes the input, whatever the plan
    /// claims. Temporaries and outputs are never resident at start.
    fn start(&mut self) -> Result<(), Violation> {
        for tensor in self.layout.graph.tensor_ids() {
            if matches!(self.kind(tensor), Kind::State | Kind::Input) {
                self.give_host(tensor);
            }
        }
        for (location, resident) in
            (0..).map(Location::Start).zip(self.layout.plan.resident_at_start)
        {
            let tensor = resident.part.tensor;
            if !matches!(self.kind(tensor), Kind::State | Kind::Input) {
                return Err(Violation::at(location, format!("{tensor} has no value at start")));
            }
            for object in self.layout.named(location, resident.part)? {
                let value = self.current(tensor);
                if self.device.insert((tensor, object), value).is_some() {
                    return Err(Violation::at(location, format!("{tensor} is listed twice")));
                }
                if self.kind(tensor) == Kind::State && !resident.host_copy {
                    self.host.remove(&(tensor, object));
                }
            }
        }
        Ok(())
    }

    /// Gives the host the current value of the whole tensor.
    fn give_host(&mut self, tensor: TensorId) {
        for object in self.objects(tensor) {
            self.host.insert((tensor, object), self.current(tensor));
        }
    }

    fn take(&mut self, step: usize, action: Step) -> Result<StepRecord, Violation> {
        let location = Location::Step(step as u32);
        let (objects, taken, workspace_bytes) = match action {
            Step::Launch(launched) => {
                let taken = self.launch(step, launched).map_err(|m| Violation::at(location, m))?;
                (0..0, taken, self.layout.graph.op(launched.op).workspace_bytes)
            }
            Step::Host(op) => {
                self.run_on_host(step, op).map_err(|m| Violation::at(location, m))?;
                (0..0, Vec::new(), 0)
            }
            Step::Prefetch(part) | Step::Offload(part) | Step::Evict(part) => {
                let objects = self.layout.named(location, part)?;
                let taken = self
                    .transfer(step, action, part, &objects)
                    .map_err(|message| Violation::at(location, message))?;
                (objects, taken, 0)
            }
        };
        let bytes = match action {
            Step::Prefetch(part) | Step::Offload(part) => {
                self.layout.copied_bytes(part.tensor, &objects)
            }
            Step::Launch(_) | Step::Host(_) | Step::Evict(_) => 0,
        };
        Ok(StepRecord {
            iteration: self.iteration,
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
                Step::Prefetch(_) => self.prefetch(step, tensor, object)?,
                Step::Offload(_) => self.offload(step, tensor, object)?,
                Step::Evict(_) => self.evict(step, tensor, object)?,
                Step::Launch(_) | Step::Host(_) => {}
            }
        }
        let allocating = matches!(action, Step::Prefetch(_));
        let pool = self.layout.pool_of(tensor).filter(|_| allocating);
        let taken = |pool| Taken { pool, objects: Objects::Of(tensor, objects.clone().collect()) };
        Ok(pool.map(taken).into_iter().collect())
    }

    /// Rule 2: a prefetch needs an object that is not resident and has a valid host copy.
    fn prefetch(&mut self, step: usize, tensor: TensorId, object: u64) -> Result<(), String> {
        let on_host = self.host.get(&(tensor, object)).copied();
        let Some(value) = on_host.filter(|&value| self.is_valid(step, tensor, value)) else {
            return Err(format!("the host has no valid copy of {tensor}"));
        };
        match self.device.insert((tensor, object), value) {
            Some(_) => Err(format!("{tensor} is resident already")),
            None => Ok(()),
        }
    }

    /// Rule 4: an offload needs a resident object with a valid device copy. The next value of an
    /// input may not be offloaded, and an input that no launch reads has no other value. Afterwards
    /// the host copy holds the same value.
    fn offload(&mut self, step: usize, tensor: TensorId, object: u64) -> Result<(), String> {
        let value = self.resident(tensor, object)?;
        if !self.is_valid(step, tensor, value) {
            return Err(format!("the device has no valid copy of {tensor}"));
        }
        let is_read = self.order.last_read(tensor).is_some_and(|last_read| step < last_read);
        if self.kind(tensor) == Kind::Input && !is_read {
            return Err(format!("the host has the next value of {tensor}"));
        }
        self.host.insert((tensor, object), value);
        Ok(())
    }

    fn resident(&self, tensor: TensorId, object: u64) -> Result<Value, String> {
        let value = self.device.get(&(tensor, object)).copied();
        value.ok_or_else(|| format!("{tensor} is not resident"))
    }

    /// Rule 5: an evict needs a resident object. Either the host holds the same value, or the
    /// launch that next touches the tensor does not read the value. A state never loses its last
    /// value, which the next iteration reads, and an output never loses its own.
    fn evict(&mut self, step: usize, tensor: TensorId, object: u64) -> Result<(), String> {
        let graph = self.layout.graph;
        let value = self.resident(tensor, object)?;
        let next = self.order.after(step).find(|&next| order::touches(graph, next, tensor));
        let is_read_next = next.is_some_and(|next| {
            order::is_read(graph, next, tensor) && self.read_by(next.op, tensor) == value
        });
        let is_last = value == self.current(tensor)
            && self.order.last_write(tensor).is_none_or(|last_write| last_write < step);
        let is_result = matches!(self.kind(tensor), Kind::State | Kind::Output) && is_last;
        let is_on_host = self.host.get(&(tensor, object)) == Some(&value);
        if (is_read_next || is_result) && !is_on_host {
            return Err(format!("the only copy of {tensor} would be lost"));
        }
        self.device.remove(&(tensor, object));
        Ok(())
    }

    /// Rule 3: an object that an op reads is resident and holds the current value. For a repeat, it
    /// holds the value that the first launch read.
    fn check_value(&self, launched: Launched, tensor: TensorId, object: u64) -> Result<(), String> {
        let op = launched.op;
        let holds = self.resident(tensor, object)? == self.read_by(op, tensor);
        match launched.is_repeat {
            _ if holds => Ok(()),
            false => Err(format!("the device does not hold the current value of {tensor}")),
            true => {
                Err(format!("the device does not hold the value of {tensor} that {op} read first"))
            }
        }
    }

    /// Allocates the absent objects of the tensors that a launch writes. Then all their objects
    /// have the value that the op makes, and host copies keep their values.
    fn launch(&mut self, step: usize, launched: Launched) -> Result<Vec<Taken>, String> {
        let (graph, op) = (self.layout.graph, launched.op);
        for tensor in order::reads(graph, launched) {
            self.objects(tensor)
                .try_for_each(|object| self.check_value(launched, tensor, object))?;
        }
        let mut taken = Vec::new();
        for tensor in order::writes(graph, launched) {
            let written = Value { iteration: self.iteration, maker: Some(op) };
            let mut absent = Vec::new();
            for object in self.objects(tensor) {
                if self.device.insert((tensor, object), written).is_none() {
                    absent.push(object);
                }
            }
            if let Some(pool) = self.layout.pool_of(tensor).filter(|_| !absent.is_empty()) {
                taken.push(Taken { pool, objects: Objects::Of(tensor, absent) });
            }
            if !launched.is_repeat && !self.belongs_to_next(step, tensor) {
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

    /// Rule 3 on the host: the host copies of the tensors that an op reads hold the current values.
    /// The op gives new values to the host copies of the tensors that it writes. Device copies keep
    /// their values.
    fn run_on_host(&mut self, step: usize, op: OpId) -> Result<(), String> {
        let graph = self.layout.graph;
        for &tensor in graph.reads(op) {
            if !self.objects(tensor).all(|object| self.host_is_current(tensor, object)) {
                return Err(format!("the host does not hold the current value of {tensor}"));
            }
        }
        for &tensor in graph.writes(op) {
            self.current[tensor.index()] = Value { iteration: self.iteration, maker: Some(op) };
            self.give_host(tensor);
        }
        for tensor in graph.touches(op) {
            self.forget(step, tensor);
        }
        Ok(())
    }

    /// After an input's last read, its value belongs to the next iteration. If no launch reads the
    /// input, its value always does. Nobody sees a write then: it leaves the host copy alone and
    /// only spoils the device copy.
    fn belongs_to_next(&self, step: usize, tensor: TensorId) -> bool {
        let last_read = self.order.last_read(tensor);
        self.kind(tensor) == Kind::Input && last_read.is_none_or(|last_read| last_read < step)
    }

    /// After an input's last read, its host copy belongs to the next iteration and its device copy
    /// holds no value. In the arena, the input is no longer resident. A temporary in the arena
    /// holds a value only within a span.
    fn forget(&mut self, step: usize, tensor: TensorId) {
        let ends = match self.kind(tensor) {
            Kind::State | Kind::Output => false,
            Kind::Input => self.order.last_read(tensor) == Some(step),
            Kind::Temporary => self.order.spans(tensor).iter().any(|&(_, last)| last == step),
        };
        if ends && self.layout.in_arena(tensor) {
            self.device.remove(&(tensor, 0));
        }
        if ends && self.kind(tensor) == Kind::Input {
            self.supply_next(tensor);
        }
    }

    /// The host has the input's value for the next iteration.
    fn supply_next(&mut self, tensor: TensorId) {
        self.current[tensor.index()] = Value { iteration: self.iteration + 1, maker: None };
        self.give_host(tensor);
    }

    /// Rule 6: exactly the objects that are resident at start are resident at the end, with a host
    /// copy if they claim one. The last values of states are on the device or the host, and outputs
    /// are on the host. Then temporaries, outputs and the inputs that no op reads lose their
    /// values.
    fn end(&mut self) -> Result<(), Violation> {
        let mut others = self.device.clone();
        for resident in self.layout.plan.resident_at_start {
            let tensor = resident.part.tensor;
            for object in self.layout.named(Location::End, resident.part)? {
                if others.remove(&(tensor, object)).is_none() {
                    return Err(Violation::at(Location::End, format!("{tensor} is not resident")));
                }
                if resident.host_copy && !self.host_is_current(tensor, object) {
                    let message = format!("{tensor} has no host copy and claims one");
                    return Err(Violation::at(Location::End, message));
                }
            }
        }
        // An output in the arena stays there.
        others.retain(|&(tensor, _), _| {
            !(self.layout.in_arena(tensor) && self.kind(tensor) == Kind::Output)
        });
        if let Some((tensor, _)) = others.into_keys().next() {
            return Err(Violation::at(Location::End, format!("{tensor} is still resident")));
        }
        for tensor in self.layout.graph.tensor_ids() {
            let is_kept = |object: u64| {
                let on_device = self.device.get(&(tensor, object)) == Some(&self.current(tensor));
                match self.kind(tensor) {
                    Kind::State => on_device || self.host_is_current(tensor, object),
                    Kind::Output => self.host_is_current(tensor, object),
                    Kind::Input | Kind::Temporary => true,
                }
            };
            if !self.objects(tensor).all(is_kept) {
                let message = format!("the last value of {tensor} is lost");
                return Err(Violation::at(Location::End, message));
            }
        }
        for tensor in self.layout.graph.tensor_ids() {
            let unread = self.order.last_read(tensor).is_none();
            match self.kind(tensor) {
                // A value that no copy holds.
                Kind::Temporary | Kind::Output => {
                    let iteration = self.iteration + 1;
                    self.current[tensor.index()] = Value { iteration, maker: None };
                }
                Kind::Input if unread => self.supply_next(tensor),
                Kind::Input | Kind::State => {}
            }
        }
        Ok(())
    }
}
