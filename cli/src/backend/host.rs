//! Host memory as a device. It measures nothing, and is only held to the suite.

use super::entry::Entry;
use super::suite;
use backend_host::Host;

pub(super) const ENTRY: Entry = Entry {
    name: "host",
    help: "A device of host memory, an example of a backend",
    devices: None,
    runs: None,
    conformance: |chunk_bytes| suite::report(Host, chunk_bytes),
};
