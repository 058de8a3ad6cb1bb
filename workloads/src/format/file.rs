//! Bounded reading of files and gzip data.

use super::error::{ErrorKind, FormatError};
use super::graph::read_graph;
use crate::OwnedGraph;
use flate2::Compression;
use flate2::read::MultiGzDecoder;
use flate2::write::GzEncoder;
use std::borrow::Cow;
use std::fs::{self, File};
use std::io::{self, Read, Write};
use std::path::Path;

/// The most bytes of a file, compressed and decompressed: 1 GiB.
pub const MAX_BYTES: u64 = 1 << 30;

/// The size in bytes that any compressed file may inflate to.
pub const FREE_INFLATION_BYTES: u64 = 64 << 20;

/// The largest ratio of decompressed to compressed size for files that inflate to more than
/// [`FREE_INFLATION_BYTES`]. Large graphs and plans have ratios of 5 to 30.
pub const MAX_INFLATION: u64 = 200;

const GZIP_MAGIC: [u8; 2] = [0x1f, 0x8b];

/// Reads a file, or standard input for `-`, and decompresses it if it is compressed.
///
/// # Errors
/// The file cannot be read, exceeds a limit, or is damaged; the error names the file.
pub fn load(path: impl AsRef<Path>) -> Result<Vec<u8>, FormatError> {
    let path = path.as_ref();
    let read = || -> Result<Vec<u8>, FormatError> {
        let bytes = if path == Path::new("-") {
            read_bounded(io::stdin().lock())
        } else {
            File::open(path).and_then(read_bounded)
        };
        let bytes = bytes.map_err(|error| io_error("cannot be read", &error))?;
        Ok(match decompress(&bytes)? {
            Cow::Owned(inflated) => inflated,
            Cow::Borrowed(_) => bytes,
        })
    };
    read().map_err(|error| error.in_file(path))
}

/// Reads the graph files (`*.graph.json.gz`) of a folder, sorted by the names of the graphs. Returns `None`
/// if the folder does not exist.
///
/// # Errors
/// A file cannot be read or is not a graph; the error names it.
pub fn load_graphs(folder: &Path) -> Result<Option<Vec<OwnedGraph>>, FormatError> {
    let Ok(entries) = fs::read_dir(folder) else { return Ok(None) };
    let mut graphs = Vec::new();
    for entry in entries {
        let unreadable = |error| io_error("cannot be read", &error).in_file(folder);
        let path = entry.map_err(unreadable)?.path();
        if path.to_string_lossy().ends_with(".graph.json.gz") {
            graphs.push(read_graph(&load(&path)?).map_err(|error| error.in_file(&path))?);
        }
    }
    graphs.sort_by(|one, other| one.name.cmp(&other.name));
    Ok(Some(graphs))
}

/// The number of bytes to check before reading the rest.
const START_BYTES: u64 = 4096;

fn read_bounded(mut source: impl Read) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    source.by_ref().take(START_BYTES).read_to_end(&mut bytes)?;
    // If the file ends here, its parser reports the place of an error.
    let goes_on = bytes.len() as u64 == START_BYTES;
    if goes_on && !bytes.starts_with(&GZIP_MAGIC) && !is_text(&bytes) {
        return Err(io::Error::other("it begins with neither text nor gzip data"));
    }
    source.take(MAX_BYTES + 1 - bytes.len() as u64).read_to_end(&mut bytes)?;
    if bytes.len() as u64 > MAX_BYTES {
        let limit = "it has more than 1 GiB, the most that is read";
        return Err(io::Error::new(io::ErrorKind::FileTooLarge, limit));
    }
    Ok(bytes)
}

/// Returns whether bytes are text. The last character may be cut off. JSON has no zero bytes.
fn is_text(bytes: &[u8]) -> bool {
    let is_cut = |error: std::str::Utf8Error| error.error_len().is_none();
    !bytes.contains(&0) && std::str::from_utf8(bytes).map_or_else(is_cut, |_| true)
}

/// Inflates bytes that start like a gzip file. Returns other bytes unchanged.
///
/// # Errors
/// The compressed data is damaged, or inflates to more than the limits of this module.
pub fn decompress(bytes: &[u8]) -> Result<Cow<'_, [u8]>, FormatError> {
    if !bytes.starts_with(&GZIP_MAGIC) {
        return Ok(Cow::Borrowed(bytes));
    }
    let by_ratio = (bytes.len() as u64).saturating_mul(MAX_INFLATION).max(FREE_INFLATION_BYTES);
    let limit_bytes = by_ratio.min(MAX_BYTES);
    let mut inflated = Vec::new();
    MultiGzDecoder::new(bytes).take(limit_bytes + 1).read_to_end(&mut inflated).map_err(
        |error| match error.kind() {
            io::ErrorKind::OutOfMemory => io_error("cannot be read", &error),
            _ => FormatError::malformed(format!("the gzip data is damaged: {error}")),
        },
    )?;
    if inflated.len() as u64 > limit_bytes {
        return Err(FormatError::malformed(format!(
            "{} compressed bytes inflate to more than {limit_bytes}",
            bytes.len()
        )));
    }
    Ok(Cow::Owned(inflated))
}

