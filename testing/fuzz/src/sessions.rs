//! Sessions on two devices, with switches between plans of one graph and with none: whatever is
//! asked of them, in the order in which it is asked, they answer alike.

use crate::case::Files;
use crate::fault::{Fault, returns};
use crate::numbers::{numbers, numbers_u32};
use crate::{plans, switches};
use backend_host::{Host, HostDevice};
use backend_sim::{SimDevice, SimKernels};
use conformance::plans::{Case, Pair, pairs, pairs_of_one_graph};
use integrity::Backend;
use middleware::{Faults, Layered, LayeredKernels};
use planner_core::backend::{Kernels, Paging, Transfers};
use planner_core::switch::Capacity;
use planner_core::{Kind, TensorId};
use proptest::collection::vec;
use proptest::prelude::*;
use spillway::{Error, Plan, Session, SessionError, switching};

/// Plans, and what is asked of a session.
#[derive(Clone, Debug)]
pub struct Input {
    pair: Pair,
    /// Plans with other states, mostly.
    stranger: Pair,
    actions: Vec<Action>,
    numbers: [u64; 3],
}

#[derive(Clone, Copy, Debug)]
enum Action {
    Run(u64),
    /// Of a tensor, into a buffer that differs in size by so much.
    Read(u32, i64),
    /// The same, of this byte.
    Write(u32, i64, u8),
    /// Of a tensor, from a byte on, so many.
    ReadAt(u32, u64, usize),
    /// The same, of this byte.
    WriteAt(u32, u64, usize, u8),
    /// To the other plan.
    Switch,
    /// To a plan for another graph.
    SwitchAway,
}

/// Any input.
pub fn inputs() -> impl Strategy<Value = Input> {
    let tensor = || prop_oneof![6 => 0..10u32, 1 => numbers_u32()];
    let size = || prop_oneof![6 => Just(0i64), 1 => -2..=2i64];
    let first = || prop_oneof![6 => 0..100u64, 1 => numbers()];
    let action = prop_oneof![
        3 => (0..=3u64).prop_map(Action::Run),
        4 => (tensor(), size()).prop_map(|(tensor, more)| Action::Read(tensor, more)),
        3 => (tensor(), size(), any::<u8>())
            .prop_map(|(tensor, more, byte)| Action::Write(tensor, more, byte)),
        3 => (tensor(), first(), 0..40usize)
            .prop_map(|(tensor, first, len)| Action::ReadAt(tensor, first, len)),
        3 => (tensor(), first(), 0..40usize, any::<u8>())
            .prop_map(|(tensor, first, len, byte)| Action::WriteAt(tensor, first, len, byte)),
        2 => Just(Action::Switch),
        1 => Just(Action::SwitchAway),
    ];
    (pairs_of_one_graph(), pairs(), vec(action, 0..=12), proptest::array::uniform3(numbers()))
        .prop_map(|(pair, stranger, actions, numbers)| Input { pair, stranger, actions, numbers })
}

/// The files of the first plan, and all of the input in words.
#[must_use]
pub fn files(input: &Input) -> Files {
    let (graph, plan) = input.pair.from.clone();
    let mut files = plans::files(&Case { graph, machine: input.pair.machine, plan });
    files.push(("input.txt", format!("{input:#?}").into_bytes()));
    files
}

/// Plays the same on all devices.
///
/// # Errors
/// A panic, or answers that differ.
pub fn check(input: &Input) -> Result<(), Fault> {
    let both = returns("proving both plans", || switches::proved(&input.pair))?;
    let Some(both) = both else { return Ok(()) };
    let capacity = both[0].capacity().max(both[1].capacity());
    let machine = input.pair.machine;
    let graph = both[0].graph().clone();
    let stranger = switches::proved(&input.stranger).map(|[plan, _]| plan);
    let play =
        Play { plans: &both, stranger: stranger.as_ref(), capacity, actions: &input.actions };
    let on_host = |switches| {
        let mut device = HostDevice::new(machine.chunk_bytes, machine.device_bytes);
        let kernels = Host.kernels(&mut device, graph.graph());
        let kernels = kernels.map_err(|error| Fault::new("kernels", error.to_string()))?;
        returns("a session on the host", || play.on(device, kernels, switches))?
    };
    let simulated = || {
        let device = SimDevice::adversarial(machine, input.numbers[0]).with_bytes();
        let kernels = SimKernels::new(graph.graph());
        returns("a simulated session", || play.on(device, kernels, true))?
    };
    let answers = on_host(false)?;
    for (name, other) in [("with switches", on_host(true)?), ("simulated", simulated()?)] {
        if let Some(at) = (0..answers.len()).find(|&at| answers[at] != other[at]) {
            let (one, other) = (&answers[at], &other[at]);
            let detail = format!("action {at}: {one:?}, and {name} {other:?}");
            return Err(Fault::new(format!("a session answers otherwise {name}"), detail));
        }
    }
    check_failing(input, &play)
}

/// The answer to an action: bytes that were read, or an error.
type Answer = Result<Vec<u8>, String>;

struct Play<'p> {
    plans: &'p [Plan; 2],
    stranger: Option<&'p Plan>,
    capacity: Capacity,
    actions: &'p [Action],
}

