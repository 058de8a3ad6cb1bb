//! The forward pass: from tokens to scores.

use super::weights::{BFLOAT_BYTES, Layer, Matrix, Network, Perceptron, Weight};
use super::{Dimensions, Mode};
use crate::models::layers::product_flops;
use crate::models::tape::{FLOAT_BYTES, INDEX_BYTES, Tape, Work};
use planner_core::{Kind, TensorId};

/// A pass over some texts.
pub(super) struct Decoder<'t> {
    pub(super) tape: &'t mut Tape,
    pub(super) dimensions: Dimensions,
    pub(super) mode: Mode,
    pub(super) batch: u64,
    /// Tokens of a text, with the tokens in the cache.
    sequence: u64,
    /// Rows that pass through the layers.
    pub(super) rows: u64,
    /// The start of the names of ops and temporaries.
    prefix: String,
}

/// The output of a norm, and the data for its backward op.
#[derive(Clone, Copy)]
pub(super) struct Norm {
    pub(super) input: TensorId,
    pub(super) out: TensorId,
    /// The factor of each row; in training.
    pub(super) scale: Option<TensorId>,
}

/// The output of a product with a matrix, and the data for its backward op.
#[derive(Clone, Copy)]
pub(super) struct Product {
    pub(super) rows: u64,
    pub(super) input: TensorId,
    pub(super) out: TensorId,
    /// The tensor between the two halves of an adapter; in training.
    pub(super) inner: Option<TensorId>,
}

/// The data for the backward pass of a layer.
pub(super) struct Saved {
    pub(super) attention_norm: Norm,
    pub(super) qkv: Product,
    pub(super) context: TensorId,
    /// The logarithm of the sum of each row of scores; in training.
    pub(super) log_sums: Option<TensorId>,
    pub(super) attention_out: Product,
    pub(super) perceptron_norm: Norm,
    /// The rows of each expert and their shares in the sum, if there are several experts.
    pub(super) routes: Option<TensorId>,
    /// The product of each expert.
    pub(super) gate_up: Vec<Product>,
    pub(super) down: Vec<Product>,
    pub(super) out: TensorId,
}

/// The data for the backward pass.
pub(super) struct Pass {
    pub(super) tokens: TensorId,
    pub(super) layers: Vec<Saved>,
    pub(super) norm: Norm,
}

impl<'t> Decoder<'t> {
    pub(super) fn new(
        tape: &'t mut Tape,
        dimensions: Dimensions,
        mode: Mode,
        [batch, sequence]: [u64; 2],
        prefix: String,
    ) -> Self {
        let rows = if mode == Mode::Token { batch } else { batch * sequence };
        Self { tape, dimensions, mode, batch, sequence, rows, prefix }
    }

    pub(super) fn name(&self, name: &str) -> String {
        format!("{}{name}", self.prefix)
    }

    pub(super) fn bfloats(&mut self, name: &str, rows: u64, columns: u64) -> TensorId {
        let bytes = rows.saturating_mul(columns).saturating_mul(BFLOAT_BYTES);
        self.tape.tensor(self.name(name), bytes, Kind::Temporary)
    }

    pub(super) fn floats(&mut self, name: &str, rows: u64, columns: u64) -> TensorId {
        let bytes = rows.saturating_mul(columns).saturating_mul(FLOAT_BYTES);
        self.tape.tensor(self.name(name), bytes, Kind::Temporary)
    }

    pub(super) fn indices(&mut self, name: &str) -> TensorId {
        let bytes = self.rows.saturating_mul(INDEX_BYTES);
        self.tape.tensor(self.name(name), bytes, Kind::Input)
    }

    pub(super) fn op(&mut self, name: &str, flops: u128, reads: &[TensorId], writes: &[TensorId]) {
        self.tape.op(self.name(name), flops, reads, writes);
    }

    /// Records an op with negligible arithmetic that moves fewer bytes than its tensors have.
    pub(super) fn sparse_op(
        &mut self,
        name: &str,
        bytes: u128,
        reads: &[TensorId],
        writes: &[TensorId],
    ) {
        let work = Work { flops: 0, bytes, workspace_bytes: 0 };
        self.tape.op_of(self.name(name), work, reads, writes);
    }

