//! A trace of the calls, for Perfetto.

use crate::Layer;
use planner_core::backend::{
    Chunks, DeviceAddress, FillError, HostRange, InputWriter, Launch, Paging, Point, StateWriter,
    Transfers,
};
use planner_core::{Launched, Stream};
use serde_json::{Value, json};
use std::collections::{BTreeMap, HashMap};
use std::time::Instant;

/// Records the time of every call. Each record takes about 100 bytes and is kept as long as the
/// tracer.
///
/// A stream's track shows when work was enqueued, and not when it ran, since no trait reports that.
/// The host's track shows calls that act at once, and how long the host was blocked.
#[derive(Clone, Debug)]
pub struct Tracer<C> {
    now_ns: C,
    records: Vec<Record>,
    /// Mappings by address.
    mapped: BTreeMap<u64, Chunks>,
    /// The number of mappings of each chunk that has a mapping.
    mappings: HashMap<u64, u32>,
}

/// One call.
#[derive(Clone, Copy, Debug)]
struct Record {
    start_ns: u64,
    end_ns: u64,
    call: Call,
    is_refused: bool,
    /// The size of all chunks that have a mapping after the call.
    resident_bytes: u64,
}

#[derive(Clone, Copy, Debug)]
enum Call {
    Wait { stream: Stream, point: Point },
    Signal(Stream),
    Blocked(Point),
    CreateHost { bytes: u64 },
    WriteHost(HostRange),
    ReadHost(HostRange),
    Upload { from: HostRange, to: DeviceAddress },
    Download { from: DeviceAddress, to: HostRange },
    Create { chunks: u64 },
    Reserve { chunks: u64 },
    Map { at: DeviceAddress, chunks: Chunks },
    Unmap { at: DeviceAddress, chunks: u64 },
    Launch { launched: Launched, iteration: u64 },
    FillStates,
    FillInputs { iteration: u64 },
}

/// The track of calls that act at once.
const HOST: u64 = 0;

impl Tracer<()> {
    /// A tracer for any device. It uses the host's clock and starts now.
    #[must_use]
    pub fn by_wall_clock<D>() -> Tracer<impl FnMut(&D) -> u64> {
        let start = Instant::now();
        Tracer::new(move |_: &D| start.elapsed().as_nanos() as u64)
    }
}

impl<C> Tracer<C> {
    /// A tracer with its own clock, which is read before and after each call.
    #[must_use]
    pub fn new<D>(now_ns: C) -> Self
    where
        C: FnMut(&D) -> u64,
    {
        Self { now_ns, records: Vec::new(), mapped: BTreeMap::new(), mappings: HashMap::new() }
    }

    /// The trace, in the format that Perfetto and Chrome's tracing page open.
    #[must_use]
    pub fn json(&self) -> Value {
        let mut events = vec![label(HOST, "host")];
        events.extend(Stream::ALL.map(|stream| match stream {
            Stream::Host => label(track(stream), "ops on the host"),
            Stream::Network => label(track(stream), "collectives"),
            _ => label(track(stream), &stream.to_string()),
        }));
        let mut resident_bytes = None;
        for record in &self.records {
            events.push(record.slice());
            if resident_bytes.replace(record.resident_bytes) != Some(record.resident_bytes) {
                events.push(json!({
                    "ph": "C", "pid": 1, "tid": HOST, "name": "resident bytes",
                    "ts": micros(record.end_ns), "args": { "mapped": record.resident_bytes },
                }));
            }
        }
        json!({ "displayTimeUnit": "ns", "traceEvents": events })
    }

    /// Passes a call on and records it.
    fn note<D: Paging, T, E>(
        &mut self,
        device: &mut D,
        call: Call,
        hand_on: impl FnOnce(&mut D) -> Result<T, E>,
    ) -> Result<T, E>
    where
        C: FnMut(&D) -> u64,
    {
        let start_ns = (self.now_ns)(device);
        let result = hand_on(device);
        let end_ns = (self.now_ns)(device);
        if result.is_ok() {
            self.follow(call, device.chunk_bytes());
        }
        let resident_bytes = self.mappings.len() as u64 * device.chunk_bytes();
        let is_refused = result.is_err();
        self.records.push(Record { start_ns, end_ns, call, is_refused, resident_bytes });
        result
    }

