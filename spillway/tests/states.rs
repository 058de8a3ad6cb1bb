//! States in files: what is saved is loaded, the crate of the format reads it, and what does not fit
//! is refused before anything is written.
#![allow(clippy::unwrap_used, reason = "what fails here fails the test")]

use backend_host::{HostDevice, HostError};
use safetensors::SafeTensors;
use safetensors::tensor::{Dtype, TensorView, serialize_to_file};
use spillway::planner_core::backend::{
    DeviceRange, FillError, InputWriter, Kernels, Launch, StateWriter,
};
use spillway::planner_core::{Machine, MachineParameters};
use spillway::{Copied, GraphBuilder, OwnedMachine, Session, SessionError, TensorId};
use std::path::PathBuf;
use std::{env, fs, process};

/// The second takes two blocks of a file and a part of a third.
const BYTES: [u64; 3] = [24, (33 << 20) + 5, 4096];
const NAMES: [&str; 3] = ["counter", "table", "layer.weight"];

/// Adds one to the first byte of each state.
struct Counter;

impl Kernels<HostDevice> for Counter {
    fn launch(&mut self, device: &mut HostDevice, launch: &Launch<'_>) -> Result<(), HostError> {
        let at = DeviceRange { bytes: 1, ..launch.writes.get(0).unwrap() };
        let mut first = [0u8];
        device.read(at, &mut first)?;
        device.write(at, &[first[0] + 1])
    }

    fn fill_states(
        &mut self,
        _: &mut StateWriter<'_, HostDevice>,
    ) -> Result<(), FillError<HostError>> {
        Ok(())
    }

    fn fill_inputs(
        &mut self,
        _: &mut InputWriter<'_, HostDevice>,
    ) -> Result<(), FillError<HostError>> {
        Ok(())
    }
}

fn session() -> Session<HostDevice, Counter> {
    const CHUNK_BYTES: u64 = 1 << 20;
    let machine = Machine::new(
        MachineParameters::new()
            .with_device_bytes(1 << 26)
            .with_host_bytes(1 << 28)
            .with_chunk_bytes(CHUNK_BYTES)
            .with_h2d_bytes_per_s(1_000_000_000)
            .with_d2h_bytes_per_s(1_000_000_000),
    );
    let machine = OwnedMachine::new("host", machine.unwrap());
    let mut graph = GraphBuilder::new("counters");
    for (name, bytes) in NAMES.into_iter().zip(BYTES) {
        let state = graph.state(name, bytes);
        graph.op(format!("count {name}"), 1000).reads([state]).writes([state]);
    }
    let plan = graph.build().unwrap().plan(&machine).run().unwrap();
    Session::new(plan, HostDevice::new(CHUNK_BYTES, 1 << 26), Counter).unwrap()
}

/// A file that goes away with the test.
struct Temporary(PathBuf);

impl Temporary {
    fn new(name: &str) -> Self {
        Self(env::temp_dir().join(format!("spillway-{}-{name}.safetensors", process::id())))
    }
}

impl Drop for Temporary {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.0);
    }
}

fn value(session: &mut Session<HostDevice, Counter>, state: usize) -> Vec<u8> {
    let mut value = vec![0; BYTES[state] as usize];
    session.read_state(TensorId(state as u32), &mut value).unwrap();
    value
}

fn pattern(state: usize) -> Vec<u8> {
    (0..BYTES[state]).map(|byte| (byte % 251) as u8 ^ state as u8).collect()
}

/// What is in the session, which must not change.
fn refused(session: &mut Session<HostDevice, Counter>, file: &Temporary, all: bool) -> String {
    let before = [0, 1, 2].map(|state| value(session, state));
    let error = session.load_states(&file.0, all, |_| ()).unwrap_err();
    assert!(matches!(error, SessionError::File { .. }), "{error}");
    assert_eq!([0, 1, 2].map(|state| value(session, state)), before);
    error.to_string()
}

