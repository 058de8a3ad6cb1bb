//! What happens while layers are launched one after the other: which are on the device, and when.

use super::streamed::{Layers, Slots};
use planner_core::machine::Direction;
use std::collections::VecDeque;
use std::mem;

/// Iterations that an estimate follows. The last one is like all that come after it, as a rule.
const ITERATIONS: usize = 4;

/// Iterations that the times of a list follow, which a prediction does too.
const TIMED: usize = 8;

impl Layers {
    /// None where a layer would never come.
    pub(super) fn period_ns(&self, order: &[usize], slots: &Slots) -> Option<u64> {
        let (mut course, mut clock) = (Course::new(self.len(), order, slots), Clock::new(self));
        let mut period_ns = 0;
        for _ in 0..ITERATIONS {
            let (began_ns, last_ns) = (clock.now_ns, period_ns);
            self.iterate(&mut course, &mut clock, |_| {})?;
            period_ns = clock.now_ns - began_ns;
            if period_ns == last_ns {
                break;
            }
        }
        Some(period_ns)
    }

    /// When each upload and launch starts and ends, over some iterations.
    pub(super) fn times(&self, order: &[usize], slots: &Slots) -> Option<Times> {
        let (mut course, mut clock) = (Course::new(self.len(), order, slots), Clock::new(self));
        let mut times = Times::default();
        let mut see = |event| match event {
            Event::Upload(upload) => times.uploads.push(upload),
            Event::Launch { end_ns } => times.launch_ends_ns.push(end_ns),
        };
        for _ in 0..TIMED {
            self.iterate(&mut course, &mut clock, &mut see)?;
        }
        while let Some(upload) = clock.next_upload(self) {
            see(Event::Upload(clock.upload(upload)));
        }
        Some(times)
    }

    fn iterate(
        &self,
        course: &mut Course<'_>,
        clock: &mut Clock,
        mut see: impl FnMut(Event),
    ) -> Option<()> {
        for (layer, &time_ns) in self.time_ns.iter().enumerate() {
            while let Some(next) = course.next() {
                course.upload(next);
                let (launches, granted_ns) = (clock.launches, clock.freed_ns);
                clock.granted.push_back(Granted { layer: next, launches, granted_ns });
            }
            match self.crossing(layer) {
                None => {}
                Some((Direction::DeviceToHost, ns)) => {
                    clock.now_ns = clock.now_ns.saturating_add(ns);
                }
                Some((Direction::HostToDevice, ns)) => {
                    // An upload that this layer waits for too is not in its way.
                    while let Some(upload) = clock.next_upload(self)
                        && upload.start_ns < clock.now_ns
                        && (!self.yields || upload.end_ns <= clock.now_ns || clock.is_due(layer))
                    {
                        see(Event::Upload(clock.upload(upload)));
                    }
                    clock.now_ns = clock.now_ns.max(clock.uploaded_ns).saturating_add(ns);
                    clock.uploaded_ns = clock.now_ns;
                }
            }
            while clock.is_due(layer)
                && let Some(upload) = clock.next_upload(self)
            {
                see(Event::Upload(clock.upload(upload)));
            }
            let start_ns = clock.now_ns.max(clock.ready_ns[layer]);
            clock.now_ns = start_ns.saturating_add(time_ns);
            clock.launches += 1;
            if course.launch(layer)? {
                clock.freed_ns = clock.now_ns;
            }
            see(Event::Launch { end_ns: clock.now_ns });
        }
        Some(())
    }
}

#[derive(Debug)]
struct Clock {
    launches: usize,
    /// When the last launch ended, on the device or on the host.
    now_ns: u64,
    /// When the last upload ended.
    uploaded_ns: u64,
    /// When memory was last freed.
    freed_ns: u64,
    /// When the last upload of each layer ended.
    ready_ns: Vec<u64>,
    /// Layers that have memory and wait for the link.
    granted: VecDeque<Granted>,
}

/// A layer that has memory.
#[derive(Clone, Copy, Debug)]
struct Granted {
    layer: usize,
    launches: usize,
    granted_ns: u64,
}

impl Clock {
    fn new(layers: &Layers) -> Self {
        let ready_ns = vec![0; layers.len()];
        let granted = VecDeque::new();
        Self { launches: 0, now_ns: 0, uploaded_ns: 0, freed_ns: 0, ready_ns, granted }
    }

    /// Whether a layer waits for the link.
    fn is_due(&self, layer: usize) -> bool {
        self.granted.iter().any(|granted| granted.layer == layer)
    }

    /// The next upload, if the link has nothing else to do.
    fn next_upload(&self, layers: &Layers) -> Option<Upload> {
        let &Granted { layer, launches, granted_ns } = self.granted.front()?;
        let start_ns = self.uploaded_ns.max(granted_ns);
        let end_ns = start_ns.saturating_add(layers.upload_ns[layer]);
        Some(Upload { layer, launches, start_ns, end_ns })
    }