    /// The bytes of rows of bfloat16.
    pub(super) fn row_bytes(rows: u64, columns: u64) -> u128 {
        u128::from(rows) * u128::from(columns) * u128::from(BFLOAT_BYTES)
    }

    /// Records the pass up to the last norm.
    pub(super) fn forward(&mut self, network: &mut Network) -> Pass {
        let tokens = match self.mode {
            // The next iteration begins with the token that this one finds.
            Mode::Token => {
                let bytes = self.rows.saturating_mul(INDEX_BYTES);
                self.tape.tensor(self.name("token"), bytes, Kind::State)
            }
            Mode::Training | Mode::Prompt => self.indices("tokens"),
        };
        let mut x = self.embed(network, tokens);
        let mut layers = Vec::new();
        for layer in &mut network.layers {
            let saved = self.layer(layer, x);
            x = saved.out;
            layers.push(saved);
        }
        // The scores need only the last token of each text.
        let rows = if self.mode == Mode::Training { self.rows } else { self.batch };
        let norm = self.normalize("norm", x, &network.norm, rows);
        Pass { tokens, layers, norm }
    }

    /// Reads a row of the table for each token.
    fn embed(&mut self, network: &Network, tokens: TensorId) -> TensorId {
        let (rows, width) = (self.rows, self.dimensions.width);
        let x = self.bfloats("embed.out", rows, width);
        let reads: Vec<_> =
            [tokens].into_iter().chain(network.table.iter().map(|part| part.kept)).collect();
        let bytes = 2 * Self::row_bytes(rows, width) + u128::from(rows * INDEX_BYTES);
        self.sparse_op("embed", bytes, &reads, &[x]);
        x
    }

    /// Records a layer. It does not overwrite `x`, since the norm's backward op reads it.
    fn layer(&mut self, layer: &mut Layer, x: TensorId) -> Saved {
        let rows = self.rows;
        let name = layer.name.clone();
        let at = |part: &str| format!("{name}.{part}");
        let attention_norm = self.normalize(&at("attn_norm"), x, &layer.attention_norm, rows);
        let qkv = self.multiply(&mut layer.qkv, attention_norm.out, rows);
        let (context, log_sums) = self.attend(&at("attn"), qkv.out);
        let attention_out = self.multiply(&mut layer.attention_out, context, rows);
        let middle = attention_out.out;
        self.op(&at("attn.add"), 0, &[middle, x], &[middle]);
        let perceptron_norm = self.normalize(&at("mlp_norm"), middle, &layer.perceptron_norm, rows);
        let (routes, inputs) = self.route(layer, perceptron_norm.out);
        let (mut gate_up, mut down) = (Vec::new(), Vec::new());
        for (expert, input) in layer.experts.iter_mut().zip(inputs) {
            let [first, second] = self.perceptron(expert, input);
            gate_up.push(first);
            down.push(second);
        }
        let out = match routes {
            None => down[0].out,
            Some(routes) => self.combine(layer, routes, &down),
        };
        self.op(&at("mlp.add"), 0, &[out, middle], &[out]);
        Saved {
            attention_norm,
            qkv,
            context,
            log_sums,
            attention_out,
            perceptron_norm,
            routes,
            gate_up,
            down,
            out,
        }
    }

    /// The rows of a perceptron. If each expert is one, it has the same part of the tokens, at least one.
    pub(super) fn expert_rows(&self) -> u64 {
        let Dimensions { experts, active, stacked, .. } = self.dimensions;
        (self.rows * active).div_ceil(if stacked { 1 } else { experts })
    }

    /// The expected bytes of stacked weights that some token needs, if each token chooses its experts at
    /// random; all bytes of other weights.
    fn chosen_bytes(&self, count: u64, bytes: u128) -> u128 {
        const WHOLE: u128 = 1 << 32;
        let Dimensions { experts, active, .. } = self.dimensions;
        if count == 1 {
            return bytes;
        }
        let mut missed = WHOLE;
        for _ in 0..self.rows {
            missed = missed * u128::from(experts - active) / u128::from(experts);
            if missed == 0 {
                break;
            }
        }
        bytes.saturating_mul(WHOLE - missed) / WHOLE
    }

