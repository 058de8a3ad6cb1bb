//! Sessions that switch between plans, on each device that this machine has: they copy what the
//! switch predicts and compute what one plan computes, and after a failed copy nothing runs.
#![allow(clippy::unwrap_used, reason = "what fails here fails the test")]

use backend_host::Host;
#[cfg(target_os = "linux")]
use backend_host::Mapped;
use backend_sim::Sim;
use conformance::graphs::{Layer as NetworkLayer, training_graph};
use integrity::{Backend, Reading, digest, reference_digest};
use middleware::{Layer, Layered, LayeredKernels};
use planner_core::backend::{
    BackendError, DeviceAddress, ErrorKind, HostRange, Kernels, Paging, Transfers,
};
use planner_core::{ExecuteError, Kind, TensorId};
use spillway::{Capacity, Graph, OwnedMachine, Plan, Session, SessionError};
use std::cell::Cell;
use std::fmt;
use std::rc::Rc;

/// Counts the bytes that are copied, and lets a copy fail.
#[derive(Clone, Debug, Default)]
struct Counter {
    h2d_bytes: Rc<Cell<u64>>,
    d2h_bytes: Rc<Cell<u64>>,
    /// Copies until one fails; none does at 0.
    fails_in: Rc<Cell<u64>>,
}

#[derive(Debug)]
enum CopyError<E> {
    Device(E),
    Failed,
}

impl<E: fmt::Display> fmt::Display for CopyError<E> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Device(error) => error.fmt(f),
            Self::Failed => write!(f, "the copy failed"),
        }
    }
}

impl<E: std::error::Error> std::error::Error for CopyError<E> {}

impl<E: BackendError> BackendError for CopyError<E> {
    fn kind(&self) -> ErrorKind {
        ErrorKind::Other
    }
}

impl<E> From<E> for CopyError<E> {
    fn from(error: E) -> Self {
        Self::Device(error)
    }
}

impl Counter {
    fn count<E>(&self, all_bytes: &Cell<u64>, range: HostRange) -> Result<(), CopyError<E>> {
        all_bytes.set(all_bytes.get() + range.bytes);
        let left = self.fails_in.get();
        self.fails_in.set(left.saturating_sub(1));
        if left == 1 { Err(CopyError::Failed) } else { Ok(()) }
    }

    fn take(&self) -> [u64; 2] {
        [self.h2d_bytes.take(), self.d2h_bytes.take()]
    }
}

impl<D: Transfers + Paging> Layer<D> for Counter {
    type Error = CopyError<D::Error>;

    fn upload(
        &mut self,
        device: &mut D,
        from: HostRange,
        to: DeviceAddress,
    ) -> Result<(), Self::Error> {
        self.count(&self.h2d_bytes, from)?;
        Ok(device.upload(from, to)?)
    }

    fn download(
        &mut self,
        device: &mut D,
        from: DeviceAddress,
        to: HostRange,
    ) -> Result<(), Self::Error> {
        self.count(&self.d2h_bytes, to)?;
        Ok(device.download(from, to)?)
    }
}

/// A training step of four layers, planned with all memory and with little.
fn plans<B: Backend>(backend: &B) -> [Plan; 2] {
    let layer = NetworkLayer {
        weight_bytes: 40_000,
        activation_bytes: 9000,
        forward_ns: 3000,
        workspace_bytes: 5000,
        has_momentum: true,
    };
    let graph = Graph::new(training_graph(5000, &[layer; 4])).unwrap();
    let machine = backend.find().unwrap().machine;
    let machine = OwnedMachine::new("m", machine);
    ["100%", "60%"].map(|budget| graph.plan(&machine).budget(budget).run().unwrap())
}

fn capacity(plans: &[Plan]) -> Capacity {
    let each = plans.iter().map(Plan::capacity);
    each.fold(Capacity::default(), Capacity::max)
}

type Counted<B, K> = Session<Layered<<B as Backend>::Device, Counter>, LayeredKernels<K>>;

