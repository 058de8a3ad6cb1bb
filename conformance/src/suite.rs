//! The checks that every backend must pass, with one function for each promise of the traits.
//!
//! A backend's own tests run all checks, each as a test with a name:
//!
//! ```toml
//! [[test]]
//! name = "conformance"
//! harness = false
//! ```
//!
//! ```no_run
//! // tests/conformance.rs
//! # use backend_sim::Sim as MyBackend;
//! fn main() -> std::process::ExitCode {
//!     conformance::suite::main(MyBackend::default())
//! }
//! ```
//!
//! `MyBackend` implements [`Backend`]: it opens devices and makes integrity kernels. Checks use a
//! device only through the traits, and compare results byte by byte.
//!
//! A missing wait shows only if work is late. Checks therefore keep a stream busy before the work
//! for which another stream must wait. On a device that can choose an order, they run in many
//! [orders](Backend::orders).

pub mod devices;
mod failure;
pub mod graphs;
mod harness;
pub mod host;
pub mod host_plans;
pub mod kernels;
pub mod large;
pub mod network;
pub mod paging;
pub mod plans;
pub mod repeats;
mod rig;
pub mod streams;
pub mod transfers;
mod usage;

pub use failure::{Failure, Outcome};
pub use harness::{Verdict, judge, main, main_in_chunks, main_with_graphs};
pub use rig::Rig;

use integrity::{Backend, Found, Graphs};
use planner_core::Machine;
use std::sync::RwLock;

/// One check for backends of one type.
pub struct Check<T: Backend> {
    /// Its name: module and function, such as `streams::launches_run_in_order`.
    pub name: &'static str,
    run: Run<T>,
}

