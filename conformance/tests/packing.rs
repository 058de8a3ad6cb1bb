//! Packings by lifetime: sound, no worse than simple ways, and the lowest where that can be
//! told.
#![allow(clippy::unwrap_used, reason = "what fails here fails the test")]

use planner_core::Scratch;
use planner_core::packing::{self, Item, Packing, default_steps, scratch_words};
use proptest::collection::vec;
use proptest::prelude::*;

/// Instants of the circle on which random items live.
const INSTANTS: u32 = 24;
const HEIGHT_BYTES: u64 = 1 << 20;

fn pack(items: &[Item], most_steps: u64) -> (Packing, Vec<u64>) {
    let mut memory = vec![0; scratch_words(items.len())];
    let mut offsets = vec![0; items.len()];
    let mut scratch = Scratch::new(&mut memory);
    let packing =
        packing::pack(items.iter().copied(), most_steps, &mut offsets, &mut scratch).unwrap();
    (packing, offsets)
}

fn is_alive(item: &Item, instant: u32) -> bool {
    if item.first <= item.last {
        (item.first..=item.last).contains(&instant)
    } else {
        item.first <= instant || instant <= item.last
    }
}

/// Two lives that have an instant in common have the beginning of one of them.
fn meet(one: &Item, other: &Item) -> bool {
    is_alive(one, other.first) || is_alive(other, one.first)
}

/// What is wrong with a packing.
fn fault(items: &[Item], packing: Packing, offsets: &[u64]) -> Option<String> {
    let placed = || items.iter().zip(offsets);
    for (at, (one, &one_at)) in placed().enumerate() {
        for (other, &other_at) in placed().skip(at + 1) {
            let apart = one_at + one.bytes <= other_at || other_at + other.bytes <= one_at;
            if !apart && one.bytes.min(other.bytes) > 0 && meet(one, other) {
                return Some(format!("{one:?} at {one_at} and {other:?} at {other_at} overlap"));
            }
        }
    }
    let load =
        |instant| items.iter().filter(move |item| is_alive(item, instant)).map(|item| item.bytes);
    let load_bytes = items.iter().map(|item| load(item.first).sum()).max().unwrap_or(0);
    let height_bytes = placed().map(|(item, at)| at + item.bytes).max().unwrap_or(0);
    let found = Packing { height_bytes, load_bytes };
    (found != packing).then(|| format!("{packing:?} should be {found:?}"))
}

/// The height when each item, in this order, takes the lowest offset that is free.
fn height_in_order<'i>(order: impl Iterator<Item = &'i Item>) -> u64 {
    let mut placed: Vec<(Item, u64)> = Vec::new();
    let mut height_bytes = 0;
    for item in order {
        let mut below: Vec<_> = placed.iter().filter(|(other, _)| meet(item, other)).collect();
        below.sort_by_key(|&(_, at)| at);
        let mut offset = 0;
        for (other, at) in below {
            if offset + item.bytes <= *at {
                break;
            }
            offset = offset.max(at + other.bytes);
        }
        height_bytes = height_bytes.max(offset + item.bytes);
        placed.push((*item, offset));
    }
    height_bytes
}

/// First fit in the order of beginnings, as it has always been: what is alive around the
/// circle keeps its bytes.
fn first_fit_bytes(items: &[Item]) -> u64 {
    let wraps = |item: &Item| item.last < item.first;
    let mut order: Vec<Item> = items.to_vec();
    order.sort_by_key(|item| (!wraps(item), item.first));
    for item in &mut order {
        if wraps(item) {
            (item.first, item.last) = (0, u32::MAX);
        }
    }
    height_in_order(order.iter())
}

/// The lowest height above `load_bytes`: some order leads to it, since in the order of the
/// offsets of a lowest packing no item comes to lie higher than there.
fn lowest_bytes(items: &mut [Item], ordered: usize, load_bytes: u64) -> u64 {
    if ordered == items.len() {
        return height_in_order(items.iter());
    }
    let mut lowest = u64::MAX;
    for next in ordered..items.len() {
        if lowest > load_bytes {
            items.swap(ordered, next);
            lowest = lowest.min(lowest_bytes(items, ordered + 1, load_bytes));
            items.swap(ordered, next);
        }
    }
    lowest
}

fn items(most: usize, most_bytes: u64) -> impl Strategy<Value = Vec<Item>> {
    let instant = 0..INSTANTS;
    let item = (instant.clone(), instant, 0..=most_bytes).prop_map(|(first, last, bytes)| Item {
        first,
        last,
        bytes,
    });
    vec(item, 0..=most)
}

/// Items of which most are alive together, so that they are hard to pack.
fn few_items() -> impl Strategy<Value = Vec<Item>> {
    let item =
        (0..7u32, 0..7u32, 1..=6u64).prop_map(|(first, last, bytes)| Item { first, last, bytes });
    vec(item, 7..=8)
}

