//! Sessions: they own what they need, states can be read between iterations, and misuse is an
//! error.
#![allow(clippy::unwrap_used, reason = "what fails here fails the test")]

use backend_host::{HostDevice, HostError};
use spillway::planner_core::backend::{
    FillError, HostKernels, HostLaunch, InputWriter, Kernels, Launch, StateWriter, Transfers,
};
use spillway::planner_core::plan::Step;
use spillway::planner_core::{ExecuteError, Machine, MachineParameters, OpId};
use spillway::strategy::{Auto, Host};
use spillway::{GraphBuilder, OwnedMachine, Plan, Session, SessionError, TensorId};
use std::thread;

/// Adds each input to a sum, and counts in a large state that has to leave in between.
struct Adder {
    sum: TensorId,
    large: TensorId,
    x: TensorId,
}

const LARGE_BYTES: usize = 4096;

impl Kernels<HostDevice> for Adder {
    fn launch(&mut self, device: &mut HostDevice, launch: &Launch<'_>) -> Result<(), HostError> {
        let from = launch.reads.get(0).unwrap();
        let mut total = vec![0u64; from.bytes as usize / 8];
        device.read(from, &mut total)?;
        let mut added = [1];
        if launch.op == OpId(0) {
            device.read(launch.reads.get(1).unwrap(), &mut added)?;
        }
        total[0] += added[0];
        device.write(launch.writes.get(0).unwrap(), &total)
    }

    fn fill_states(
        &mut self,
        states: &mut StateWriter<'_, HostDevice>,
    ) -> Result<(), FillError<HostError>> {
        states.write(self.sum, &[100u64])?;
        states.write(self.large, &[0u8; LARGE_BYTES])
    }

    fn fill_inputs(
        &mut self,
        inputs: &mut InputWriter<'_, HostDevice>,
    ) -> Result<(), FillError<HostError>> {
        inputs.write(self.x, &[inputs.iteration()])
    }
}

/// A plan in the least memory: two large states take turns.
fn planned() -> (Plan, Adder, TensorId) {
    let mut graph = GraphBuilder::new("sums");
    let sum = graph.state("sum", 8);
    let [large, other] = ["large", "other"].map(|name| graph.state(name, LARGE_BYTES as u64));
    let x = graph.input("x", 8);
    graph.op("add", 1000).reads([sum, x]).writes([sum]);
    graph.op("count", 1000).reads([large]).writes([large]);
    graph.op("count others", 1000).reads([other]).writes([other]);
    let plan = graph.build().unwrap().plan(&machine()).budget("min").run().unwrap();
    (plan, Adder { sum, large, x }, other)
}

fn machine() -> OwnedMachine {
    let machine = Machine::new(
        MachineParameters::new()
            .with_device_bytes(1 << 16)
            .with_host_bytes(1 << 16)
            .with_chunk_bytes(1024)
            .with_h2d_bytes_per_s(1_000_000_000)
            .with_d2h_bytes_per_s(1_000_000_000),
    );
    OwnedMachine::new("host", machine.unwrap())
}

fn device() -> HostDevice {
    HostDevice::new(1024, 1 << 16)
}

fn first<K: Kernels<HostDevice>>(
    session: &mut Session<HostDevice, K>,
    state: TensorId,
    len: usize,
) -> u64 {
    let mut bytes = vec![0; len];
    session.read_state(state, &mut bytes).unwrap();
    u64::from_le_bytes(bytes[..8].try_into().unwrap())
}

#[test]
fn states_are_read_between_iterations() {
    let (plan, adder, other) = planned();
    assert!(plan.figures().d2h_bytes > 0, "a state leaves");
    let (sum, large) = (adder.sum, adder.large);
    let mut session = Session::new(plan, device(), adder).unwrap();
    assert_eq!(first(&mut session, sum, 8), 100);
    session.step().unwrap();
    assert_eq!(first(&mut session, sum, 8), 101);
    session.run(3).unwrap();
    assert_eq!(first(&mut session, sum, 8), 100 + 1 + 2 + 3 + 4);
    assert_eq!(first(&mut session, large, LARGE_BYTES), 4);
    assert_eq!(first(&mut session, other, LARGE_BYTES), 4);
    assert_eq!(session.iterations(), 4);
}

