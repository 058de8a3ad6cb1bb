//! A schedule: a plan lowered to five streams and the waits between them.

#![expect(
    clippy::indexing_slicing,
    reason = "`of_iteration` slices within `steps`, whose length is a multiple of the iterations"
)]

use crate::graph::{Graph, Launched};
use crate::plan::Step;
use bytemuck::{Pod, Zeroable};
use core::fmt;
use core::ops::{Index, IndexMut};

/// The five streams. Each runs its steps in list order; all streams run concurrently.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Stream {
    /// Launches, except of collectives.
    Compute = 0,
    /// Prefetches, host to device.
    Upload = 1,
    /// Offloads, device to host.
    Download = 2,
    /// Ops that run on the host.
    Host = 3,
    /// Launches of collectives, which exchange data with other processes.
    Network = 4,
}

impl Stream {
    /// The streams of every device, without those for ops on the host and for collectives.
    pub const ON_DEVICE: [Self; 3] = [Self::Compute, Self::Upload, Self::Download];
    /// All streams, in the order of their numbers.
    pub const ALL: [Self; 5] =
        [Self::Compute, Self::Upload, Self::Download, Self::Host, Self::Network];
    /// The streams of launches.
    pub const OF_LAUNCHES: [Self; 2] = [Self::Compute, Self::Network];

    /// The stream that runs a step; `None` for an evict.
    ///
    /// # Panics
    /// The step launches an op that the graph does not have.
    #[must_use]
    pub fn of(graph: &Graph<'_>, step: &Step) -> Option<Self> {
        match *step {
            Step::Launch(Launched { op, .. }) => Some(graph.op(op).stream()),
            Step::Prefetch(_) => Some(Self::Upload),
            Step::Offload(_) => Some(Self::Download),
            Step::Host(_) => Some(Self::Host),
            Step::Evict(_) => None,
        }
    }
}

impl fmt::Display for Stream {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Compute => "compute",
            Self::Upload => "upload",
            Self::Download => "download",
            Self::Host => "host",
            Self::Network => "network",
        })
    }
}

/// A value for each stream, in the order of [`Stream::ALL`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Pod, Zeroable)]
#[repr(transparent)]
pub struct PerStream<T>(pub [T; 5]);

impl<T> PerStream<T> {
    /// Calls `value` for each stream.
    #[inline]
    pub fn from_fn(mut value: impl FnMut(Stream) -> T) -> Self {
        // Compilers inline this, but do not inline the map of an array.
        Self([
            value(Stream::Compute),
            value(Stream::Upload),
            value(Stream::Download),
            value(Stream::Host),
            value(Stream::Network),
        ])
    }

    /// Applies `change` to each value.
    #[inline]
    pub fn map<U>(self, mut change: impl FnMut(T) -> U) -> PerStream<U> {
        let [compute, upload, download, host, network] = self.0;
        PerStream([
            change(compute),
            change(upload),
            change(download),
            change(host),
            change(network),
        ])
    }
}

impl<T: Copy> PerStream<T> {
    /// The same value for all streams.
    #[must_use]
    pub const fn all(value: T) -> Self {
        Self([value; 5])
    }

    /// A value for one stream, and another for all other streams.
    pub(crate) const fn only(stream: Stream, value: T, others: T) -> Self {
        let mut all = Self::all(others);
        all.0[stream as usize] = value;
        all
    }
}

impl PerStream<u32> {
    /// The index at which the steps of each stream begin, if the steps of all streams follow one
    /// another in an array; and the number of all steps.
    pub(crate) fn first_indices(self) -> (PerStream<usize>, usize) {
        let mut sum = 0usize;
        let firsts = PerStream::from_fn(|stream| {
            let first = sum;
            sum = sum.saturating_add(self[stream] as usize);
            first
        });
        (firsts, sum)
    }
}

impl<T> Index<Stream> for PerStream<T> {
    type Output = T;

    #[inline]
    fn index(&self, stream: Stream) -> &T {
        &self.0[stream as usize]
    }
}

impl<T> IndexMut<Stream> for PerStream<T> {
    #[inline]
    fn index_mut(&mut self, stream: Stream) -> &mut T {
        &mut self.0[stream as usize]
    }
}

impl<T> IntoIterator for PerStream<T> {
    type Item = (Stream, T);
    type IntoIter = core::iter::Zip<core::array::IntoIter<Stream, 5>, core::array::IntoIter<T, 5>>;

