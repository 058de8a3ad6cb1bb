//! What the suite says of a check, and what it says with middleware in between.
#![allow(clippy::unwrap_used, reason = "what fails here fails the test")]

use backend_host::{Host, HostDevice, HostError};
use backend_sim::Sim;
use conformance::layered::LayeredBackend;
use conformance::suite::{Check, Verdict, checks, judge};
use integrity::{Backend, Exemption, Found};
use middleware::{Faults, SlowLink};
use planner_core::backend::Launch;
use planner_core::{Graph, Machine};

const WORKS: &str = "transfers::bytes_return_as_they_were";
const FAILS: &str = "kernels::every_byte_counts";

/// Host memory on which nothing can be launched.
struct Lame(Vec<Exemption>);

impl Backend for Lame {
    type Error = HostError;
    type Device<'g> = HostDevice<'g>;

    fn name(&self) -> &'static str {
        "lame"
    }

    fn find(&self) -> Result<Found, String> {
        Host.find()
    }

    fn open<'g>(
        &self,
        graph: Graph<'g>,
        machine: Machine,
        order: u64,
    ) -> Result<HostDevice<'g>, String> {
        Host.open(graph, machine, order)
    }

    fn launch(&self, _: &mut HostDevice<'_>, launch: &Launch<'_>) -> Result<(), HostError> {
        panic!("{} cannot be launched", launch.op)
    }

    fn write_host(
        &self,
        device: &mut HostDevice<'_>,
        offset_bytes: u64,
        from: &[u8],
    ) -> Result<(), HostError> {
        Host.write_host(device, offset_bytes, from)
    }

    fn read_host(
        &self,
        device: &mut HostDevice<'_>,
        offset_bytes: u64,
        into: &mut [u8],
    ) -> Result<(), HostError> {
        Host.read_host(device, offset_bytes, into)
    }

    fn exemptions(&self) -> &[Exemption] {
        &self.0
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

fn passes(backend: &impl Backend) {
    let found = backend.find();
    for check in checks() {
        match judge(&check, backend, &found) {
            Verdict::Passed => {}
            Verdict::Ignored(_) if check.blind_spot().is_some() => {}
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