/// One that stays on the device, and two of which one is only on the host.
#[test]
fn states_are_written_between_iterations() {
    let (plan, adder, other) = planned();
    let (sum, large) = (adder.sum, adder.large);
    let mut session = Session::new(plan, device(), adder).unwrap();
    let mut value = vec![0; LARGE_BYTES];
    for round in 0..3u64 {
        session.run(2).unwrap();
        session.write_state(sum, &(1000 * round).to_le_bytes()).unwrap();
        for (state, first) in [(large, 7 * round), (other, 9 * round)] {
            value[..8].copy_from_slice(&first.to_le_bytes());
            session.write_state(state, &value).unwrap();
        }
        assert_eq!(first(&mut session, sum, 8), 1000 * round);
        session.step().unwrap();
        assert_eq!(first(&mut session, sum, 8), 1000 * round + 3 * round + 3);
        assert_eq!(first(&mut session, large, LARGE_BYTES), 7 * round + 1);
        assert_eq!(first(&mut session, other, LARGE_BYTES), 9 * round + 1);
    }
    let error = session.write_state(sum, &[0; 9]).unwrap_err().to_string();
    assert_eq!(error, "the buffer has 9 bytes, but tensor 0 (\"sum\") has 8");
}

/// Of a state that stays, and of one that leaves.
#[test]
fn parts_of_states_are_read_and_written() {
    let (plan, adder, other) = planned();
    let (sum, large) = (adder.sum, adder.large);
    let mut session = Session::new(plan, device(), adder).unwrap();
    let last = LARGE_BYTES as u64 - 3;
    for round in 1..=3u64 {
        session.run(2).unwrap();
        for state in [large, other] {
            session.write_state_at(state, last, &[round as u8, 2, 3]).unwrap();
        }
        session.write_state_at(sum, 1, &[0]).unwrap();
        session.run(2).unwrap();
        for state in [large, other] {
            let mut end = [0; 4];
            session.read_state_at(state, last - 1, &mut end).unwrap();
            assert_eq!(end, [0, round as u8, 2, 3]);
            assert_eq!(first(&mut session, state, LARGE_BYTES), 4 * round);
        }
    }
    for first_byte in [0, LARGE_BYTES as u64] {
        session.read_state_at(large, first_byte, &mut []).unwrap();
        session.write_state_at(large, first_byte, &[]).unwrap();
    }
    for first_byte in [last + 1, LARGE_BYTES as u64, u64::MAX] {
        let error = session.read_state_at(large, first_byte, &mut [0; 3]).unwrap_err().to_string();
        let expected = format!(
            "3 bytes from byte {first_byte} on are not all in tensor 1 (\"large\"), which has 4096 bytes"
        );
        assert_eq!(error, expected);
        let error = session.write_state_at(large, first_byte, &[0; 3]).unwrap_err().to_string();
        assert_eq!(error, expected);
    }
}

/// As a field of a struct, on another thread.
#[test]
fn a_session_owns_what_it_needs() {
    struct Trainer {
        session: Session<HostDevice, Adder>,
    }
    let (plan, adder, _) = planned();
    let sum = adder.sum;
    let mut trainer = Trainer { session: Session::new(plan, device(), adder).unwrap() };
    trainer.session.step().unwrap();
    let moved = thread::spawn(move || {
        trainer.session.step().unwrap();
        first(&mut trainer.session, sum, 8)
    });
    assert_eq!(moved.join().unwrap(), 103);
}

#[test]
fn misuse_is_an_error() {
    let (plan, adder, _) = planned();
    let other_chunks = HostDevice::new(4096, 1 << 16);
    let error = Session::new(plan, other_chunks, adder).unwrap_err();
    assert!(
        matches!(error, SessionError::Execute { error: ExecuteError::ChunkBytes { .. }, .. }),
        "{error}"
    );
    let (plan, adder, _) = planned();
    let (sum, x) = (adder.sum, adder.x);
    let mut session = Session::new(plan, device(), adder).unwrap();
    for id in [x, TensorId(77)] {
        let error = session.read_state(id, &mut [0; 8]).unwrap_err();
        assert!(matches!(error, SessionError::Tensor { tensor: of, .. } if of == id), "{error}");
    }
    let error = session.read_state(sum, &mut [0; 9]).unwrap_err().to_string();
    assert_eq!(error, "the buffer has 9 bytes, but tensor 0 (\"sum\") has 8");
}

/// Kernels whose launches fail once `left` is used up.
struct Failing {
    adder: Adder,
    left: u32,
}