impl Play<'_> {
    /// What a device without faults answers.
    fn on<D: Transfers + Paging, K: Kernels<D>>(
        &self,
        device: D,
        kernels: K,
        switches: bool,
    ) -> Result<Vec<Answer>, Fault> {
        let session = Session::with_capacity(self.plans[0].clone(), self.capacity, device, kernels);
        let mut session =
            session.map_err(|error| Fault::new("no session starts", error.to_string()))?;
        let (mut iterations, mut written) = (0, None);
        let mut answers = Vec::new();
        for &action in self.actions {
            let is_switch = matches!(action, Action::Switch);
            let done = match is_switch && !switches {
                true => Ok(Vec::new()),
                false => self.act(&mut session, action),
            };
            if self.refuses(action) == done.is_ok() {
                let detail = format!("{action:?}: {done:?}");
                return Err(Fault::new("a session refuses what it should do, or not", detail));
            }
            match (action, &done) {
                (Action::Run(count), _) => (iterations, written) = (iterations + count, None),
                (Action::Write(tensor, _, byte), Ok(_)) => written = Some((tensor, byte)),
                (Action::WriteAt(tensor, _, len, _), Ok(_)) => {
                    written = written.filter(|&(of, _)| of != tensor || len == 0);
                }
                (Action::Read(tensor, _) | Action::ReadAt(tensor, ..), Ok(bytes)) => {
                    let is_other = |&(of, byte): &(u32, u8)| {
                        of == tensor && bytes.iter().any(|&read| read != byte)
                    };
                    if written.as_ref().is_some_and(is_other) {
                        let detail = format!("{written:?} is written, but {bytes:?} is read");
                        return Err(Fault::new("a session forgets a state", detail));
                    }
                }
                _ => {}
            }
            answers.push(done.map_err(|error| error.to_string()));
        }
        if session.iterations() != iterations {
            let detail = format!("{} of {iterations}", session.iterations());
            return Err(Fault::new("iterations are miscounted", detail));
        }
        Ok(answers)
    }

    fn act<D: Transfers + Paging, K: Kernels<D>>(
        &self,
        session: &mut Session<D, K>,
        action: Action,
    ) -> Result<Vec<u8>, SessionError<D::Error>> {
        let none = |()| Vec::new();
        match action {
            Action::Run(iterations) => session.run(iterations).map(none),
            Action::Read(tensor, more) => {
                let mut bytes = vec![0xaa; self.buffer_len(tensor, more)];
                session.read_state(TensorId(tensor), &mut bytes).map(|()| bytes)
            }
            Action::Write(tensor, more, byte) => {
                let bytes = vec![byte; self.buffer_len(tensor, more)];
                session.write_state(TensorId(tensor), &bytes).map(none)
            }
            Action::ReadAt(tensor, first, len) => {
                let mut bytes = vec![0xaa; len];
                session.read_state_at(TensorId(tensor), first, &mut bytes).map(|()| bytes)
            }
            Action::WriteAt(tensor, first, len, byte) => {
                session.write_state_at(TensorId(tensor), first, &vec![byte; len]).map(none)
            }
            Action::Switch => {
                let is_first = session.plan().owned() == self.plans[0].owned();
                let next = self.plans[usize::from(is_first)].clone();
                session.switch(next, |_| ()).map(|_| Vec::new())
            }
            Action::SwitchAway => match self.stranger {
                Some(stranger)
                    if switching::shared_states(session.plan().graph(), stranger.graph())
                        .is_err() =>
                {
                    session.switch(stranger.clone(), |_| ()).map(|_| Vec::new())
                }
                // Another graph with the same states is run by other kernels.
                _ => Err(Error::NotPlaced.into()),
            },
        }
    }

    fn buffer_len(&self, tensor: u32, more: i64) -> usize {
        let tensors = &self.plans[0].graph().owned().tensors;
        let bytes = tensors.get(tensor as usize).map_or(8, |tensor| tensor.bytes);
        bytes.saturating_add_signed(more) as usize
    }

    /// Whether an action is refused.
    fn refuses(&self, action: Action) -> bool {
        match action {
            Action::Run(_) | Action::Switch => false,
            Action::Read(tensor, more) | Action::Write(tensor, more, _) => {
                let tensors = &self.plans[0].graph().owned().tensors;
                let state = tensors.get(tensor as usize).filter(|it| it.kind == Kind::State);
                let len = self.buffer_len(tensor, more) as u64;
                state.is_none_or(|state| state.bytes != len)
            }
            Action::ReadAt(tensor, first, len) | Action::WriteAt(tensor, first, len, _) => {
                let tensors = &self.plans[0].graph().owned().tensors;
                let state = tensors.get(tensor as usize).filter(|it| it.kind == Kind::State);
                let end = first.checked_add(len as u64);
                state.is_none_or(|state| end.is_none_or(|end| end > state.bytes))
            }
            Action::SwitchAway => true,
        }
    }
}

/// On a device that fails, or with a capacity of any size: everything returns.
fn check_failing(input: &Input, play: &Play<'_>) -> Result<(), Fault> {
    let [seed, one_in, chunks] = input.numbers;
    let plan = &play.plans[0];
    let graph = plan.graph().graph();
    let faults = Faults::new(seed)
        .delayed_copies(one_in as u32)
        .failed_copies(one_in as u32)
        .failed_fills(chunks as u32)
        .failed_allocations(chunks as u32);
    let host_bytes = chunks % (1 << 20);
    for capacity in [play.capacity, Capacity { chunks, host_bytes }] {
        returns("a failing session", || {
            let device = SimDevice::adversarial(input.pair.machine, seed).with_bytes();
            let device = Layered::new(device, faults.clone());
            let kernels = LayeredKernels(SimKernels::new(graph));
            let session = Session::with_capacity(plan.clone(), capacity, device, kernels);
            let Ok(mut session) = session else { return };
            for &action in play.actions {
                let _ = play.act(&mut session, action);
            }
        })?;
    }
    Ok(())
}
