//! A warp: 32 lanes that do the same instruction wherever they are at the same place.

use super::error::KernelError;
use super::memory::Memory;
use super::registers::{Mask, Registers, Slot, lanes};
use cudarc::driver::sys::CUresult::CUDA_ERROR_LAUNCH_FAILED;

/// How often a warp goes back before the others of its block get their turn: they may be what
/// it waits for.
const MAX_BACKWARD_BRANCHES: u32 = 1 << 16;

type Compute = dyn Fn(&mut Registers, Mask) + Send + Sync;
type Access =
    dyn Fn(&mut Registers, Mask, &mut Memory<'_>) -> Result<(), KernelError> + Send + Sync;

/// What an instruction does.
pub(super) enum Action {
    Compute(Box<Compute>),
    Access(Box<Access>),
    /// Done by all of these lanes at once.
    Collective(Slot, Box<Compute>),
    Branch(usize),
    /// Waits for the block at the barrier of this number. Lanes of a warp come to an aligned one
    /// at the same instruction.
    Barrier {
        number: Slot,
        is_aligned: bool,
    },
    Exit,
}

/// An instruction, and which lanes do it: those of a predicate, or the others.
pub(super) struct Instruction {
    pub(super) guard: Slot,
    pub(super) negation: Mask,
    pub(super) action: Action,
    /// Its line in the text.
    pub(super) line: usize,
}

/// Lanes at a place.
#[derive(Clone, Copy, Debug)]
struct Group {
    at: usize,
    lanes: Mask,
}

/// Where a warp has come to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum WarpState {
    Ended,
    /// At the barrier of this number.
    Barrier(u32),
    /// It has done much, and waits for nothing.
    Paused,
}

/// A warp.
#[derive(Clone, Debug)]
pub(super) struct Warp {
    pub(super) registers: Registers,
    /// Lanes that have not ended.
    live: Mask,
    /// Those that run now, which are the least far.
    now: Group,
    /// Those that have parted from them, the least far last.
    others: Vec<Group>,
    /// Those that wait for lanes with which they do an instruction together, with those lanes.
    parked: Vec<(Group, Mask)>,
    /// Those that wait at a barrier.
    waiting: Vec<Group>,
    barrier: u32,
    is_aligned: bool,
    pub(super) state: WarpState,
}

/// Adds lanes to others at the same place, or in the order of places, the least far last.
fn join(groups: &mut Vec<Group>, group: Group) {
    if group.lanes == 0 {
        return;
    }
    let place = groups.partition_point(|other| other.at > group.at);
    match groups.get_mut(place) {
        Some(same) if same.at == group.at => same.lanes |= group.lanes,
        _ => groups.insert(place, group),
    }
}

impl Warp {
    pub(super) fn new(registers: Registers) -> Self {
        Self {
            registers,
            live: 0,
            now: Group { at: 0, lanes: 0 },
            others: Vec::new(),
            parked: Vec::new(),
            waiting: Vec::new(),
            barrier: 0,
            is_aligned: true,
            state: WarpState::Ended,
        }
    }

    /// Goes to the start with some lanes.
    pub(super) fn restart(&mut self, lanes: Mask) {
        self.live = lanes;
        self.now = Group { at: 0, lanes };
        self.state = WarpState::Paused;
    }

    /// Lets the lanes at the barrier go on.
    pub(super) fn release(&mut self) {
        for group in std::mem::take(&mut self.waiting) {
            join(&mut self.others, group);
        }
        self.is_aligned = true;
        self.state = WarpState::Paused;
    }

