//! The suite is held to what it says: devices with one bug each fail the checks that are meant
//! to find it, in one of a few orders.

mod bug;
mod buggy;

use backend_sim::Sim;
use bug::Bug;
use buggy::Buggy;
use conformance::layered::LayeredBackend;
use conformance::suite::{Bench, Check, Outcome, checks};
use integrity::Backend;
use libtest_mimic::{Arguments, Completion, Failed, Trial};
use planner_core::Stream::{Compute, Download, Host, Network, Upload};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::process::ExitCode;

/// Orders in which a bug must be found.
const ORDERS: u64 = 5;

/// Each bug, and the checks that are meant to find it.
const MUTANTS: &[(Bug, &[&str])] = &[
    (
        Bug::Deaf(Compute, Upload),
        &[
            "streams::compute_waits_for_uploads",
            "plans::in_core",
            "plans::on_demand",
            "plans::fit",
            "plans::swap",
        ],
    ),
    (Bug::Deaf(Compute, Download), &["streams::compute_waits_for_downloads", "plans::vdnn"]),
    (Bug::Deaf(Upload, Compute), &["streams::uploads_wait_for_compute", "plans::window"]),
    (Bug::Deaf(Upload, Download), &["streams::uploads_wait_for_downloads"]),
    (Bug::Deaf(Download, Compute), &["streams::downloads_wait_for_compute", "plans::lms"]),
    (Bug::Deaf(Download, Upload), &["streams::downloads_wait_for_uploads"]),
    (Bug::Deaf(Host, Compute), &["host::the_host_waits_for_compute"]),
    (Bug::Deaf(Host, Upload), &["host::the_host_waits_for_uploads", "host_plans::random_plans"]),
    (
        Bug::Deaf(Host, Download),
        &["host::the_host_waits_for_downloads", "host_plans::random_plans"],
    ),
    (Bug::Deaf(Compute, Host), &["host::compute_waits_for_the_host"]),
    (Bug::Deaf(Upload, Host), &["host::uploads_wait_for_the_host", "host_plans::random_plans"]),
    (
        Bug::Deaf(Download, Host),
        &["host::downloads_wait_for_the_host", "host_plans::random_plans_with_repeats"],
    ),
    (
        Bug::Deaf(Network, Compute),
        &["network::the_network_and_compute_wait_for_each_other", "network::random_plans"],
    ),
    (
        Bug::Deaf(Compute, Network),
        &["network::the_network_and_compute_wait_for_each_other", "network::random_plans"],
    ),
    (
        Bug::Deaf(Network, Upload),
        &["network::the_network_waits_for_uploads_and_downloads_for_it", "network::random_plans"],
    ),
    (
        Bug::Deaf(Download, Network),
        &["network::the_network_waits_for_uploads_and_downloads_for_it"],
    ),
    (
        Bug::Deaf(Network, Download),
        &["network::the_network_waits_for_downloads_and_uploads_for_it"],
    ),
    (Bug::Deaf(Upload, Network), &["network::the_network_waits_for_downloads_and_uploads_for_it"]),
    (Bug::WaitsForTheOneBefore, &["streams::compute_waits_for_uploads", "plans::auto"]),
    (
        Bug::HearsTheLastWait,
        &["streams::waits_hold_for_all_that_follows", "host::waits_hold_for_all_that_follows"],
    ),
    (
        Bug::SignalsPastWaits,
        &["streams::waits_imply_what_they_waited_for", "host::waits_imply_what_they_waited_for"],
    ),
    (
        Bug::RefusesOwnPoints,
        &["streams::a_stream_may_wait_for_itself", "host::the_host_may_wait_for_itself"],
    ),
    (
        Bug::WaitsForAnything,
        &["streams::unsignalled_points_are_refused", "host::unsignalled_points_are_refused"],
    ),
    (
        Bug::AsksForAnything,
        &["streams::unsignalled_points_are_refused", "host::unsignalled_points_are_refused"],
    ),
    (
        Bug::ReachesAtOnce,
        &["streams::what_is_reached_has_been_done", "host::what_is_reached_has_been_done"],
    ),
    (
        Bug::BlocksForNothing,
        &[
            "streams::blocking_waits_for_the_work",
            "host::blocking_waits_for_the_op",
            "plans::weights",
            "plans::layer_to_layer",
            "host_plans::switches_between_plans",
        ],
    ),
    (
        Bug::CountsFromTwo,
        &[
            "streams::points_are_counted_from_one",
            "host::points_are_counted_from_one",
            "network::points_are_counted_from_one",
        ],
    ),
    (Bug::CountsUnawaitedTwice, &["streams::points_are_counted_from_one"]),
    (Bug::CountsOtherDevices, &["devices::two_devices_do_not_disturb_each_other"]),
    (
        Bug::UploadsTooLittle,
        &["transfers::bytes_return_as_they_were", "transfers::copies_in_both_directions_at_once"],
    ),
    (Bug::UploadsTooMuch, &["transfers::copies_of_any_size_and_offset"]),
    (Bug::DownloadsTooLittle, &["transfers::bytes_return_as_they_were"]),
    (
        Bug::CopiesOneChunk,
        &[
            "transfers::copies_of_any_size_and_offset",
            "paging::what_is_mapped_can_be_read_and_written",
        ],
    ),
    (Bug::CutsSizes, &["large::offsets_and_sizes_exceed_32_bits"]),
    (Bug::CutsHostOffsets, &["large::offsets_and_sizes_exceed_32_bits"]),
    (Bug::CutsOperands, &["large::offsets_and_sizes_exceed_32_bits"]),
    (Bug::UploadsOutOfOrder, &["streams::uploads_run_in_order"]),
    (Bug::DownloadsOutOfOrder, &["streams::downloads_run_in_order"]),
    (Bug::UploadsLate, &["transfers::uploaded_bytes_are_free_after_the_point"]),
    (Bug::CopiesToNowhere, &["transfers::unmapped_addresses_are_refused"]),
    (
        Bug::CopiesFromNowhere,
        &[
            "transfers::bytes_outside_the_block_are_refused",
            "transfers::without_a_block_all_is_refused",
        ],
    ),
    (Bug::CreatesBlocksTwice, &["transfers::the_host_has_one_block"]),
    (Bug::WritesHostTooLittle, &["transfers::the_host_writes_and_reads_its_block"]),
    (Bug::WritesHostTooMuch, &["transfers::the_host_writes_and_reads_its_block"]),
    (Bug::WritesHostLate, &["transfers::written_bytes_are_uploaded"]),
    (Bug::ReadsHostTooLittle, &["transfers::the_host_writes_and_reads_its_block"]),
    (Bug::ForgetsAState, &["kernels::states_lie_in_their_slots"]),
    (Bug::FillsTheOtherSlot, &["kernels::inputs_take_their_slots_in_turn"]),
    (Bug::RunsOutOfSomething, &["paging::too_many_chunks_are_out_of_memory"]),
    (Bug::NeverRecovers, &["paging::too_many_chunks_are_out_of_memory"]),
    (Bug::RangesOverlap, &["paging::ranges_lie_apart"]),
    (Bug::RangesFromZero, &["paging::ranges_lie_apart"]),
    (Bug::RangesComeAgain, &["paging::ten_thousand_ranges"]),
    (Bug::LosesLateUploads, &["streams::a_thousand_steps_may_be_pending"]),
    (Bug::RangesWithoutEnd, &["paging::too_long_ranges_are_refused"]),
    (Bug::MapsBackwards, &["paging::chunks_are_mapped_in_order"]),
    (
        Bug::AliasesApart,
        &[
            "paging::what_is_mapped_twice_is_one_chunk",
            "paging::launches_see_through_aliases",
            "plans::with_placements",
        ],
    ),
    (Bug::ChunksForget, &["paging::chunks_keep_what_is_written"]),
    (Bug::MappingsAreStale, &["paging::remapping_shows_other_chunks"]),
    (Bug::ChunksWrap, &["paging::mapping_does_not_disturb_work"]),
    (Bug::MapsTwice, &["paging::mapping_twice_is_refused"]),
    (Bug::MapsNothing, &["paging::chunks_that_do_not_exist_are_refused"]),
    (Bug::MapsAnywhere, &["paging::mapping_outside_of_ranges_is_refused"]),
    (Bug::UnmapsAliases, &["paging::aliases_are_unmapped_one_by_one"]),
    (Bug::UnmapsOne, &["paging::neighbours_are_unmapped_together"]),
    (Bug::UnmapsNothing, &["paging::unmapping_what_is_not_mapped_is_refused"]),
    (Bug::UnmapsParts, &["paging::unmapping_a_part_is_refused"]),
    (
        Bug::LosesLaunches,
        &[
            "streams::launches_run_in_order",
            "streams::streams_do_not_disturb_each_other",
            "network::launches_run_in_order",
        ],
    ),
    (Bug::ClobbersOperands, &["kernels::every_byte_counts"]),
    (Bug::LeavesAByte, &["kernels::small_tensors_count_too"]),
    (Bug::Overruns, &["kernels::launches_leave_the_rest_alone"]),
    (Bug::SharesTheWorkspace, &["kernels::the_workspace_is_used"]),
    (Bug::RepeatsDrawAnew, &["repeats::the_same_bytes_are_written"]),
    (Bug::RepeatsWriteToTheFirst, &["repeats::the_same_bytes_are_written"]),
    (
        Bug::RepeatsUpdateStates,
        &["repeats::states_and_inputs_are_left_alone", "repeats::plans_with_repeats"],
    ),
    (Bug::RepeatsUseTheFirstWorkspace, &["repeats::the_workspace_is_used_again"]),
    (Bug::RepeatsTrustTheFirst, &["repeats::earlier_values_come_back"]),
    (
        Bug::LosesRepeats,
        &[
            "repeats::earlier_values_come_back",
            "repeats::plans_with_repeats",
            "host_plans::random_plans_with_repeats",
        ],
    ),
    (
        Bug::LosesHostOps,
        &[
            "host::ops_run_in_order",
            "host::streams_do_not_disturb_each_other",
            "host_plans::random_plans",
            "host_plans::random_plans_with_repeats",
        ],
    ),
    (Bug::LosesLateHostOps, &["host::a_thousand_ops_may_be_pending"]),
    (Bug::HostOpsReadElsewhere, &["host::every_byte_counts"]),
    (Bug::HostOpsOverrun, &["host::ops_leave_the_rest_alone"]),
    (Bug::HostOpsRunNowhere, &["host::bytes_outside_the_block_are_refused"]),
    (Bug::BlursHostFailures, &["host_plans::a_failed_op_ends_the_run"]),
    (Bug::FailsLate, &["host_plans::a_failed_op_ends_the_run"]),
    (
        Bug::DropsBadly,
        &[
            "devices::a_device_may_be_dropped_at_any_time",
            "host::a_device_may_be_dropped_at_any_time",
        ],
    ),
    (Bug::LeaksMemory, &["plans::ten_thousand_iterations"]),
    (Bug::LeaksHandles, &["plans::ten_thousand_iterations"]),
];

