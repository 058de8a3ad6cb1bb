//! The driver: its context, its objects by their handles, and what calls do with them.

use crate::caller::Caller;
use crate::capture::Capture;
use crate::counters::Counters;
use crate::device::Device;
use crate::event::Event;
use crate::faults::Faults;
use crate::graph::{ExecutableGraph, Graph};
use crate::outcome::Outcome;
use crate::pool::Pool;
use crate::ptx::{Kernel, Module};
use crate::registry::{Handles, Registry};
use crate::settings::Settings;
use crate::stream::Stream;
use crate::task::Task;
use crate::variables::Variable;
use cudarc::driver::sys::CUresult::*;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;

/// The primary context. It lives while it is retained.
#[derive(Debug, Default)]
struct Context {
    handle: usize,
    users: u32,
    /// Memory of the device that it takes.
    bytes: u64,
}

#[derive(Debug)]
pub(crate) struct Driver {
    is_initialized: AtomicBool,
    context: Mutex<Context>,
    counters: Mutex<Counters>,
    /// Delays the streams of threads that set no faults; 0 for no delays.
    seed: AtomicU64,
    pub(crate) device: Arc<Device>,
    pub(crate) streams: Registry<Stream>,
    pub(crate) events: Registry<Event>,
    pub(crate) modules: Registry<Module>,
    pub(crate) functions: Registry<Arc<Kernel>>,
    pub(crate) graphs: Registry<Graph>,
    pub(crate) executables: Registry<ExecutableGraph>,
    pub(crate) pools: Registry<Pool>,
    pub(crate) default_pool: usize,
    handles: Arc<Handles>,
    /// The threads of streams that were destroyed: they may still work.
    ending: Mutex<Vec<JoinHandle<()>>>,
}

