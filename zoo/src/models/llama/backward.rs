//! The backward pass: from the loss to the weights.

use super::Dimensions;
use super::forward::{Decoder, Norm, Pass, Product, Saved};
use super::weights::{BFLOAT_BYTES, Layer, Matrix, Network, Perceptron, Sum, Weight};
use crate::models::layers::product_flops;
use crate::models::tape::{FLOAT_BYTES, Work};
use planner_core::{Kind, TensorId};

/// The reads and writes of an op that adds to gradients.
#[derive(Default)]
struct Sums {
    reads: Vec<TensorId>,
    writes: Vec<TensorId>,
}

impl FromIterator<Sum> for Sums {
    fn from_iter<I: IntoIterator<Item = Sum>>(sums: I) -> Self {
        let mut all = Self::default();
        for Sum { before, after } in sums {
            all.reads.extend(before);
            all.writes.push(after);
        }
        all
    }
}

/// The gradients of the outputs of the experts, and of their shares if there are several experts.
struct OfOuts {
    experts: Vec<TensorId>,
    routes: Option<TensorId>,
}

impl Decoder<'_> {
    /// Records the backward pass. The gradient of the values between layers is one tensor, which each branch
    /// adds to.
    pub(super) fn backward(&mut self, network: &mut Network, pass: Pass) {
        let of_norm = self.loss(network.head_mut(), pass.norm.out);
        let gradient = self.undo_norm("norm", &mut network.norm, pass.norm, of_norm, None);
        let trains_all = network.norm.trained;
        for (number, saved) in pass.layers.into_iter().enumerate().rev() {
            self.undo_layer(
                &mut network.layers[number],
                &saved,
                gradient,
                trains_all || number > 0,
            );
        }
        if trains_all {
            self.undo_embed(&mut network.table, pass.tokens, gradient);
        }
    }

    fn sums<'w>(&mut self, weights: impl IntoIterator<Item = &'w mut Weight>) -> Sums {
        weights.into_iter().filter_map(|weight| weight.sum_of_read(self.tape)).collect()
    }

    /// Adds the gradients of copies in bfloat16 to the gradients of their weights.
    fn add_up<'w>(&mut self, weights: impl IntoIterator<Item = &'w mut Weight>) {
        for weight in weights {
            let Some(of_copy) = weight.take_of_copy() else { continue };
            let Some(Sum { before, after }) = weight.sum(self.tape) else { continue };
            let reads: Vec<_> = [of_copy].into_iter().chain(before).collect();
            self.op(&format!("{}.copy.backward", weight.name), 0, &reads, &[after]);
        }
    }

    /// Records the head, the loss, and the gradients of the head and of its input. Computes scores for a few
    /// tokens at a time, which take about the memory of the head's input.
    fn loss(&mut self, head: &mut [Weight], x: TensorId) -> TensorId {
        let Dimensions { width, vocabulary, .. } = self.dimensions;
        let rows = self.rows;
        let labels = self.indices("labels");
        let loss = self.tape.tensor(self.name("loss"), FLOAT_BYTES, Kind::Output);
        let gradient = self.bfloats("head.grad_input", rows, width);
        let products = 2 + u128::from(head[0].trained);
        for part in &mut *head {
            self.copy(part);
        }
        let mut reads = vec![x, labels];
        reads.extend(head.iter().map(|part| part.tensor));
        let Sums { reads: before, mut writes } = self.sums(&mut *head);
        reads.extend(before);
        writes.extend([loss, gradient]);
        let chunk = rows.div_ceil(vocabulary.div_ceil(width)).next_power_of_two().min(rows);
        let work = Work {
            flops: product_flops(rows, width, vocabulary).saturating_mul(products),
            bytes: self.tape.bytes(&reads) + self.tape.bytes(&writes),
            workspace_bytes: chunk.saturating_mul(vocabulary).saturating_mul(BFLOAT_BYTES),
        };
        self.tape.op_of(self.name("head.loss"), work, &reads, &writes);
        self.add_up(head);
        gradient
    }

    /// Returns the gradient of the norm's input. If there is a `residual`, adds the gradient to it in place.
    fn undo_norm(
        &mut self,
        name: &str,
        weight: &mut Weight,
        norm: Norm,
        of_out: TensorId,
        residual: Option<TensorId>,
    ) -> TensorId {
        let of_input = residual.unwrap_or_else(|| {
            let (rows, width) = (self.rows, self.dimensions.width);
            self.bfloats("grad", rows, width)
        });
        let mut reads = vec![of_out, norm.input, weight.tensor];
        reads.extend(norm.scale);
        reads.extend(residual);
        let sums = self.sums([weight]);
        reads.extend(sums.reads);
        let writes: Vec<_> = [of_input].into_iter().chain(sums.writes).collect();
        self.op(&format!("{name}.backward"), 0, &reads, &writes);
        of_input
    }

    /// Turns `gradient` from the gradient of the layer's output into the gradient of its input, if `wanted`.
    fn undo_layer(&mut self, layer: &mut Layer, saved: &Saved, gradient: TensorId, wanted: bool) {
        let name = layer.name.clone();
        let at = |part: &str| format!("{name}.{part}");
        let of_outs = self.undo_combine(layer, saved, gradient);
        let mut of_inputs = Vec::new();
        for (number, expert) in layer.experts.iter_mut().enumerate() {
            let products = [saved.gate_up[number], saved.down[number]];
            of_inputs.push(self.undo_perceptron(expert, products, of_outs.experts[number]));
        }
        let of_norm = self.undo_route(layer, saved, &of_outs, of_inputs);
        let (norm, weight) = (saved.perceptron_norm, &mut layer.perceptron_norm);
        self.undo_norm(&at("mlp_norm"), weight, norm, of_norm, Some(gradient));

        let out = &mut layer.attention_out;
        let of_context = self.undo_inner_product(out, saved.attention_out, gradient);
        let of_qkv = self.undo_attention(&at("attn"), saved, of_context);
        if let Some(of_norm) = self.undo_product(&mut layer.qkv, saved.qkv, of_qkv, wanted) {
            let (norm, weight) = (saved.attention_norm, &mut layer.attention_norm);
            self.undo_norm(&at("attn_norm"), weight, norm, of_norm, Some(gradient));
        }
    }

    /// Returns the gradients of the outputs of the experts, and of their shares.
    fn undo_combine(&mut self, layer: &Layer, saved: &Saved, gradient: TensorId) -> OfOuts {
        let Some(routes) = saved.routes else {
            return OfOuts { experts: vec![gradient], routes: None };
        };
        let Dimensions { width, experts, .. } = self.dimensions;
        let (rows, expert_rows) = (self.rows, self.expert_rows());
        let name = format!("{}.combine.backward", layer.name);
        let of_outs: Vec<_> = layer
            .experts
            .iter()
            .map(|expert| self.bfloats(&format!("{}.grad", expert.name), expert_rows, width))
            .collect();
        let of_routes = self.floats(&format!("{}.router.grad", layer.name), rows, experts);
        let mut reads = vec![gradient, routes];
        reads.extend(saved.down.iter().map(|product| product.out));
        let writes: Vec<_> = of_outs.iter().copied().chain([of_routes]).collect();
        self.op(&name, 0, &reads, &writes);
        OfOuts { experts: of_outs, routes: Some(of_routes) }
    }

    fn undo_perceptron(
        &mut self,
        perceptron: &mut Perceptron,
        [gate_up, down]: [Product; 2],
        gradient: TensorId,
    ) -> TensorId {
        let of_gated = self.undo_inner_product(&mut perceptron.down, down, gradient);
        let name = format!("{}.swiglu", perceptron.name);
        let columns = 2 * self.dimensions.hidden;
        let of_gate_up = self.bfloats(&format!("{name}.grad_input"), gate_up.rows, columns);
        self.op(&format!("{name}.backward"), 0, &[of_gated, gate_up.out], &[of_gate_up]);
        self.undo_inner_product(&mut perceptron.gate_up, gate_up, of_gate_up)
    }

    /// Returns the gradient of the tensor that the experts' rows come from.
    fn undo_route(
        &mut self,
        layer: &mut Layer,
        saved: &Saved,
        of_outs: &OfOuts,
        of_inputs: Vec<TensorId>,
    ) -> TensorId {
        let (Some(routes), Some(of_routes)) = (saved.routes, of_outs.routes) else {
            return of_inputs[0];
        };
        let router = layer.router.as_mut().expect("it has made the routes");
        let Dimensions { width, experts, .. } = self.dimensions;
        let rows = self.rows;
        let name = &layer.name;
        let of_norm = self.bfloats(&format!("{name}.dispatch.grad_input"), rows, width);
        let mut reads = of_inputs;
        reads.push(routes);
        self.op(&format!("{name}.dispatch.backward"), 0, &reads, &[of_norm]);
        let products = 1 + u128::from(router.trained);
        let flops = product_flops(rows, width, experts).saturating_mul(products);
        let mut reads = vec![of_routes, routes, router.tensor, of_norm];
        reads.extend(router.trained.then_some(saved.perceptron_norm.out));
        let sums = self.sums([router]);
        reads.extend(sums.reads);
        let writes: Vec<_> = [of_norm].into_iter().chain(sums.writes).collect();
        self.op(&format!("{name}.router.backward"), flops, &reads, &writes);
        of_norm
    }

    /// Records five products for the two of the forward pass, since it computes the scores again. Adds up the
    /// gradients of queries in float32.
    fn undo_attention(&mut self, name: &str, saved: &Saved, of_context: TensorId) -> TensorId {
        let Dimensions { query_width, kv_width, heads, .. } = self.dimensions;
        let rows = self.rows;
        let of_qkv = self.bfloats(&format!("{name}.grad_qkv"), rows, query_width + 2 * kv_width);
        let mut reads = vec![of_context, saved.qkv.out, saved.context];
        reads.extend(saved.log_sums);
        let work = Work {
            flops: self.attention_flops() * 5 / 2,
            bytes: self.tape.bytes(&reads) + self.tape.bytes(&[of_qkv]),
            workspace_bytes: rows.saturating_mul(query_width + heads).saturating_mul(FLOAT_BYTES),
        };
        self.tape.op_of(self.name(&format!("{name}.backward")), work, &reads, &[of_qkv]);
        let turned = 2 * Self::row_bytes(rows, query_width + kv_width);
        self.sparse_op(&format!("{name}.rotary.backward"), turned, &[of_qkv], &[of_qkv]);
        of_qkv
    }

    /// Returns the gradient of the input.
    fn undo_inner_product(
        &mut self,
        matrix: &mut Matrix,
        product: Product,
        gradient: TensorId,
    ) -> TensorId {
        let of_input = self.undo_product(matrix, product, gradient, true);
        of_input.expect("a gradient that is wanted is made")
    }

    /// Returns the gradient of the input, if it is wanted.
    fn undo_product(
        &mut self,
        matrix: &mut Matrix,
        product: Product,
        gradient: TensorId,
        wanted: bool,
    ) -> Option<TensorId> {
        let (rows, inputs) = (product.rows, matrix.inputs);
        let flops = product_flops(rows, inputs, matrix.columns);
        let name = matrix.name.clone();
        let of_input = wanted.then(|| {
            let of_input = self.bfloats(&format!("{name}.grad_input"), rows, inputs);
            let reads = [gradient, matrix.weight.tensor];
            self.op(&format!("{name}.backward.input"), flops, &reads, &[of_input]);
            of_input
        });
        let sums = self.sums([&mut matrix.weight].into_iter().chain(&mut matrix.bias));
        if !sums.writes.is_empty() {
            let reads: Vec<_> = [gradient, product.input].into_iter().chain(sums.reads).collect();
            self.op(&format!("{name}.backward.weight"), flops, &reads, &sums.writes);
            self.add_up([&mut matrix.weight]);
        }
        self.undo_adapter(matrix, product, gradient, of_input);
        of_input
    }

    /// Adds to the gradient of the input.
    fn undo_adapter(
        &mut self,
        matrix: &mut Matrix,
        product: Product,
        gradient: TensorId,
        of_input: Option<TensorId>,
    ) {
        let (rows, inputs) = (product.rows, matrix.inputs);
        let forward = matrix.adapter_flops(rows);
        let (Some(adapter), Some(inner)) = (&mut matrix.adapter, product.inner) else { return };
        let unwanted =
            if of_input.is_some() { 0 } else { product_flops(rows, inputs, adapter.inner) };
        let flops = forward.saturating_mul(2).saturating_sub(unwanted);
        let mut reads = vec![gradient, product.input, inner];
        reads.extend([adapter.down.tensor, adapter.up.tensor]);
        reads.extend(of_input);
        let sums = self.sums([&mut adapter.down, &mut adapter.up]);
        reads.extend(sums.reads);
        let writes: Vec<_> = of_input.into_iter().chain(sums.writes).collect();
        self.op(&format!("{}.lora.backward", matrix.name), flops, &reads, &writes);
    }

    /// Adds rows to the gradient of the table. Clears the gradient first if it is new.
    fn undo_embed(&mut self, table: &mut [Weight], tokens: TensorId, gradient: TensorId) {
        let sums = table.iter_mut().filter_map(|part| part.sum(self.tape));
        let Sums { reads: before, writes } = sums.collect();
        let cleared = if before.is_empty() { self.tape.bytes(&writes) } else { 0 };
        let added = 3 * Self::row_bytes(self.rows, self.dimensions.width);
        let mut reads = vec![gradient, tokens];
        let moved = cleared + added + self.tape.bytes(&[tokens]);
        reads.extend(before);
        self.sparse_op("embed.backward", moved, &reads, &writes);
    }
}