impl Kernels<HostDevice> for Failing {
    fn launch(&mut self, device: &mut HostDevice, launch: &Launch<'_>) -> Result<(), HostError> {
        self.left = self.left.checked_sub(1).ok_or(HostError::Kernels)?;
        self.adder.launch(device, launch)
    }

    fn fill_states(
        &mut self,
        states: &mut StateWriter<'_, HostDevice>,
    ) -> Result<(), FillError<HostError>> {
        self.adder.fill_states(states)
    }

    fn fill_inputs(
        &mut self,
        inputs: &mut InputWriter<'_, HostDevice>,
    ) -> Result<(), FillError<HostError>> {
        self.adder.fill_inputs(inputs)
    }
}

/// The host copies may then belong to different iterations.
#[test]
fn no_state_is_read_after_a_run_has_failed() {
    for left in 0..9 {
        let (plan, adder, other) = planned();
        let large = adder.large;
        let mut session = Session::new(plan, device(), Failing { adder, left }).unwrap();
        for iteration in 1..=left / 3 {
            session.step().unwrap();
            assert_eq!(first(&mut session, other, LARGE_BYTES), u64::from(iteration));
        }
        let error = session.step().unwrap_err().to_string();
        let op = ["add", "count", "count others"][left as usize % 3];
        assert!(error.contains(&format!("the launch of op {} ({op:?})", left % 3)), "{error}");
        let error = session.read_state(large, &mut [0; LARGE_BYTES]).unwrap_err();
        assert!(
            matches!(error, SessionError::Execute { error: ExecuteError::Failed, .. }),
            "{left}: {error}"
        );
    }
}