    #[inline]
    fn into_iter(self) -> Self::IntoIter {
        Stream::ALL.into_iter().zip(self.0)
    }
}

/// A wait for step `index` of a stream, `iterations_back` iterations before the waiting step. If
/// that iteration lies before the first one, there is nothing to wait for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Pod, Zeroable)]
#[repr(C)]
pub struct Wait {
    /// Position of the awaited step among the steps of its stream in an iteration.
    pub index: u32,
    /// The number of iterations that the awaited step lies back.
    pub iterations_back: u32,
}

impl Wait {
    #[inline]
    const fn or_none(self) -> Option<Self> {
        if self.index == NO_WAIT.index { None } else { Some(self) }
    }
}

/// The stream and the waits of one step of a plan.
#[derive(Clone, Copy, PartialEq, Eq, Pod, Zeroable)]
#[repr(C)]
pub struct Scheduled {
    /// The number of the stream; `NO_STREAM` for an evict.
    stream: u32,
    index: u32,
    /// `NO_WAIT` for a stream without a wait, which the index alone tells.
    waits: PerStream<Wait>,
}

const NO_STREAM: u32 = u32::MAX;
const NO_WAIT: Wait = Wait { index: u32::MAX, iterations_back: u32::MAX };

impl Scheduled {
    /// The value to fill buffers with.
    pub const EMPTY: Self = Self { stream: NO_STREAM, index: 0, waits: PerStream::all(NO_WAIT) };

    /// A step without waits, at a position within its stream and iteration. An evict is on no
    /// stream, and its position is ignored.
    #[must_use]
    pub const fn new(stream: Option<Stream>, index: u32) -> Self {
        let stream = match stream {
            Some(stream) => stream as u32,
            None => NO_STREAM,
        };
        Self { stream, index, ..Self::EMPTY }
    }

    /// The stream that runs the step; `None` for an evict.
    #[must_use]
    #[inline]
    pub const fn stream(&self) -> Option<Stream> {
        match self.stream {
            0 => Some(Stream::Compute),
            1 => Some(Stream::Upload),
            2 => Some(Stream::Download),
            3 => Some(Stream::Host),
            4 => Some(Stream::Network),
            _ => None,
        }
    }

    /// The step's position within its stream and iteration. Meaningless for an evict.
    #[must_use]
    #[inline]
    pub const fn index(&self) -> u32 {
        self.index
    }

    /// The step of a stream that must have ended before this step starts; for an evict, before its
    /// memory is free.
    #[must_use]
    #[inline]
    pub fn wait(&self, stream: Stream) -> Option<Wait> {
        self.waits[stream].or_none()
    }

    /// The waits for all streams.
    #[must_use]
    #[inline]
    pub fn waits(&self) -> PerStream<Option<Wait>> {
        self.waits.map(Wait::or_none)
    }

    /// Sets or clears the step's wait on a stream. No stream has a step `u32::MAX`.
    pub fn set_wait(&mut self, stream: Stream, wait: Option<Wait>) {
        self.waits[stream] = wait.unwrap_or(NO_WAIT);
    }
}

impl fmt::Debug for Scheduled {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Scheduled")
            .field("stream", &self.stream())
            .field("index", &self.index)
            .field("waits", &self.waits())
            .finish()
    }
}

/// The schedule of one iteration, or of as many iterations as the plan's placements cover, since
/// the waits of an allocation differ between these. Entries are in list order, which is the order
/// of submission.
#[derive(Clone, Copy, Debug)]
pub struct Schedule<'a> {
    /// Entry `i` of an iteration belongs to step `i` of the plan. The iterations follow one
    /// another.
    pub steps: &'a [Scheduled],
    /// Number of steps of each stream in an iteration.
    pub stream_steps: PerStream<u32>,
    /// Number of iterations after which the entries repeat, at least 1.
    pub iterations: u32,
}

impl<'a> Schedule<'a> {
    /// The entries of an iteration. Iterations count from 0.
    #[must_use]
    #[expect(
        clippy::arithmetic_side_effects,
        reason = "the divisor is not 0, and the slice lies within `steps`"
    )]
    pub fn of_iteration(&self, iteration: u64) -> &'a [Scheduled] {
        let iterations = u64::from(self.iterations.max(1));
        let steps = self.steps.len() / iterations as usize;
        // Less than `iterations`, and each iteration has `steps` entries.
        let first = (iteration % iterations) as usize * steps;
        &self.steps[first..first + steps]
    }
}
