//! What every backend is held to: one function a check, each for one promise of the traits.
//!
//! A backend's own tests run them all, each as a test with a name:
//!
//! ```toml
//! [[test]]
//! name = "conformance"
//! harness = false
//! ```
//!
//! ```
//! // tests/conformance.rs
//! # use backend_sim::Sim as MyBackend;
//! fn main() -> std::process::ExitCode {
//!     conformance::suite::main(MyBackend::default())
//! }
//! ```
//!
//! `MyBackend` implements [`Backend`]: it opens devices, launches integrity kernels, and
//! shows the host's block. Whatever a check puts on the device it puts there through the
//! traits, and whatever it finds it compares byte by byte.
//!
//! A missing wait shows only if work is late. So checks keep a stream busy before the work
//! that another must wait for ([`Rig::keep_busy`]), and on a device that can choose they run
//! in many [orders](Backend::orders).

mod failure;
mod harness;
pub mod paging;
mod rig;
pub mod streams;
pub mod transfers;

pub use failure::{Failure, Outcome};
pub use harness::{REQUIRE_DEVICES, Verdict, judge, main};
pub use rig::Rig;

use integrity::{Backend, Found};
use planner_core::Machine;

/// One check, for backends of a type.
pub struct Check<B: Backend> {
    /// Its name, such as `streams::work_on_a_stream_runs_in_order`.
    pub name: &'static str,
    run: Run<B>,
}

/// What a check wants.
enum Run<B: Backend> {
    /// A fresh device with a small graph.
    OnRig(fn(&mut Rig<'_, B>) -> Outcome),
}

/// Lists checks by the paths of their functions.
macro_rules! checks {
    ($($module:ident: [$($check:ident),* $(,)?]),* $(,)?) => {
        vec![$($(Check {
            name: concat!(stringify!($module), "::", stringify!($check)),
            run: Run::OnRig($module::$check),
        },)*)*]
    };
}

/// All checks, in the order in which an author may want to make them pass.
#[must_use]
pub fn checks<B: Backend>() -> Vec<Check<B>> {
    checks! {
        transfers: [
            states_lie_in_their_rooms,
            bytes_return_as_they_were,
            copies_of_any_size_and_place,
        ],
        paging: [
            chunks_keep_what_is_written,
            what_is_mapped_twice_is_one_chunk,
        ],
        streams: [
            points_are_counted_from_one,
            compute_waits_for_uploads,
            downloads_wait_for_compute,
        ],
    }
}

impl<B: Backend> Check<B> {
    /// Runs the check on devices as they are found, in each of the backend's orders.
    ///
    /// # Errors
    /// What went wrong, and in which order.
    pub fn run(&self, backend: &B, found: &Found) -> Outcome {
        (0..backend.orders()).try_for_each(|order| {
            self.run_in_order(backend, found.machine, order)
                .map_err(|failure| failure.context(format_args!("in order {order}")))
        })
    }

    /// Runs the check in one order.
    ///
    /// # Errors
    /// What went wrong.
    pub fn run_in_order(&self, backend: &B, machine: Machine, order: u64) -> Outcome {
        match self.run {
            Run::OnRig(check) => rig::with_rig(backend, machine, order, check),
        }
    }
}
