//! Certificates: prices that prove a bound on the period; see `docs/research/bounds.md`.
//!
//! The bound holds no matter how the prices were found: the core adds the prices up in exact arithmetic, and
//! each reader of a certificate can repeat this.

mod ascent;
mod marks;
mod point;
mod relaxed;
mod repeats;

use crate::error::Error;
use crate::growth::buffer;
use crate::names::Names;
use planner_core::bounds::BoundOrder;
use planner_core::bounds::priced::{
    ONE, Price, PriceError, intervals, priced_period_ns, priced_scratch_words,
};
use planner_core::scratch::{Limits, Scratch};
use planner_core::{Graph, Machine};
use point::{DOWNLOAD, Point, UPLOAD};
use relaxed::Relaxed;
use workloads::{OwnedCertificate, OwnedGraph, OwnedMachine, Shown};

/// Work of the search, in entries computed for the way of a byte. It takes a second or less.
const WORK: usize = 80_000_000;

/// The least and the most steps of the search.
const STEPS: std::ops::RangeInclusive<usize> = 40..=1600;

/// Finds a certificate with a long bound on the period of plans. `order` is the order of first launches in
/// these plans, and `repeats` says whether they may repeat ops.
///
/// # Errors
/// [`Error::Graph`], [`Error::OutOfMemory`], and [`Error::Certificate`] if the graph has collectives.
pub fn find(
    work: &OwnedGraph,
    machine: &OwnedMachine,
    budget_bytes: u64,
    (order, repeats): (BoundOrder, bool),
) -> Result<OwnedCertificate, Error> {
    let graph = work.graph().map_err(|error| Error::graph(work, error))?;
    let marks = marks::marks(&graph, order);
    // These prices charge only compute.
    let intervals = vec![Price::default(); intervals(marks.len())];
    let (graph_name, machine_name) = (work.name.as_str(), machine.name.as_str());
    let mut certificate =
        OwnedCertificate::new(graph_name, machine_name, budget_bytes, order, repeats);
    (certificate.marks, certificate.intervals) = (marks, intervals);
    let (on, refused) = (&machine.machine, |error| refused(work, error));
    certificate.bound_ns = proved_ns(&graph, on, &certificate).map_err(refused)?;
    let mut found = certificate.clone();
    found.intervals = search(&graph, on, &certificate).map_err(refused)?;
    match proved_ns(&graph, on, &found) {
        Ok(bound_ns) if bound_ns > certificate.bound_ns => {
            found.bound_ns = bound_ns;
            certificate = found;
        }
        Ok(_) | Err(PriceError::Overflow) => {}
        Err(error) => return Err(refused(error)),
    }
    Ok(certificate)
}

/// Computes the bound that a certificate proves, and checks that the certificate claims no more. Returns the
/// proved bound in ns; see [`priced_period_ns`].
///
/// # Errors
/// [`Error::Certificate`] if the certificate is for another graph or machine, or claims more than it proves;
/// [`Error::Graph`], [`Error::OutOfMemory`].
pub fn prove(
    work: &OwnedGraph,
    machine: &OwnedMachine,
    certificate: &OwnedCertificate,
) -> Result<u64, Error> {
    for (what, named, given) in [
        ("graph", &certificate.graph, &work.name),
        ("machine", &certificate.machine, &machine.name),
    ] {
        if named != given {
            let (named, given) = (Shown::name(named), Shown::name(given));
            return Err(Error::Certificate(format!(
                "the certificate is for the {what} {named:?}, but the {what} is {given:?}"
            )));
        }
    }
    let graph = work.graph().map_err(|error| Error::graph(work, error))?;
    let proved_ns =
        proved_ns(&graph, &machine.machine, certificate).map_err(|error| refused(work, error))?;
    if proved_ns < certificate.bound_ns {
        return Err(Error::Certificate(format!(
            "it claims that no plan takes less than {} ns, but its prices prove {proved_ns} ns",
            certificate.bound_ns
        )));
    }
    Ok(proved_ns)
}

