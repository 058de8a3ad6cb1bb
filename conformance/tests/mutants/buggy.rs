//! Devices with one bug each, as a layer over a simulated device that forgives what real ones
//! do not notice.

use crate::bug::Bug;
use backend_checks::Refused;
use backend_sim::{SimDevice, SimError};
use middleware::Layer;
use planner_core::backend::{
    Chunks, DeviceAddress, DeviceRange, DeviceRanges, FillError, HostLaunch, HostRange, HostRanges,
    InputWriter, Launch, Paging, Point, StateWriter, Streams, Transfers,
};
use planner_core::{OpId, PerStream, Stream, TensorId};
use std::cell::Cell;
use std::collections::BTreeMap;

thread_local! {
    static DEVICES: Cell<u64> = const { Cell::new(0) };
}

/// Chunks beyond those asked for, for bugs to use.
const SPARE_CHUNKS: u64 = 256;

/// The layer with a bug.
#[derive(Debug)]
pub(crate) struct Buggy {
    bug: Bug,
    /// Calls of one kind so far.
    calls: u64,
    /// Waits that have been asked for and not made, by waiting and awaited stream.
    waits: PerStream<PerStream<u64>>,
    /// What the host has written and is not there yet.
    written: Option<(u64, Vec<u8>)>,
    upload: Option<(HostRange, DeviceAddress)>,
    download: Option<(DeviceAddress, HostRange)>,
    last_range: Option<DeviceAddress>,
    /// What has been mapped.
    mapped: BTreeMap<DeviceAddress, Chunks>,
    /// What has been unmapped but is still there.
    stale: BTreeMap<DeviceAddress, u64>,
    /// Which chunk serves instead of one.
    instead: BTreeMap<u64, u64>,
    /// The addresses of each op's last launch that was no repeat.
    first: BTreeMap<OpId, FirstLaunch>,
    created: u64,
    spare: u64,
    under_way: u64,
}

/// The addresses of a launch.
#[derive(Clone, Debug)]
struct FirstLaunch {
    reads: Vec<[u64; 2]>,
    writes: Vec<[u64; 2]>,
    workspace: Option<DeviceRange>,
}

/// Ranges as pairs of an address and a size.
fn numbers(ranges: DeviceRanges<'_>) -> Vec<[u64; 2]> {
    let pair = |range: DeviceRange| [range.address.0, range.bytes];
    ranges.iter().map(|range| range.map_or([0; 2], pair)).collect()
}

impl FirstLaunch {
    fn of(launch: &Launch<'_>) -> Self {
        let Launch { reads, writes, workspace, .. } = *launch;
        Self { reads: numbers(reads), writes: numbers(writes), workspace }
    }

    /// The addresses of a repeat, with those of the first launch where the repeat has none.
    fn filled(of: DeviceRanges<'_>, own: &[[u64; 2]]) -> Vec<[u64; 2]> {
        let of = numbers(of).into_iter();
        of.zip(own).map(|(range, &first)| if range[1] == 0 { first } else { range }).collect()
    }
}

impl Buggy {
    pub(crate) fn new(bug: Bug) -> Self {
        DEVICES.set(DEVICES.get() + 1);
        Self {
            bug,
            calls: 0,
            waits: PerStream::all(PerStream::all(0)),
            written: None,
            upload: None,
            download: None,
            last_range: None,
            mapped: BTreeMap::new(),
            stale: BTreeMap::new(),
            instead: BTreeMap::new(),
            first: BTreeMap::new(),
            created: 0,
            spare: 0,
            under_way: 0,
        }
    }

    /// Makes the waits that were put off, and the uploads that are late.
    fn before_work(&mut self, device: &mut SimDevice, stream: Stream) -> Result<(), SimError> {
        for (of, value) in self.waits[stream] {
            if value > 0 {
                device.wait(stream, Point { stream: of, value })?;
            }
        }
        self.waits[stream] = PerStream::all(0);
        self.under_way += 1;
        if self.bug == Bug::UploadsLate {
            self.catch_up(device)?;
        }
        Ok(())
    }

    /// Writes what the host wrote last, where that is late.
    fn write_late(&mut self, device: &mut SimDevice) -> Result<(), SimError> {
        self.written.take().map_or(Ok(()), |(at, from)| device.write_host(at, &from))
    }

