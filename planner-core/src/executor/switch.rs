//! Switches from one plan to the next, between two iterations.

#![expect(
    clippy::indexing_slicing,
    reason = "`switch::verify` checked the tensor ids, and the arrays have an entry for each tensor"
)]

use super::Executor;
use super::error::{ExecuteError, Fault, Moment};
use super::spares::{AddressRanges, Mapper, SetUp, Spares};
use crate::backend::{HostRange, Kernels, Paging, Streams, Transfers};
use crate::graph::{Kind, TensorId};
use crate::plan::Resident;
use crate::schedule::Stream;
use crate::scratch::{BufferTooShort, Limits, Scratch, total, words};
use crate::switch::{
    ChunkMap, ChunkRun, Held, Holding, Rows, SharedState, SwitchError, SwitchStep, TensorBytes,
    VerifiedSwitch,
};
use bytemuck::Zeroable;

/// Words of scratch that [`Executor::switch`] needs. `limits` are [`Limits::of_plan`] of the second
/// plan, `runs` is as in [`scratch_words`](super::scratch_words), `chunks` is the number of chunk
/// runs of the switch, and `address_ranges` are the executor's [address
/// ranges](Executor::address_ranges) so far.
#[must_use]
pub const fn switch_scratch_words(
    limits: &Limits,
    runs: usize,
    chunks: usize,
    address_ranges: AddressRanges,
) -> usize {
    total([
        super::scratch_words(limits, runs),
        Spares::scratch_words(address_ranges),
        words::<ChunkRun>(chunks),
        words::<u32>(limits.tensors),
    ])
}