pub(crate) fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Driver {
    /// Creates a driver with one device.
    ///
    /// # Panics
    /// As [`Device::new`].
    pub(crate) fn new(settings: &Settings) -> Self {
        let handles = Arc::default();
        let pools = Registry::new(&handles);
        Self {
            default_pool: pools.add(|_| Pool::default()),
            pools,
            is_initialized: AtomicBool::new(false),
            context: Mutex::default(),
            counters: Mutex::default(),
            seed: AtomicU64::new(settings.seed),
            device: Arc::new(Device::new(settings)),
            streams: Registry::new(&handles),
            events: Registry::new(&handles),
            modules: Registry::new(&handles),
            functions: Registry::new(&handles),
            graphs: Registry::new(&handles),
            executables: Registry::new(&handles),
            handles,
            ending: Mutex::default(),
        }
    }

    pub(crate) fn initialize(&self) {
        self.is_initialized.store(true, Ordering::SeqCst);
    }

    pub(crate) fn counters(&self) -> MutexGuard<'_, Counters> {
        locked(&self.counters)
    }

    /// Returns the counters, with what is alive now.
    pub(crate) fn counted(&self) -> Counters {
        let live = self.live() as u64;
        Counters { live, ..*self.counters() }
    }

    /// Notes that a range is unmapped or freed. If work uses any of it, that fails, as it would on
    /// a device. Returns whether work uses it.
    pub(crate) fn note_freed(&self, at: u64, bytes: u64) -> bool {
        let is_used = self.device.check_unused(at, bytes).is_err();
        if is_used {
            self.counters().freed_in_use += 1;
        }
        is_used
    }

    /// Forgets an error of work and what tests have set, and frees all memory, once the work of
    /// destroyed streams has ended.
    pub(crate) fn restart(&self) {
        for thread in locked(&self.ending).drain(..) {
            // A thread that has panicked has ended as well.
            let _ = thread.join();
        }
        self.device.recover();
        self.device.variables.reset();
    }

    /// Delays the work of all streams from now on, by the seed of the settings or else by 1.
    pub(crate) fn delay_all(&self) {
        // A seed that is set stays.
        let _ = self.seed.compare_exchange(0, 1, Ordering::SeqCst, Ordering::SeqCst);
    }

    /// Returns the faults of a caller.
    fn faults(&self, caller: &Caller) -> Faults {
        caller.faults().unwrap_or_else(|| {
            let seed = self.seed.load(Ordering::SeqCst);
            Faults { seed: (seed > 0).then_some(seed), ..Faults::default() }
        })
    }

    /// Fails before `cuInit`. Almost every call begins with this.
    pub(crate) fn check_initialized(&self) -> Outcome {
        let is = self.is_initialized.load(Ordering::SeqCst);
        if is { Ok(()) } else { Err(CUDA_ERROR_NOT_INITIALIZED) }
    }

    /// Fails unless the caller's context is alive and no work has failed in it.
    pub(crate) fn check_context(&self, caller: &Caller) -> Outcome {
        self.check_initialized()?;
        let current = caller.context.get();
        match locked(&self.context).handle {
            _ if current == 0 => Err(CUDA_ERROR_INVALID_CONTEXT),
            handle if handle == current => self.device.check(),
            _ => Err(CUDA_ERROR_CONTEXT_IS_DESTROYED),
        }
    }

    /// The same, for calls that must not happen while the caller captures a stream.
    pub(crate) fn check_uncaptured(&self, caller: &Caller) -> Outcome {
        self.check_context(caller)?;
        for stream in self.streams.all() {
            // Captures of other threads do not matter.
            if stream.capture().as_ref().is_some_and(|point| point.capture.is_by_this_thread()) {
                stream.check_uncaptured()?;
            }
        }
        Ok(())
    }

    /// Retains the context. Returns its handle.
    pub(crate) fn retain_context(&self) -> Outcome<usize> {
        let mut context = locked(&self.context);
        if context.users == 0 {
            let bytes = self.device.variables.get(Variable::ContextMemory);
            context.bytes = self.device.take(bytes)?;
            context.handle = self.handles.next();
        }
        context.users += 1;
        Ok(context.handle)
    }

    /// Releases the context, and destroys it with its last user.
    pub(crate) fn release_context(&self) -> Outcome {
        let mut context = locked(&self.context);
        context.users = context.users.checked_sub(1).ok_or(CUDA_ERROR_INVALID_CONTEXT)?;
        if context.users == 0 {
            context.handle = 0;
            self.device.give_back(context.bytes);
        }
        Ok(())
    }

    /// Counts the objects that nobody has destroyed.
    fn live(&self) -> usize {
        self.streams.len()
            + self.events.len()
            + self.modules.len()
            + self.graphs.len()
            + self.executables.len()
            + self.device.pinned.live()
            + self.device.space.read().live()
    }

    pub(crate) fn set_current_context(&self, caller: &Caller, handle: usize) -> Outcome {
        if handle != 0 && locked(&self.context).handle != handle {
            return Err(CUDA_ERROR_INVALID_CONTEXT);
        }
        caller.context.set(handle);
        Ok(())
    }

    /// Creates a stream, with the faults of the caller.
    pub(crate) fn create_stream(&self, caller: &Caller) -> usize {
        let (device, faults) = (Arc::clone(&self.device), self.faults(caller));
        self.streams.add(|handle| Stream::new(handle, device, faults))
    }

    /// Destroys a stream, and does not wait for its work.
    pub(crate) fn end_stream(&self, caller: &Caller, stream: usize) -> Outcome {
        let thread = self.streams.remove(stream)?.end(&caller.clock);
        let mut ending = locked(&self.ending);
        ending.retain(|thread| !thread.is_finished());
        ending.extend(thread);
        Ok(())
    }

    /// Allocates memory of a pool for what a stream does from now on.
    pub(crate) fn allocate_async(&self, stream: usize, pool: usize, bytes: u64) -> Outcome<u64> {
        self.pools.get(pool)?;
        // A graph would have to allocate it anew in each launch.
        self.streams.get(stream)?.check_uncaptured()?;
        self.device.space.write().allocate(bytes)
    }

    /// Frees memory once a stream has done all that it has.
    pub(crate) fn free_async(&self, caller: &Caller, stream: usize, at: u64) -> Outcome {
        let bytes = self.device.space.read().reserved_bytes(at)?;
        self.enqueue(caller, stream, Task::Free { at, bytes })
    }

    /// Enqueues a task.
    pub(crate) fn enqueue(&self, caller: &Caller, stream: usize, task: Task) -> Outcome {
        self.streams.get(stream)?.push(task, &caller.clock)
    }

    /// Records an event after all that a stream has.
    pub(crate) fn record(&self, caller: &Caller, event: usize, stream: usize) -> Outcome {
        let (event, stream) = (self.events.get(event)?, self.streams.get(stream)?);
        event.record(stream.record(&caller.clock)?);
        Ok(())
    }

    /// Lets a stream wait for an event.
    pub(crate) fn wait(&self, caller: &Caller, stream: usize, event: usize) -> Outcome {
        let (event, stream) = (self.events.get(event)?, self.streams.get(stream)?);
        stream.wait(event.recorded(), &caller.clock)
    }

    /// Blocks the caller until a stream has done all that is enqueued.
    pub(crate) fn synchronize(&self, caller: &Caller, stream: usize) -> Outcome {
        self.streams.get(stream)?.synchronize(&caller.clock)?;
        self.device.check()
    }

    /// The same for all streams. While any of them is captured, by whomever, this is not allowed
    /// and spoils the capture (CUDA C++ Programming Guide, "Prohibited and Unhandled Operations").
    pub(crate) fn synchronize_all(&self, caller: &Caller) -> Outcome {
        let streams = self.streams.all();
        let captures: Vec<_> = streams
            .iter()
            .filter_map(|stream| Some(Arc::clone(&stream.capture().as_ref()?.capture)))
            .collect();
        let refuse = |capture: &Arc<Capture>| capture.refuse(CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
        // Streams of one capture are refused once.
        let refusals: Vec<_> = captures.iter().map(refuse).collect();
        if let Some(&first) = refusals.first() {
            return Err(first);
        }
        streams.iter().try_for_each(|stream| stream.synchronize(&caller.clock))?;
        self.device.check()
    }

    /// Loads PTX as a module. Returns its handle.
    pub(crate) fn load_module(&self, caller: &Caller, text: &str) -> Outcome<usize> {
        let is_ptx = text.contains(".version") && text.contains(".target");
        if !is_ptx {
            return Err(CUDA_ERROR_INVALID_IMAGE);
        }
        let module = Module::load(text, &self.device.space).map_err(|refusal| {
            self.device.explain(refusal.sentence(text));
            CUDA_ERROR_INVALID_PTX
        })?;
        self.load_eagerly(caller, &module)?;
        Ok(self.modules.add(|_| module))
    }

    pub(crate) fn unload_module(&self, module: usize) -> Outcome {
        self.unload(&*self.modules.remove(module)?);
        Ok(())
    }

    /// Returns the handle of a kernel.
    pub(crate) fn function(&self, module: usize, name: &str) -> Outcome<usize> {
        let module = self.modules.get(module)?;
        let kernel = module.kernels.get(name).ok_or(CUDA_ERROR_NOT_FOUND)?;
        Ok(self.functions.add(|_| Arc::clone(kernel)))
    }

    /// Ends a capture on the stream on which it began. Returns the handle of the graph. If the
    /// capture was ruined, its streams are free again, and there is no graph.
    pub(crate) fn end_capture(&self, stream: usize) -> Outcome<usize> {
        let captured = self.streams.get(stream)?.capture().clone();
        let point = captured.filter(|point| point.capture.origin == stream);
        let point = point.ok_or(CUDA_ERROR_STREAM_CAPTURE_UNMATCHED)?;
        for stream in self.streams.all() {
            let mut of_stream = stream.capture();
            if of_stream.as_ref().is_some_and(|other| other.is_in(&point.capture)) {
                *of_stream = None;
            }
        }
        let graph = point.capture.finish(&point.nodes)?;
        Ok(self.graphs.add(|_| graph))
    }

    /// Launches a graph on a stream.
    pub(crate) fn launch_graph(
        &self,
        caller: &Caller,
        executable: usize,
        stream: usize,
    ) -> Outcome {
        let (executable, stream) = (self.executables.get(executable)?, self.streams.get(stream)?);
        stream.push_graph(executable, &caller.clock)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::link::Speed;

    const PAGE_BYTES: u64 = 4096;

    fn driver() -> Driver {
        let link = Speed { bytes_per_s: 0, both_bytes_per_s: 0, latency_ns: 0 };
        Driver::new(&Settings {
            memory_bytes: PAGE_BYTES,
            pinned_bytes: PAGE_BYTES,
            granularity_bytes: PAGE_BYTES,
            h2d: link,
            d2h: link,
            queue_depth: 2,
            seed: 0,
        })
    }

    /// Fills eight bytes on a new stream, and waits for it.
    fn fill(driver: &Driver, caller: &Caller, device: u64) -> Outcome {
        let stream = driver.create_stream(caller);
        driver.enqueue(caller, stream, Task::Fill { device, byte: 1, bytes: 8 })?;
        let filled = driver.synchronize(caller, stream);
        driver.end_stream(caller, stream)?;
        filled
    }

    #[test]
    fn drivers_share_nothing() -> Outcome {
        let (one, other, caller) = (driver(), driver(), Caller::new());
        let at = other.device.space.write().allocate(PAGE_BYTES)?;
        assert_eq!(fill(&one, &caller, at), Err(CUDA_ERROR_ILLEGAL_ADDRESS), "not its own memory");
        assert_eq!(one.device.check(), Err(CUDA_ERROR_ILLEGAL_ADDRESS), "the error stays");
        assert_eq!(fill(&other, &caller, at), Ok(()), "the error of another driver");
        one.device.recover();
        let own = one.device.space.write().allocate(PAGE_BYTES)?;
        assert_eq!(fill(&one, &caller, own), Ok(()), "after it has recovered");
        Ok(())
    }
}