    /// Makes the copies that were held back.
    fn catch_up(&mut self, device: &mut SimDevice) -> Result<(), SimError> {
        if let Some((from, to)) = self.upload.take() {
            device.upload(from, to)?;
        }
        if let Some((from, to)) = self.download.take() {
            device.download(from, to)?;
        }
        Ok(())
    }

    /// The bytes that the bug lets through.
    fn cut(&self, device: &SimDevice, at: DeviceAddress, range: HostRange) -> HostRange {
        let to_border = device.chunk_bytes() - at.0 % device.chunk_bytes();
        match self.bug {
            Bug::CopiesOneChunk => HostRange { bytes: range.bytes.min(to_border), ..range },
            Bug::CutsSizes => HostRange { bytes: range.bytes % (1 << 32), ..range },
            Bug::CutsHostOffsets => {
                HostRange { offset_bytes: range.offset_bytes % (1 << 32), ..range }
            }
            _ => range,
        }
    }

    /// What happens to an error of a copy.
    fn forgive_copy(&self, error: SimError) -> Result<(), SimError> {
        match (self.bug, error) {
            (Bug::CopiesToNowhere, SimError::Unmapped { .. })
            | (Bug::CopiesFromNowhere, SimError::Refused(Refused::NoHostRange(_))) => Ok(()),
            _ => Err(error),
        }
    }

    /// What the device says of a failure.
    fn blurred<R>(&self, result: Result<R, SimError>) -> Result<R, SimError> {
        result.map_err(|error| match (self.bug, error) {
            (Bug::BlursHostFailures, SimError::HostOpFailed { .. }) => SimError::Lost,
            (Bug::FailsLate, SimError::HostOpFailed { op, iteration }) => {
                SimError::HostOpFailed { op, iteration: iteration + 1 }
            }
            (_, error) => error,
        })
    }

    /// The chunk that a bug takes for another.
    fn served(&mut self, chunk: u64) -> u64 {
        let is_mapped = self
            .mapped
            .values()
            .any(|&Chunks { first, count }| (first..first + count).contains(&chunk));
        match self.bug {
            Bug::ChunksWrap => chunk % 16,
            Bug::AliasesApart if is_mapped => self.other(),
            Bug::ChunksForget => self.instead.get(&chunk).copied().unwrap_or(chunk),
            _ => chunk,
        }
    }

    fn other(&mut self) -> u64 {
        self.spare += 1;
        self.created + self.spare % SPARE_CHUNKS
    }

    /// A repeat as some bugs do it.
    fn repeat(
        &self,
        device: &mut SimDevice,
        launch: &Launch<'_>,
        run: impl FnOnce(&mut SimDevice, &Launch<'_>) -> Result<(), SimError>,
    ) -> Result<(), SimError> {
        let Some(first) = self.first.get(&launch.op) else { return run(device, launch) };
        let made = launch.writes.iter().flatten().map(|range| range.address).next();
        match self.bug {
            Bug::LosesRepeats => Ok(()),
            Bug::RepeatsTrustTheFirst => {
                let is_there =
                    launch.writes.iter().zip(&first.writes).all(|(range, &[first, _])| {
                        range.is_none_or(|range| range.address.0 == first)
                    });
                if is_there { Ok(()) } else { run(device, launch) }
            }
            Bug::RepeatsDrawAnew => {
                run(device, launch)?;
                let host = HostRange { offset_bytes: 0, bytes: 1 };
                made.map_or(Ok(()), |made| device.upload(host, made))
            }
            Bug::RepeatsWriteToTheFirst => {
                let writes = launch.writes.iter().zip(&first.writes);
                let writes: Vec<_> = writes
                    .map(|(range, &first)| if range.is_none() { [0; 2] } else { first })
                    .collect();
                let mut changed = *launch;
                changed.writes = DeviceRanges::new(&writes);
                run(device, &changed)
            }
            Bug::RepeatsUpdateStates => {
                let reads = FirstLaunch::filled(launch.reads, &first.reads);
                let writes = FirstLaunch::filled(launch.writes, &first.writes);
                let (reads, writes) = (DeviceRanges::new(&reads), DeviceRanges::new(&writes));
                let mut changed = *launch;
                changed.is_repeat = false;
                changed.reads = reads;
                changed.writes = writes;
                run(device, &changed)
            }
            Bug::RepeatsUseTheFirstWorkspace => {
                let mut changed = *launch;
                changed.workspace = first.workspace;
                run(device, &changed)
            }
            _ => run(device, launch),
        }
    }

    /// Maps chunk by chunk, as some bugs want it.
    fn map_each(
        &mut self,
        device: &mut SimDevice,
        at: DeviceAddress,
        chunks: Chunks,
    ) -> Result<(), SimError> {
        let Chunks { first, count } = chunks;
        for position in 0..count {
            let address = DeviceAddress(at.0 + position * device.chunk_bytes());
            let chunk = match self.bug {
                Bug::MapsBackwards => first + count - 1 - position,
                _ => self.served(first + position),
            };
            device.map(address, Chunks { first: chunk, count: 1 })?;
        }
        Ok(())
    }
}

impl Drop for Buggy {
    fn drop(&mut self) {
        DEVICES.set(DEVICES.get() - 1);
        let fails = self.bug == Bug::DropsBadly && self.under_way > 0;
        assert!(!fails || std::thread::panicking(), "{} works are under way", self.under_way);
    }
}

impl Layer<SimDevice> for Buggy {
    type Error = SimError;