impl<'a> Executor<'a> {
    /// The states that the device holds after the iterations enqueued so far, and where they lie.
    /// `out` needs one entry for each row of objects.
    ///
    /// # Errors
    /// Output that is too short.
    pub fn holding<'h>(&self, out: &'h mut [Held]) -> Result<Holding<'h>, BufferTooShort>
    where
        'a: 'h,
    {
        let mut rows = Rows::new(out);
        self.each_held(|held| rows.push(held));
        Ok(Holding { verified: self.verified, entries: rows.finish()?, capacity: self.capacity })
    }

    /// The number of address ranges reserved for this plan and the plans before it.
    #[must_use]
    pub fn address_ranges(&self) -> AddressRanges {
        let AddressRanges { count, rows } = self.own_ranges();
        let spare = self.spares.count();
        AddressRanges {
            count: count.saturating_add(spare.count),
            rows: rows.saturating_add(spare.rows),
        }
    }

    /// The ranges of this plan.
    fn own_ranges(&self) -> AddressRanges {
        let mut own = AddressRanges::default();
        self.memory.each_range(|_, _, rows| {
            own.count = own.count.saturating_add(1);
            own.rows = own.rows.saturating_add(rows.count());
        });
        own
    }

    /// The chunks mapped and unmapped to start this plan. A plan that runs again after a few
    /// switches finds its chunks mapped.
    #[must_use]
    pub const fn set_up(&self) -> SetUp {
        self.set_up
    }

    fn each_held(&self, mut visit: impl FnMut(Held)) {
        let graph = self.verified.graph();
        for resident in self.verified.plan().resident_at_start {
            let tensor = resident.part.tensor;
            let is_state = graph.tensor(tensor).kind == Kind::State;
            if is_state && !self.verified.is_last_written_on_host(tensor) {
                let host_copy = resident.host_copy || self.is_saved();
                self.memory.each_row(resident.part, |held| visit(Held { host_copy, ..held }));
            }
        }
    }

    /// Ends this plan and starts another, as a switch says: data that stays on the device is not
    /// copied. Waits for all iterations first. Then calls `kernels`, which returns the kernels of
    /// the second plan, and lets them fill the inputs of its first iteration. The count of
    /// iterations goes on. Does not call `fill_states`.
    ///
    /// # Errors
    /// After [`ExecuteError::OtherHolding`], [`ExecuteError::Switch`] and too little scratch, this
    /// plan can go on. After errors of the device, neither plan can run.
    pub fn switch<'b, B: Transfers + Paging, K: Kernels<B>>(
        &mut self,
        switch: &VerifiedSwitch<'_, 'b>,
        device: &mut B,
        kernels: impl FnOnce() -> K,
        scratch: &mut Scratch<'b>,
    ) -> Result<Executor<'b>, ExecuteError<B::Error>> {
        if self.failed {
            return Err(ExecuteError::Failed);
        }
        if !self.is_held(&switch.holding) {
            return Err(ExecuteError::OtherHolding);
        }
        super::check_streams(&switch.to, device)?;
        let from_ids = scratch.take(switch.to.graph().tensors().len(), TensorId(0))?;
        for &SharedState { from, to } in switch.states {
            from_ids[to.index()] = from;
        }
        let chunks = scratch.take(switch.switch.chunks.len(), ChunkRun::zeroed())?;
        chunks.copy_from_slice(switch.switch.chunks);
        let mut spares = self.spares.with_more(self.own_ranges(), scratch)?;
        let most_range_chunks = device.most_range_chunks();
        let chunk_map = ChunkMap(chunks);
        let mut next = Executor::lay_out(&switch.to, chunk_map, most_range_chunks, scratch)?;
        next.host.take_states(&self.host, switch.states);
        let (needed_bytes, created_bytes) = (next.host.bytes(), self.capacity.host_bytes);
        if needed_bytes > created_bytes {
            return Err(SwitchError::HostMemory { needed_bytes, created_bytes }.into());
        }
        next.before = self.number(self.iterations);
        next.capacity = self.capacity;
        next.starts_saved = switch.is_saved;
        self.failed = true;
        let at = |moment| move |error| ExecuteError::Device { at: moment, error };
        self.finish(device).map_err(at(Moment::Save))?;
        // Permanently mapped ranges do not change, so both plans can have them.
        self.hand_over(&mut spares, true);
        let mut mapper = Mapper::new(&mut *device, &mut spares);
        next.memory.set_up(&mut mapper).map_err(|fault| fault.at(Moment::SetUp))?;
        let mapped = mapper.done;
        next.allocate_residents(device)?;
        let mut kernels = kernels();
        super::check_host_kernels(&switch.to, &mut kernels)?;
        next.fill_first(device, &mut kernels)?;
        self.carry_out(switch.switch.steps, from_ids, &next, device)?;
        next.points.start(device).map_err(at(Moment::SetUp))?;
        let mut mapper = Mapper { done: mapped, ..Mapper::new(device, &mut spares) };
        self.memory.take_down(&mut mapper).map_err(|fault| fault.at(Moment::TakeDown))?;
        next.set_up = mapper.done;
        self.hand_over(&mut spares, false);
        next.spares = spares;
        Ok(next)
    }

    /// Adds this plan's ranges to the spare ranges: the permanently mapped ranges, or all others.
    fn hand_over(&self, spares: &mut Spares<'_>, mapped: bool) {
        self.memory.each_range(|address, chunks, rows| {
            let mut rows = rows.peekable();
            if rows.peek().is_some() == mapped {
                spares.push(address, chunks, rows);
            }
        });
    }

    /// Whether the plan holds exactly this now.
    fn is_held(&self, holding: &Holding<'_>) -> bool {
        let is_plan = core::ptr::eq(holding.verified.plan().steps, self.verified.plan().steps);
        let mut entries = holding.entries.iter();
        let mut is_same = is_plan && holding.capacity == self.capacity;
        self.each_held(|held| is_same &= entries.next() == Some(&held));
        is_same && entries.next().is_none()
    }

    /// Allocates objects for everything that is resident at start.
    fn allocate_residents<B: Streams + Paging>(
        &mut self,
        device: &mut B,
    ) -> Result<(), ExecuteError<B::Error>> {
        for &Resident { part, .. } in self.verified.plan().resident_at_start {
            self.inputs.value[part.tensor.index()] = 1;
            let pieces = self.memory.pieces().of_part(part);
            self.memory
                .allocate(device, part.tensor, pieces, self.enqueued)
                .map_err(|fault| fault.at(Moment::Start(part.tensor)))?;
        }
        Ok(())
    }

    /// Enqueues the copies of a switch.
    fn carry_out<B: Transfers>(
        &self,
        steps: &[SwitchStep],
        from_ids: &[TensorId],
        next: &Executor<'_>,
        device: &mut B,
    ) -> Result<(), ExecuteError<B::Error>> {
        let mut is_behind = false;
        for (step, action) in (0..).zip(steps) {
            let copied = match *action {
                SwitchStep::Keep(_) | SwitchStep::Evict(_) => Ok(()),
                SwitchStep::Offload(TensorBytes { tensor, first_byte, bytes }) => {
                    is_behind = true;
                    let from = self.memory.address(from_ids[tensor.index()], first_byte);
                    device.download(from, next.host_bytes(tensor, first_byte, bytes))
                }
                SwitchStep::Prefetch(TensorBytes { tensor, first_byte, bytes }) => {
                    let to = next.memory.address(tensor, first_byte);
                    let from = next.host_bytes(tensor, first_byte, bytes);
                    let is_late = core::mem::replace(&mut is_behind, false);
                    let waited = if is_late { wait_for_downloads(device) } else { Ok(()) };
                    waited.and_then(|()| device.upload(from, to))
                }
            };
            copied.map_err(|error| Fault::Device(error).at(Moment::Switch(step)))?;
        }
        Ok(())
    }

    /// The host copy of some bytes; of an input, in the slot of the first iteration.
    fn host_bytes(&self, tensor: TensorId, first_byte: u64, bytes: u64) -> HostRange {
        let slot = self.slot(tensor, 1);
        HostRange { offset_bytes: self.host.offset_bytes(tensor, slot, first_byte), bytes }
    }
}

/// Makes uploads wait for all downloads so far.
fn wait_for_downloads<B: Streams>(device: &mut B) -> Result<(), B::Error> {
    let point = device.signal(Stream::Download)?;
    device.wait(Stream::Upload, point)
}
