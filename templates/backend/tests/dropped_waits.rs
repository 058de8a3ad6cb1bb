//! The suite finds a wait that is missing on this device. If the device happens to run everything in
//! order, it does not, and these tests fail.

use conformance::layered::LayeredBackend;
use conformance::suite::{Outcome, checks};
use integrity::Backend;
use middleware::Layer;
use my_backend::{MyBackend, MyDevice, MyError};
use planner_core::Stream::{self, Compute, Download, Host, Upload};
use planner_core::backend::{Point, Streams};

/// A stream that does not wait for another, and the check of the suite that finds it.
const DROPPED: [(Stream, Stream, &str); 12] = [
    (Compute, Upload, "streams::compute_waits_for_uploads"),
    (Compute, Download, "streams::compute_waits_for_downloads"),
    (Compute, Host, "host::compute_waits_for_the_host"),
    (Upload, Compute, "streams::uploads_wait_for_compute"),
    (Upload, Download, "streams::uploads_wait_for_downloads"),
    (Upload, Host, "host::uploads_wait_for_the_host"),
    (Download, Compute, "streams::downloads_wait_for_compute"),
    (Download, Upload, "streams::downloads_wait_for_uploads"),
    (Download, Host, "host::downloads_wait_for_the_host"),
    (Host, Compute, "host::the_host_waits_for_compute"),
    (Host, Upload, "host::the_host_waits_for_uploads"),
    (Host, Download, "host::the_host_waits_for_downloads"),
];

/// Drops all waits of one stream for another.
struct Deaf(Option<(Stream, Stream)>);

impl Layer<MyDevice> for Deaf {
    type Error = MyError;

    fn wait(&mut self, device: &mut MyDevice, stream: Stream, point: Point) -> Result<(), MyError> {
        if self.0 == Some((stream, point.stream)) { Ok(()) } else { device.wait(stream, point) }
    }
}

/// Runs one check of the suite on a device without these waits.
fn run(name: &str, dropped: Option<(Stream, Stream)>) -> Outcome {
    let backend = LayeredBackend::new(MyBackend, move |_| Deaf(dropped));
    let check = checks().into_iter().find(|check| check.name == name).expect("a check");
    check.run(&backend, &backend.find().expect("a device"))
}

#[test]
fn a_dropped_wait_fails_by_name() {
    /// On a busy machine, work may run in the right order by chance.
    const TRIES: usize = 100;
    for (stream, awaited, name) in DROPPED {
        let found = (0..TRIES).find_map(|_| run(name, Some((stream, awaited))).err());
        let failure = found.unwrap_or_else(|| panic!("{name} passes without the wait"));
        assert!(!failure.is_unsupported(), "{name}: {failure}");
        println!("{stream} does not wait for {awaited}: {name} fails: {failure}");
    }
}

#[test]
fn the_same_checks_pass_with_every_wait() {
    for (.., name) in DROPPED {
        run(name, None).unwrap_or_else(|failure| panic!("{name}: {failure}"));
    }
}
