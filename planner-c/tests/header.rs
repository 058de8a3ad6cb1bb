//! The committed header matches the sources. `SPILLWAY_WRITE_HEADER=1` generates it again.

#![allow(clippy::unwrap_used)]

use std::path::Path;
use std::{env, fs};

#[test]
fn the_header_describes_the_sources() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR"));
    let config = cbindgen::Config::from_file(folder.join("cbindgen.toml")).unwrap();
    let mut builder = cbindgen::Builder::new().with_config(config);
    for name in [
        "error",
        "graph",
        "machine",
        "plan",
        "streaming",
        "steps",
        "addresses",
        "device",
        "kernels",
        "fill",
        "session",
    ] {
        builder = builder.with_src(folder.join("src").join(name).with_extension("rs"));
    }
    for name in ["kinds", "machine", "steps"] {
        builder = builder.with_src(folder.join("types/src").join(name).with_extension("rs"));
    }
    builder = builder.with_src(folder.join("../planner-core/src/machine.rs"));
    let mut made = Vec::new();
    builder.generate().unwrap().write(&mut made);
    let made = String::from_utf8(made).unwrap();
    let path = folder.join("include/spillway.h");
    if env::var_os("SPILLWAY_WRITE_HEADER").is_some() {
        fs::write(&path, &made).unwrap();
    }
    let committed = fs::read_to_string(&path).unwrap();
    assert!(committed == made, "{} is out of date: write it anew", path.display());
}
