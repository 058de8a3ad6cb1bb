//! A warp: 32 lanes. Those at the same instruction do it together.

use super::error::KernelError;
use super::memory::Memory;
use super::registers::{Mask, Registers, Slot, lanes};
use cudarc::driver::sys::CUresult::CUDA_ERROR_LAUNCH_FAILED;

/// After this many backward branches, the other warps of the block get their turn: the warp may
/// wait for them.
const MAX_BACKWARD_BRANCHES: u32 = 1 << 16;

type Compute = dyn Fn(&mut Registers, Mask) + Send + Sync;
type Access =
    dyn Fn(&mut Registers, Mask, &mut Memory<'_, '_>) -> Result<(), KernelError> + Send + Sync;

/// What an instruction does.
pub(super) enum Action {
    Compute(Box<Compute>),
    Access(Box<Access>),
    /// Done by the lanes of a mask at once, which this register holds.
    Collective(Slot, Box<Compute>),
    Branch(usize),
    /// Waits for the block at the barrier of this number. The lanes of a warp reach an aligned one
    /// at the same instruction.
    Barrier {
        number: Slot,
        is_aligned: bool,
    },
    Exit,
}

/// An instruction and its guard: the lanes that do it.
pub(super) struct Instruction {
    /// A predicate.
    pub(super) guard: Slot,
    /// All ones if the guard is negated.
    pub(super) negation: Mask,
    pub(super) action: Action,
    /// Its line in the text.
    pub(super) line: usize,
}

/// Lanes at an instruction.
#[derive(Clone, Copy, Debug)]
struct Group {
    at: usize,
    lanes: Mask,
}

/// Why a warp does not run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum WarpState {
    Ended,
    /// At the barrier of this number.
    Barrier(u32),
    /// It has used up its turn, and waits for nothing.
    Paused,
}

/// A warp.
#[derive(Clone, Debug)]
pub(super) struct Warp {
    pub(super) registers: Registers,
    /// Lanes that have not ended.
    live: Mask,
    /// Those that run now: the least far of all.
    now: Group,
    /// Those that have diverged from them, the least far last.
    diverged: Vec<Group>,
    /// Those that wait at a collective instruction, with the lanes for which they wait.
    parked: Vec<(Group, Mask)>,
    /// Those that wait at a barrier.
    waiting: Vec<Group>,
    barrier: u32,
    is_aligned: bool,
    pub(super) state: WarpState,
}

/// Adds lanes to the group at the same instruction, or as a group, the least far last.
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
            diverged: Vec::new(),
            parked: Vec::new(),
            waiting: Vec::new(),
            barrier: 0,
            is_aligned: true,
            state: WarpState::Ended,
        }
    }

    /// Goes to the start, with some lanes.
    pub(super) fn restart(&mut self, lanes: Mask) {
        self.live = lanes;
        self.now = Group { at: 0, lanes };
        self.state = WarpState::Paused;
    }

    /// Releases the lanes at the barrier.
    pub(super) fn release(&mut self) {
        for group in std::mem::take(&mut self.waiting) {
            join(&mut self.diverged, group);
        }
        self.is_aligned = true;
        self.state = WarpState::Paused;
    }

    /// Runs until all lanes have ended or wait at a barrier, or until its turn ends. An error comes
    /// with its line.
    pub(super) fn run(
        &mut self,
        code: &[Instruction],
        memory: &mut Memory<'_, '_>,
    ) -> Result<(), (usize, KernelError)> {
        let mut budget = MAX_BACKWARD_BRANCHES;
        while self.now.lanes != 0 || self.resume(code)? {
            if self.diverged.last().is_some_and(|other| other.at <= self.now.at) {
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
                        memory.pause();
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

    /// Goes on with the lanes that are the least far, joined where groups meet.
    fn reconverge(&mut self) {
        join(&mut self.diverged, self.now);
        if let Some(group) = self.diverged.pop() {
            self.now = group;
        }
    }

    /// Goes on with another group when no lane runs. Returns false if there is none.
    fn resume(&mut self, code: &[Instruction]) -> Result<bool, (usize, KernelError)> {
        if let Some(group) = self.diverged.pop() {
            self.now = group;
            return Ok(true);
        }
        // Nothing waits for lanes that have ended.
        let live = self.live;
        let ready = self.parked.iter().position(|(group, wanted)| wanted & live == group.lanes);
        if let Some(ready) = ready {
            self.now = self.parked.swap_remove(ready).0;
            return Ok(true);
        }
        let stuck = self.parked.first().map(|(group, _)| (group.at, group.lanes));
        // Lanes at a barrier go on after it, so it is the instruction before.
        let apart = self.waiting.get(1).filter(|_| self.is_aligned);
        let stuck = stuck.or_else(|| apart.map(|group| (group.at - 1, group.lanes)));
        let Some((at, lanes)) = stuck else { return Ok(false) };
        let why = format!("only lanes {lanes:#010x} reach this instruction");
        Err((code[at].line, KernelError::new(CUDA_ERROR_LAUNCH_FAILED, why)))
    }

    /// Returns the line of the barrier at which it waits, if it does.
    pub(super) fn waiting_line(&self, code: &[Instruction]) -> Option<usize> {
        self.waiting.first().map(|group| code[group.at - 1].line)
    }

    fn branch(&mut self, target: usize, taken: Mask) {
        let rest = Group { at: self.now.at, lanes: self.now.lanes & !taken };
        self.now = Group { at: target, lanes: taken };
        join(&mut self.diverged, rest);
    }

    /// Computes once all lanes of the mask are here. Until then, those that are here wait.
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
            let why = "lanes of a warp wait at barriers of different numbers";
            return Err(KernelError::new(CUDA_ERROR_LAUNCH_FAILED, why));
        }
        self.barrier = first;
        self.is_aligned &= is_aligned;
        join(&mut self.waiting, Group { at: self.now.at, lanes: here });
        self.now.lanes &= !here;
        Ok(())
    }
}