/// Checks that no bug here fails, and why.
const WITHOUT_MUTANT: &[(&str, &str)] = &[
    (
        "large::kernels_take_offsets_beyond_32_bits",
        "a simulated launch touches all bytes; the backend for CUDA has a mutant of its own",
    ),
    (
        "paging::chunks_have_the_size_of_the_machine",
        "a layer cannot change the size of chunks, and an executor refuses such a device by itself",
    ),
    (
        "devices::a_failed_wait_frees_nothing_in_use",
        "a simulated device frees nothing; the backend for CUDA has a mutant of its own",
    ),
];

type Mutant = LayeredBackend<Sim, Box<dyn Fn(u64) -> Buggy + Send + Sync>>;

fn mutant(bug: Bug) -> Mutant {
    let sim = Sim { is_forgiving: true, ..Sim::default() };
    LayeredBackend::new(sim, Box::new(move |_| Buggy::new(bug)))
}

fn run(check: &Check<Mutant>, backend: &Mutant, order: u64) -> Outcome {
    let machine = Sim::default().machine;
    check.run_in_order(&Bench { backend, machine, order })
}

/// Whether a bug fails a check in some order; to panic is to fail.
fn finds(check: &Check<Mutant>, bug: Bug) -> bool {
    let backend = mutant(bug);
    (1..=ORDERS).any(|order| {
        let outcome = catch_unwind(AssertUnwindSafe(|| run(check, &backend, order)));
        match outcome {
            Ok(Ok(())) => false,
            Ok(Err(failure)) => !failure.is_unsupported(),
            Err(_) => true,
        }
    })
}

