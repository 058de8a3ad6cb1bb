//! Reserved address ranges and the chunks that are mapped in them.

use crate::Refused;
use planner_core::backend::{Chunks, DeviceAddress};
use std::collections::BTreeMap;
use std::ops::Range;

#[derive(Debug)]
struct Reservation<R> {
    end: u64,
    kept: R,
}

#[derive(Clone, Copy, Debug)]
struct Mapping {
    end: u64,
    /// The number of the chunk that is mapped at the start.
    first: u64,
}

/// Records which chunks exist, which addresses are reserved and which chunks are mapped at them. A
/// backend keeps an `R` for each reservation.
///
/// A backend checks a call here, lets the driver carry it out, and records it here after the driver
/// has succeeded. A call that is refused or fails therefore changes nothing.
#[derive(Debug)]
pub struct AddressMap<R> {
    chunk_bytes: u64,
    created: Option<u64>,
    /// Keyed by start address.
    reserved: BTreeMap<u64, Reservation<R>>,
    /// Keyed by start address.
    mapped: BTreeMap<u64, Mapping>,
}

impl<R> AddressMap<R> {
    /// Creates a map without chunks and reservations.
    #[must_use]
    pub const fn new(chunk_bytes: u64) -> Self {
        Self { chunk_bytes, created: None, reserved: BTreeMap::new(), mapped: BTreeMap::new() }
    }

    /// The size of a chunk.
    #[must_use]
    pub const fn chunk_bytes(&self) -> u64 {
        self.chunk_bytes
    }

    /// The size of `chunks` chunks in bytes. `None` if it is 0 or does not fit 64 bits.
    #[must_use]
    pub fn bytes(&self, chunks: u64) -> Option<u64> {
        chunks.checked_mul(self.chunk_bytes).filter(|&bytes| bytes > 0)
    }

    /// Checks that chunks can be created.
    ///
    /// # Errors
    /// [`Refused::CreatedTwice`].
    pub const fn check_create(&self) -> Result<(), Refused> {
        if self.created.is_some() { Err(Refused::CreatedTwice) } else { Ok(()) }
    }

    /// Records the chunks `0..count`. Chunks that end beyond 2^64 bytes do not exist.
    pub fn create(&mut self, count: u64) {
        self.created = Some(count.min(u64::MAX.checked_div(self.chunk_bytes).unwrap_or(0)));
    }

    /// Records a reservation for which the backend has found addresses. It ends at the end of the
    /// address space at the latest.
    pub fn reserve(&mut self, at: DeviceAddress, bytes: u64, kept: R) {
        self.reserved.insert(at.0, Reservation { end: at.0.saturating_add(bytes), kept });
    }

    /// Whether a reservation begins at an address.
    #[must_use]
    pub fn begins(&self, at: DeviceAddress) -> bool {
        self.reserved.contains_key(&at.0)
    }

    /// Checks that a range is mapped, and returns the `R` of its reservation. Does one search per
    /// mapping in the range: O(mappings in the range times log mappings).
    ///
    /// # Errors
    /// [`Refused::NotMapped`].
    pub fn check_mapped(&self, at: DeviceAddress, bytes: u64) -> Result<&R, Refused> {
        let not_mapped = Refused::NotMapped(at);
        let (_, reservation) = self.reserved.range(..=at.0).next_back().ok_or(not_mapped)?;
        let end = at.0.checked_add(bytes).filter(|&end| end <= reservation.end);
        let (mut next, end) = (at.0, end.ok_or(not_mapped)?);
        while next < end {
            next = self.mapping(next).ok_or(not_mapped)?.1.end;
        }
        Ok(&reservation.kept)
    }