/// Compresses to gzip. The same bytes give the same file, since it stores no name and no time.
#[must_use]
pub fn compress(bytes: &[u8]) -> Vec<u8> {
    let mut encoder = GzEncoder::new(Vec::new(), Compression::default());
    encoder
        .write_all(bytes)
        .and_then(|()| encoder.finish())
        .expect("a vector takes every byte written to it")
}

fn io_error(what: &str, error: &io::Error) -> FormatError {
    FormatError::new(ErrorKind::Io, format!("{what}: {error}"))
}

#[cfg(test)]
mod tests {
    use super::super::save;
    use super::*;
    use std::path::PathBuf;

    fn folder(name: &str) -> PathBuf {
        let path = std::env::temp_dir().join(format!("spillway-{name}-{}", std::process::id()));
        fs::create_dir_all(&path).unwrap();
        path
    }

    #[test]
    fn a_bomb_is_refused_early() {
        let mut bomb = GzEncoder::new(Vec::new(), Compression::best());
        for _ in 0..65 {
            bomb.write_all(&vec![b' '; 1 << 20]).unwrap();
        }
        let error = decompress(&bomb.finish().unwrap()).unwrap_err().to_string();
        assert!(error.contains("inflate to more than 67108864"), "{error}");
    }

    #[test]
    fn what_never_ends_is_not_read_to_its_end() {
        let error = |start: &[u8], rest: u8| {
            let mut count = 0;
            let source = start.chain(io::repeat(rest)).take(u64::MAX);
            let counted = Counted(source, &mut count);
            let error = read_bounded(counted).unwrap_err().to_string();
            (error, count)
        };
        for (start, rest) in [(&b"{}"[..], 0), (b"", 0), (b"\x80", b' '), (b"{\"", 0xff)] {
            let (error, read) = error(start, rest);
            assert!(error.contains("neither text nor gzip"), "{error}");
            assert_eq!(read, START_BYTES);
        }
        let (error, read) = error(b"", b' ');
        assert!(error.contains("more than 1 GiB"), "{error}");
        assert_eq!(read, MAX_BYTES + 1);
    }

    /// Counts the bytes read.
    struct Counted<'c, R>(R, &'c mut u64);

    impl<R: Read> Read for Counted<'_, R> {
        fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
            let read = self.0.read(into)?;
            *self.1 += read as u64;
            Ok(read)
        }
    }

    #[test]
    fn text_may_be_cut_within_a_character() {
        let text = "{\"name\": \"数据\"}".as_bytes();
        assert!((0..=text.len()).all(|end| is_text(&text[..end])));
        assert!(!is_text(&text[12..]));
    }

    #[test]
    fn damaged_gzip_is_an_error() {
        let whole = compress(b"some text");
        assert_eq!(decompress(&whole).unwrap().as_ref(), b"some text");
        let mut garbage = whole.clone();
        garbage.extend(b"garbage");
        for damaged in [&whole[..whole.len() - 1], &whole[..2], &garbage] {
            assert_eq!(decompress(damaged).unwrap_err().kind(), ErrorKind::Malformed);
        }
    }

    #[test]
    fn the_graphs_of_a_folder_come_by_name() {
        let folder = folder("graphs");
        for name in ["b", "a"] {
            let mut graph = OwnedGraph::new(name);
            graph.push_op("op", 1, 0, &[], &[]);
            let bytes = crate::format::write_graph(&graph);
            save(folder.join(format!("{name}.graph.json.gz")), &bytes).unwrap();
        }
        fs::write(folder.join("other.json"), b"{}").unwrap();
        let graphs = load_graphs(&folder).unwrap().unwrap();
        assert_eq!(graphs.iter().map(|graph| graph.name.as_str()).collect::<Vec<_>>(), ["a", "b"]);
        fs::write(folder.join("c.graph.json.gz"), b"{}").unwrap();
        let error = load_graphs(&folder).unwrap_err().to_string();
        assert!(error.contains("c.graph.json.gz"), "{error}");
        fs::remove_dir_all(&folder).unwrap();
        assert_eq!(load_graphs(&folder), Ok(None));
    }

    #[test]
    fn a_missing_file_is_named() {
        let error = load("no/such/file.json").unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Io);
        assert!(error.to_string().starts_with("no/such/file.json: cannot be read"), "{error}");
    }
}
