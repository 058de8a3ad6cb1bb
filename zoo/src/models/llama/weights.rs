//! The weights, the gradients that passes add up, and the update.

use super::{BIAS, Dimensions, HEAD, SLICES};
use crate::models::spec::Arguments;
use crate::models::tape::{FLOAT_BYTES, Tape};
use planner_core::{Kind, TensorId};

/// Size of a bfloat16 number.
pub(super) const BFLOAT_BYTES: u64 = 2;

/// The trained parameters, and the size of the numbers in other matrices.
#[derive(Clone, Copy)]
pub(super) struct Precision {
    pub(super) milli_bits: u64,
    pub(super) trains_all: bool,
    pub(super) trains_adapters: bool,
    /// Whether weights are float32, and products read copies in bfloat16.
    pub(super) copies: bool,
}

/// The rule of the update.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Rule {
    /// I. Loshchilov, F. Hutter: Decoupled weight decay regularization, 2019; with a float32 copy of the
    /// weights, from which it writes the bfloat16 weights.
    AdamW,
    /// AdamW on float32 weights, which each pass copies to bfloat16, as PyTorch's autocast does.
    Autocast,
    /// AdamW on the bfloat16 weights, with moments of bfloat16.
    AdamW16,
    /// Stochastic gradient descent on the bfloat16 weights.
    Sgd,
}

pub(super) struct Weight {
    pub(super) name: String,
    pub(super) elements: u64,
    /// The weight between steps.
    pub(super) kept: TensorId,
    /// The tensor that ops read: `kept`, or its copy in bfloat16.
    pub(super) tensor: TensorId,
    /// Whether products read copies. Such a weight is trained.
    pub(super) copied: bool,
    pub(super) trained: bool,
    number_bytes: u64,
    gradient: Option<TensorId>,
    /// The gradient of the copy, until it is added to `gradient`.
    of_copy: Option<TensorId>,
}

/// The gradient that a pass reads, and the gradient that it writes.
pub(super) struct Sum {
    pub(super) before: Option<TensorId>,
    pub(super) after: TensorId,
}

impl Weight {
    /// Returns the gradient. The first pass makes it, and later passes add to it. Returns `None` if the
    /// weight is not trained.
    pub(super) fn sum(&mut self, tape: &mut Tape) -> Option<Sum> {
        let before = self.gradient;
        self.trained.then(|| {
            let bytes = self.elements.saturating_mul(self.number_bytes);
            let new = || tape.tensor(format!("{}.grad", self.name), bytes, Kind::Temporary);
            Sum { before, after: *self.gradient.get_or_insert_with(new) }
        })
    }

    /// Returns the gradient of the tensor that ops read. If it is a copy, each pass makes its gradient anew.
    pub(super) fn sum_of_read(&mut self, tape: &mut Tape) -> Option<Sum> {
        if !self.copied {
            return self.sum(tape);
        }
        let bytes = self.elements.saturating_mul(BFLOAT_BYTES);
        let after = tape.tensor(format!("{}.copy.grad", self.name), bytes, Kind::Temporary);
        self.of_copy = Some(after);
        Some(Sum { before: None, after })
    }

    /// Takes the gradient of the copy, if it has not been added to the weight's gradient.
    pub(super) fn take_of_copy(&mut self) -> Option<TensorId> {
        self.of_copy.take()
    }
}

/// Two thin matrices whose product is added to a matrix (E. Hu et al.: LoRA: low-rank adaptation of large
/// language models, 2022). A matrix that stores several has one pair for each.
pub(super) struct Adapter {
    /// The columns between the two matrices.
    pub(super) inner: u64,
    pub(super) rank: u64,
    pub(super) down: Weight,
    pub(super) up: Weight,
}

/// A matrix with as many rows as its input has columns.
pub(super) struct Matrix {
    pub(super) name: String,
    pub(super) inputs: u64,
    pub(super) columns: u64,
    /// The matrices of this size in the weight: one, or one for each expert.
    pub(super) count: u64,
    pub(super) weight: Weight,
    pub(super) bias: Option<Weight>,
    pub(super) adapter: Option<Adapter>,
}

pub(super) struct Layer {
    pub(super) name: String,
    pub(super) attention_norm: Weight,
    /// Queries, keys and values.
    pub(super) qkv: Matrix,
    pub(super) attention_out: Matrix,
    pub(super) perceptron_norm: Weight,
    /// The weights that choose experts, if there are several.
    pub(super) router: Option<Weight>,
    pub(super) experts: Vec<Perceptron>,
}

