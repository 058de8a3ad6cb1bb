//! Backends that are not in this build. Their errors say how to build the program with them.

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
                    // Otherwise, the error would be about the option, not about the build.
                    graphs: true,
                    open: |_| Err(Failure::without($feature)),
                }),
                conformance: |_| Err(Failure::without($feature)),
            };
        }
    };
}

missing!(cuda, "cuda", "A CUDA device (not in this build)");
missing!(vulkan, "vulkan", "A Vulkan device (not in this build)");
