//! Saves all states of a session to a file, and loads them. The format is safetensors, with each state as
//! bytes under its name.

use super::{Kernels, Paging, Session, SessionError, Transfers};
use planner_core::{Kind, TensorId};
use safetensors::tensor::{Dtype, Metadata, TensorInfo};
use std::collections::HashMap;
use std::fs::{self, File};
use std::io::{self, BufReader, Read, Write};
use std::path::{Path, PathBuf};

/// The most bytes in one copy.
const BLOCK_BYTES: u64 = 16 << 20;

/// The longest header that readers of the format accept.
const MOST_HEADER_BYTES: u64 = 100_000_000;

/// The key of the number of iterations before the save.
const ITERATIONS: &str = "spillway.iterations";

/// The key of the metadata. No tensor may have this name.
const METADATA: &str = "__metadata__";

/// The progress of copying states.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Copied {
    /// Bytes copied so far.
    pub bytes: u64,
    /// Bytes of all states.
    pub of_bytes: u64,
}

impl<D: Transfers + Paging, K: Kernels<D>> Session<D, K> {
    /// Waits for all enqueued iterations, and writes the values of all states to a file. The file has the
    /// format safetensors: each state is a tensor of bytes (`U8`) under its name, and the metadata holds the
    /// number of iterations so far. The file replaces an older one of the same name once it is complete.
    /// Calls `progress` after each copy.
    ///
    /// # Errors
    /// [`SessionError::File`], and the errors of
    /// [`Executor::save_states`](planner_core::Executor::save_states).
    pub fn save_states(
        &mut self,
        path: impl AsRef<Path>,
        mut progress: impl FnMut(Copied),
    ) -> Result<(), SessionError<D::Error>> {
        self.save()?;
        let path = path.as_ref();
        let partial = partial(path);
        let written = self.write_file(&partial, &mut progress).and_then(|()| {
            fs::rename(&partial, path).map_err(|error| cannot("write", path, &error))
        });
        if written.is_err() {
            // Reports the first error, even if the unfinished file cannot be removed.
            let _ = fs::remove_file(&partial);
        }
        written
    }

    fn write_file(
        &mut self,
        path: &Path,
        progress: &mut impl FnMut(Copied),
    ) -> Result<(), SessionError<D::Error>> {
        let cannot_write = |error| cannot("write", path, &error);
        let states = self.states();
        let header = header(&states, self.iterations()).map_err(cannot_write)?;
        let mut file = File::create(path).map_err(cannot_write)?;
        file.write_all(&(header.len() as u64).to_le_bytes()).map_err(cannot_write)?;
        file.write_all(&header).map_err(cannot_write)?;
        let mut copied = Copied::none_of(&states);
        let mut buffer = Vec::new();
        for state in &states {
            for (first_byte, bytes) in blocks(state.bytes) {
                buffer.resize(bytes as usize, 0);
                self.read_state_at(state.tensor, first_byte, &mut buffer)?;
                file.write_all(&buffer).map_err(cannot_write)?;
                copied.add(bytes, progress);
            }
        }
        file.sync_all().map_err(cannot_write)
    }

    /// Waits for all enqueued iterations, and reads the values of states from a file. The next iteration
    /// begins with these values. The file has the format safetensors; its tensors may have any type, and must
    /// have the names and sizes of states. With `all`, every state must be in the file; without it, states
    /// that the file lacks keep their values. If a tensor in the file does not fit, no state changes. Returns
    /// the number of iterations before the save, if the file holds it. Calls `progress` after each copy.
    ///
    /// # Errors
    /// [`SessionError::File`], and the errors of [`Session::write_state`]. If reading fails midway, some
    /// states have their new values.
    pub fn load_states(
        &mut self,
        path: impl AsRef<Path>,
        all: bool,
        mut progress: impl FnMut(Copied),
    ) -> Result<Option<u64>, SessionError<D::Error>> {
        let path = path.as_ref();
        let cannot_read = |error| cannot("read", path, &error);
        let mut file = BufReader::new(File::open(path).map_err(cannot_read)?);
        let file_bytes = file.get_ref().metadata().map_err(cannot_read)?.len();
        let metadata = read_header(&mut file, file_bytes).map_err(cannot_read)?;
        let states = self.matched(&metadata, all).map_err(cannot_read)?;
        let mut copied = Copied::none_of(&states);
        let mut buffer = Vec::new();
        for state in &states {
            for (first_byte, bytes) in blocks(state.bytes) {
                buffer.resize(bytes as usize, 0);
                file.read_exact(&mut buffer).map_err(cannot_read)?;
                self.write_state_at(state.tensor, first_byte, &buffer)?;
                copied.add(bytes, &mut progress);
            }
        }
        let saved = metadata.metadata().as_ref().and_then(|saved| saved.get(ITERATIONS));
        Ok(saved.and_then(|iterations| iterations.parse().ok()))
    }