pub(super) struct Perceptron {
    pub(super) name: String,
    /// The gate, and the values that it multiplies.
    pub(super) gate_up: Matrix,
    pub(super) down: Matrix,
}

pub(super) struct Network {
    pub(super) table: Vec<Weight>,
    pub(super) layers: Vec<Layer>,
    pub(super) norm: Weight,
    /// The head; empty if the head uses the table.
    own_head: Vec<Weight>,
}

/// Creates weights.
struct Maker<'t> {
    tape: &'t mut Tape,
    precision: Precision,
    rank: u64,
}

impl Maker<'_> {
    fn weight(&mut self, name: String, elements: u64, milli_bits: u64, trained: bool) -> Weight {
        let milli_bits = if self.precision.copies { 32_000 } else { milli_bits };
        let bits = u128::from(elements) * u128::from(milli_bits);
        let bytes = u64::try_from(bits.div_ceil(8_000)).unwrap_or(u64::MAX);
        let tensor = self.tape.tensor(name.clone(), bytes, Kind::State);
        Weight {
            name,
            elements,
            kept: tensor,
            tensor,
            copied: false,
            trained,
            number_bytes: if self.precision.copies { FLOAT_BYTES } else { BFLOAT_BYTES },
            gradient: None,
            of_copy: None,
        }
    }

    /// Creates the weight of a norm or a bias, which are never quantized or copied.
    fn small(&mut self, name: String, elements: u64) -> Weight {
        self.weight(name, elements, 16_000, self.precision.trains_all)
    }

    fn large(&mut self, name: String, elements: u64) -> Weight {
        let Precision { milli_bits, trains_all, copies, .. } = self.precision;
        Weight { copied: copies, ..self.weight(name, elements, milli_bits, trains_all) }
    }

    /// Creates the rows of a table or of the head, in parts.
    fn sliced(&mut self, name: &str, dimensions: Dimensions, slices: u64) -> Vec<Weight> {
        let Dimensions { vocabulary, width, .. } = dimensions;
        let rows = vocabulary.div_ceil(slices);
        let mut parts = Vec::new();
        for first in (0..vocabulary).step_by(rows as usize) {
            let suffix = if slices == 1 { String::new() } else { format!(".{}", parts.len()) };
            let elements = rows.min(vocabulary - first) * width;
            parts.push(self.large(format!("{name}.weight{suffix}"), elements));
        }
        parts
    }

    /// Creates matrices of the same input, stored as one. Each has its own adapter.
    fn matrix<const N: usize>(&mut self, name: String, inputs: u64, parts: [u64; N]) -> Matrix {
        self.matrices(1, name, inputs, parts)
    }

    /// Creates so many matrices of the same size, stored as one.
    fn matrices<const N: usize>(
        &mut self,
        count: u64,
        name: String,
        inputs: u64,
        parts: [u64; N],
    ) -> Matrix {
        let columns = parts.iter().sum();
        let weight = self.large(format!("{name}.weight"), count * inputs * columns);
        let (rank, trained) = (self.rank, self.precision.trains_adapters);
        let adapter = (rank > 0).then(|| {
            let inner = rank * N as u64;
            let mut part = |end, elements| {
                self.weight(format!("{name}.lora_{end}"), count * elements, 16_000, trained)
            };
            let (down, up) = (part("a", inputs * inner), part("b", rank * columns));
            Adapter { inner, rank, down, up }
        });
        Matrix { name, inputs, columns, count, weight, bias: None, adapter }
    }

    fn layer(&mut self, number: u64, dimensions: Dimensions, has_bias: bool) -> Layer {
        let Dimensions { width, query_width, kv_width, experts, stacked, .. } = dimensions;
        let perceptrons = if stacked { 1 } else { experts };
        let name = format!("layers.{number}");
        let attention_norm = self.small(format!("{name}.attn_norm.weight"), width);
        let qkv_parts = [query_width, kv_width, kv_width];
        let mut qkv = self.matrix(format!("{name}.attn.qkv"), width, qkv_parts);
        qkv.bias = has_bias.then(|| self.small(format!("{}.bias", qkv.name), qkv.columns));
        Layer {
            attention_norm,
            qkv,
            attention_out: self.matrix(format!("{name}.attn.o"), query_width, [width]),
            perceptron_norm: self.small(format!("{name}.mlp_norm.weight"), width),
            router: (experts > 1)
                .then(|| self.small(format!("{name}.router.weight"), experts * width)),
            experts: (0..perceptrons)
                .map(|expert| self.perceptron(&name, expert, dimensions))
                .collect(),
            name,
        }
    }

    fn perceptron(&mut self, layer: &str, expert: u64, dimensions: Dimensions) -> Perceptron {
        let Dimensions { width, hidden, experts, stacked, .. } = dimensions;
        let (name, count) = match experts {
            1 => (format!("{layer}.mlp"), 1),
            _ if stacked => (format!("{layer}.experts"), experts),
            _ => (format!("{layer}.experts.{expert}"), 1),
        };
        Perceptron {
            gate_up: self.matrices(count, format!("{name}.gate_up"), width, [hidden, hidden]),
            down: self.matrices(count, format!("{name}.down"), hidden, [width]),
            name,
        }
    }
}

