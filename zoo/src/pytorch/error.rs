//! Why a trace is refused.

use core::fmt;
use planner_core::GraphError;
use workloads::Shown;
use workloads::format::{FormatError, checked_text};

/// One of the two files of an import.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Source {
    /// The execution trace.
    Trace,
    /// The Kineto trace.
    Kineto,
}

impl Source {
    /// The text of the file, after a check that there is memory for its values.
    pub(super) fn text(self, file: &[u8], value_bytes: usize) -> Result<&str, ImportError> {
        let text = checked_text(file, value_bytes);
        text.map_err(|error| ImportError::Text { source: self, error })
    }
}

impl fmt::Display for Source {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Trace => "execution trace",
            Self::Kineto => "Kineto trace",
        })
    }
}

/// Why a trace is refused, in one sentence.
#[derive(Debug)]
#[non_exhaustive]
pub enum ImportError {
    /// The file is not the JSON that is expected; the message says where.
    Malformed {
        /// The file.
        source: Source,
        /// What is wrong, with line and column.
        error: serde_json::Error,
    },
    /// The file is no UTF-8, or there is no memory to read it.
    Text {
        /// The file.
        source: Source,
        /// What is wrong.
        error: FormatError,
    },
    /// One node of the execution trace makes no sense.
    Node {
        /// Its id.
        id: u64,
        /// Its name.
        name: String,
        /// What is wrong with it.
        problem: &'static str,
    },
    /// The two files do not belong together.
    NoStepMatches,
    /// The operators of the execution trace, which can only be found by their names, are on too
    /// many threads.
    ManyThreads {
        /// Threads with operators.
        threads: usize,
        /// The most that are searched for.
        most: usize,
    },
    /// The trace has no tensor on a CUDA device, but some on the CPU.
    OnlyCpu,
    /// All that could be ops was compiled, in this region first: the trace has no kernels of it.
    Compiled(String),
    /// No kernel of the Kineto trace was launched by an op of the execution trace.
    NoKernelMatches,
    /// The trace was read, but what it holds is no graph: most often there is no op at all.
    Graph(GraphError),
}

impl fmt::Display for ImportError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Malformed { source, error } => {
                write!(f, "the {source} is malformed: {}", Shown::message(error.to_string()))
            }
            Self::Text { source, error } => write!(f, "the {source} cannot be used: {error}"),
            Self::Node { id, name, problem } => {
                write!(f, "node {id} ({}) {problem}", Shown::name(name))
            }
            Self::NoStepMatches => write!(
                f,
                "no step of the Kineto trace runs the same operators as the execution trace"
            ),
            Self::ManyThreads { threads, most } => write!(
                f,
                "the execution trace has operators on {threads} threads, and without record ids \
                 in the Kineto trace at most {most} can be matched"
            ),
            Self::OnlyCpu => write!(f, "the trace has tensors on the CPU alone"),
            Self::Compiled(region) => write!(
                f,
                "the trace has no ops: {} is compiled, and its kernels are not in the trace",
                Shown::name(region)
            ),
            Self::NoKernelMatches => write!(
                f,
                "no kernel of the Kineto trace was launched by an op of the execution trace"
            ),
            Self::Graph(error) => write!(f, "the trace gives no valid graph: {error}"),
        }
    }
}

impl core::error::Error for ImportError {
    fn source(&self) -> Option<&(dyn core::error::Error + 'static)> {
        match self {
            Self::Malformed { error, .. } => Some(error),
            Self::Text { error, .. } => Some(error),
            Self::Graph(error) => Some(error),
            _ => None,
        }
    }
}
