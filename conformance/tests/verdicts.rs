//! What the suite says of a check, and what it says with middleware in between.
#![allow(clippy::unwrap_used, reason = "what fails here fails the test")]

use backend_host::{Host, HostDevice, HostError, IntegrityKernels};
use backend_sim::Sim;
use conformance::layered::LayeredBackend;
use conformance::suite::{Check, Verdict, checks, judge};
use integrity::{Backend, Exemption, Found};
use middleware::{Faults, SlowLink};
use planner_core::backend::{FillError, InputWriter, Kernels, Launch, StateWriter};
use planner_core::{Graph, Machine};

const WORKS: &str = "transfers::bytes_return_as_they_were";
const FAILS: &str = "kernels::every_byte_counts";

/// Host memory on which nothing can be launched.
struct Lame(Vec<Exemption>);

impl Backend for Lame {
    type Error = HostError;
    type Device = HostDevice;
    type Kernels<'g> = LameKernels<'g>;

    fn name(&self) -> &'static str {
        "lame"
    }

    fn find(&self) -> Result<Found, String> {
        Host.find()
    }

    fn open(&self, machine: Machine, order: u64) -> Result<HostDevice, String> {
        Host.open(machine, order)
    }

    fn kernels<'g>(
        &self,
        device: &mut HostDevice,
        graph: Graph<'g>,
    ) -> Result<LameKernels<'g>, HostError> {
        Host.kernels(device, graph).map(LameKernels)
    }

    fn exemptions(&self) -> &[Exemption] {
        &self.0
    }
}

struct LameKernels<'g>(IntegrityKernels<'g>);

impl Kernels<HostDevice> for LameKernels<'_> {
    fn launch(&mut self, _: &mut HostDevice, launch: &Launch<'_>) -> Result<(), HostError> {
        panic!("{} cannot be launched", launch.op)
    }

    fn fill_states(
        &mut self,
        states: &mut StateWriter<'_, HostDevice>,
    ) -> Result<(), FillError<HostError>> {
        self.0.fill_states(states)
    }

    fn fill_inputs(
        &mut self,
        inputs: &mut InputWriter<'_, HostDevice>,
    ) -> Result<(), FillError<HostError>> {
        self.0.fill_inputs(inputs)
    }
}

fn check<T: Backend>(name: &str) -> Check<T> {
    checks().into_iter().find(|check| check.name == name).unwrap()
}

fn verdict(name: &str, exemptions: &[Exemption]) -> Verdict {
    let lame = Lame(exemptions.to_vec());
    judge(&check(name), &lame, &lame.find())
}

#[test]
fn a_panic_fails_a_check() {
    assert_eq!(verdict(WORKS, &[]), Verdict::Passed);
    let Verdict::Failed(failure) = verdict(FAILS, &[]) else { panic!() };
    assert_eq!(failure.to_string(), "panic: op 1 cannot be launched");
}

#[test]
fn what_is_unsupported_is_ignored_with_the_reason() {
    let unsupported = |check| [Exemption::Unsupported { check, reason: "no kernels" }];
    assert_eq!(verdict(FAILS, &unsupported(FAILS)), Verdict::Ignored("no kernels".to_owned()));
    assert!(matches!(verdict(FAILS, &unsupported(WORKS)), Verdict::Failed(_)));
}

#[test]
fn what_a_device_cannot_hold_is_ignored_with_the_reason() {
    const LARGE: &str = "large::offsets_and_sizes_exceed_32_bits";
    for exempt in [None, Some(Exemption::ExpectedFailure { check: LARGE, reason: "too large" })] {
        let Verdict::Ignored(reason) = verdict(LARGE, exempt.as_slice()) else { panic!() };
        assert!(
            reason.starts_with("the device has 1073741824 bytes, but the check needs "),
            "{reason}"
        );
    }
}

#[test]
fn what_is_expected_to_fail_fails_on_the_day_it_passes() {
    let expected = |check| [Exemption::ExpectedFailure { check, reason: "no kernels yet" }];
    assert_eq!(verdict(FAILS, &expected(FAILS)), Verdict::Passed);
    let Verdict::Failed(failure) = verdict(WORKS, &expected(WORKS)) else { panic!() };
    assert!(failure.to_string().contains("no kernels yet"), "{failure}");
}

#[test]
fn without_a_device_checks_are_ignored_unless_it_must_be_there() {
    let none = Err("it is not plugged in".to_owned());
    let is_required = test_harness::devices_are_required();
    match judge(&check(WORKS), &Host, &none) {
        Verdict::Ignored(reason) if !is_required => assert!(reason.contains("not plugged in")),
        Verdict::Failed(failure) if is_required => {
            assert!(failure.to_string().contains("not plugged in"));
        }
        other => panic!("{other:?}"),
    }
}

/// Nothing breaks a simulated stream, and a simulated launch touches all bytes.
const NOT_SIMULATED: [&str; 2] =
    ["devices::a_failed_wait_frees_nothing_in_use", "large::kernels_take_offsets_beyond_32_bits"];

fn passes(backend: &impl Backend) {
    let found = backend.find();
    for check in checks() {
        match judge(&check, backend, &found) {
            Verdict::Passed => {}
            Verdict::Ignored(_) if check.blind_spot().is_some() => {}
            Verdict::Ignored(_) if NOT_SIMULATED.contains(&check.name) => {}
            other => panic!("{}: {other:?}", check.name),
        }
    }
}

#[test]
fn a_slow_link_keeps_all_promises() {
    let sim = Sim { orders: 2, ..Sim::default() };
    passes(&LayeredBackend::new(sim, |_| SlowLink { times: 3 }));
}

#[test]
fn delays_keep_all_promises() {
    let sim = Sim { orders: 2, ..Sim::default() };
    passes(&LayeredBackend::new(sim, |seed| Faults::new(seed).delayed_copies(3)));
}