    fn wait(
        &mut self,
        device: &mut SimDevice,
        stream: Stream,
        point: Point,
    ) -> Result<(), SimError> {
        match self.bug {
            Bug::Deaf(waiting, awaited) if waiting == stream && awaited == point.stream => Ok(()),
            Bug::WaitsForTheOneBefore if point.value == 1 => Ok(()),
            Bug::WaitsForTheOneBefore => {
                device.wait(stream, Point { value: point.value - 1, ..point })
            }
            Bug::HearsTheLastWait | Bug::SignalsPastWaits => {
                device.reached(point)?;
                let value = &mut self.waits[stream][point.stream];
                let last = self.bug == Bug::HearsTheLastWait;
                *value = if last { point.value } else { point.value.max(*value) };
                Ok(())
            }
            Bug::RefusesOwnPoints if stream == point.stream => {
                Err(Refused::Unsignalled(point).into())
            }
            Bug::WaitsForAnything => device.wait(stream, point).or(Ok(())),
            _ => self.blurred(device.wait(stream, point)),
        }
    }

    fn signal(&mut self, device: &mut SimDevice, stream: Stream) -> Result<Point, SimError> {
        match self.bug {
            Bug::HearsTheLastWait => self.before_work(device, stream)?,
            Bug::UploadsOutOfOrder | Bug::DownloadsOutOfOrder => self.catch_up(device)?,
            Bug::LeaksMemory => std::mem::forget(std::hint::black_box(vec![1u8; 1024])),
            Bug::LeaksHandles => {
                self.calls += 1;
                if self.calls.is_multiple_of(1000) {
                    std::mem::forget(std::fs::File::open("/dev/null"));
                }
            }
            _ => {}
        }
        let point = self.blurred(device.signal(stream))?;
        let ahead = match self.bug {
            Bug::CountsFromTwo => 1,
            Bug::CountsOtherDevices => DEVICES.get() - 1,
            _ => 0,
        };
        Ok(Point { value: point.value + ahead, ..point })
    }

    fn signal_unawaited(
        &mut self,
        device: &mut SimDevice,
        stream: Stream,
    ) -> Result<Point, SimError> {
        if self.bug == Bug::CountsUnawaitedTwice {
            device.signal_unawaited(stream)?;
        }
        self.signal(device, stream)
    }

    fn reached(&mut self, device: &mut SimDevice, point: Point) -> Result<bool, SimError> {
        match self.bug {
            Bug::AsksForAnything => Ok(device.reached(point).unwrap_or(false)),
            Bug::ReachesAtOnce => device.reached(point).map(|_| true),
            _ => self.blurred(device.reached(point)),
        }
    }

    fn block_until(&mut self, device: &mut SimDevice, point: Point) -> Result<(), SimError> {
        self.under_way = 0;
        match self.bug {
            Bug::BlocksForNothing => device.reached(point).map(drop),
            Bug::AsksForAnything => match device.block_until(point) {
                Err(SimError::Refused(Refused::Unsignalled(_))) => Ok(()),
                blocked => blocked,
            },
            _ => self.blurred(device.block_until(point)),
        }
    }

