//! Static allocation problems in the files of MiniMalloc (Moffitt, 2023): a line for each
//! buffer with its id, the first instant of its life, the first one after it, and its size;
//! and packing them.

use planner_core::Scratch;
use planner_core::packing::{self, Item, Packing};
use std::error::Error;
use std::path::Path;
use std::time::{Duration, Instant};

/// What a file name promises to be enough, and what is to be packed.
#[derive(Clone, Debug)]
pub struct Problem {
    /// The part of the file's name before the capacity.
    pub name: String,
    /// A capacity into which all items fit.
    pub capacity_bytes: u64,
    /// The buffers.
    pub items: Vec<Item>,
}

/// The problems in a folder, by name.
///
/// # Errors
/// A file that cannot be read, or is not `NAME.CAPACITY.csv`, or a line in it that is not four
/// numbers; the sentence names the file and the line.
pub fn read_folder(folder: &Path) -> Result<Vec<Problem>, Box<dyn Error>> {
    let entries = std::fs::read_dir(folder).map_err(|error| at(folder, &error))?;
    let mut paths = Vec::new();
    for entry in entries {
        let path = entry?.path();
        if path.extension().is_some_and(|extension| extension == "csv") {
            paths.push(path);
        }
    }
    paths.sort();
    paths.iter().map(|path| read(path)).collect()
}

fn at(path: &Path, what: &dyn std::fmt::Display) -> String {
    format!("{}: {what}", path.display())
}

fn read(path: &Path) -> Result<Problem, Box<dyn Error>> {
    let stem = path.file_stem().map(|stem| stem.to_string_lossy()).unwrap_or_default();
    let named = stem.split_once('.').and_then(|(name, bytes)| Some((name, bytes.parse().ok()?)));
    let (name, capacity_bytes) = named.ok_or_else(|| at(path, &"not NAME.CAPACITY.csv"))?;
    let text = std::fs::read_to_string(path).map_err(|error| at(path, &error))?;
    let mut items = Vec::new();
    for (line, text) in (1..).zip(text.lines()).skip(1) {
        let item = item(text).ok_or_else(|| at(path, &format!("line {line}: {text}")))?;
        items.push(item);
    }
    Ok(Problem { name: name.to_owned(), capacity_bytes, items })
}

fn item(line: &str) -> Option<Item> {
    let mut numbers = line.split(',').map(|number| number.trim().parse::<u64>().ok());
    let [_, first, end, bytes] = std::array::from_fn(|_| numbers.next().flatten());
    let last = end?.checked_sub(1).filter(|&last| Some(last) >= first)?;
    Some(Item { first: first?.try_into().ok()?, last: last.try_into().ok()?, bytes: bytes? })
}

/// Packs, and says how long that took, without allocating memory for it.
///
/// # Panics
/// Where two items that are alive together overlap, or the height is not what was said.
#[must_use]
pub fn pack(items: &[Item], most_steps: u64) -> (Packing, Duration) {
    let mut memory = vec![0; packing::scratch_words(items.len())];
    let mut offsets = vec![0; items.len()];
    let start = Instant::now();
    let mut scratch = Scratch::new(&mut memory);
    let packing = packing::pack(items.iter().copied(), most_steps, &mut offsets, &mut scratch);
    let took = start.elapsed();
    let packing = packing.expect("enough scratch");
    check(items, &offsets, packing.height_bytes);
    (packing, took)
}

/// A sweep over the beginnings, with those alive sorted by offset.
fn check(items: &[Item], offsets: &[u64], height_bytes: u64) {
    let mut order: Vec<usize> = (0..items.len()).collect();
    order.sort_by_key(|&at| items[at].first);
    let mut alive = std::collections::BTreeMap::new();
    let mut ends = std::collections::BinaryHeap::new();
    for at in order {
        let (item, offset) = (items[at], offsets[at]);
        while let Some(&std::cmp::Reverse((last, offset))) = ends.peek()
            && last < item.first
        {
            ends.pop();
            alive.remove(&offset);
        }
        let top = offset + item.bytes;
        let below = alive.range(..top).next_back();
        assert!(below.is_none_or(|(_, &below_top)| below_top <= offset), "{item:?} overlaps");
        assert!(top <= height_bytes, "{item:?} is higher than {height_bytes}");
        alive.insert(offset, top);
        ends.push(std::cmp::Reverse((item.last, offset)));
    }
}
