//! The arithmetic, word by word.
//!
//! All words are `u32`, little-endian; sums and products wrap. One version of a tensor is a
//! [`Value`] of two words, from which all its bytes follow, and an op computes values from
//! values. A kernel for an op takes three passes:
//!
//! 1. For each tensor that it reads, the [`Reading`]: words 0 and 1 are its value, and each
//!    word that differs from this value adds to its *deviation*, a sum that many threads may
//!    make in any order. It is zero if every byte is right.
//! 2. [`op_results`]: the number of the op and all readings, folded in the order of
//!    [`Passes::reads`](crate::Passes::reads). There are two results. The first covers only the
//!    tensors that repeats of the op also read, and the second covers all tensors.
//! 3. For each tensor that it writes, by position, all words of the value [`written`]. The
//!    workspace is filled like one more tensor after them. Temporaries and the workspace get
//!    the first result. States, inputs and outputs get the second.
//!
//! Nothing depends on the iteration or on how often an op is launched, so a repeat writes the
//! bytes that the first launch wrote.
//!
//! The last word of a tensor may be cut short. A kernel reads the missing bytes as
//! zero. It may write any bytes there, since no plan puts anything else into that word.

use planner_core::{Kind, OpId, TensorId};

const STATE: Value = Value { low: 1, high: 0 };
const INPUT: Value = Value { low: 2, high: 0 };
const OP: Value = Value { low: 3, high: 0 };
const DIGEST: Value = Value { low: 4, high: 0 };

/// 64 bits that stand for all bytes of one version of a tensor.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Value {
    /// Word 0 of the tensor.
    pub low: u32,
    /// Word 1 of the tensor.
    pub high: u32,
}

/// A permutation of words in which every bit depends on every other bit, and which keeps zero: the
/// finalizer of `MurmurHash3` (Austin Appleby, `fmix32`).
#[must_use]
pub const fn scramble(word: u32) -> u32 {
    let word = (word ^ (word >> 16)).wrapping_mul(0x85eb_ca6b);
    let word = (word ^ (word >> 13)).wrapping_mul(0xc2b2_ae35);
    word ^ (word >> 16)
}

impl Value {
    /// Folds a word in. For each word this is a permutation of values. The order of two words
    /// matters.
    #[must_use]
    pub const fn fold(self, word: u32) -> Self {
        let high = scramble(self.low ^ word);
        let low = scramble(self.high.wrapping_add(high).wrapping_add(0x9e37_79b9));
        Self { low, high }
    }

    /// Folds in another value, its low word first.
    #[must_use]
    pub const fn fold_value(self, value: Self) -> Self {
        self.fold(value.low).fold(value.high)
    }

    /// Word `index` of a tensor with this value. The index wraps at 2^32.
    #[must_use]
    pub const fn word(self, index: u32) -> u32 {
        match index {
            0 => self.low,
            1 => self.high,
            _ => self.later_word(index),
        }
    }

    /// The same for an index of at least 2.
    const fn later_word(self, index: u32) -> u32 {
        scramble(self.low.wrapping_add(scramble(self.high ^ index)))
    }

    /// Returns the part of the value that a tensor of this size holds: all of it from 8 bytes on.
    #[must_use]
    pub const fn cut(self, bytes: u64) -> Self {
        Self {
            low: first_bytes(self.low, bytes),
            high: first_bytes(self.high, bytes.saturating_sub(4)),
        }
    }

    /// The deviation of the words that count, of which the first has index 0.
    fn deviation(self, words: &[[u8; 4]], counts: impl Fn(u64) -> bool) -> u32 {
        let wrong = |word: [u8; 4], right| scramble(u32::from_le_bytes(word) ^ right);
        let (first, later) = words.split_at(words.len().min(2));
        let first = (0..2_u32).zip(first).filter(|&(index, _)| counts(index.into()));
        let first = first.map(|(index, &word)| wrong(word, self.word(index)));
        let later = (2..words.len()).zip(later).filter(|&(index, _)| counts(index as u64));
        let later = later.map(|(index, &word)| wrong(word, self.later_word(index as u32)));
        first.fold(0, u32::wrapping_add).wrapping_add(later.fold(0, u32::wrapping_add))
    }

