//! The data: a text, from which sequences of characters are drawn.

/// The licence of this program, in which words and phrases come again.
const TEXT: &str = include_str!("../../../LICENSE-APACHE");

/// A text, each character as a number.
#[derive(Clone, Debug)]
pub(crate) struct Text {
    numbers: Vec<u32>,
    /// How many different characters there are.
    pub(crate) characters: u32,
}

impl Text {
    pub(crate) fn new() -> Self {
        let mut known: Vec<_> = TEXT.bytes().collect();
        known.sort_unstable();
        known.dedup();
        let number = |byte| known.binary_search(&byte).expect("each byte of the text is known");
        let numbers = TEXT.bytes().map(|byte| number(byte) as u32).collect();
        Self { numbers, characters: known.len() as u32 }
    }

    /// The sequences drawn for an iteration, one after the other; and the same one character
    /// on, which is what is to be guessed.
    pub(crate) fn batch(&self, iteration: u64, sequences: u32, context: u32) -> [Vec<u32>; 2] {
        let context = context as usize;
        let starts = (0..u64::from(sequences)).map(|sequence| {
            let drawn = scramble(iteration << 16 | sequence);
            (drawn % (self.numbers.len() - context) as u64) as usize
        });
        let at = |on: usize| {
            let drawn = starts.clone().flat_map(|start| &self.numbers[start + on..][..context]);
            drawn.copied().collect()
        };
        [at(0), at(1)]
    }
}

/// A number that looks drawn at random: the finalizer of `SplitMix64`.
pub(crate) const fn scramble(word: u64) -> u64 {
    let word = word.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let word = (word ^ (word >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let word = (word ^ (word >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    word ^ (word >> 31)
}
