//! Reading and writing the interchange formats.
//!
//! Files are untrusted. For any content, reading returns a value or a [`FormatError`] that names the
//! location. It never panics, and its memory and stack are bounded.
//!
//! | refused | limit |
//! |---|---|
//! | large files | [`MAX_BYTES`], compressed or not |
//! | gzip bombs | beyond [`FREE_INFLATION_BYTES`], [`MAX_INFLATION`] times the compressed size |
//! | deep nesting | [`MAX_DEPTH`] arrays and objects, in unknown fields too |
//! | text that is not UTF-8 | in names and unknown fields too |
//! | more values than there is memory for | when memory is asked for, before they are read |
//!
//! Unknown fields are ignored. Repeated fields, numbers that are not integers of 64 bits,
//! arrays in place of objects, and anything after the closing brace are errors.

mod certificate;
mod chain;
mod error;
mod file;
mod graph;
mod json;
mod machine;
mod plan;
mod render;
mod save;
mod step;

pub use certificate::{read_certificate, write_certificate};
pub use chain::{read_chain, write_chain};
pub use error::{ErrorKind, FormatError};
pub use file::{
    FREE_INFLATION_BYTES, MAX_BYTES, MAX_INFLATION, compress, decompress, load, load_graphs,
};
pub use graph::{read_graph, write_graph};
pub use json::checked_text;
pub use json::{Document, MAX_DEPTH, document};
pub use machine::{read_machine, write_machine};
pub use plan::{read_plan, write_plan};
pub use render::render;
pub use save::{Target, save, stop_saving};
