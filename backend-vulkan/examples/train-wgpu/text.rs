//! The data: a text, as characters that follow six others.

/// The licence of this program, in which words and phrases come again.
const TEXT: &str = include_str!("../../../LICENSE-APACHE");

/// Characters from which the next one is guessed.
pub(crate) const CONTEXT: usize = 6;

/// A text, each character as a number.
#[derive(Clone, Debug)]
pub(crate) struct Text {
    numbers: Vec<usize>,
    /// How many different characters there are.
    pub(crate) characters: usize,
}

impl Text {
    pub(crate) fn new() -> Self {
        let mut known: Vec<_> = TEXT.bytes().collect();
        known.sort_unstable();
        known.dedup();
        let number = |byte| known.binary_search(&byte).expect("each byte of the text is known");
        Self { numbers: TEXT.bytes().map(number).collect(), characters: known.len() }
    }

    /// Places in the text drawn for an iteration: what precedes each, as ones at the
    /// characters' numbers, and the number of the character itself.
    pub(crate) fn batch(&self, iteration: u64, rows: usize) -> (Vec<f32>, Vec<u32>) {
        let width = CONTEXT * self.characters;
        let mut ones = vec![0.0; rows * width];
        let mut targets = Vec::with_capacity(rows);
        for row in 0..rows {
            let drawn = scramble(iteration << 16 | row as u64) as usize;
            let at = CONTEXT + drawn % (self.numbers.len() - CONTEXT);
            for (place, number) in self.numbers[at - CONTEXT..at].iter().enumerate() {
                ones[row * width + place * self.characters + number] = 1.0;
            }
            targets.push(self.numbers[at] as u32);
        }
        (ones, targets)
    }
}

/// A number that looks drawn at random: the finalizer of `SplitMix64`.
pub(crate) const fn scramble(word: u64) -> u64 {
    let word = word.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let word = (word ^ (word >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let word = (word ^ (word >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    word ^ (word >> 31)
}