    fn create_host(&mut self, device: &mut SimDevice, bytes: u64) -> Result<(), SimError> {
        match (self.bug, device.create_host(bytes)) {
            (Bug::CreatesBlocksTwice, Err(SimError::Refused(Refused::HostCreatedTwice))) => Ok(()),
            (_, created) => created,
        }
    }

    fn write_host(
        &mut self,
        device: &mut SimDevice,
        offset_bytes: u64,
        from: &[u8],
    ) -> Result<(), SimError> {
        self.write_late(device)?;
        let written = match self.bug {
            Bug::WritesHostTooLittle => {
                device.write_host(offset_bytes, &from[..from.len().saturating_sub(1)])
            }
            Bug::WritesHostTooMuch => device
                .write_host(offset_bytes, &[from, &[0]].concat())
                .or_else(|_| device.write_host(offset_bytes, from)),
            Bug::WritesHostLate => {
                // Whether the bytes exist is found at once.
                device.read_host(offset_bytes, &mut from.to_vec())?;
                self.written = Some((offset_bytes, from.to_vec()));
                Ok(())
            }
            _ => device.write_host(offset_bytes, from),
        };
        written.or_else(|error| self.forgive_copy(error))
    }

    fn read_host(
        &mut self,
        device: &mut SimDevice,
        offset_bytes: u64,
        into: &mut [u8],
    ) -> Result<(), SimError> {
        self.write_late(device)?;
        let end = into.len().saturating_sub(usize::from(self.bug == Bug::ReadsHostTooLittle));
        let read = device.read_host(offset_bytes, &mut into[..end]);
        read.or_else(|error| self.forgive_copy(error))
    }

    fn upload(
        &mut self,
        device: &mut SimDevice,
        from: HostRange,
        to: DeviceAddress,
    ) -> Result<(), SimError> {
        self.before_work(device, Stream::Upload)?;
        let range = self.cut(device, to, from);
        let uploaded = match self.bug {
            Bug::UploadsTooLittle if range.bytes == 1 => Ok(()),
            Bug::UploadsTooLittle => {
                device.upload(HostRange { bytes: range.bytes - 1, ..range }, to)
            }
            Bug::LosesLateUploads => {
                self.calls += 1;
                if self.calls > 1000 { Ok(()) } else { device.upload(range, to) }
            }
            Bug::UploadsTooMuch => device
                .upload(HostRange { bytes: range.bytes.saturating_add(1), ..range }, to)
                .or_else(|_| device.upload(range, to)),
            Bug::UploadsOutOfOrder if self.upload.is_some() => {
                device.upload(range, to)?;
                self.catch_up(device)
            }
            Bug::UploadsOutOfOrder | Bug::UploadsLate => {
                self.upload = Some((range, to));
                Ok(())
            }
            _ => device.upload(range, to),
        };
        uploaded.or_else(|error| self.forgive_copy(error))
    }

    fn download(
        &mut self,
        device: &mut SimDevice,
        from: DeviceAddress,
        to: HostRange,
    ) -> Result<(), SimError> {
        self.before_work(device, Stream::Download)?;
        let range = self.cut(device, from, to);
        let downloaded = match self.bug {
            Bug::DownloadsTooLittle if range.bytes == 1 => Ok(()),
            Bug::DownloadsTooLittle => {
                device.download(from, HostRange { bytes: range.bytes - 1, ..range })
            }
            Bug::DownloadsOutOfOrder if self.download.is_some() => {
                device.download(from, range)?;
                self.catch_up(device)
            }
            Bug::DownloadsOutOfOrder => {
                self.download = Some((from, range));
                Ok(())
            }
            _ => device.download(from, range),
        };
        downloaded.or_else(|error| self.forgive_copy(error))
    }

    fn create(&mut self, device: &mut SimDevice, count: u64) -> Result<(), SimError> {
        if self.bug == Bug::NeverRecovers && self.calls > 0 {
            return Err(Refused::CreatedTwice.into());
        }
        let created = device.create(count.saturating_add(SPARE_CHUNKS));
        self.created = count;
        self.calls += u64::from(self.bug == Bug::NeverRecovers && created.is_err());
        match (self.bug, created) {
            (Bug::RunsOutOfSomething, Err(_)) => Err(Refused::CreatedTwice.into()),
            (_, created) => created,
        }
    }