    /// Keeps count of mappings.
    fn follow(&mut self, call: Call, chunk_bytes: u64) {
        match call {
            Call::Map { at, chunks } => {
                self.mapped.insert(at.0, chunks);
                for chunk in chunks.first..chunks.first + chunks.count {
                    *self.mappings.entry(chunk).or_default() += 1;
                }
            }
            Call::Unmap { at, chunks } => {
                let end = at.0 + chunks * chunk_bytes;
                while let Some((&at, &Chunks { first, count })) =
                    self.mapped.range(at.0..end).next()
                {
                    self.mapped.remove(&at);
                    (first..first + count).for_each(|chunk| self.release(chunk));
                }
            }
            _ => {}
        }
    }

    fn release(&mut self, chunk: u64) {
        if let Some(mappings) = self.mappings.get_mut(&chunk) {
            *mappings -= 1;
            if *mappings == 0 {
                self.mappings.remove(&chunk);
            }
        }
    }
}

impl Record {
    fn slice(&self) -> Value {
        let (track, name, mut args) = self.call.shown();
        if self.is_refused {
            args["refused"] = true.into();
        }
        json!({
            "ph": "X", "pid": 1, "tid": track, "name": name,
            "ts": micros(self.start_ns), "dur": micros(self.end_ns.saturating_sub(self.start_ns)),
            "args": args,
        })
    }
}

impl Call {
    /// The track, the name, and the other arguments.
    fn shown(self) -> (u64, String, Value) {
        let host = |HostRange { offset_bytes, bytes }| json!({ "bytes": bytes, "host_offset": offset_bytes });
        let copy = |range: HostRange, at: DeviceAddress| {
            let mut args = host(range);
            args["device"] = at.0.into();
            args
        };
        match self {
            Self::Wait { stream, point } => {
                (track(stream), format!("wait for {} {}", point.stream, point.value), json!({}))
            }
            Self::Signal(stream) => (track(stream), "signal".to_owned(), json!({})),
            Self::Blocked(point) => {
                (HOST, format!("block until {} {}", point.stream, point.value), json!({}))
            }
            Self::CreateHost { bytes } => {
                (HOST, "create the host block".to_owned(), json!({ "bytes": bytes }))
            }
            Self::WriteHost(range) => (HOST, "write the host block".to_owned(), host(range)),
            Self::ReadHost(range) => (HOST, "read the host block".to_owned(), host(range)),
            Self::Upload { from, to } => {
                (track(Stream::Upload), "upload".to_owned(), copy(from, to))
            }
            Self::Download { from, to } => {
                (track(Stream::Download), "download".to_owned(), copy(to, from))
            }
            Self::Create { chunks } => (HOST, "create".to_owned(), json!({ "chunks": chunks })),
            Self::Reserve { chunks } => (HOST, "reserve".to_owned(), json!({ "chunks": chunks })),
            Self::Map { at, chunks: Chunks { first, count } } => {
                let args = json!({ "device": at.0, "first": first, "chunks": count });
                (HOST, "map".to_owned(), args)
            }
            Self::Unmap { at, chunks } => {
                (HOST, "unmap".to_owned(), json!({ "device": at.0, "chunks": chunks }))
            }
            Self::Launch { launched: Launched { op, is_repeat }, iteration } => {
                let mut args = json!({ "iteration": iteration });
                if !is_repeat {
                    return (track(Stream::Compute), op.to_string(), args);
                }
                args["repeat"] = true.into();
                (track(Stream::Compute), format!("{op} again"), args)
            }
            Self::FillStates => (HOST, "fill states".to_owned(), json!({})),
            Self::FillInputs { iteration } => {
                (HOST, "fill inputs".to_owned(), json!({ "iteration": iteration }))
            }
        }
    }
}

fn track(stream: Stream) -> u64 {
    stream as u64 + 1
}

/// The format counts in microseconds.
fn micros(ns: u64) -> f64 {
    ns as f64 / 1e3
}

fn label(track: u64, name: &str) -> Value {
    json!({
        "ph": "M", "pid": 1, "tid": track, "name": "thread_name", "args": { "name": name },
    })
}