impl Network {
    pub(super) fn new(
        tape: &mut Tape,
        dimensions: Dimensions,
        precision: Precision,
        rank: u64,
        arguments: &Arguments,
    ) -> Self {
        let mut maker = Maker { tape, precision, rank };
        let slices = arguments.get(&SLICES);
        let (is_tied, has_bias) = (arguments.get(&HEAD) == 1, arguments.get(&BIAS) == 1);
        let table = maker.sliced("embed", dimensions, slices);
        let layers = (0..dimensions.layers)
            .map(|number| maker.layer(number, dimensions, has_bias))
            .collect();
        let norm = maker.small("norm.weight".to_owned(), dimensions.width);
        let own_head = if is_tied { Vec::new() } else { maker.sliced("head", dimensions, slices) };
        Self { table, layers, norm, own_head }
    }

    pub(super) fn head(&self) -> &[Weight] {
        if self.own_head.is_empty() { &self.table } else { &self.own_head }
    }

    pub(super) fn head_mut(&mut self) -> &mut [Weight] {
        if self.own_head.is_empty() { &mut self.table } else { &mut self.own_head }
    }

    /// Updates the trained parameters. One op updates a matrix with the small weights beside it, and one op
    /// updates all adapters of a layer.
    pub(super) fn update(self, tape: &mut Tape, rule: Rule) {
        for slice in self.table {
            rule.update(tape, &slice.name.clone(), &[slice]);
        }
        for layer in self.layers {
            let mut matrices =
                vec![(vec![layer.attention_norm], layer.qkv), (Vec::new(), layer.attention_out)];
            let mut small = vec![layer.perceptron_norm];
            small.extend(layer.router);
            for Perceptron { gate_up, down, .. } in layer.experts {
                matrices.push((std::mem::take(&mut small), gate_up));
                matrices.push((Vec::new(), down));
            }
            let mut adapters = Vec::new();
            for (small, matrix) in matrices {
                let group = small.into_iter().chain([matrix.weight]).chain(matrix.bias);
                rule.update(tape, &matrix.name, &group.collect::<Vec<_>>());
                adapters.extend(matrix.adapter.into_iter().flat_map(|both| [both.down, both.up]));
            }
            rule.update(tape, &format!("{}.lora", layer.name), &adapters);
        }
        for rest in [self.norm].into_iter().chain(self.own_head) {
            rule.update(tape, &rest.name.clone(), &[rest]);
        }
    }
}

impl Rule {
    /// The name of the op, and its states with the bytes of each number.
    const fn states(self) -> (&'static str, &'static [(&'static str, u64)]) {
        match self {
            Self::AdamW => (
                "adamw",
                &[("master", FLOAT_BYTES), ("exp_avg", FLOAT_BYTES), ("exp_avg_sq", FLOAT_BYTES)],
            ),
            Self::Autocast => ("adamw", &[("exp_avg", FLOAT_BYTES), ("exp_avg_sq", FLOAT_BYTES)]),
            Self::AdamW16 => {
                ("adamw16", &[("exp_avg", BFLOAT_BYTES), ("exp_avg_sq", BFLOAT_BYTES)])
            }
            Self::Sgd => ("sgd", &[]),
        }
    }

    /// Updates the trained weights in one op, if any weight is trained.
    fn update(self, tape: &mut Tape, name: &str, weights: &[Weight]) {
        let (rule, states) = self.states();
        let (mut reads, mut writes) = (Vec::new(), Vec::new());
        for weight in weights.iter().filter(|weight| weight.trained) {
            reads.push(weight.gradient.expect("the backward pass has made all gradients"));
            writes.push(weight.kept);
            if self != Self::AdamW {
                reads.push(weight.kept);
            }
            for (state, number_bytes) in states {
                let bytes = weight.elements.saturating_mul(*number_bytes);
                let state = tape.tensor(format!("{}.{state}", weight.name), bytes, Kind::State);
                reads.push(state);
                writes.push(state);
            }
        }
        if !writes.is_empty() {
            tape.update(format!("{name}.{rule}"), &reads, &writes);
        }
    }
}