    /// The states, in the order of the graph.
    fn states(&self) -> Vec<State> {
        let graph = self.plan().graph().owned();
        let tensors = (0..).map(TensorId).zip(&graph.tensors).zip(&graph.tensor_names);
        tensors
            .filter(|((_, data), _)| data.kind == Kind::State)
            .map(|((tensor, data), name)| State { tensor, bytes: data.bytes, name: name.clone() })
            .collect()
    }

    /// The states that a file has values for, in the order of the file.
    fn matched(&self, metadata: &Metadata, all: bool) -> io::Result<Vec<State>> {
        let states = self.states();
        let mut missing: HashMap<&str, &State> =
            states.iter().map(|state| (state.name.as_str(), state)).collect();
        let mut matched = Vec::new();
        for name in metadata.offset_keys() {
            let Some(state) = missing.remove(name.as_str()) else {
                return Err(unfit(format!("it has a tensor {name:?}, which is not a state")));
            };
            let (first, end) = metadata.info(&name).map_or((0, 0), |info| info.data_offsets);
            let bytes = (end - first) as u64;
            if bytes != state.bytes {
                let expected = state.bytes;
                return Err(unfit(format!(
                    "its tensor {name:?} has {bytes} bytes, but the state has {expected}"
                )));
            }
            matched.push(state.clone());
        }
        match states.iter().find(|state| missing.contains_key(state.name.as_str())) {
            Some(State { name, .. }) if all => {
                Err(unfit(format!("it has no value for the state {name:?}")))
            }
            _ => Ok(matched),
        }
    }
}

impl Copied {
    fn none_of(states: &[State]) -> Self {
        Self { bytes: 0, of_bytes: states.iter().map(|state| state.bytes).sum() }
    }

    fn add(&mut self, bytes: u64, progress: &mut impl FnMut(Self)) {
        self.bytes += bytes;
        progress(*self);
    }
}

/// A state and its place in a file.
#[derive(Clone, Debug)]
struct State {
    tensor: TensorId,
    name: String,
    bytes: u64,
}

/// The first byte and the size of each block in which a tensor is copied.
fn blocks(bytes: u64) -> impl Iterator<Item = (u64, u64)> {
    let first_bytes = (0..bytes.div_ceil(BLOCK_BYTES)).map(|block| block * BLOCK_BYTES);
    first_bytes.map(move |first| (first, BLOCK_BYTES.min(bytes - first)))
}

/// Makes the header of a file, padded so that the data begin at a multiple of 8 bytes.
fn header(states: &[State], iterations: u64) -> io::Result<Vec<u8>> {
    if states.iter().any(|state| state.name == METADATA) {
        return Err(unfit(format!("a state has the name {METADATA:?}, which the format reserves")));
    }
    let mut end = 0;
    let infos = states.iter().map(|state| {
        let (bytes, first) = (state.bytes as usize, end);
        end += bytes;
        let info = TensorInfo { dtype: Dtype::U8, shape: vec![bytes], data_offsets: (first, end) };
        (state.name.clone(), info)
    });
    let saved = HashMap::from([(ITERATIONS.to_owned(), iterations.to_string())]);
    let metadata = Metadata::new(Some(saved), infos.collect()).map_err(io::Error::other)?;
    let mut header = serde_json::to_vec(&metadata)?;
    header.resize(header.len().next_multiple_of(8), b' ');
    Ok(header)
}

/// Reads the header of a file of this size, and checks that the data fill the rest of the file.
fn read_header(file: &mut impl Read, file_bytes: u64) -> io::Result<Metadata> {
    let mut length = [0; 8];
    file.read_exact(&mut length)?;
    let header_bytes = u64::from_le_bytes(length);
    let data_bytes = file_bytes.saturating_sub(8).checked_sub(header_bytes);
    let Some(data_bytes) = data_bytes.filter(|_| header_bytes <= MOST_HEADER_BYTES) else {
        return Err(unfit("it is not a safetensors file"));
    };
    let mut header = vec![0; header_bytes as usize];
    file.read_exact(&mut header)?;
    let metadata: Metadata = serde_json::from_slice(&header)?;
    if metadata.data_len() as u64 != data_bytes {
        let expected = metadata.data_len();
        return Err(unfit(format!(
            "its header is for {expected} bytes of data, but it has {data_bytes}"
        )));
    }
    Ok(metadata)
}

/// The path of a file until it is complete and gets its name.
fn partial(path: &Path) -> PathBuf {
    let mut name = path.file_name().unwrap_or_default().to_owned();
    name.push(".partial");
    path.with_file_name(name)
}

fn unfit(message: impl Into<String>) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, message.into())
}

fn cannot<E>(what: &str, path: &Path, error: &io::Error) -> SessionError<E> {
    SessionError::File {
        message: format!("cannot {what} the states in {}: {error}", path.display()),
    }
}
