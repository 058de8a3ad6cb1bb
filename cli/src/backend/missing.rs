//! Backends that the program is built without: they are named like the others, and say how to get them.

macro_rules! missing {
    ($backend:ident, $feature:literal, $help:literal) => {
        #[cfg(not(feature = $feature))]
        pub(super) mod $backend {
            use crate::backend::{Entry, entry::Runs};
            use crate::failure::{Failure, lacks};
            use backend_checks::Unavailable;

            pub(in crate::backend) const ENTRY: Entry = Entry {
                name: $feature,
                help: $help,
                devices: Some(|| Err(Unavailable(lacks($feature)))),
                runs: Some(Runs {
                    seeds: false,
                    // Else its options would be refused before the reason is told.
                    graphs: true,
                    open: |_| Err(Failure::without($feature)),
                }),
                conformance: |_| Err(Failure::without($feature)),
            };
        }
    };
}

missing!(cuda, "cuda", "A CUDA device, for which this program was not built");
missing!(vulkan, "vulkan", "A Vulkan device, for which this program was not built");