impl<D: Transfers + Paging, C: FnMut(&D) -> u64> Layer<D> for Tracer<C> {
    type Error = D::Error;

    fn wait(&mut self, device: &mut D, stream: Stream, point: Point) -> Result<(), D::Error> {
        self.note(device, Call::Wait { stream, point }, |device| device.wait(stream, point))
    }

    fn signal(&mut self, device: &mut D, stream: Stream) -> Result<Point, D::Error> {
        self.note(device, Call::Signal(stream), |device| device.signal(stream))
    }

    fn block_until(&mut self, device: &mut D, point: Point) -> Result<(), D::Error> {
        self.note(device, Call::Blocked(point), |device| device.block_until(point))
    }

    fn create_host(&mut self, device: &mut D, bytes: u64) -> Result<(), D::Error> {
        self.note(device, Call::CreateHost { bytes }, |device| device.create_host(bytes))
    }

    fn write_host(
        &mut self,
        device: &mut D,
        offset_bytes: u64,
        from: &[u8],
    ) -> Result<(), D::Error> {
        let call = Call::WriteHost(HostRange { offset_bytes, bytes: from.len() as u64 });
        self.note(device, call, |device| device.write_host(offset_bytes, from))
    }

    fn read_host(
        &mut self,
        device: &mut D,
        offset_bytes: u64,
        into: &mut [u8],
    ) -> Result<(), D::Error> {
        let call = Call::ReadHost(HostRange { offset_bytes, bytes: into.len() as u64 });
        self.note(device, call, |device| device.read_host(offset_bytes, into))
    }

    fn upload(
        &mut self,
        device: &mut D,
        from: HostRange,
        to: DeviceAddress,
    ) -> Result<(), D::Error> {
        self.note(device, Call::Upload { from, to }, |device| device.upload(from, to))
    }

    fn download(
        &mut self,
        device: &mut D,
        from: DeviceAddress,
        to: HostRange,
    ) -> Result<(), D::Error> {
        self.note(device, Call::Download { from, to }, |device| device.download(from, to))
    }

    fn create(&mut self, device: &mut D, count: u64) -> Result<(), D::Error> {
        self.note(device, Call::Create { chunks: count }, |device| device.create(count))
    }

    fn reserve(&mut self, device: &mut D, chunks: u64) -> Result<DeviceAddress, D::Error> {
        self.note(device, Call::Reserve { chunks }, |device| device.reserve(chunks))
    }

    fn map(&mut self, device: &mut D, at: DeviceAddress, chunks: Chunks) -> Result<(), D::Error> {
        self.note(device, Call::Map { at, chunks }, |device| device.map(at, chunks))
    }

    fn unmap(&mut self, device: &mut D, at: DeviceAddress, chunks: u64) -> Result<(), D::Error> {
        self.note(device, Call::Unmap { at, chunks }, |device| device.unmap(at, chunks))
    }

    fn launch(
        &mut self,
        device: &mut D,
        launch: &Launch<'_>,
        run: impl FnOnce(&mut D, &Launch<'_>) -> Result<(), D::Error>,
    ) -> Result<(), D::Error> {
        let call = Call::Launch { launched: launch.launched(), iteration: launch.iteration };
        self.note(device, call, |device| run(device, launch))
    }

    fn fill_states(
        &mut self,
        states: &mut StateWriter<'_, D>,
        fill: impl FnOnce(&mut StateWriter<'_, D>) -> Result<(), FillError<D::Error>>,
    ) -> Result<(), FillError<D::Error>> {
        let (graph, layout) = (states.graph(), states.layout());
        self.note(states.device(), Call::FillStates, |device| {
            fill(&mut StateWriter::new(graph, device, layout))
        })
    }

    fn fill_inputs(
        &mut self,
        inputs: &mut InputWriter<'_, D>,
        fill: impl FnOnce(&mut InputWriter<'_, D>) -> Result<(), FillError<D::Error>>,
    ) -> Result<(), FillError<D::Error>> {
        let (graph, layout, iteration) = (inputs.graph(), inputs.layout(), inputs.iteration());
        self.note(inputs.device(), Call::FillInputs { iteration }, |device| {
            fill(&mut InputWriter::new(graph, device, layout, iteration))
        })
    }
}