    /// Returns the physical bytes behind a range, in order. Chunk `n` begins at `n * chunk_bytes`.
    ///
    /// # Errors
    /// [`Refused::NotMapped`].
    pub fn physical(&self, at: DeviceAddress, bytes: u64) -> Result<Vec<Range<u64>>, Refused> {
        self.check_mapped(at, bytes)?;
        // Mappings and created chunks end within 64 bits.
        let end = at.0.saturating_add(bytes);
        let first = self.mapping(at.0).map_or(at.0, |(start, _)| start);
        let physical = |(&start, mapping): (&u64, &Mapping)| {
            let base = mapping.first.saturating_mul(self.chunk_bytes);
            let [from, to] = [at.0.max(start), end.min(mapping.end)].map(|at| at - start);
            base.saturating_add(from)..base.saturating_add(to)
        };
        Ok(self.mapped.range(first..end).map(physical).collect())
    }

    /// Checks that chunks can be mapped, and returns the `R` of the reservation.
    ///
    /// # Errors
    /// In this order: [`Refused::NotReserved`], [`Refused::UnknownChunk`],
    /// [`Refused::AlreadyMapped`].
    pub fn check_map(&self, at: DeviceAddress, chunks: Chunks) -> Result<&R, Refused> {
        let (kept, end) = self.reserved(at, chunks.count)?;
        let created = self.created.unwrap_or(0);
        if chunks.first.saturating_add(chunks.count) > created {
            return Err(Refused::UnknownChunk(chunks.first.max(created)));
        }
        match self.mapped.range(..end).next_back() {
            Some((&start, before)) if before.end > at.0 => {
                Err(Refused::AlreadyMapped(DeviceAddress(start.max(at.0))))
            }
            _ => Ok(kept),
        }
    }

    /// Records a mapping that passed [`check_map`](Self::check_map).
    pub fn map(&mut self, at: DeviceAddress, chunks: Chunks) {
        let end = at.0.saturating_add(chunks.count.saturating_mul(self.chunk_bytes));
        self.mapped.insert(at.0, Mapping { end, first: chunks.first });
    }

    /// Checks that a range is one or more whole mappings, so that it can be unmapped. Returns the
    /// `R` of the reservation.
    ///
    /// # Errors
    /// In this order: [`Refused::NotReserved`], [`Refused::NotMapped`],
    /// [`Refused::PartOfMapping`].
    pub fn check_unmap(&self, at: DeviceAddress, chunks: u64) -> Result<&R, Refused> {
        let (kept, end) = self.reserved(at, chunks)?;
        self.check_mapped(at, end - at.0)?;
        let is_cut = |at| self.mapping(at).is_some_and(|(start, _)| start < at);
        if is_cut(at.0) || is_cut(end) { Err(Refused::PartOfMapping(at)) } else { Ok(kept) }
    }

    /// Removes mappings that passed [`check_unmap`](Self::check_unmap).
    pub fn unmap(&mut self, at: DeviceAddress, chunks: u64) {
        let end = at.0.saturating_add(chunks.saturating_mul(self.chunk_bytes));
        while let Some((&start, _)) = self.mapped.range(at.0..end).next() {
            self.mapped.remove(&start);
        }
    }

    /// All mappings, as start and size in bytes.
    pub fn mappings(&self) -> impl Iterator<Item = (DeviceAddress, u64)> {
        self.mapped.iter().map(|(&start, mapping)| (DeviceAddress(start), mapping.end - start))
    }

    /// The mapping at an address and its start.
    fn mapping(&self, at: u64) -> Option<(u64, Mapping)> {
        let (&start, &mapping) = self.mapped.range(..=at).next_back()?;
        (at < mapping.end).then_some((start, mapping))
    }

    /// The `R` of the reservation that contains `chunks` chunks from `at` on, and the end of these
    /// chunks.
    fn reserved(&self, at: DeviceAddress, chunks: u64) -> Result<(&R, u64), Refused> {
        let inside = || {
            let (&start, reservation) = self.reserved.range(..=at.0).next_back()?;
            let end = at.0.checked_add(self.bytes(chunks)?)?;
            let fits = (at.0 - start).is_multiple_of(self.chunk_bytes) && end <= reservation.end;
            fits.then_some((&reservation.kept, end))
        };
        inside().ok_or(Refused::NotReserved(at))
    }
}