    fn reserve(&mut self, device: &mut SimDevice, chunks: u64) -> Result<DeviceAddress, SimError> {
        let last = self.last_range;
        let at = match (self.bug, device.reserve(chunks)) {
            (Bug::RangesWithoutEnd, Err(_)) => DeviceAddress(device.chunk_bytes()),
            (Bug::RangesFromZero, reserved) => {
                last.map_or(reserved.map(|_| DeviceAddress(0)), |_| device.reserve(chunks))?
            }
            (Bug::RangesComeAgain, reserved) => {
                self.calls += 1;
                last.filter(|_| self.calls > 1000).map_or(reserved, Ok)?
            }
            (Bug::RangesOverlap, reserved) => {
                last.map_or(reserved, |last| Ok(DeviceAddress(last.0 + device.chunk_bytes())))?
            }
            (_, reserved) => reserved?,
        };
        self.last_range = Some(at);
        Ok(at)
    }

    fn map(
        &mut self,
        device: &mut SimDevice,
        at: DeviceAddress,
        chunks: Chunks,
    ) -> Result<(), SimError> {
        if chunks.first.saturating_add(chunks.count) > self.created && self.bug != Bug::MapsNothing
        {
            return Err(Refused::UnknownChunk(self.created).into());
        }
        if self.stale.get(&at) == Some(&chunks.count) {
            return Ok(());
        }
        let mapped = match self.bug {
            Bug::MapsBackwards | Bug::AliasesApart | Bug::ChunksForget | Bug::ChunksWrap => {
                self.map_each(device, at, chunks)
            }
            _ => device.map(at, chunks),
        };
        match (self.bug, mapped) {
            (Bug::MapsTwice, Err(SimError::Refused(Refused::AlreadyMapped(_))))
            | (Bug::MapsNothing, Err(SimError::Refused(Refused::UnknownChunk(_))))
            | (Bug::MapsAnywhere, Err(SimError::Refused(Refused::NotReserved(_)))) => return Ok(()),
            (_, mapped) => mapped?,
        }
        self.mapped.insert(at, chunks);
        Ok(())
    }

    fn unmap(
        &mut self,
        device: &mut SimDevice,
        at: DeviceAddress,
        chunks: u64,
    ) -> Result<(), SimError> {
        let was = self.mapped.get(&at).copied();
        match self.bug {
            Bug::MappingsAreStale if was.is_some_and(|was| was.count == chunks) => {
                self.stale.insert(at, chunks);
                return Ok(());
            }
            Bug::UnmapsOne if chunks > 1 && device.unmap(at, 1).is_ok() => return Ok(()),
            Bug::UnmapsAliases => {
                let aliases =
                    self.mapped.iter().filter(|&(&other, &what)| other != at && Some(what) == was);
                for (&alias, what) in aliases {
                    device.unmap(alias, what.count)?;
                }
                self.mapped.retain(|&other, what| other == at || Some(*what) != was);
            }
            _ => {}
        }
        match (self.bug, device.unmap(at, chunks)) {
            (
                Bug::UnmapsNothing,
                Err(SimError::Refused(Refused::NotMapped(_) | Refused::NotReserved(_))),
            )
            | (Bug::UnmapsParts, Err(SimError::Refused(Refused::PartOfMapping(_)))) => {
                return Ok(());
            }
            (_, unmapped) => unmapped?,
        }
        if let Some(Chunks { first, count }) =
            self.mapped.remove(&at).filter(|_| self.bug == Bug::ChunksForget)
        {
            for chunk in first..first + count {
                let other = self.other();
                self.instead.insert(chunk, other);
            }
        }
        Ok(())
    }