/// A stretch of time and bytes, cut into pieces: a problem whose pieces fill it, turned
/// around the circle.
fn cut() -> impl Strategy<Value = Vec<Item>> {
    let cuts = vec((any::<prop::sample::Index>(), any::<bool>(), 1..100u64), 0..60);
    (cuts, 0..INSTANTS * 8).prop_map(|(cuts, turn)| {
        let mut pieces = vec![[0, u64::from(INSTANTS) * 8, 0, HEIGHT_BYTES]];
        for (piece, in_time, percent) in cuts {
            let piece = piece.index(pieces.len());
            let [from, to, low, high] = pieces[piece];
            let (start, end) = if in_time { (from, to) } else { (low, high) };
            let at = start + (end - start) * percent / 100;
            if at > start {
                let [one, other] = match in_time {
                    true => [[from, at, low, high], [at, to, low, high]],
                    false => [[from, to, low, at], [from, to, at, high]],
                };
                pieces[piece] = one;
                pieces.push(other);
            }
        }
        let instant = |at: u64| (at as u32 + turn) % (INSTANTS * 8);
        let item = |&[from, to, low, high]: &[u64; 4]| {
            // What lives all the time has no beginning on the circle.
            let is_always = to - from == u64::from(INSTANTS) * 8;
            let (first, last) = if is_always { (0, u64::MAX) } else { (from, to - 1) };
            let last = if is_always { u32::MAX } else { instant(last) };
            Item { first: if is_always { 0 } else { instant(first) }, last, bytes: high - low }
        };
        pieces.iter().map(item).collect()
    })
}

proptest! {
    #![proptest_config(conformance::seeds::config(256))]
    #[test]
    fn items_alive_together_lie_apart(items in items(40, 1000), effort in 0..3u64) {
        let most_steps = effort * effort * default_steps(items.len());
        let (packing, offsets) = pack(&items, most_steps);
        prop_assert_eq!(fault(&items, packing, &offsets), None);
        prop_assert_eq!(pack(&items, most_steps), (packing, offsets));
    }

    #[test]
    fn it_is_never_worse_than_simple_ways_or_with_less_effort(mut items in items(40, 1000)) {
        items.sort_by_key(|item| item.first);
        let [none, some, more] = [0, 1, 4].map(|effort| {
            pack(&items, effort * default_steps(items.len())).0.height_bytes
        });
        prop_assert_eq!(none, first_fit_bytes(&items));
        let mut by_size: Vec<Item> = items.clone();
        by_size.sort_by_key(|item| std::cmp::Reverse(item.bytes));
        prop_assert!(some <= none.min(height_in_order(by_size.iter())));
        prop_assert!(more <= some);
    }

    #[test]
    fn few_items_are_packed_as_low_as_can_be(mut items in few_items()) {
        let (packing, _) = pack(&items, 1 << 24);
        let lowest_bytes = lowest_bytes(&mut items, 0, packing.load_bytes);
        prop_assert_eq!(packing.height_bytes, lowest_bytes);
    }

    #[test]
    fn pieces_of_a_rectangle_fill_it_again(items in cut()) {
        let (packing, offsets) = pack(&items, 1 << 26);
        prop_assert_eq!(fault(&items, packing, &offsets), None);
        prop_assert_eq!(packing.load_bytes, HEIGHT_BYTES);
        prop_assert_eq!(packing.height_bytes, HEIGHT_BYTES);
    }

    #[test]
    fn sizes_of_any_magnitude_are_packed(
        mut items in items(12, 9),
        bytes in prop::sample::select(vec![3u64, 1 << 20, (1 << 45) + 1, u64::MAX / 200]),
    ) {
        for item in &mut items {
            item.bytes *= bytes;
        }
        let (packing, offsets) = pack(&items, 1 << 16);
        prop_assert_eq!(fault(&items, packing, &offsets), None);
    }
}

#[test]
fn overflowing_sizes_and_small_scratch_do_no_harm() {
    let item = |bytes| Item { first: 3, last: 2, bytes };
    let most = item(u64::MAX);
    let items = [most, most, item(u64::MAX / 2), item(7), most, most, most, item(0), most];
    let needed_words = scratch_words(items.len());
    let mut memory = vec![0; needed_words];
    let mut offsets = [0; 9];
    for words in 0..=needed_words {
        let mut scratch = Scratch::new(&mut memory[..words]);
        let packed = packing::pack(items.into_iter(), 1 << 20, &mut offsets, &mut scratch);
        assert!(packed.is_ok() || words < needed_words);
    }
}

#[test]
fn many_items_are_swept() {
    let mut seed = 1u64;
    let mut random = |below: u64| {
        seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        (seed >> 33) % below
    };
    // Thousands of gaps at once, in many rows.
    let items: Vec<Item> = (0..3000)
        .map(|first| {
            let last = first + random(3000) as u32;
            Item { first, last, bytes: 1 + random(50) }
        })
        .collect();
    let (packing, offsets) = pack(&items, 0);
    assert_eq!(fault(&items, packing, &offsets), None);
    assert_eq!(packing.height_bytes, first_fit_bytes(&items));
}
