//! A simulation of layers that are launched one after the other, with the layers on the device over time.

use super::streamed::{Layers, Slots};
use planner_core::machine::Direction;
use std::collections::VecDeque;
use std::mem;

/// The number of iterations in an estimate. Usually, all later iterations are like the last one.
const ITERATIONS: usize = 4;

/// The number of iterations in the times of a list, as in a prediction.
const TIMED: usize = 8;

impl Layers {
    /// Estimates the period. Returns `None` if a layer would never come.
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

    /// Computes the start and the end of each upload and launch over some iterations.
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
                    // An upload that this layer also waits for does not delay it.
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
    /// The end of the last launch, on the device or on the host.
    now_ns: u64,
    /// The end of the last upload.
    uploaded_ns: u64,
    /// The time at which memory was last freed.
    freed_ns: u64,
    /// The end of the last upload of each layer.
    ready_ns: Vec<u64>,
    /// The layers that have memory and wait for the link.
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

    /// Returns whether a layer waits for the link.
    fn is_due(&self, layer: usize) -> bool {
        self.granted.iter().any(|granted| granted.layer == layer)
    }

    /// Returns the next upload, if the link is idle.
    fn next_upload(&self, layers: &Layers) -> Option<Upload> {
        let &Granted { layer, launches, granted_ns } = self.granted.front()?;
        let start_ns = self.uploaded_ns.max(granted_ns);
        let end_ns = start_ns.saturating_add(layers.upload_ns[layer]);
        Some(Upload { layer, launches, start_ns, end_ns })
    }

    /// Does the upload that [`next_upload`](Self::next_upload) returned.
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

/// The upload of a layer.
#[derive(Clone, Copy, Debug)]
pub(super) struct Upload {
    pub(super) layer: usize,
    /// The least number of launches before the upload.
    pub(super) launches: usize,
    pub(super) start_ns: u64,
    pub(super) end_ns: u64,
}

/// The times of uploads and launches, from the first iteration on.
#[derive(Debug, Default)]
pub(super) struct Times {
    pub(super) uploads: Vec<Upload>,
    pub(super) launch_ends_ns: Vec<u64>,
}

impl Times {
    /// Delays each upload as far as possible without delaying a launch.
    pub(super) fn delay(&mut self, layers: &Layers) {
        let mut used = vec![usize::MAX; layers.len()];
        let (mut next_ns, mut launches) = (u64::MAX, self.launch_ends_ns.len());
        for upload in self.uploads.iter_mut().rev() {
            while launches > 0 && self.launch_ends_ns[launches - 1] >= upload.end_ns {
                launches -= 1;
                used[launches % layers.len()] = launches;
            }
            // If the times do not include its launch, the upload stays.
            if let Some(&launched_ns) = self.launch_ends_ns.get(used[upload.layer]) {
                let start_ns = launched_ns.saturating_sub(layers.time_ns[upload.layer]);
                upload.end_ns = next_ns.min(start_ns);
                upload.start_ns = upload.end_ns.saturating_sub(layers.upload_ns[upload.layer]);
            }
            next_ns = next_ns.min(upload.start_ns);
        }
    }
}

/// The layers on the device while layers are launched one after the other.
#[derive(Debug)]
struct Course<'o> {
    order: &'o [usize],
    /// The number of objects of each streamed layer; 0 for other layers.
    objects: Vec<u64>,
    /// Whether each streamed layer is on the device.
    is_there: Vec<bool>,
    free: u64,
    /// The position in the order of the next layer to upload.
    next: usize,
    fixed: Option<Fixed>,
}

/// The fixed places of layers.
#[derive(Debug)]
struct Fixed {
    /// The first object of each layer.
    first: Vec<u64>,
    /// The layers on the device.
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

    /// Returns the layer that can come now: the next one, if it is not on the device and there is memory.
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

    /// Puts the layer that [`next`](Self::next) returned on the device.
    fn upload(&mut self, layer: usize) {
        self.free -= self.objects[layer];
        self.is_there[layer] = true;
        self.next = (self.next + 1) % self.order.len();
        if let Some(fixed) = &mut self.fixed {
            fixed.held.push(layer);
        }
    }

    /// Launches a layer, and frees its memory if it is streamed. Returns whether it is streamed, or `None` if
    /// it is not on the device.
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
