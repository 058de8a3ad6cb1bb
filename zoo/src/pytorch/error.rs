//! The reasons why a trace is refused.

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
    /// Returns the text of the file, after a check that there is memory for its values.
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

/// The reason why a trace is refused, in one sentence.
#[derive(Debug)]
#[non_exhaustive]
pub enum ImportError {
    /// The file is not the expected JSON; the message gives the position.
    Malformed {
        /// The file.
        source: Source,
        /// The error, with line and column.
        error: serde_json::Error,
    },
    /// The file is not UTF-8, or there is too little memory to read it.
    Text {
        /// The file.
        source: Source,
        /// The error of the text.
        error: FormatError,
    },
    /// A node of the execution trace is not valid.
    Node {
        /// The id of the node.
        id: u64,
        /// The name of the node.
        name: String,
        /// The defect of the node.
        problem: &'static str,
    },
    /// The two files do not belong together.
    NoStepMatches,
    /// The operators of the execution trace are on too many threads to find them by their names.
    ManyThreads {
        /// The number of threads with operators.
        threads: usize,
        /// The most threads that the search accepts.
        most: usize,
    },
    /// The trace has tensors on the CPU, but none on a CUDA device.
    OnlyCpu,
    /// All possible ops are compiled, and the trace does not have their kernels. The text names the first
    /// compiled region.
    Compiled(String),
    /// No kernel of the Kineto trace was launched by an op of the execution trace.
    NoKernelMatches,
    /// The trace is readable, but does not give a valid graph, usually because it has no op.
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
            Self::OnlyCpu => write!(f, "the trace has tensors only on the CPU"),
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
