//! New names for the tensors and ops of a graph, from a file with one line per name: `name<TAB>new name`.

use crate::graph::OwnedGraph;
use crate::shown::Shown;
use std::collections::HashMap;
use std::fmt;

/// An error in a line, counted from 1.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RenamingError {
    line: usize,
    problem: Problem,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Problem {
    NotUtf8,
    NoTab,
    NoNewName(String),
    Twice { name: String, first: usize },
    Unknown(String),
}

impl fmt::Display for RenamingError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "line {}: ", self.line)?;
        match &self.problem {
            Problem::NotUtf8 => write!(f, "the text is not UTF-8"),
            Problem::NoTab => write!(f, "there is no tab between a name and a new name"),
            Problem::NoNewName(name) => write!(f, "the new name of {:?} is empty", shown(name)),
            Problem::Twice { name, first } => {
                write!(f, "{:?} has been renamed in line {first}", shown(name))
            }
            Problem::Unknown(name) => write!(f, "no tensor or op is named {:?}", shown(name)),
        }
    }
}

impl std::error::Error for RenamingError {}

fn shown(name: &str) -> Shown<'_> {
    Shown::name(name)
}

/// Renames all tensors and ops whose name is in the text. Skips empty lines. Replaces all names at once, so
/// the text can exchange two names. O(names + lines).
///
/// # Errors
/// The first malformed line, or otherwise the first line with an unknown name. The graph is then unchanged.
pub fn rename(graph: &mut OwnedGraph, text: &[u8]) -> Result<(), RenamingError> {
    let lines = lines(text)?;
    let mut unused: HashMap<&str, usize> =
        lines.iter().map(|(&name, &(at, _))| (name, at)).collect();
    for name in graph.tensor_names.iter().chain(&graph.op_names) {
        unused.remove(name.as_str());
    }
    if let Some((name, line)) = unused.into_iter().min_by_key(|&(_, line)| line) {
        return Err(RenamingError { line, problem: Problem::Unknown(name.to_owned()) });
    }
    for name in graph.tensor_names.iter_mut().chain(&mut graph.op_names) {
        if let Some(&(_, new)) = lines.get(name.as_str()) {
            new.clone_into(name);
        }
    }
    Ok(())
}

/// Returns the number of each line and its new name, by the old name.
fn lines(text: &[u8]) -> Result<HashMap<&str, (usize, &str)>, RenamingError> {
    let mut renamed: HashMap<&str, (usize, &str)> = HashMap::new();
    for (line, bytes) in (1..).zip(text.split(|&byte| byte == b'\n')) {
        let fail = |problem| Err(RenamingError { line, problem });
        let Ok(text) = str::from_utf8(bytes) else { return fail(Problem::NotUtf8) };
        let text = text.strip_suffix('\r').unwrap_or(text);
        if text.is_empty() {
            continue;
        }
        let Some((name, new)) = text.split_once('\t') else { return fail(Problem::NoTab) };
        if new.is_empty() {
            return fail(Problem::NoNewName(name.to_owned()));
        }
        if let Some((first, _)) = renamed.insert(name, (line, new)) {
            return fail(Problem::Twice { name: name.to_owned(), first });
        }
    }
    Ok(renamed)
}

#[cfg(test)]
mod tests {
    use super::*;
    use planner_core::Kind;

    fn graph() -> OwnedGraph {
        let mut graph = OwnedGraph::new("g");
        let tensors = ["a", "b", "a"].map(|name| graph.push_tensor(name, 4, Kind::State));
        graph.push_op("b", 1, 0, &tensors, &[]);
        graph
    }

    #[test]
    fn all_of_a_name_are_renamed_at_once() {
        let mut graph = graph();
        rename(&mut graph, "a\tb\r\n\nb\tdecoder.0\tweight".as_bytes()).unwrap();
        assert_eq!(graph.tensor_names, ["b", "decoder.0\tweight", "b"]);
        assert_eq!(graph.op_names, ["decoder.0\tweight"]);
    }

    #[test]
    fn errors_name_the_line() {
        for (text, message) in [
            (&b"a b"[..], "line 1: there is no tab between a name and a new name"),
            (b"a\tx\n\nb\t", "line 3: the new name of \"b\" is empty"),
            (b"a\tx\nb\ty\na\tz", "line 3: \"a\" has been renamed in line 1"),
            (b"a\tx\nd\tx\nc\ty", "line 2: no tensor or op is named \"d\""),
            (b"a\tx\n\xff\ty", "line 2: the text is not UTF-8"),
        ] {
            let (mut renamed, before) = (graph(), graph());
            assert_eq!(rename(&mut renamed, text).unwrap_err().to_string(), message);
            assert_eq!(renamed, before);
        }
    }
}