fn is_found(bug: Bug, meant: &[&str]) -> Result<(), Failed> {
    let checks = checks::<Mutant>();
    for name in meant {
        let check = checks.iter().find(|check| check.name == *name);
        let check = check.ok_or_else(|| format!("there is no check {name}"))?;
        if !finds(check, bug) {
            return Err(format!("{name} passes in {ORDERS} orders").into());
        }
    }
    Ok(())
}

/// Without a bug, the device under all these layers passes everything that it has a mutant for.
fn no_bug_is_found_where_none_is() -> Result<(), Failed> {
    let backend = mutant(Bug::None);
    for check in checks::<Mutant>() {
        let has_mutant = MUTANTS.iter().any(|(_, meant)| meant.contains(&check.name));
        for order in 1..=3 {
            match run(&check, &backend, order) {
                Err(failure) if has_mutant || !failure.is_unsupported() => {
                    return Err(format!("{}: {failure}", check.name).into());
                }
                _ => {}
            }
        }
    }
    Ok(())
}

fn every_check_has_a_mutant_or_a_reason() -> Result<(), Failed> {
    let proven = MUTANTS.iter().flat_map(|(_, checks)| checks.iter().copied());
    let known: Vec<&str> = proven.chain(WITHOUT_MUTANT.iter().map(|(check, _)| *check)).collect();
    match checks::<Mutant>().iter().find(|check| !known.contains(&check.name)) {
        None => Ok(()),
        Some(check) => Err(format!("{} has neither", check.name).into()),
    }
}

fn main() -> ExitCode {
    // Bugs may panic; that is no news.
    std::panic::set_hook(Box::new(|_| {}));
    assert!(mutant(Bug::None).find().is_ok());
    let mutants = MUTANTS.iter().map(|&(bug, meant)| {
        Trial::ignorable_test(format!("{bug:?}"), move || {
            let checks = checks::<Mutant>();
            let mut meant_checks = checks.iter().filter(|check| meant.contains(&check.name));
            if let Some(reason) = meant_checks.find_map(Check::blind_spot) {
                return Ok(Completion::ignored_with(reason));
            }
            is_found(bug, meant).map(|()| Completion::Completed)
        })
    });
    let others = [
        Trial::test("no_bug_is_found_where_none_is", no_bug_is_found_where_none_is),
        Trial::test("every_check_has_a_mutant_or_a_reason", every_check_has_a_mutant_or_a_reason),
    ];
    libtest_mimic::run(&Arguments::from_args(), mutants.chain(others).collect()).exit_code()
}