    /// Assigns each token to some experts. Each expert gets a copy of its rows.
    fn route(&mut self, layer: &Layer, x: TensorId) -> (Option<TensorId>, Vec<TensorId>) {
        let Some(router) = &layer.router else { return (None, vec![x]) };
        let Dimensions { width, experts, .. } = self.dimensions;
        let (rows, expert_rows) = (self.rows, self.expert_rows());
        let routes = self.floats(&format!("{}.router.out", layer.name), rows, experts);
        let flops = product_flops(rows, width, experts);
        self.op(&format!("{}.router", layer.name), flops, &[x, router.tensor], &[routes]);
        let part = |expert: &Perceptron| format!("{}.in", expert.name);
        let inputs: Vec<_> = layer
            .experts
            .iter()
            .map(|expert| self.bfloats(&part(expert), expert_rows, width))
            .collect();
        let copied = 2 * self.tape.bytes(&inputs) + self.tape.bytes(&[routes]);
        self.sparse_op(&format!("{}.dispatch", layer.name), copied, &[x, routes], &inputs);
        (Some(routes), inputs)
    }

    fn perceptron(&mut self, perceptron: &mut Perceptron, input: TensorId) -> [Product; 2] {
        let rows = self.expert_rows();
        let gate_up = self.multiply(&mut perceptron.gate_up, input, rows);
        let name = format!("{}.swiglu", perceptron.name);
        let gated = self.bfloats(&format!("{name}.out"), rows, self.dimensions.hidden);
        self.op(&name, 0, &[gate_up.out], &[gated]);
        [gate_up, self.multiply(&mut perceptron.down, gated, rows)]
    }

    /// Adds up the outputs of the experts for each token.
    fn combine(&mut self, layer: &Layer, routes: TensorId, down: &[Product]) -> TensorId {
        let name = format!("{}.combine", layer.name);
        let out = self.bfloats(&format!("{name}.out"), self.rows, self.dimensions.width);
        let reads: Vec<_> = [routes].into_iter().chain(down.iter().map(|part| part.out)).collect();
        self.op(&name, 0, &reads, &[out]);
        out
    }

    /// Normalizes `rows` rows of `x`. If `x` has more rows, these are the last rows of the texts.
    fn normalize(&mut self, name: &str, x: TensorId, weight: &Weight, rows: u64) -> Norm {
        let width = self.dimensions.width;
        let out = self.bfloats(&format!("{name}.out"), rows, width);
        let trains = self.mode == Mode::Training;
        let scale = trains.then(|| self.floats(&format!("{name}.scale"), rows, 1));
        let writes: Vec<_> = [out].into_iter().chain(scale).collect();
        let moved = 2 * Self::row_bytes(rows, width)
            + Self::row_bytes(1, width)
            + scale.map_or(0, |_| u128::from(rows * FLOAT_BYTES));
        self.sparse_op(name, moved, &[x, weight.tensor], &writes);
        Norm { input: x, out, scale }
    }

    /// Copies the weight to bfloat16, if products read copies of it.
    pub(super) fn copy(&mut self, weight: &mut Weight) {
        if weight.copied {
            let name = format!("{}.copy", weight.name);
            weight.tensor = self.bfloats(&name, weight.elements, 1);
            self.op(&name, 0, &[weight.kept], &[weight.tensor]);
        }
    }

    fn multiply(&mut self, matrix: &mut Matrix, x: TensorId, rows: u64) -> Product {
        self.copy(&mut matrix.weight);
        let matrix = &*matrix;
        let Matrix { name, inputs, columns, .. } = matrix;
        let out = self.bfloats(&format!("{name}.out"), rows, *columns);
        let bias = matrix.bias.as_ref().map(|bias| bias.tensor);
        let weight = matrix.weight.tensor;
        let reads: Vec<_> = [x, weight].into_iter().chain(bias).collect();
        let flops = product_flops(rows, *inputs, *columns);
        self.product_op(name, matrix.count, flops, [&reads, &[weight]], &[out]);
        let Some(adapter) = &matrix.adapter else {
            return Product { rows, input: x, out, inner: None };
        };
        let name = format!("{name}.lora");
        let inner = self.bfloats(&format!("{name}.inner"), rows, adapter.inner);
        let weights = [adapter.down.tensor, adapter.up.tensor];
        let reads = [x, weights[0], weights[1], out];
        let flops = matrix.adapter_flops(rows);
        self.product_op(&name, matrix.count, flops, [&reads, &weights], &[out, inner]);
        Product { rows, input: x, out, inner: Some(inner) }
    }