#[test]
fn saved_states_are_loaded() {
    let (mut session, file) = (session(), Temporary::new("saved"));
    for state in 0..3 {
        session.write_state(TensorId(state as u32), &pattern(state)).unwrap();
    }
    session.run(3).unwrap();
    let mut seen = Vec::new();
    session.save_states(&file.0, |copied| seen.push(copied)).unwrap();
    let of_bytes: u64 = BYTES.iter().sum();
    let last: Copied = *seen.last().unwrap();
    assert_eq!((seen.len(), last.bytes, last.of_bytes), (5, of_bytes, of_bytes));
    assert!(seen.is_sorted_by_key(|copied| copied.bytes));
    assert!(!file.0.with_extension("safetensors.partial").exists());

    let bytes = fs::read(&file.0).unwrap();
    let read = SafeTensors::deserialize(&bytes).unwrap();
    let saved = [0, 1, 2].map(|state| value(&mut session, state));
    for (name, value) in NAMES.into_iter().zip(&saved) {
        let tensor = read.tensor(name).unwrap();
        assert_eq!((tensor.dtype(), tensor.shape()), (Dtype::U8, [value.len()].as_slice()));
        assert!(tensor.data() == value, "{name}");
    }
    assert!(saved[1] != pattern(1), "it was counted");

    session.run(2).unwrap();
    assert!(value(&mut session, 1) != saved[1]);
    let mut seen = Vec::new();
    assert_eq!(session.load_states(&file.0, true, |copied| seen.push(copied)).unwrap(), Some(3));
    assert_eq!((seen.len(), *seen.last().unwrap()), (5, last));
    for (state, saved) in saved.iter().enumerate() {
        assert!(value(&mut session, state) == *saved, "{}", NAMES[state]);
    }
    session.step().unwrap();
    assert_eq!(value(&mut session, 2)[0], saved[2][0] + 1);
    // A second file takes the place of the first.
    session.save_states(&file.0, |_| ()).unwrap();
    assert_eq!(session.load_states(&file.0, true, |_| ()).unwrap(), Some(6));
}

/// Files of others have types and shapes, and may have some of the states.
#[test]
fn files_of_others_are_loaded_by_name_and_size() {
    let (mut session, file) = (session(), Temporary::new("others"));
    let weight: Vec<u8> = pattern(2);
    let tensor = TensorView::new(Dtype::BF16, vec![2, 1024], &weight).unwrap();
    serialize_to_file([(NAMES[2], tensor)], None, &file.0).unwrap();
    session.run(1).unwrap();
    let message = refused(&mut session, &file, true);
    assert!(message.ends_with("it has no value for the state \"counter\""), "{message}");
    assert_eq!(session.load_states(&file.0, false, |_| ()).unwrap(), None);
    assert_eq!(value(&mut session, 2), weight);
    assert_eq!(value(&mut session, 0)[0], 1, "it keeps its value");
}

#[test]
fn what_does_not_fit_is_refused() {
    let (mut session, file) = (session(), Temporary::new("refused"));
    session.run(1).unwrap();
    let bytes = [7; 24];
    for (name, len, reason) in [
        ("other", 24, "it has a tensor \"other\", which is not a state"),
        ("counter", 16, "its tensor \"counter\" has 16 bytes, but the state has 24"),
    ] {
        let tensor = TensorView::new(Dtype::U8, vec![len], &bytes[..len]).unwrap();
        serialize_to_file([(name, tensor)], None, &file.0).unwrap();
        let message = refused(&mut session, &file, false);
        assert!(message.ends_with(reason), "{message}");
    }
    session.save_states(&file.0, |_| ()).unwrap();
    let whole = fs::read(&file.0).unwrap();
    let mut cut = [0, 7, 8, 100, whole.len() - 1].map(|len| whole[..len].to_vec()).to_vec();
    cut.push([whole.clone(), vec![0]].concat());
    cut.push([&u64::MAX.to_le_bytes(), &whole[8..]].concat());
    for bytes in cut {
        fs::write(&file.0, &bytes).unwrap();
        let message = refused(&mut session, &file, true);
        assert!(message.starts_with("cannot read the states in "), "{message}");
    }
    let nowhere = Temporary(file.0.join("folder"));
    let message = refused(&mut session, &nowhere, true);
    assert!(message.contains("folder"), "{message}");
    let error = session.save_states(&nowhere.0, |_| ()).unwrap_err().to_string();
    assert!(error.starts_with("cannot write the states in "), "{error}");
}
