//! Why a trace is refused.

use core::fmt;
use planner_core::GraphError;

/// Why a trace is refused, in one sentence.
#[derive(Debug)]
#[non_exhaustive]
pub enum ImportError {
    /// The file is not the JSON that is expected; the message says where.
    Malformed(serde_json::Error),
    /// One node of the execution trace makes no sense.
    Node {
        /// Its id.
        id: u64,
        /// Its name.
        name: String,
        /// What is wrong with it.
        problem: &'static str,
    },
    /// The trace was read, but what it holds is no graph: most often there is no op at all.
    Graph(GraphError),
}

impl fmt::Display for ImportError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Malformed(error) => write!(f, "the execution trace is malformed: {error}"),
            Self::Node { id, name, problem } => write!(f, "node {id} ({name}) {problem}"),
            Self::Graph(error) => write!(f, "the trace gives no valid graph: {error}"),
        }
    }
}

impl core::error::Error for ImportError {
    fn source(&self) -> Option<&(dyn core::error::Error + 'static)> {
        match self {
            Self::Malformed(error) => Some(error),
            Self::Graph(error) => Some(error),
            _ => None,
        }
    }
}