    /// Runs until all lanes have ended or wait at a barrier, or for long. An error comes with its
    /// line.
    pub(super) fn run(
        &mut self,
        code: &[Instruction],
        memory: &mut Memory<'_>,
    ) -> Result<(), (usize, KernelError)> {
        let mut budget = MAX_BACKWARD_BRANCHES;
        while self.now.lanes != 0 || self.resume(code)? {
            if self.others.last().is_some_and(|other| other.at <= self.now.at) {
                self.reconverge();
            }
            let instruction = &code[self.now.at];
            let guard = self.registers.predicates[instruction.guard] ^ instruction.negation;
            let lanes = self.now.lanes & guard;
            let (at, fault) = (self.now.at, |fault| (instruction.line, fault));
            self.now.at += 1;
            match &instruction.action {
                _ if lanes == 0 => {}
                Action::Compute(compute) => compute(&mut self.registers, lanes),
                Action::Access(access) => {
                    access(&mut self.registers, lanes, memory).map_err(fault)?;
                }
                Action::Collective(members, compute) => {
                    self.collective(at, lanes, *members, compute);
                }
                Action::Branch(target) => {
                    self.branch(*target, lanes);
                    if *target <= at {
                        memory.branch_backward();
                        budget -= 1;
                    }
                }
                Action::Barrier { number, is_aligned } => {
                    self.wait(lanes, *number, *is_aligned).map_err(fault)?;
                }
                Action::Exit => {
                    self.live &= !lanes;
                    self.now.lanes &= !lanes;
                }
            }
            if budget == 0 {
                self.state = WarpState::Paused;
                return Ok(());
            }
        }
        let is_waiting = !self.waiting.is_empty();
        self.state = if is_waiting { WarpState::Barrier(self.barrier) } else { WarpState::Ended };
        Ok(())
    }

    /// Goes on with the lanes that are the least far.
    fn reconverge(&mut self) {
        join(&mut self.others, self.now);
        if let Some(group) = self.others.pop() {
            self.now = group;
        }
    }

    /// Goes on with others where no lane runs; false if there are none.
    fn resume(&mut self, code: &[Instruction]) -> Result<bool, (usize, KernelError)> {
        if let Some(group) = self.others.pop() {
            self.now = group;
            return Ok(true);
        }
        // Lanes that have ended are waited for no longer.
        let live = self.live;
        let ready = self.parked.iter().position(|(group, wanted)| wanted & live == group.lanes);
        if let Some(ready) = ready {
            self.now = self.parked.swap_remove(ready).0;
            return Ok(true);
        }
        let stuck = self.parked.first().map(|(group, _)| (group.at, group.lanes));
        // Lanes at a barrier go on behind it.
        let apart = self.waiting.get(1).filter(|_| self.is_aligned);
        let stuck = stuck.or_else(|| apart.map(|group| (group.at - 1, group.lanes)));
        let Some((at, lanes)) = stuck else { return Ok(false) };
        let why = format!("lanes {lanes:#010x} alone come to this instruction");
        Err((code[at].line, KernelError::new(CUDA_ERROR_LAUNCH_FAILED, why)))
    }

    /// The line of the barrier at which it waits, if it does.
    pub(super) fn waiting_line(&self, code: &[Instruction]) -> Option<usize> {
        self.waiting.first().map(|group| code[group.at - 1].line)
    }

    fn branch(&mut self, target: usize, taken: Mask) {
        let rest = Group { at: self.now.at, lanes: self.now.lanes & !taken };
        self.now = Group { at: target, lanes: taken };
        join(&mut self.others, rest);
    }

    /// Computes once all lanes that are named are here; else these wait.
    fn collective(&mut self, at: usize, here: Mask, members: Slot, compute: &Compute) {
        let members = self.registers.row::<u32>(members);
        let wanted = lanes(here).fold(0, |all, lane| all | members[lane]);
        let parked = self.parked.iter().position(|(group, _)| group.at == at);
        let parked = parked.map_or(0, |place| self.parked.swap_remove(place).0.lanes);
        let all = here | parked;
        if wanted & self.live & !all == 0 {
            compute(&mut self.registers, all);
            self.now.lanes |= all;
        } else {
            self.now.lanes &= !here;
            self.parked.push((Group { at, lanes: all }, wanted));
        }
    }

    fn wait(&mut self, here: Mask, number: Slot, is_aligned: bool) -> Result<(), KernelError> {
        let numbers = self.registers.row::<u32>(number);
        let first = lanes(here).next().map_or(0, |lane| numbers[lane]);
        let is_one = lanes(here).all(|lane| numbers[lane] == first)
            && (self.waiting.is_empty() || self.barrier == first);
        if !is_one {
            let why = "lanes of a warp wait at barriers of several numbers";
            return Err(KernelError::new(CUDA_ERROR_LAUNCH_FAILED, why));
        }
        self.barrier = first;
        self.is_aligned &= is_aligned;
        join(&mut self.waiting, Group { at: self.now.at, lanes: here });
        self.now.lanes &= !here;
        Ok(())
    }
}