fn refused(work: &OwnedGraph, error: PriceError) -> Error {
    match error {
        PriceError::Scratch(error) => Error::OutOfMemory(error),
        error => Error::Certificate(Names::new(work, &[]).price_error(&error)),
    }
}

fn proved_ns(
    graph: &Graph<'_>,
    machine: &Machine,
    certificate: &OwnedCertificate,
) -> Result<u64, PriceError> {
    let (prices, budget_bytes) = (certificate.prices(), certificate.budget_bytes);
    let words = priced_scratch_words(&Limits::of_graph(graph), prices.intervals.len());
    let mut memory = buffer(words, 0u64)?;
    priced_period_ns(graph, machine, budget_bytes, &prices, &mut Scratch::new(&mut memory))
}

/// Searches prices with a large sum.
fn search(
    graph: &Graph<'_>,
    machine: &Machine,
    certificate: &OwnedCertificate,
) -> Result<Vec<Price>, PriceError> {
    let prices = certificate.prices();
    let mut relaxed = Relaxed::new(graph, machine, certificate.budget_bytes, &prices)?;
    let intervals = prices.intervals.len();
    let byte_ns = 1e9 / machine.h2d_bytes_per_s.max(1) as f64;
    let sums = WORK / relaxed.work.max(1);
    let start = best_cut(&mut relaxed, intervals, byte_ns, sums / 2);
    let steps = (sums / 2).clamp(*STEPS.start(), *STEPS.end());
    // A byte that stays pays the price of memory at some of the marks.
    let memory_ns = byte_ns * 5.0 / intervals as f64;
    let found = ascent::climb(&mut relaxed, start, memory_ns, steps as u32);
    Ok(found.iter().map(rounded).collect())
}

/// Rounds prices down to whole numbers, so that shares add up to at most one.
fn rounded(point: &Point) -> Price {
    let whole = |number: f64| (number * ONE as f64) as u64;
    let upload = whole(point.shares[UPLOAD]).min(ONE);
    let download = whole(point.shares[DOWNLOAD]).min(ONE - upload);
    Price { memory: whole(point.memory), host: whole(point.host), upload, download }
}

/// Returns the best prices that charge memory only at one mark, one resource before the mark and one resource
/// after it.
fn best_cut(relaxed: &mut Relaxed, intervals: usize, byte_ns: f64, sums: usize) -> Vec<Point> {
    let [upload, download, compute] = [[1.0, 0.0, 0.0], [0.0, 1.0, 0.0], [0.0, 0.0, 1.0]];
    let pairs = [
        [compute, upload],
        [download, upload],
        [download, compute],
        [compute, download],
        [upload, upload],
        [compute, compute],
    ];
    let mut change = vec![Point::default(); intervals];
    let (mut best_ns, mut best) = (f64::NEG_INFINITY, Vec::new());
    let cuts = (sums / (2 * pairs.len())).clamp(1, intervals);
    let mut keep = |at: Vec<Point>| {
        let sum_ns = relaxed.sum_ns(&at, &mut change);
        if sum_ns > best_ns {
            (best_ns, best) = (sum_ns, at);
        }
    };
    for cut in (0..cuts).map(|cut| cut * intervals / cuts) {
        let memory = |at| if at == cut { byte_ns } else { 0.0 };
        for [before, after] in pairs {
            // Intervals after the second range are charged like the first range.
            for end in [intervals, usize::midpoint(cut, intervals)] {
                let shares = |at| if (cut..end).contains(&at) { after } else { before };
                let point = |at| Point { memory: memory(at), host: 0.0, shares: shares(at) };
                keep((0..intervals).map(point).collect());
            }
        }
        // If both memories are short, what fits neither is computed again.
        let point = |at| Point { memory: memory(at), host: memory(at), shares: compute };
        keep((0..intervals).map(point).collect());
    }
    best
}
