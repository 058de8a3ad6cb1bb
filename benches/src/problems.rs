//! Reads and packs static allocation problems in the format of MiniMalloc (Moffitt, 2023). A file
//! has one line per buffer: its id, the first instant of its life, the first instant after its
//! life, and its size.

use planner_core::Scratch;
use planner_core::packing::{self, Item, Packing};
use std::error::Error;
use std::path::Path;
use std::time::{Duration, Instant};

/// The folder of MiniMalloc's challenging problems, beside the checkout.
pub const RECORDED: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../shared/data/minimalloc");

/// Items to pack, and a capacity that is known to suffice.
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
/// A file cannot be read, its name is not `NAME.CAPACITY.csv`, or one of its lines is not four
/// numbers. The message names the file and the line.
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

/// Returns a seeded generator of random numbers below its argument.
pub fn random(mut seed: u64) -> impl FnMut(u64) -> u64 {
    move |below| {
        seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        (seed >> 33) % below
    }
}

/// A problem as hard as the problems of MiniMalloc. It cuts a rectangle of time and bytes into this
/// many pieces. Each cut divides the largest of three random pieces, in time or in bytes. All
/// pieces fit into the height of the rectangle, which is their load.
#[must_use]
pub fn generate(seed: u64, pieces: usize) -> Problem {
    const CAPACITY_BYTES: u64 = 1 << 20;
    let mut random = random(seed);
    let mut cut = vec![[0, pieces as u64 * 64, 0, CAPACITY_BYTES / 512]];
    while cut.len() < pieces {
        let at = (0..3).map(|_| random(cut.len() as u64) as usize);
        let area = |&at: &usize| {
            let [from, to, low, high]: [u64; 4] = cut[at];
            (to - from) * (high - low)
        };
        let Some(at) = at.max_by_key(area) else { break };
        let [from, to, low, high] = cut[at];
        let (mut one, mut other) = (cut[at], cut[at]);
        if random(2) == 0 && to - from > 1 {
            one[1] = from + 1 + random(to - from - 1);
            other[0] = one[1];
        } else if high - low > 1 {
            one[3] = low + 1 + random(high - low - 1);
            other[2] = one[3];
        } else {
            continue;
        }
        cut[at] = one;
        cut.push(other);
    }
    let item = |&[from, to, low, high]: &[u64; 4]| Item {
        first: from as u32,
        last: (to - 1) as u32,
        bytes: (high - low) * 512,
    };
    Problem {
        name: format!("{pieces} pieces, {seed}"),
        capacity_bytes: CAPACITY_BYTES,
        items: cut.iter().map(item).collect(),
    }
}

/// Packs items whose lives do not wrap around, and returns the packing with its time. The time does
/// not include allocations.
///
/// # Panics
/// Two items that are alive together overlap, or the reported height is wrong.
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

/// Sweeps over the starts of lives, with the live items sorted by offset.
fn check(items: &[Item], offsets: &[u64], height_bytes: u64) {
    let mut order: Vec<usize> = (0..items.len()).filter(|&at| items[at].bytes > 0).collect();
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