    /// Fills a buffer with the bytes `offset_bytes..` of a tensor with this value.
    pub fn fill(self, offset_bytes: u64, bytes: &mut [u8]) {
        let skipped = (offset_bytes % 4) as usize;
        let first_word = (offset_bytes / 4) as u32;
        let (first, rest) = bytes.split_at_mut(bytes.len().min((4 - skipped) % 4));
        first.copy_from_slice(&self.word(first_word).to_le_bytes()[skipped..][..first.len()]);
        let next_word = first_word.wrapping_add(u32::from(skipped > 0));
        let (words, last) = rest.as_chunks_mut();
        let count = words.len();
        // Compilers vectorize this loop, but not one that calls `word`.
        for (index, word) in (0..count).zip(&mut *words) {
            *word = self.later_word(next_word.wrapping_add(index as u32)).to_le_bytes();
        }
        for index in 0..2_u32 {
            for at in (index.wrapping_sub(next_word) as usize..count).step_by(INDICES) {
                words[at] = self.word(index).to_le_bytes();
            }
        }
        let last_word = self.word(next_word.wrapping_add(count as u32)).to_le_bytes();
        last.copy_from_slice(&last_word[..last.len()]);
    }
}

/// The number of indices of words, after which they begin again.
const INDICES: usize = (u32::MAX as usize).saturating_add(1);

/// Returns a word without the bytes beyond the end of a tensor of this size.
const fn first_bytes(word: u32, bytes: u64) -> u32 {
    if bytes >= 4 { word } else { word & ((1 << (8 * bytes)) - 1) }
}

/// The bytes that an op reads from a tensor, summed up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Reading {
    /// The tensor's first two words.
    pub value: Value,
    /// The sum of [`scramble`] over all words, each combined by xor with its correct word. Zero if
    /// the whole tensor holds one value.
    pub deviation: u32,
}

impl Reading {
    /// Returns the reading of a tensor that holds this value in all its bytes.
    #[must_use]
    pub const fn exact(value: Value) -> Self {
        Self { value, deviation: 0 }
    }

    /// Reads the bytes of a tensor.
    #[must_use]
    pub fn of(bytes: &[u8]) -> Self {
        Self::of_words(bytes, |_| true)
    }

    /// Reads the bytes of a tensor. Only the first two words and the words for which `counts` is
    /// true count.
    pub(crate) fn of_words(bytes: &[u8], counts: impl Fn(u64) -> bool) -> Self {
        let (words, rest) = bytes.as_chunks();
        let mut last = [0; 4];
        last[..rest.len()].copy_from_slice(rest);
        let last = (!rest.is_empty()).then(|| u32::from_le_bytes(last));
        let count = words.len() as u64;
        let mut first = words.iter().map(|&word| u32::from_le_bytes(word)).chain(last);
        let [low, high] = [(); 2].map(|()| first.next().unwrap_or(0));
        let value = Value { low, high };
        let blocks = (0..count).step_by(INDICES).zip(words.chunks(INDICES));
        let whole = blocks.map(|(start, words)| value.deviation(words, |at| counts(start + at)));
        let last = last.filter(|_| counts(count)).map_or(0, |last| {
            scramble(last ^ first_bytes(value.word(count as u32), rest.len() as u64))
        });
        let deviation = whole.fold(last, u32::wrapping_add);
        Self { value, deviation }
    }
}

/// Returns the value of a state of this size before the first iteration.
#[must_use]
pub const fn initial_state(tensor: TensorId, bytes: u64) -> Value {
    STATE.fold(tensor.0).cut(bytes)
}

/// Returns the value of an input of this size in an iteration, counted from 1.
#[must_use]
pub const fn input(tensor: TensorId, iteration: u64, bytes: u64) -> Value {
    let iteration = Value { low: iteration as u32, high: (iteration >> 32) as u32 };
    INPUT.fold(tensor.0).fold_value(iteration).cut(bytes)
}

/// The results of an op, from which the values that it writes follow.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Results {
    /// For temporaries and the workspace: from the tensors that repeats of the op also read.
    pub repeated: Value,
    /// For states, inputs and outputs: from all tensors that the op reads.
    pub all: Value,
}

impl Results {
    /// Returns the result from which tensors of a kind follow.
    #[must_use]
    pub const fn of(self, kind: Kind) -> Value {
        match kind {
            Kind::Temporary => self.repeated,
            Kind::State | Kind::Input | Kind::Output => self.all,
        }
    }
}

