//! The transformer's loss in plain arithmetic of 64 bits.

use crate::model::Sizes;

/// Rows of this many numbers each.
#[derive(Clone)]
struct Rows(Vec<Vec<f64>>);

impl Rows {
    fn map(&self, each: impl FnMut(&Vec<f64>) -> Vec<f64>) -> Self {
        Self(self.0.iter().map(each).collect())
    }

    fn plus(&self, other: &Self) -> Self {
        let sum = |(one, two): (&Vec<f64>, &Vec<f64>)| {
            one.iter().zip(two).map(|(one, two)| one + two).collect()
        };
        Self(self.0.iter().zip(&other.0).map(sum).collect())
    }

    /// Through a layer with a row of weights for each input, and the biases after them.
    fn through(&self, weights: &[f64]) -> Self {
        self.map(|row| {
            let columns = weights.len() / (row.len() + 1);
            let mut result = weights[row.len() * columns..].to_vec();
            for (value, weights) in row.iter().zip(weights.chunks(columns)) {
                for (sum, weight) in result.iter_mut().zip(weights) {
                    *sum += value * weight;
                }
            }
            result
        })
    }

    fn normal(&self, gains: &[f64]) -> Self {
        self.map(|row| {
            let width = row.len() as f64;
            let mean = row.iter().sum::<f64>() / width;
            let square = row.iter().map(|value| (value - mean).powi(2)).sum::<f64>() / width;
            let (gains, biases) = gains.split_at(row.len());
            let normal = row.iter().map(|value| (value - mean) / (square + 1e-5).sqrt());
            normal.zip(gains.iter().zip(biases)).map(|(x, (gain, bias))| x * gain + bias).collect()
        })
    }

    fn gelu(&self) -> Self {
        let factor = (2.0 / std::f64::consts::PI).sqrt();
        let gelu = |x: &f64| 0.5 * x * (1.0 + (factor * (x + 0.044715 * x.powi(3))).tanh());
        self.map(|row| row.iter().map(gelu).collect())
    }
}

fn softmax(scores: &[f64]) -> Vec<f64> {
    let most = scores.iter().copied().fold(f64::MIN, f64::max);
    let sum: f64 = scores.iter().map(|score| (score - most).exp()).sum();
    scores.iter().map(|score| (score - most).exp() / sum).collect()
}

/// Of one sequence: each position sees itself and those before it.
fn attention(split: &Rows, heads: usize) -> Rows {
    let width = split.0[0].len() / 3;
    let size = width / heads;
    let mut mixed = vec![vec![0.0; width]; split.0.len()];
    for (place, mixed) in mixed.iter_mut().enumerate() {
        for head in 0..heads {
            let part = |row: &Vec<f64>, which| {
                let first = which * width + head * size;
                row[first..first + size].to_vec()
            };
            let query = part(&split.0[place], 0);
            let score = |row: &Vec<f64>| {
                let key = part(row, 1);
                let product: f64 = query.iter().zip(key).map(|(one, two)| one * two).sum();
                product / (size as f64).sqrt()
            };
            let seen = &split.0[..=place];
            let weights = softmax(&seen.iter().map(score).collect::<Vec<_>>());
            for (row, weight) in seen.iter().zip(weights) {
                let values = part(row, 2);
                for (sum, value) in mixed[head * size..].iter_mut().zip(values) {
                    *sum += weight * value;
                }
            }
        }
    }
    Rows(mixed)
}

/// The mean loss of a batch, by the weights of all parameters in the model's order.
pub(crate) fn loss(sizes: &Sizes, weights: &[Vec<f64>], [text, targets]: &[Vec<u32>; 2]) -> f64 {
    let (width, context) = (sizes.width as usize, sizes.context as usize);
    let row = |at: usize| weights[0][at * width..][..width].to_vec();
    let mut sum = 0.0;
    for (text, targets) in text.chunks(context).zip(targets.chunks(context)) {
        let characters = Rows(text.iter().map(|&number| row(number as usize)).collect());
        let places = (0..context).map(|place| row(sizes.characters as usize + place));
        let mut value = characters.plus(&Rows(places.collect()));
        for block in weights[1..weights.len() - 2].chunks(6) {
            let [split, merge, widen, narrow, first, second] = block else {
                panic!("six parameters a block")
            };
            let mixed = attention(&value.normal(first).through(split), sizes.heads as usize);
            value = value.plus(&mixed.through(merge));
            value = value.plus(&value.normal(second).through(widen).gelu().through(narrow));
        }
        let [norm, head] = &weights[weights.len() - 2..] else { panic!("the last two") };
        let logits = value.normal(norm).through(head);
        let losses = logits.0.iter().zip(targets);
        sum += losses.map(|(row, &target)| -softmax(row)[target as usize].ln()).sum::<f64>();
    }
    sum / f64::from(sizes.rows())
}
