//! Host memory as a device. It runs no plans, only the conformance suite.

use super::entry::Entry;
use super::suite;
use backend_host::Host;

pub(super) const ENTRY: Entry = Entry {
    name: "host",
    help: "A device in host memory; an example for new backends",
    devices: None,
    runs: None,
    conformance: |chunk_bytes| suite::report(Host, chunk_bytes),
};