    /// Carries out the upload that [`next_upload`](Self::next_upload) named.
    fn upload(&mut self, upload: Upload) -> Upload {
        self.granted.pop_front();
        self.uploaded_ns = upload.end_ns;
        self.ready_ns[upload.layer] = upload.end_ns;
        upload
    }
}

enum Event {
    Upload(Upload),
    Launch { end_ns: u64 },
}

/// When a layer comes.
#[derive(Clone, Copy, Debug)]
pub(super) struct Upload {
    pub(super) layer: usize,
    /// How many launches it could come after at the soonest.
    pub(super) launches: usize,
    pub(super) start_ns: u64,
    pub(super) end_ns: u64,
}

/// When uploads and launches are, from the first iteration on.
#[derive(Debug, Default)]
pub(super) struct Times {
    pub(super) uploads: Vec<Upload>,
    pub(super) launch_ends_ns: Vec<u64>,
}

impl Times {
    /// Each upload is as late as it can be without a later launch.
    pub(super) fn delay(&mut self, layers: &Layers) {
        let mut used = vec![usize::MAX; layers.len()];
        let (mut next_ns, mut launches) = (u64::MAX, self.launch_ends_ns.len());
        for upload in self.uploads.iter_mut().rev() {
            while launches > 0 && self.launch_ends_ns[launches - 1] >= upload.end_ns {
                launches -= 1;
                used[launches % layers.len()] = launches;
            }
            // Where its launch is not seen, it stays where it is.
            if let Some(&launched_ns) = self.launch_ends_ns.get(used[upload.layer]) {
                let start_ns = launched_ns.saturating_sub(layers.time_ns[upload.layer]);
                upload.end_ns = next_ns.min(start_ns);
                upload.start_ns = upload.end_ns.saturating_sub(layers.upload_ns[upload.layer]);
            }
            next_ns = next_ns.min(upload.start_ns);
        }
    }
}

/// What is on the device while layers are launched one after the other.
#[derive(Debug)]
struct Course<'o> {
    order: &'o [usize],
    /// The objects of each layer that is streamed; none of the others.
    objects: Vec<u64>,
    /// Whether each layer that is streamed is there.
    is_there: Vec<bool>,
    free: u64,
    /// The position of the next layer that comes.
    next: usize,
    fixed: Option<Fixed>,
}

/// Where layers lie, if that is fixed.
#[derive(Debug)]
struct Fixed {
    /// The first object of each layer.
    first: Vec<u64>,
    /// The layers that are there.
    held: Vec<usize>,
}

impl<'o> Course<'o> {
    /// Begins with an empty device.
    fn new(layers: usize, order: &'o [usize], slots: &Slots) -> Self {
        let by_layer = |of: &Vec<u64>| {
            let mut values = vec![0; layers];
            order.iter().zip(of).for_each(|(&layer, &value)| values[layer] = value);
            values
        };
        let fixed = slots.first.as_ref().map(by_layer);
        let fixed = fixed.map(|first| Fixed { first, held: Vec::new() });
        let (objects, is_there) = (by_layer(&slots.taken), vec![false; layers]);
        Self { order, objects, is_there, free: slots.count, next: 0, fixed }
    }

    /// The layer that can come now: the next one, if it is not there and there is memory.
    fn next(&self) -> Option<usize> {
        let &layer = self.order.get(self.next)?;
        let is_free = |Fixed { first, held }: &Fixed| {
            let end = |layer: usize| first[layer] + self.objects[layer];
            let is_apart =
                |&other: &usize| end(layer) <= first[other] || end(other) <= first[layer];
            held.iter().all(is_apart)
        };
        let has_memory =
            self.objects[layer] <= self.free && self.fixed.as_ref().is_none_or(is_free);
        (!self.is_there[layer] && has_memory).then_some(layer)
    }

    /// Brings the layer that [`next`](Self::next) named.
    fn upload(&mut self, layer: usize) {
        self.free -= self.objects[layer];
        self.is_there[layer] = true;
        self.next = (self.next + 1) % self.order.len();
        if let Some(fixed) = &mut self.fixed {
            fixed.held.push(layer);
        }
    }

    /// Launches a layer, and frees its memory if it is streamed: returns whether it is. None where it
    /// is not there.
    fn launch(&mut self, layer: usize) -> Option<bool> {
        let is_streamed = self.objects[layer] > 0;
        let is_there = mem::replace(&mut self.is_there[layer], false);
        self.free += self.objects[layer];
        if let Some(fixed) = &mut self.fixed {
            fixed.held.retain(|&held| held != layer);
        }
        (is_there || !is_streamed).then_some(is_streamed)
    }
}
