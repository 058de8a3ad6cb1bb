//! The state of the driver, and what it does for its callers.

use crate::capture::{Capture, CapturedGraph, Executable};
use crate::chance;
use crate::control::Counters;
use crate::link::Link;
use crate::registry::{self, Registry};
use crate::space::Space;
use crate::stream::{Event, Recorded, Stream};
use crate::task::Task;
use crate::{Outcome, ptx};
use cudarc::driver::sys::CUresult::{self, *};
use std::cell::Cell;
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, LazyLock, Mutex, MutexGuard, PoisonError};
use std::sync::{RwLock, RwLockReadGuard, RwLockWriteGuard};

/// The driver of this process.
pub(crate) static DRIVER: LazyLock<Driver> = LazyLock::new(Driver::new);

thread_local! {
    /// The context that is current, or zero.
    static CURRENT: Cell<usize> = const { Cell::new(0) };
}

/// A number from the environment.
pub(crate) fn setting(name: &str, default: u64) -> u64 {
    std::env::var(name).ok().and_then(|text| text.parse().ok()).unwrap_or(default)
}

/// The one context, which comes and goes with those who use it.
#[derive(Debug, Default)]
struct Context {
    handle: usize,
    users: u32,
}

#[derive(Debug)]
pub(crate) struct Driver {
    pub(crate) is_initialized: AtomicBool,
    context: Mutex<Context>,
    /// The error that all calls end with since work failed; zero for none.
    lost: AtomicU32,
    space: RwLock<Space>,
    pinned: Mutex<BTreeMap<usize, usize>>,
    host_limit_bytes: usize,
    counters: Mutex<Counters>,
    /// From the host to the device.
    pub(crate) upward: Link,
    /// From the device to the host.
    pub(crate) downward: Link,
    /// Why a text was refused or a kernel failed last.
    explanation: Mutex<String>,
    pub(crate) streams: Registry<Stream>,
    pub(crate) events: Registry<Event>,
    pub(crate) modules: Registry<ptx::Module>,
    pub(crate) functions: Registry<Arc<ptx::Kernel>>,
    pub(crate) graphs: Registry<CapturedGraph>,
    pub(crate) executables: Registry<Executable>,
}

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Driver {
    fn new() -> Self {
        let memory_bytes = setting("EMULATED_CUDA_MEMORY", 1 << 30);
        let granularity = setting("EMULATED_CUDA_GRANULARITY", 4 << 10);
        assert!(granularity.is_power_of_two() && granularity >= 4096, "a granularity of pages");
        let memory_bytes = memory_bytes - memory_bytes % granularity;
        Self {
            is_initialized: AtomicBool::new(false),
            context: Mutex::default(),
            lost: AtomicU32::new(0),
            space: RwLock::new(Space::new(memory_bytes, granularity)),
            pinned: Mutex::default(),
            host_limit_bytes: setting("EMULATED_CUDA_HOST_MEMORY", 4 << 30) as usize,
            counters: Mutex::default(),
            upward: Link::of("EMULATED_CUDA_H2D_BYTES_PER_S"),
            downward: Link::of("EMULATED_CUDA_D2H_BYTES_PER_S"),
            explanation: Mutex::default(),
            streams: Registry::default(),
            events: Registry::default(),
            modules: Registry::default(),
            functions: Registry::default(),
            graphs: Registry::default(),
            executables: Registry::default(),
        }
    }

    /// The address space, as it is while work runs.
    pub(crate) fn space(&self) -> RwLockReadGuard<'_, Space> {
        self.space.read().unwrap_or_else(PoisonError::into_inner)
    }

    /// The address space, to change it: waits for work that runs.
    pub(crate) fn changing_space(&self) -> RwLockWriteGuard<'_, Space> {
        self.space.write().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn counters(&self) -> MutexGuard<'_, Counters> {
        locked(&self.counters)
    }

    /// Notes why a text is refused or a kernel fails, for [`explanation`](Self::explanation) and
    /// the standard error.
    pub(crate) fn explain(&self, why: String) {
        eprintln!("emulated CUDA: {why}");
        *locked(&self.explanation) = why;
    }

    /// The last such sentence.
    pub(crate) fn explanation(&self) -> String {
        locked(&self.explanation).clone()
    }

    /// Fails once work has failed.
    pub(crate) fn lost(&self) -> Outcome {
        match self.lost.load(Ordering::SeqCst) {
            0 => Ok(()),
            code if code == CUDA_ERROR_ILLEGAL_ADDRESS as u32 => Err(CUDA_ERROR_ILLEGAL_ADDRESS),
            code if code == CUDA_ERROR_MISALIGNED_ADDRESS as u32 => {
                Err(CUDA_ERROR_MISALIGNED_ADDRESS)
            }
            _ => Err(CUDA_ERROR_LAUNCH_FAILED),
        }
    }

    /// Work has failed: nothing else is done, and every call says so.
    pub(crate) fn lose(&self, error: CUresult) {
        // The first failure stays.
        let _ = self.lost.compare_exchange(0, error as u32, Ordering::SeqCst, Ordering::SeqCst);
    }

    /// What every call begins with.
    pub(crate) fn check_initialized(&self) -> Outcome {
        let is = self.is_initialized.load(Ordering::SeqCst);
        if is { Ok(()) } else { Err(CUDA_ERROR_NOT_INITIALIZED) }
    }

    /// What every call in a context begins with.
    pub(crate) fn check_context(&self) -> Outcome {
        self.check_initialized()?;
        let current = CURRENT.get();
        match locked(&self.context).handle {
            _ if current == 0 => Err(CUDA_ERROR_INVALID_CONTEXT),
            handle if handle == current => self.lost(),
            _ => Err(CUDA_ERROR_CONTEXT_IS_DESTROYED),
        }
    }

    /// The same for calls that may be refused at random, and that no capture can hold.
    pub(crate) fn check_uncaptured(&self) -> Outcome {
        self.check_context()?;
        let is_capturing = self.streams.all().iter().any(|stream| {
            // Only streams of one's own matter, and these are captured by their own thread.
            stream.capture().as_ref().is_some_and(|(capture, _)| capture.is_by_this_thread())
        });
        if is_capturing { Err(CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED) } else { Ok(()) }
    }

    pub(crate) fn refuse(&self, error: CUresult) -> Outcome {
        if chance::refuses() { Err(error) } else { Ok(()) }
    }

    pub(crate) fn retain(&self) -> usize {
        let mut context = locked(&self.context);
        if context.users == 0 {
            context.handle = registry::number();
        }
        context.users += 1;
        context.handle
    }

    pub(crate) fn release(&self) -> Outcome {
        let mut context = locked(&self.context);
        context.users = context.users.checked_sub(1).ok_or(CUDA_ERROR_INVALID_CONTEXT)?;
        if context.users == 0 {
            context.handle = 0;
            let left = self.live();
            self.counters().left_behind = left as u64;
            // Nobody could give anything back since.
            if self.lost.swap(0, Ordering::SeqCst) != 0 {
                self.changing_space().clear();
            }
        }
        Ok(())
    }

    /// Objects that nobody has given back.
    fn live(&self) -> usize {
        self.streams.len()
            + self.events.len()
            + self.modules.len()
            + self.graphs.len()
            + self.executables.len()
            + locked(&self.pinned).len()
            + self.space().live()
    }

    pub(crate) fn set_current(&self, handle: usize) -> Outcome {
        if handle != 0 && locked(&self.context).handle != handle {
            return Err(CUDA_ERROR_INVALID_CONTEXT);
        }
        CURRENT.set(handle);
        Ok(())
    }

    pub(crate) fn current() -> usize {
        CURRENT.get()
    }

    /// Notes a block that the host may copy from and to.
    pub(crate) fn pin(&self, bytes: usize, allocate: impl FnOnce() -> usize) -> Outcome<usize> {
        let mut pinned = locked(&self.pinned);
        let taken: usize = pinned.values().sum();
        let fits = taken.checked_add(bytes).is_some_and(|all| all <= self.host_limit_bytes);
        if bytes == 0 || !fits {
            return Err(if bytes == 0 {
                CUDA_ERROR_INVALID_VALUE
            } else {
                CUDA_ERROR_OUT_OF_MEMORY
            });
        }
        let at = allocate();
        if at == 0 {
            return Err(CUDA_ERROR_OUT_OF_MEMORY);
        }
        pinned.insert(at, bytes);
        Ok(at)
    }

    /// Forgets a block; its length.
    pub(crate) fn unpin(&self, at: usize) -> Outcome<usize> {
        locked(&self.pinned).remove(&at).ok_or(CUDA_ERROR_INVALID_VALUE)
    }

    /// Fails unless all of a range of the host is pinned.
    pub(crate) fn check_pinned(&self, at: usize, bytes: u64) -> Outcome {
        let pinned = locked(&self.pinned);
        let block = pinned.range(..=at).next_back();
        let fits = block.is_some_and(|(start, len)| at as u64 + bytes <= (start + len) as u64);
        if fits { Ok(()) } else { Err(CUDA_ERROR_INVALID_VALUE) }
    }

    /// Enqueues a task.
    pub(crate) fn enqueue(&self, stream: usize, task: Task) -> Outcome {
        self.streams.get(stream)?.push(task);
        Ok(())
    }

    pub(crate) fn synchronize(&self, stream: usize) -> Outcome {
        let stream = self.streams.get(stream)?;
        if stream.capture().is_some() {
            return Err(CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
        }
        stream.block();
        self.lost()
    }

    pub(crate) fn load(&self, text: &str) -> Outcome<usize> {
        let is_ptx = text.contains(".version") && text.contains(".target");
        if !is_ptx {
            return Err(CUDA_ERROR_INVALID_IMAGE);
        }
        let module = ptx::Module::load(text).map_err(|refusal| {
            self.explain(refusal.sentence(text));
            CUDA_ERROR_INVALID_PTX
        })?;
        Ok(self.modules.add(|_| module))
    }

    pub(crate) fn function(&self, module: usize, name: &str) -> Outcome<usize> {
        let module = self.modules.get(module)?;
        let kernel = module.kernels.get(name).ok_or(CUDA_ERROR_NOT_FOUND)?;
        Ok(self.functions.add(|_| Arc::clone(kernel)))
    }

    /// Records an event behind all that a stream has.
    pub(crate) fn record(&self, event: usize, stream: usize) -> Outcome {
        let (event, stream) = (self.events.get(event)?, self.streams.get(stream)?);
        let recorded = match &*stream.capture() {
            Some((capture, follows)) => Recorded::Captured(Arc::clone(capture), follows.clone()),
            None => {
                let (place, time) = stream.stamp();
                Recorded::On(place, time)
            }
        };
        *event.lock() = recorded;
        Ok(())
    }

    /// Lets a stream wait for an event.
    pub(crate) fn wait(&self, stream: usize, event: usize) -> Outcome {
        let (event, stream) = (self.events.get(event)?, self.streams.get(stream)?);
        let event = event.lock();
        let mut captured = stream.capture();
        match (&*event, &mut *captured) {
            (Recorded::Captured(from, nodes), Some((into, follows))) if Arc::ptr_eq(from, into) => {
                follows.extend(nodes);
                follows.sort_unstable();
                follows.dedup();
                Ok(())
            }
            (Recorded::Captured(..), Some(_)) => Err(CUDA_ERROR_STREAM_CAPTURE_MERGE),
            (Recorded::Captured(from, nodes), None) if from.is_open() => {
                *captured = Some((Arc::clone(from), nodes.clone()));
                Ok(())
            }
            (Recorded::Captured(..), None) => Err(CUDA_ERROR_INVALID_VALUE),
            (_, Some(_)) => Err(CUDA_ERROR_STREAM_CAPTURE_ISOLATION),
            (Recorded::On(place, stamp), None) => {
                stream.push_wait(place.clone(), Arc::clone(stamp));
                Ok(())
            }
            (Recorded::Never, None) => Ok(()),
        }
    }

    pub(crate) fn begin_capture(&self, stream: usize) -> Outcome {
        let stream = self.streams.get(stream)?;
        let mut capture = stream.capture();
        if capture.is_some() {
            return Err(CUDA_ERROR_ILLEGAL_STATE);
        }
        *capture = Some((Arc::new(Capture::new(stream.handle)), Vec::new()));
        Ok(())
    }

    /// Ends a capture on the stream on which it began.
    pub(crate) fn end_capture(&self, stream: usize) -> Outcome<usize> {
        let origin = self.streams.get(stream)?;
        let (capture, ends) = {
            let capture = origin.capture();
            let captured = capture.as_ref().filter(|(capture, _)| capture.origin == stream);
            captured.cloned().ok_or(CUDA_ERROR_STREAM_CAPTURE_UNMATCHED)?
        };
        for stream in self.streams.all() {
            let mut of_stream = stream.capture();
            if of_stream.as_ref().is_some_and(|(its, _)| Arc::ptr_eq(its, &capture)) {
                *of_stream = None;
            }
        }
        capture.close();
        let graph = capture.graph(&ends)?;
        Ok(self.graphs.add(|_| graph))
    }

    pub(crate) fn launch(&self, executable: usize, stream: usize) -> Outcome {
        let (executable, stream) = (self.executables.get(executable)?, self.streams.get(stream)?);
        if stream.capture().is_some() {
            return Err(CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
        }
        stream.push_graph(executable);
        Ok(())
    }
}