    /// Records an op whose `reads` include `weights`, each of which stores `count` matrices.
    fn product_op(
        &mut self,
        name: &str,
        count: u64,
        flops: u128,
        [reads, weights]: [&[TensorId]; 2],
        writes: &[TensorId],
    ) {
        let weight_bytes = self.tape.bytes(weights);
        let unread_bytes = weight_bytes - self.chosen_bytes(count, weight_bytes);
        let bytes = self.tape.bytes(reads) + self.tape.bytes(writes) - unread_bytes;
        let work = Work { flops, bytes, workspace_bytes: 0 };
        self.tape.op_of(self.name(name), work, reads, writes);
    }

    /// Rotates queries and keys in place, caches keys and values if a later pass needs them, and computes the
    /// attention of each token to all tokens up to it.
    fn attend(&mut self, name: &str, qkv: TensorId) -> (TensorId, Option<TensorId>) {
        let Dimensions { query_width, kv_width, heads, .. } = self.dimensions;
        let rows = self.rows;
        let is_training = self.mode == Mode::Training;
        let cache = (!is_training).then(|| {
            let rows = self.batch.saturating_mul(self.sequence);
            let bytes = rows.saturating_mul(2 * kv_width).saturating_mul(BFLOAT_BYTES);
            self.tape.tensor(self.name(&format!("{name}.cache")), bytes, Kind::State)
        });
        // The op adds a token to the cache. The rest of the cache stays.
        let before = cache.filter(|_| self.mode == Mode::Token);
        let turned = 2 * Self::row_bytes(rows, query_width + kv_width);
        let cached = cache.map_or(0, |_| Self::row_bytes(rows, 3 * kv_width));
        let reads: Vec<_> = [qkv].into_iter().chain(before).collect();
        let writes: Vec<_> = [qkv].into_iter().chain(cache).collect();
        self.sparse_op(&format!("{name}.rotary"), turned + cached, &reads, &writes);

        let context = self.bfloats(&format!("{name}.out"), rows, query_width);
        let log_sums = is_training.then(|| self.floats(&format!("{name}.log_sums"), rows, heads));
        let reads: Vec<_> = [qkv].into_iter().chain(before).collect();
        let writes: Vec<_> = [context].into_iter().chain(log_sums).collect();
        self.op(name, self.attention_flops(), &reads, &writes);
        (context, log_sums)
    }

    /// The operations of attention: two products for each column and each pair of tokens in which one sees
    /// the other.
    pub(super) fn attention_flops(&self) -> u128 {
        let sequence = u128::from(self.sequence);
        let pairs = match self.mode {
            Mode::Training | Mode::Prompt => sequence * (sequence + 1) / 2,
            Mode::Token => sequence,
        };
        4 * u128::from(self.batch) * pairs * u128::from(self.dimensions.query_width)
    }

    /// Records the scores of each next token. If tokens come one after the other, also records the choice of
    /// the best token.
    pub(super) fn scores(&mut self, network: &Network, pass: &Pass) {
        let Dimensions { width, vocabulary, .. } = self.dimensions;
        let bytes = self.batch.saturating_mul(vocabulary).saturating_mul(FLOAT_BYTES);
        let scores = self.tape.tensor(self.name("logits"), bytes, Kind::Output);
        let reads: Vec<_> = [pass.norm.out]
            .into_iter()
            .chain(network.head().iter().map(|part| part.tensor))
            .collect();
        self.op("head", product_flops(self.batch, width, vocabulary), &reads, &[scores]);
        if self.mode == Mode::Token {
            self.sparse_op("sample", u128::from(bytes), &[scores], &[pass.tokens]);
        }
    }
}

impl Matrix {
    /// The operations of both halves of the adapter, if the matrix has one.
    pub(super) fn adapter_flops(&self, rows: u64) -> u128 {
        self.adapter.as_ref().map_or(0, |adapter| {
            product_flops(rows, self.inputs, adapter.inner).saturating_add(product_flops(
                rows,
                adapter.rank,
                self.columns,
            ))
        })
    }
}
