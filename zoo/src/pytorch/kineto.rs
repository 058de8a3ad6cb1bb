//! Reading of a Kineto trace (the profiler's Chrome trace): operators on the host, launches, and the work on
//! the device.

use super::{ImportError, Source};
use core::fmt;
use hashbrown::HashMap;
use serde::de::{Deserialize, Deserializer, SeqAccess, Visitor};
use std::borrow::Cow;

/// A host thread: process and thread.
pub(super) type Thread = (u64, u64);

/// An operator that ran on the host.
#[derive(Debug)]
pub(super) struct Operator<'a> {
    pub(super) name: Cow<'a, str>,
    pub(super) thread: Thread,
    pub(super) start_ns: i64,
    pub(super) end_ns: i64,
    /// The number of the same call in the execution trace; 0 in old traces.
    pub(super) record_id: u64,
}

/// A kernel, a fill or a copy that ran on the device.
#[derive(Debug)]
pub(super) struct Kernel {
    pub(super) correlation: u64,
    pub(super) duration_ns: u64,
}

/// The parts of a Kineto trace that an import needs.
#[derive(Default, Debug)]
pub(super) struct Kineto<'a> {
    pub(super) operators: Vec<Operator<'a>>,
    /// The thread and the time of every launch, by correlation id.
    pub(super) launches: HashMap<u64, (Thread, i64)>,
    pub(super) kernels: Vec<Kernel>,
}

/// The most bytes of memory that a value takes while a trace is read. An event has five values or more, and
/// the import keeps some 70 bytes of it, three times while the list of events grows.
const VALUE_BYTES: usize = 64;

/// Reads a Kineto trace.
///
/// # Errors
/// The position in the file that is not valid.
pub(super) fn read(trace: &[u8]) -> Result<Kineto<'_>, ImportError> {
    #[derive(serde::Deserialize)]
    struct File<'a> {
        #[serde(rename = "traceEvents", borrow)]
        events: Kineto<'a>,
    }
    serde_json::from_str(Source::Kineto.text(trace, VALUE_BYTES)?)
        .map(|file: File<'_>| file.events)
        .map_err(|error| ImportError::Malformed { source: Source::Kineto, error })
}

/// An event as in the file. Events of other categories have other types in these fields.
#[derive(serde::Deserialize)]
struct Event<'a> {
    #[serde(borrow, default)]
    cat: Cow<'a, str>,
    #[serde(borrow, default)]
    name: Cow<'a, str>,
    #[serde(default)]
    pid: Number,
    #[serde(default)]
    tid: Number,
    #[serde(default)]
    ts: Microseconds,
    #[serde(default)]
    dur: Microseconds,
    #[serde(default)]
    args: Arguments,
}

#[derive(serde::Deserialize, Default)]
struct Arguments {
    #[serde(default)]
    correlation: Number,
    #[serde(rename = "Record function id", default)]
    record_id: Number,
}

/// A number, or `None` for a value of another type.
#[derive(Default, Clone, Copy)]
struct Number(Option<u64>);

/// A time in nanoseconds.
#[derive(Default, Clone, Copy)]
struct Microseconds(i64);

/// Reads scalars of any type as a whole number of thousandths.
struct Thousandths;

impl Visitor<'_> for Thousandths {
    type Value = Option<i64>;
    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a number or a string")
    }
    fn visit_u64<E>(self, value: u64) -> Result<Option<i64>, E> {
        Ok(i64::try_from(value).ok().and_then(|value| value.checked_mul(1000)))
    }
    fn visit_i64<E>(self, value: i64) -> Result<Option<i64>, E> {
        Ok(value.checked_mul(1000))
    }
    fn visit_f64<E>(self, value: f64) -> Result<Option<i64>, E> {
        // The conversion saturates, which keeps the order of events.
        Ok(Some((value * 1000.0).round() as i64))
    }
    fn visit_str<E>(self, value: &str) -> Result<Option<i64>, E> {
        Ok(value.parse().ok().and_then(|value: i64| value.checked_mul(1000)))
    }
    fn visit_unit<E>(self) -> Result<Option<i64>, E> {
        Ok(None)
    }
}

impl<'de> Deserialize<'de> for Number {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let thousandths = deserializer.deserialize_any(Thousandths)?;
        Ok(Self(thousandths.and_then(|value| u64::try_from(value / 1000).ok())))
    }
}

impl<'de> Deserialize<'de> for Microseconds {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        Ok(Self(deserializer.deserialize_any(Thousandths)?.unwrap_or(0)))
    }
}

impl<'de: 'a, 'a> Deserialize<'de> for Kineto<'a> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Events;
        impl<'de> Visitor<'de> for Events {
            type Value = Kineto<'de>;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a list of events")
            }
            fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<Kineto<'de>, A::Error> {
                let mut kineto = Kineto::default();
                while let Some(event) = list.next_element()? {
                    kineto.add(event);
                }
                Ok(kineto)
            }
        }
        deserializer.deserialize_seq(Events)
    }
}

impl<'a> Kineto<'a> {
    fn add(&mut self, event: Event<'a>) {
        let Microseconds(start_ns) = event.ts;
        let Microseconds(duration_ns) = event.dur;
        let thread = match (event.pid, event.tid) {
            (Number(Some(process)), Number(Some(thread))) => Some((process, thread)),
            _ => None,
        };
        let Number(correlation) = event.args.correlation;
        match (&*event.cat, thread, correlation) {
            ("cpu_op", Some(thread), _) => self.operators.push(Operator {
                name: event.name,
                thread,
                start_ns,
                end_ns: start_ns.saturating_add(duration_ns),
                record_id: event.args.record_id.0.unwrap_or(0),
            }),
            ("cuda_runtime" | "cuda_driver", Some(thread), Some(correlation)) => {
                self.launches.entry(correlation).or_insert((thread, start_ns));
            }
            ("kernel" | "gpu_memset" | "gpu_memcpy", _, Some(correlation)) => {
                let duration_ns = u64::try_from(duration_ns).unwrap_or(0);
                self.kernels.push(Kernel { correlation, duration_ns });
            }
            _ => {}
        }
    }
}