/// Returns the results of an op from its readings. Each reading folds in its low word, its high
/// word and its deviation. Repeats also read the first `repeated` tensors.
#[must_use]
pub fn op_results(op: OpId, repeated: usize, mut reads: impl Iterator<Item = Reading>) -> Results {
    let repeated = reads.by_ref().take(repeated).fold(OP.fold(op.0), fold_reading);
    Results { repeated, all: reads.fold(repeated, fold_reading) }
}

/// Returns the value of the `position`-th tensor that an op writes, of `bytes` bytes, from the
/// [result](Results) from which it follows.
#[must_use]
pub const fn written(result: Value, position: u32, bytes: u64) -> Value {
    result.fold(position).cut(bytes)
}

/// Returns one number for all states, in order. Two runs that computed the same values have the
/// same digest.
#[must_use]
pub fn digest(states: impl Iterator<Item = Reading>) -> u64 {
    let Value { low, high } = states.fold(DIGEST, fold_reading);
    u64::from(high) << 32 | u64::from(low)
}

fn fold_reading(value: Value, reading: Reading) -> Value {
    value.fold_value(reading.value).fold(reading.deviation)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bytes(value: Value, len: usize) -> Vec<u8> {
        let mut bytes = vec![0; len];
        value.fill(0, &mut bytes);
        bytes
    }

    #[test]
    fn order_position_and_iteration_matter() {
        let start = Value::default();
        assert_ne!(start.fold(1).fold(2), start.fold(2).fold(1));
        let [one, two] = [1, 2].map(|low| Reading::exact(Value { low, high: 0 }));
        let read = |readings: [Reading; 2]| op_results(OpId(0), 1, readings.into_iter());
        assert_ne!(read([one, two]).all, read([two, one]).all);
        assert_eq!(read([one, two]).repeated, read([one, one]).repeated);
        assert_ne!(written(start, 0, 8), written(start, 1, 8));
        assert_ne!(input(TensorId(0), 1, 8), input(TensorId(0), 2, 8));
        assert_ne!(input(TensorId(0), 1, 8), input(TensorId(0), 1 << 32, 8));
        assert_ne!(input(TensorId(0), 1, 8), input(TensorId(1), 1, 8));
    }

    #[test]
    fn the_words_are_these() {
        let value = initial_state(TensorId(0), 8);
        assert_eq!(
            [0, 1, 2, 3].map(|index| value.word(index)),
            [0x5065_3bed, 0x514e_28b7, 0x3e14_35a4, 0xa53a_9f14]
        );
        let reading = Reading { value, deviation: 5 };
        assert_eq!(digest([reading].into_iter()), 0x7484_f980_ad07_e791);
    }

    #[test]
    fn a_value_is_read_back_from_any_number_of_bytes() {
        let value = Value { low: 0x1234_5678, high: 0x9abc_def0 };
        for len in 1..40 {
            let written = value.cut(len as u64);
            assert_eq!(Reading::of(&bytes(value, len)), Reading::exact(written), "{len}");
            assert_eq!(bytes(written, len), bytes(value, len));
        }
        assert_eq!(value.cut(5), Value { low: 0x1234_5678, high: 0xf0 });
        for (from, to) in (0..13).flat_map(|from| (from..=13).map(move |to| (from, to))) {
            let mut part = vec![0; to - from];
            value.fill(from as u64, &mut part);
            assert_eq!(part, bytes(value, 13)[from..to]);
        }
        let mut around = [0; 24];
        value.fill((1 << 34) - 8, &mut around);
        let words =
            [u32::MAX - 1, u32::MAX, 0, 1, 2, 3].map(|index| value.word(index).to_le_bytes());
        assert_eq!(around, *words.as_flattened(), "the index wraps");
    }

    #[test]
    fn every_wrong_byte_shows() {
        let right = bytes(Value { low: 7, high: 8 }, 101);
        for at in 0..right.len() {
            for flip in [1, 0x80, 0xff] {
                let mut wrong = right.clone();
                wrong[at] ^= flip;
                assert_ne!(Reading::of(&wrong), Reading::of(&right));
            }
        }
        let mut moved = right.clone();
        moved.copy_within(32..64, 64);
        assert_ne!(Reading::of(&moved).deviation, 0);
    }
}