    fn launch(
        &mut self,
        device: &mut SimDevice,
        launch: &Launch<'_>,
        run: impl FnOnce(&mut SimDevice, &Launch<'_>) -> Result<(), SimError>,
    ) -> Result<(), SimError> {
        self.before_work(device, Stream::Compute)?;
        let host = HostRange { offset_bytes: 0, bytes: 1 };
        if launch.is_repeat {
            return self.repeat(device, launch, run);
        }
        self.first.insert(launch.op, FirstLaunch::of(launch));
        match self.bug {
            Bug::LosesLaunches => {
                self.calls += 1;
                if self.calls.is_multiple_of(2) { Ok(()) } else { run(device, launch) }
            }
            Bug::ClobbersOperands => {
                run(device, launch)?;
                let last = launch.reads.get(launch.reads.len().wrapping_sub(1));
                last.map_or(Ok(()), |last| device.upload(host, last.address))
            }
            Bug::LeavesAByte => {
                run(device, launch)?;
                launch.writes.get(0).map_or(Ok(()), |first| device.upload(host, first.address))
            }
            Bug::Overruns => {
                run(device, launch)?;
                let after =
                    launch.writes.get(0).map(|range| range.address.0 + 2 * device.chunk_bytes());
                let after = after.map(|at| DeviceAddress(at + device.chunk_bytes() / 2 + 4));
                // Where that is not mapped nothing is hit.
                after.map_or(Ok(()), |after| device.upload(host, after)).or(Ok(()))
            }
            Bug::CutsOperands => {
                let cut = |ranges| -> Vec<[u64; 2]> {
                    let ranges = numbers(ranges).into_iter();
                    ranges.map(|[address, bytes]| [address % (1 << 32), bytes]).collect()
                };
                let (reads, writes) = (cut(launch.reads), cut(launch.writes));
                let (reads, writes) = (DeviceRanges::new(&reads), DeviceRanges::new(&writes));
                let mut changed = *launch;
                changed.reads = reads;
                changed.writes = writes;
                run(device, &changed)
            }
            Bug::SharesTheWorkspace => {
                let workspace = launch.workspace.zip(launch.reads.get(0));
                let workspace = workspace
                    .map(|(workspace, read)| DeviceRange { address: read.address, ..workspace });
                let mut changed = *launch;
                changed.workspace = workspace;
                run(device, &changed)
            }
            _ => run(device, launch),
        }
    }

    fn launch_on_host(
        &mut self,
        device: &mut SimDevice,
        launch: &HostLaunch<'_>,
        run: impl FnOnce(&mut SimDevice, &HostLaunch<'_>) -> Result<(), SimError>,
    ) -> Result<(), SimError> {
        self.before_work(device, Stream::Host)?;
        if matches!(self.bug, Bug::LosesHostOps | Bug::LosesLateHostOps) {
            self.calls += 1;
        }
        let launched = match self.bug {
            Bug::LosesHostOps if self.calls.is_multiple_of(2) => Ok(()),
            Bug::LosesLateHostOps if self.calls > 1000 => Ok(()),
            Bug::HostOpsReadElsewhere => {
                let written = launch.writes.iter().next();
                let reads: Vec<[u64; 2]> = launch
                    .reads
                    .iter()
                    .map(|range| {
                        let written = written.filter(|written| written.bytes == range.bytes);
                        let range = written.unwrap_or(range);
                        [range.offset_bytes, range.bytes]
                    })
                    .collect();
                let mut changed = *launch;
                changed.reads = HostRanges::new(&reads);
                run(device, &changed)
            }
            Bug::HostOpsOverrun => {
                run(device, launch)?;
                device.write_host(0, &[0])
            }
            _ => run(device, launch),
        };
        match (self.bug, self.blurred(launched)) {
            (Bug::HostOpsRunNowhere, Err(SimError::Refused(Refused::NoHostRange(_)))) => Ok(()),
            (_, launched) => launched,
        }
    }

    fn fill_states(
        &mut self,
        states: &mut StateWriter<'_, SimDevice>,
        fill: impl FnOnce(&mut StateWriter<'_, SimDevice>) -> Result<(), FillError<SimError>>,
    ) -> Result<(), FillError<SimError>> {
        fill(states)?;
        if self.bug == Bug::ForgetsAState {
            let offset_bytes = states.layout().offset_bytes(TensorId(0), 0, 0);
            states.device().write_host(offset_bytes, &[0])?;
        }
        Ok(())
    }

    fn fill_inputs(
        &mut self,
        inputs: &mut InputWriter<'_, SimDevice>,
        fill: impl FnOnce(&mut InputWriter<'_, SimDevice>) -> Result<(), FillError<SimError>>,
    ) -> Result<(), FillError<SimError>> {
        let (graph, layout) = (inputs.graph(), inputs.layout());
        let iteration = inputs.iteration() + u64::from(self.bug == Bug::FillsTheOtherSlot);
        fill(&mut InputWriter::new(graph, inputs.device(), layout, iteration))
    }
}