/// Writes the values of states or inputs in a way that does not fit.
struct Misfit {
    state: fn(&mut StateWriter<'_, HostDevice>) -> Result<(), FillError<HostError>>,
    input: fn(&mut InputWriter<'_, HostDevice>) -> Result<(), FillError<HostError>>,
}

impl Kernels<HostDevice> for Misfit {
    fn launch(&mut self, _: &mut HostDevice, _: &Launch<'_>) -> Result<(), HostError> {
        Ok(())
    }

    fn fill_states(
        &mut self,
        states: &mut StateWriter<'_, HostDevice>,
    ) -> Result<(), FillError<HostError>> {
        (self.state)(states)
    }

    fn fill_inputs(
        &mut self,
        inputs: &mut InputWriter<'_, HostDevice>,
    ) -> Result<(), FillError<HostError>> {
        (self.input)(inputs)
    }
}

/// States of 3 and 8 bytes, so that the second begins at byte 3, and an input behind them.
#[test]
fn values_that_do_not_fit_are_refused_with_the_name_of_the_tensor() {
    let mut graph = GraphBuilder::new("misfits");
    let [odd, even] = [3, 8].map(|bytes| graph.state(format!("{bytes} bytes"), bytes));
    let x = graph.input("x", 8);
    graph.op("all", 1000).reads([odd, even, x]).writes([even]);
    let plan = graph.build().unwrap().plan(&machine()).run().unwrap();
    let nothing = Misfit { state: |_| Ok(()), input: |_| Ok(()) };
    let of_states = |state| Misfit { state, ..nothing };
    let cases: [(Misfit, &str); 5] = [
        (
            of_states(|states| states.write(TensorId(1), &[1f32])),
            "filling the states: the value for tensor 1 (\"8 bytes\") has 4 bytes, not 8",
        ),
        (
            of_states(|states| states.write(TensorId(1), &[1f32, 2.0])),
            "filling the states: tensor 1 (\"8 bytes\") is written from byte 3 of the host block on",
        ),
        (
            of_states(|states| states.write(TensorId(2), &[1u64])),
            "filling the states: tensor 2 (\"x\") is no state",
        ),
        (
            Misfit { input: |inputs| inputs.write(TensorId(0), &[0u8; 3]), ..nothing },
            "filling the inputs of iteration 1: tensor 0 (\"3 bytes\") is no input",
        ),
        (
            Misfit { input: |inputs| inputs.write_at(TensorId(2), 1, &[0u8; 8]), ..nothing },
            "filling the inputs of iteration 1: 8 bytes from byte 1 on are not all in tensor 2",
        ),
    ];
    for (kernels, message) in cases {
        let error = Session::new(plan.clone(), device(), kernels).unwrap_err().to_string();
        assert!(error.starts_with(message), "{error}");
    }
}

/// Doubles its input on the device, and adds one to that on the host. Both results are outputs.
struct Doubler {
    x: TensorId,
}

impl Kernels<HostDevice> for Doubler {
    fn launch(&mut self, device: &mut HostDevice, launch: &Launch<'_>) -> Result<(), HostError> {
        let mut x = [0u64];
        device.read(launch.reads.get(0).unwrap(), &mut x)?;
        device.write(launch.writes.get(0).unwrap(), &[2 * x[0]])
    }

    fn on_host(&mut self) -> Option<&mut dyn HostKernels<HostDevice>> {
        Some(self)
    }

    fn fill_states(
        &mut self,
        _: &mut StateWriter<'_, HostDevice>,
    ) -> Result<(), FillError<HostError>> {
        Ok(())
    }

    fn fill_inputs(
        &mut self,
        inputs: &mut InputWriter<'_, HostDevice>,
    ) -> Result<(), FillError<HostError>> {
        inputs.write(self.x, &[inputs.iteration()])
    }
}

impl HostKernels<HostDevice> for Doubler {
    fn launch_on_host(
        &mut self,
        device: &mut HostDevice,
        launch: &HostLaunch<'_>,
    ) -> Result<(), HostError> {
        let mut doubled = [0; 8];
        device.read_host(launch.reads.iter().next().unwrap().offset_bytes, &mut doubled)?;
        let next = u64::from_le_bytes(doubled) + 1;
        device.write_host(launch.writes.iter().next().unwrap().offset_bytes, &next.to_le_bytes())
    }
}

/// A session, and its outputs: one of the device, and one of the host.
fn doubler() -> (Session<HostDevice, Doubler>, TensorId, [TensorId; 2]) {
    let mut graph = GraphBuilder::new("doubles");
    let x = graph.input("x", 8);
    let [doubled, next] = ["doubled", "next"].map(|name| graph.output(name, 8));
    graph.op("double", 1000).reads([x]).writes([doubled]);
    graph.op("add", 1000).reads([doubled]).writes([next]).host_ns(1000);
    let all_on_host = Auto::new().with_host(Host::All);
    let plan = graph.build().unwrap().plan(&machine()).strategy(all_on_host).run().unwrap();
    assert!(plan.owned().steps.contains(&Step::Host(OpId(1))), "an op runs on the host");
    (Session::new(plan, device(), Doubler { x }).unwrap(), x, [doubled, next])
}

#[test]
fn outputs_of_the_last_two_iterations_are_read() {
    let (mut session, _, outputs) = doubler();
    let read = |session: &mut Session<_, _>, iteration, output| {
        let mut value = [0; 8];
        session.read_output_of(iteration, output, &mut value).map(|()| u64::from_le_bytes(value))
    };
    let error = session.read_output(outputs[0], &mut [0; 8]).unwrap_err().to_string();
    assert_eq!(
        error,
        "the host has no outputs of iteration 0: this plan has enqueued no iteration yet"
    );
    for last in 1..=5 {
        session.step().unwrap();
        for (output, more) in outputs.into_iter().zip([0, 1]) {
            let mut value = [0; 8];
            session.read_output(output, &mut value).unwrap();
            assert_eq!(u64::from_le_bytes(value), 2 * last + more);
            for iteration in 0..=last + 1 {
                let value = read(&mut session, iteration, output);
                match iteration == 0 || iteration > last || last - iteration > 1 {
                    true => drop(value.unwrap_err()),
                    false => assert_eq!(value.unwrap(), 2 * iteration + more),
                }
            }
        }
    }
    let error = read(&mut session, 3, outputs[0]).unwrap_err().to_string();
    assert_eq!(
        error,
        "the host has no outputs of iteration 3: it holds those of iterations 4 and 5"
    );
}

#[test]
fn only_outputs_are_read_as_such() {
    let (mut session, x, [output, _]) = doubler();
    session.step().unwrap();
    for id in [x, TensorId(77)] {
        let error = session.read_output(id, &mut [0; 8]).unwrap_err();
        assert!(matches!(error, SessionError::Tensor { tensor: of, .. } if of == id), "{error}");
    }
    let error = session.read_output(output, &mut [0; 9]).unwrap_err().to_string();
    assert_eq!(error, "the buffer has 9 bytes, but tensor 1 (\"doubled\") has 8");
}
