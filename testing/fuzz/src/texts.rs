//! Files that a careless or a hostile hand has had: readers and importers return.

use crate::case::Files;
use crate::fault::{Fault, returns};
use crate::{certificates, judge, plans};
use conformance::chains::chains;
use conformance::plans::{Case, cases};
use proptest::collection::vec;
use proptest::prelude::*;
use proptest::sample::select;
use workloads::format::{
    compress, decompress, document, read_certificate, read_chain, read_graph, read_machine,
    read_plan, write_certificate, write_chain, write_graph, write_plan,
};
use zoo::pytorch::{Device, import_with_report};

/// Traces with something of everything.
const TRACES: [&[u8]; 2] =
    [include_bytes!("../samples/flat.json"), include_bytes!("../samples/nested.json")];
const KINETO: &[u8] = include_bytes!("../samples/kineto.json");

/// A file, who is to read it, and what else there is to read.
#[derive(Clone, Debug)]
pub struct Text {
    reader: Reader,
    bytes: Vec<u8>,
    case: Case,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Reader {
    Graph,
    Machine,
    Plan,
    Certificate,
    Chain,
    Trace,
    Kineto,
}

/// Any file, with up to four damages.
pub fn texts() -> impl Strategy<Value = Text> {
    let reader = select(vec![
        Reader::Graph,
        Reader::Machine,
        Reader::Plan,
        Reader::Plan,
        Reader::Certificate,
        Reader::Certificate,
        Reader::Chain,
        Reader::Trace,
        Reader::Kineto,
    ]);
    let gzip = prop::option::weighted(0.1, vec(damages(), 0..=2));
    let trace = select(TRACES.to_vec());
    let drawn = certificates::drawn();
    let case = reader.prop_flat_map(|reader| match reader {
        // Certificates say nothing about plans that are not valid.
        Reader::Certificate => (Just(reader), cases().boxed()),
        _ => (Just(reader), plans::plans().boxed()),
    });
    (case, chains(4), drawn, trace, vec(damages(), 0..=4), gzip).prop_map(
        |((reader, case), chain, drawn, trace, damages, gzip)| {
            let files = plans::files(&case);
            let mut bytes = match reader {
                Reader::Graph => files[0].1.clone(),
                Reader::Machine => files[1].1.clone(),
                Reader::Plan => files[2].1.clone(),
                Reader::Certificate => write_certificate(&certificates::certificate(&case, &drawn)),
                Reader::Chain => write_chain(&chain),
                Reader::Trace => trace.to_vec(),
                Reader::Kineto => KINETO.to_vec(),
            };
            damages.iter().for_each(|damage| apply(&mut bytes, damage));
            if let Some(damages) = gzip {
                bytes = compress(&bytes);
                damages.iter().for_each(|damage| apply(&mut bytes, damage));
            }
            Text { reader, bytes, case }
        },
    )
}

/// What is done to a file.
#[derive(Clone, Debug)]
enum Damage {
    Cut(usize),
    Replace(usize, u8),
    Repeat(usize, usize),
    Remove(usize, usize),
    /// Replaces the number after a position.
    Number(usize, &'static str),
    /// This many brackets.
    Deep(usize, usize),
}

const NUMBERS: [&str; 18] = [
    "-1",
    "0",
    "1",
    "64",
    "65",
    "4294967295",
    "4294967296",
    "9223372036854775807",
    "9223372036854775808",
    "18446744073709551615",
    "18446744073709551616",
    "0.5",
    "1e300",
    "null",
    "true",
    "[]",
    "\"x\"",
    "{\"a\":[0]}",
];

fn damages() -> impl Strategy<Value = Damage> {
    let at = || 0..100_000usize;
    prop_oneof![
        1 => at().prop_map(Damage::Cut),
        2 => (at(), any::<u8>()).prop_map(|(at, byte)| Damage::Replace(at, byte)),
        2 => (at(), 1..300usize).prop_map(|(at, length)| Damage::Repeat(at, length)),
        2 => (at(), 1..300usize).prop_map(|(at, length)| Damage::Remove(at, length)),
        8 => (at(), select(NUMBERS.to_vec())).prop_map(|(at, new)| Damage::Number(at, new)),
        1 => (at(), 1..20_000usize).prop_map(|(at, depth)| Damage::Deep(at, depth)),
    ]
}

fn apply(bytes: &mut Vec<u8>, damage: &Damage) {
    let length = bytes.len().max(1);
    let end = bytes.len();
    match *damage {
        Damage::Cut(at) => bytes.truncate(at % length),
        Damage::Replace(at, byte) => {
            bytes.iter_mut().skip(at % length).take(1).for_each(|at| *at = byte);
        }
        Damage::Repeat(at, count) => {
            let at = (at % length).min(end);
            let repeated = bytes[at..(at + count).min(end)].to_vec();
            bytes.splice(at..at, repeated);
        }
        Damage::Remove(at, count) => {
            let at = (at % length).min(end);
            bytes.drain(at..(at + count).min(end));
        }
        Damage::Number(at, number) => {
            let digit = |byte: &u8| byte.is_ascii_digit();
            let at = at % length;
            let Some(skipped) = bytes.iter().skip(at).position(digit) else { return };
            let from = at + skipped;
            let digits = bytes[from..].iter().take_while(|byte| digit(byte)).count();
            bytes.splice(from..from + digits, number.bytes());
        }
        Damage::Deep(at, depth) => {
            let at = (at % length).min(end);
            bytes.splice(at..at, std::iter::repeat_n(b'[', depth));
        }
    }
}

/// The file, and those of the case that it was.
#[must_use]
pub fn files(text: &Text) -> Files {
    let mut files = plans::files(&text.case);
    let name = match text.reader {
        Reader::Graph => "graph.json",
        Reader::Machine => "machine.json",
        Reader::Plan => "plan.json",
        Reader::Certificate => "certificate.json",
        Reader::Chain => "chain.json",
        Reader::Trace => "trace.json",
        Reader::Kineto => "kineto.json",
    };
    files.retain(|&(other, _)| other != name);
    files.push((name, text.bytes.clone()));
    files
}

/// Reads the file, and uses what it holds.
///
/// # Errors
/// A panic; a graph that is none; a file that is written otherwise than it was read; a certificate
/// that proves too much.
pub fn check(text: &Text) -> Result<(), Fault> {
    let Ok(bytes) = returns("decompress", || decompress(&text.bytes))? else { return Ok(()) };
    let _ = returns("document", || document(&bytes).map_err(|error| error.to_string()))?;
    match text.reader {
        Reader::Graph => {
            let read = returns("read_graph", || {
                read_graph(&bytes).map_err(|error| error.in_file("graph.json").to_string())
            })?;
            let Ok(graph) = read else { return Ok(()) };
            is_same("graph", &read_graph(&write_graph(&graph)), &graph)?;
            judge::judge(&Case { graph, ..text.case.clone() }).map(|_| ())
        }
        Reader::Machine => {
            let read = returns("read_machine", || read_machine(&bytes))?;
            let Ok(read) = read else { return Ok(()) };
            judge::judge(&Case { machine: read.machine, ..text.case.clone() }).map(|_| ())
        }
        Reader::Plan => {
            let read = returns("read_plan", || read_plan(&bytes))?;
            let Ok(plan) = read else { return Ok(()) };
            is_same("plan", &read_plan(&write_plan(&plan)), &plan)?;
            judge::judge(&Case { plan, ..text.case.clone() }).map(|_| ())
        }
        Reader::Certificate => {
            let read = returns("read_certificate", || read_certificate(&bytes))?;
            let Ok(certificate) = read else { return Ok(()) };
            is_same(
                "certificate",
                &read_certificate(&write_certificate(&certificate)),
                &certificate,
            )?;
            certificates::check(&text.case, &certificate)
        }
        Reader::Chain => {
            let read = returns("read_chain", || read_chain(&bytes))?;
            let Ok(chain) = read else { return Ok(()) };
            is_same("chain", &read_chain(&write_chain(&chain)), &chain)?;
            returns("OwnedChain::graph", || drop(chain.graph()))?;
            returns("OwnedChain::machine", || drop(chain.machine()))
        }
        Reader::Trace => imports(&bytes, None),
        Reader::Kineto => imports(TRACES[0], Some(&bytes)),
    }
}

fn is_same<T: PartialEq, E>(name: &str, again: &Result<T, E>, first: &T) -> Result<(), Fault> {
    match again {
        Ok(again) if again == first => Ok(()),
        _ => Err(Fault::new(
            format!("{name} rewritten"),
            format!("a {name} that is written and read again is another"),
        )),
    }
}

fn imports(trace: &[u8], kineto: Option<&[u8]>) -> Result<(), Fault> {
    for device in [Device::Cuda, Device::Cpu] {
        let imported =
            returns("import_with_report", || import_with_report(trace, kineto, device, "fuzzed"))?;
        if let Ok((graph, _)) = imported
            && let Err(error) = graph.graph()
        {
            return Err(Fault::new(
                "imported graph",
                format!("an imported graph is none: {error}"),
            ));
        }
    }
    Ok(())
}