/// Starts the first plan on a device that counts.
fn with_session<B: Backend>(
    backend: &B,
    then: impl FnOnce(&mut Counted<B, B::Kernels<'_>>, &Counter, &[Plan; 2]),
) {
    let plans = plans(backend);
    let graph = plans[0].graph().clone();
    let mut device = backend.open(plans[0].machine().machine, 0).unwrap();
    let kernels = backend.kernels(&mut device, graph.graph()).unwrap();
    let counter = Counter::default();
    let device = Layered::new(device, counter.clone());
    let kernels = LayeredKernels(kernels);
    let mut session =
        Session::with_capacity(plans[0].clone(), capacity(&plans), device, kernels).unwrap();
    then(&mut session, &counter, &plans);
}

/// The digest of all states, as the session reads them.
fn states_digest<D: Transfers + Paging, K: Kernels<D>>(session: &mut Session<D, K>) -> u64 {
    let tensors = (0..).map(TensorId).zip(session.plan().graph().owned().tensors.clone());
    let states = tensors.filter(|(_, tensor)| tensor.kind == Kind::State);
    let readings: Vec<Reading> = states
        .map(|(id, tensor)| {
            let mut bytes = vec![0; tensor.bytes as usize];
            session.read_state(id, &mut bytes).unwrap();
            Reading::of(&bytes)
        })
        .collect();
    digest(readings.into_iter())
}

fn copies_what_it_predicts<B: Backend>(backend: &B) {
    with_session(backend, |session, counter, [ample, little]| {
        let graph = ample.graph().clone();
        let reference = |iterations| reference_digest(&graph.graph(), iterations);
        for (iterations, next) in
            [(3, little), (2, ample), (0, little), (0, ample), (2, ample), (1, little)]
        {
            session.run(iterations).unwrap();
            let _ = counter.take();
            let predicted = session.switch(next.clone(), |_| {}).unwrap();
            assert_eq!(counter.take(), [predicted.h2d_bytes, predicted.d2h_bytes]);
            assert!(predicted.kept_bytes > 0);
            // The host lacks what stayed, until states are read.
            if iterations == 1 {
                assert_eq!(states_digest(session), reference(8));
            }
        }
        session.run(2).unwrap();
        assert_eq!(session.iterations(), 10);
        assert_eq!(states_digest(session), reference(10));
    });
}

/// Reading or writing a part of one state copies that part and nothing else.
fn copies_what_is_read_and_written<B: Backend>(backend: &B) {
    with_session(backend, |session, counter, _| {
        session.run(1).unwrap();
        let (_, figures) = (counter.take(), *session.plan().figures());
        session.run(1).unwrap();
        assert_eq!(counter.take(), [figures.h2d_bytes, figures.d2h_bytes]);
        let graph = session.plan().graph().clone();
        let resident = session.plan().owned().resident_at_start.clone();
        let on_device = |state: TensorId| {
            let mut entries = resident.iter().filter(|entry| entry.part.tensor == state);
            entries.any(|entry| entry.part.is_whole() && !entry.host_copy)
        };
        let tensors = (0..).map(TensorId).zip(&graph.owned().tensors);
        let states = tensors.filter(|(id, data)| data.kind == Kind::State && on_device(*id));
        let states: Vec<_> = states.map(|(id, data)| (id, data.bytes)).collect();
        assert!(!states.is_empty(), "states stay on the device");
        for &(state, bytes) in &states {
            let mut whole = vec![0; bytes as usize];
            let _ = counter.take();
            session.read_state(state, &mut whole).unwrap();
            assert_eq!(counter.take(), [0, bytes]);
            let (first, count) = (bytes / 4 * 2 + 1, bytes / 4 + 1);
            let mut part = vec![0; count as usize];
            session.read_state_at(state, first, &mut part).unwrap();
            assert_eq!(counter.take(), [0, count]);
            assert_eq!(part, whole[first as usize..][..count as usize]);
            // The state keeps its value, so later iterations compute the same.
            session.write_state_at(state, first, &part).unwrap();
            assert_eq!(counter.take(), [count, 0]);
        }
        session.run(1).unwrap();
        assert_eq!(states_digest(session), reference_digest(&graph.graph(), 3));
    });
}

fn a_failed_copy_ends_it<B: Backend>(backend: &B) {
    with_session(backend, |session, counter, [_, little]| {
        session.run(3).unwrap();
        counter.fails_in.set(2);
        let error = session.switch(little.clone(), |_| {}).unwrap_err();
        assert!(error.to_string().ends_with("of a switch: the copy failed"), "{error}");
        let failed =
            |error| matches!(error, SessionError::Execute { error: ExecuteError::Failed, .. });
        assert!(failed(session.run(1).unwrap_err()));
        assert!(failed(session.switch(little.clone(), |_| {}).unwrap_err()));
        let state = TensorId(1);
        assert!(failed(session.read_state(state, &mut [0; 40_000]).unwrap_err()));
    });
}

#[test]
fn on_host_memory() {
    copies_what_it_predicts(&Host);
    copies_what_is_read_and_written(&Host);
    a_failed_copy_ends_it(&Host);
}

#[cfg(target_os = "linux")]
#[test]
fn on_mapped_memory() {
    copies_what_it_predicts(&Mapped);
    copies_what_is_read_and_written(&Mapped);
    a_failed_copy_ends_it(&Mapped);
}

#[test]
fn on_the_simulated_device() {
    copies_what_is_read_and_written(&Sim::default());
    copies_what_it_predicts(&Sim::default());
    a_failed_copy_ends_it(&Sim::default());
}
