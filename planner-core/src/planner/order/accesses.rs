//! The accesses to each version, the ops that must wait for each access, and the units of ops that
//! still wait.

#![expect(
    clippy::indexing_slicing,
    reason = "versions and launches are those of the sequence, and the arrays have an entry for \
              each"
)]

use super::versions::{Version, Versions};
use crate::scratch::{Limits, OutOfScratch, Scratch, total, words};
use crate::sequence::LaunchId;

/// The accesses to each version, in the given order, with a cursor.
#[derive(Debug)]
struct Accesses<'a> {
    /// The index of each version's first access, and at the end the number of accesses.
    start: &'a mut [u32],
    /// The op of each access, shifted left by one; the lowest bit is 1 for a write.
    access: &'a mut [u32],
    /// The index of each version's next write; the end of its accesses if there is none.
    write: &'a mut [u32],
}

impl<'a> Accesses<'a> {
    const fn scratch_words(limits: &Limits) -> usize {
        total([
            words::<u32>(limits.operands),
            words::<u32>(Versions::most(limits).saturating_add(1)),
            words::<u32>(Versions::most(limits)),
        ])
    }

    /// Sorts all operands by version. O(operands).
    #[expect(
        clippy::arithmetic_side_effects,
        reason = "operands are numbered in 31 bits, and versions are positions in arrays"
    )]
    fn new(versions: &Versions<'_>, scratch: &mut Scratch<'a>) -> Result<Self, OutOfScratch> {
        let count = versions.len();
        let start = scratch.take(count + 1, 0u32)?;
        let operands =
            || versions.sequence().launches().flat_map(|launch| versions.operands_of(launch));
        for version in operands() {
            start[version.index() + 1] += 1;
        }
        for version in 0..count {
            start[version + 1] += start[version];
        }
        let access = scratch.take(start[count] as usize, 0u32)?;
        let write = scratch.take(count, 0u32)?;
        write.copy_from_slice(&start[..count]);
        for launch in versions.sequence().launches() {
            let writes = |at: usize| u32::from(at >= versions.reads(launch).len());
            for (at, version) in versions.operands_of(launch).iter().enumerate() {
                let end = &mut write[version.index()];
                access[*end as usize] = launch.0 << 1 | writes(at);
                *end += 1;
            }
        }
        let mut accesses = Self { start, access, write };
        accesses.rewind(versions);
        Ok(accesses)
    }

    /// Moves the cursor before the first op.
    fn rewind(&mut self, versions: &Versions<'_>) {
        for version in versions.all() {
            self.write[version.index()] = self.next_write(version, self.start[version.index()]);
        }
    }

    /// The first op that accesses a version.
    fn first(&self, version: Version) -> Option<LaunchId> {
        let at = self.start[version.index()];
        (at < self.end(version)).then(|| self.launch(at))
    }

    fn end(&self, version: Version) -> u32 {
        self.start[version.index().saturating_add(1)]
    }

    fn launch(&self, at: u32) -> LaunchId {
        LaunchId(self.access[at as usize] >> 1)
    }

    /// The index of the first write of a version at or after an index.
    fn next_write(&self, version: Version, from: u32) -> u32 {
        let writes = |&at: &u32| self.access[at as usize] & 1 == 1;
        (from..self.end(version)).find(writes).unwrap_or(self.end(version))
    }

    /// The launch of a write; after the last write of a version, the launch that ends the version.
    fn writer(&self, versions: &Versions<'_>, version: Version, write: u32) -> Option<LaunchId> {
        if write < self.end(version) { Some(self.launch(write)) } else { versions.end(version) }
    }

    /// Moves the cursor past an op, and calls `waited` with each op that had to wait for it. If the
    /// op writes a value, its readers waited. If the op reads a value, or writes one without
    /// readers, the next [writer](Self::writer) waited.
    fn pass(
        &mut self,
        versions: &Versions<'_>,
        launch: LaunchId,
        mut waited: impl FnMut(LaunchId),
    ) {
        for &version in versions.reads(launch) {
            let write = self.write[version.index()];
            self.writer(versions, version, write).into_iter().for_each(&mut waited);
        }
        for &version in versions.writes(launch) {
            let readers = self.write[version.index()].saturating_add(1);
            let write = self.next_write(version, readers);
            self.write[version.index()] = write;
            (readers..write).for_each(|at| waited(self.launch(at)));
            if readers >= write {
                self.writer(versions, version, write).into_iter().for_each(&mut waited);
            }
        }
    }
}

/// The units of ops that still wait for another unit. A unit is named by one of its ops.
#[derive(Debug)]
pub(super) struct Waits<'a> {
    accesses: Accesses<'a>,
    /// The number of accesses that each unit still waits for.
    left: &'a mut [u32],
}

impl<'a> Waits<'a> {
    pub(super) const fn scratch_words(limits: &Limits) -> usize {
        Accesses::scratch_words(limits).saturating_add(words::<u32>(limits.ops))
    }

    /// Counts before any op has run. O(operands).
    pub(super) fn new(
        versions: &Versions<'_>,
        unit_of: impl Fn(LaunchId) -> u32,
        scratch: &mut Scratch<'a>,
    ) -> Result<Self, OutOfScratch> {
        let mut accesses = Accesses::new(versions, scratch)?;
        let left = scratch.take(versions.sequence().len(), 0u32)?;
        for launch in versions.sequence().launches() {
            let unit = unit_of(launch);
            accesses.pass(versions, launch, |other| {
                let other = unit_of(other);
                let left = &mut left[other as usize];
                *left = left.saturating_add(u32::from(other != unit));
            });
        }
        accesses.rewind(versions);
        Ok(Self { accesses, left })
    }

    /// Whether a unit waits for no other unit.
    pub(super) fn is_ready(&self, unit: u32) -> bool {
        self.left[unit as usize] == 0
    }

    /// The first op that accesses a version.
    pub(super) fn first(&self, version: Version) -> Option<LaunchId> {
        self.accesses.first(version)
    }

    /// Runs an op. Calls `ready` with each unit that waits for no other unit any more.
    pub(super) fn run(
        &mut self,
        versions: &Versions<'_>,
        launch: LaunchId,
        unit_of: impl Fn(LaunchId) -> u32,
        mut ready: impl FnMut(u32),
    ) {
        let Self { accesses, left } = self;
        let unit = unit_of(launch);
        accesses.pass(versions, launch, |other| {
            let other = unit_of(other);
            if other != unit {
                let left = &mut left[other as usize];
                *left = left.saturating_sub(1);
                if *left == 0 {
                    ready(other);
                }
            }
        });
    }
}