/// How a check runs.
enum Run<T: Backend> {
    /// One fresh device with a small graph.
    OnRig(fn(&mut Rig<'_, T>) -> Outcome),
    /// Opens its own devices.
    OnBench(fn(&Bench<'_, T>) -> Outcome),
    /// Opens its own devices, and measures what the process uses. It takes long, so it runs once, in
    /// the backend's own chunks and the last order, while no other check runs in this process.
    Alone(fn(&Bench<'_, T>) -> Outcome),
}

/// The surroundings of a check that opens its own devices.
#[derive(Clone, Copy, Debug)]
pub struct Bench<'a, T> {
    /// The backend.
    pub backend: &'a T,
    /// The machine that the backend found.
    pub machine: Machine,
    /// The order in which the devices run.
    pub order: u64,
}

/// Every running check holds a read lock. A check that measures the process holds the write lock.
static RUNNING: RwLock<()> = RwLock::new(());

/// Lists checks by the paths of their functions.
macro_rules! list {
    ($($wants:ident $module:ident: [$($check:ident),* $(,)?]),* $(,)?) => {
        vec![$($(Check {
            name: concat!(stringify!($module), "::", stringify!($check)),
            run: Run::$wants($module::$check),
        },)*)*]
    };
}

/// All checks, in the order in which an author of a backend should make them pass.
#[must_use]
pub fn checks<T: Backend>() -> Vec<Check<T>> {
    list! {
        OnRig transfers: [
            the_host_writes_and_reads_its_block,
            written_bytes_are_uploaded,
            bytes_return_as_they_were,
            copies_of_any_size_and_offset,
            copies_in_both_directions_at_once,
            uploaded_bytes_are_free_after_the_point,
            unmapped_addresses_are_refused,
            bytes_outside_the_block_are_refused,
            without_a_block_all_is_refused,
            the_host_has_one_block,
        ],
        OnRig paging: [
            chunks_have_the_size_of_the_machine,
            too_many_chunks_are_out_of_memory,
            ranges_lie_apart,
            ten_thousand_ranges,
            too_long_ranges_are_refused,
            what_is_mapped_can_be_read_and_written,
            chunks_are_mapped_in_order,
            chunks_keep_what_is_written,
            remapping_shows_other_chunks,
            neighbours_are_unmapped_together,
            mapping_outside_of_ranges_is_refused,
            chunks_that_do_not_exist_are_refused,
            mapping_twice_is_refused,
            unmapping_what_is_not_mapped_is_refused,
            unmapping_a_part_is_refused,
            mapping_does_not_disturb_work,
            what_is_mapped_twice_is_one_chunk,
            launches_see_through_aliases,
            aliases_are_unmapped_one_by_one,
        ],
        OnRig streams: [
            points_are_counted_from_one,
            unsignalled_points_are_refused,
            launches_run_in_order,
            uploads_run_in_order,
            downloads_run_in_order,
            compute_waits_for_uploads,
            compute_waits_for_downloads,
            uploads_wait_for_compute,
            uploads_wait_for_downloads,
            downloads_wait_for_compute,
            downloads_wait_for_uploads,
            waits_imply_what_they_waited_for,
            waits_hold_for_all_that_follows,
            a_thousand_steps_may_be_pending,
            a_stream_may_wait_for_itself,
            what_is_reached_has_been_done,
            blocking_waits_for_the_work,
            streams_do_not_disturb_each_other,
        ],
        OnRig host: [
            points_are_counted_from_one,
            unsignalled_points_are_refused,
            ops_run_in_order,
            every_byte_counts,
            ops_leave_the_rest_alone,
            bytes_outside_the_block_are_refused,
            uploads_wait_for_the_host,
            the_host_waits_for_uploads,
            the_host_waits_for_downloads,
            downloads_wait_for_the_host,
            compute_waits_for_the_host,
            the_host_waits_for_compute,
            waits_imply_what_they_waited_for,
            waits_hold_for_all_that_follows,
            the_host_may_wait_for_itself,
            a_thousand_ops_may_be_pending,
            what_is_reached_has_been_done,
            blocking_waits_for_the_op,
            streams_do_not_disturb_each_other,
        ],
        OnRig network: [
            points_are_counted_from_one,
            launches_run_in_order,
            the_network_and_compute_wait_for_each_other,
            the_network_waits_for_uploads_and_downloads_for_it,
            the_network_waits_for_downloads_and_uploads_for_it,
        ],
        OnRig kernels: [
            states_lie_in_their_slots,
            inputs_take_their_slots_in_turn,
            every_byte_counts,
            launches_leave_the_rest_alone,
            small_tensors_count_too,
            the_workspace_is_used,
        ],
        OnRig repeats: [
            the_same_bytes_are_written,
            states_and_inputs_are_left_alone,
            the_workspace_is_used_again,
            earlier_values_come_back,
        ],
        OnBench devices: [
            a_device_may_be_dropped_at_any_time,
            two_devices_do_not_disturb_each_other,
            a_failed_wait_frees_nothing_in_use,
        ],
        OnBench plans: [
            in_core,
            on_demand,
            fit,
            vdnn,
            lms,
            window,
            auto,
            weights,
            layer_to_layer,
            swap,
            with_placements,
        ],
        OnBench repeats: [plans_with_repeats],
        OnBench host: [a_device_may_be_dropped_at_any_time],
        OnBench host_plans: [
            random_plans,
            random_plans_with_repeats,
            switches_between_plans,
            a_failed_op_ends_the_run,
        ],
        OnBench network: [random_plans],
        OnBench large: [offsets_and_sizes_exceed_32_bits, kernels_take_offsets_beyond_32_bits],
        Alone plans: [ten_thousand_iterations],
    }
}

/// The checks of backends that capture work as graphs, in addition to [`checks`].
#[must_use]
pub fn graph_checks<T: Graphs>() -> Vec<Check<T>> {
    list! {
        OnRig graphs: [
            kernels_find_their_iteration,
            graphs_copy_over_mappings_and_aliases,
            graphs_run_ops_on_the_host,
            graphs_run_collectives,
            host_ops_find_their_iteration,
        ],
        OnBench graphs: [
            foreign_and_late_graphs_are_refused,
            another_device_works_beside_a_capture,
        ],
    }
}

impl<T: Backend> Check<T> {
    const fn is_alone(&self) -> bool {
        matches!(self.run, Run::Alone(_))
    }

    /// Why the check cannot measure everything on this system. `None` if it can.
    #[must_use]
    pub fn blind_spot(&self) -> Option<&'static str> {
        let is_blind = self.is_alone() && usage::Usage::now().is_none();
        is_blind.then_some("this system does not report what a process uses")
    }

    /// Runs the check in each of the backend's orders.
    ///
    /// # Errors
    /// The failure, and the order in which it occurred.
    pub fn run(&self, backend: &T, found: &Found) -> Outcome {
        let orders = backend.orders().max(1);
        let first = if self.is_alone() { orders - 1 } else { 0 };
        (first..orders).try_for_each(|order| {
            let outcome = self.run_in_order(&Bench { backend, machine: found.machine, order });
            outcome.map_err(|failure| match orders {
                1 => failure,
                _ => failure.context(format_args!("order {order}")),
            })
        })
    }

    /// Runs the check in one order.
    ///
    /// # Errors
    /// The failure.
    pub fn run_in_order(&self, bench: &Bench<'_, T>) -> Outcome {
        // The lock guards no data, so it does not matter whether a check panicked with it.
        let alone = self.is_alone().then(|| RUNNING.write());
        let together = alone.is_none().then(|| RUNNING.read());
        let outcome = self.run_now(bench);
        drop((alone, together));
        outcome
    }

    fn run_now(&self, bench: &Bench<'_, T>) -> Outcome {
        match self.run {
            Run::OnBench(check) | Run::Alone(check) => check(bench),
            Run::OnRig(check) => {
                let work = rig::work(&bench.machine);
                let mut rig = Rig::open(bench, &work)?;
                check(&mut rig)?;
                rig.close()
            }
        }
    }
}
