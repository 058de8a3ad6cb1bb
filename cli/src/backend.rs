//! The backends. To add one, write a file with its `ENTRY` and add a line to [`ALL`].

#[cfg(feature = "cuda")]
pub(crate) mod cuda;
mod entry;
mod host;
#[cfg(not(all(feature = "cuda", feature = "vulkan")))]
mod missing;
#[cfg(any(feature = "cuda", feature = "vulkan"))]
mod real;
mod sim;
#[cfg(any(feature = "cuda", feature = "vulkan"))]
mod stopwatch;
mod suite;
#[cfg(feature = "vulkan")]
mod vulkan;

pub(crate) use entry::{Entry, Job, Options, Outcome, Runner, Stopped};
pub(crate) use suite::{Ignored, Report};

use crate::failure::Failure;
use clap::builder::{PossibleValue, PossibleValuesParser, TypedValueParser};
#[cfg(not(feature = "cuda"))]
use missing::cuda;
#[cfg(not(feature = "vulkan"))]
use missing::vulkan;

/// All backends, in the order of the lists that the program prints.
static ALL: &[&Entry] = &[&sim::ENTRY, &host::ENTRY, &vulkan::ENTRY, &cuda::ENTRY];

/// All backends.
pub(crate) fn all() -> impl Iterator<Item = &'static Entry> {
    ALL.iter().copied()
}

/// The backends that run plans.
pub(crate) fn runners() -> impl Iterator<Item = &'static Entry> {
    all().filter(|entry| entry.runs.is_some())
}

/// A parser for the names of these backends.
pub(crate) fn parser(
    backends: impl Iterator<Item = &'static Entry>,
) -> impl TypedValueParser<Value = &'static Entry> {
    let value = |entry: &Entry| PossibleValue::new(entry.name).help(entry.help);
    PossibleValuesParser::new(backends.map(value)).map(|name| {
        all().find(|entry| entry.name == name).expect("the possible values are names of backends")
    })
}

impl Entry {
    /// Chooses the device that runs a plan.
    ///
    /// # Errors
    /// The backend does not take one of the options, or the choice of a device is malformed.
    pub(crate) fn open(&self, options: Options) -> Result<Box<dyn Runner>, Failure> {
        let Some(runs) = &self.runs else {
            return Err(Failure::bad_input(format!("the backend {} cannot run plans", self.name)));
        };
        if options.graph && !runs.graphs {
            let with_graphs = |entry: &&Entry| entry.runs.as_ref().is_some_and(|runs| runs.graphs);
            let names: Vec<_> = all().filter(with_graphs).map(|entry| entry.name).collect();
            let names = names.join(" or ");
            return Err(Failure::bad_input(format!("--graph needs the backend {names}")));
        }
        if options.seed.is_some() && !runs.seeds {
            return Err(Failure::bad_input(
                "--seed needs a simulated device; a real device chooses its own order",
            ));
        }
        if options.delays.is_some() && !runs.seeds {
            return Err(Failure::bad_input("--delays needs a simulated device"));
        }
        (runs.open)(options)
    }
}
