//! A decoder-only transformer and its training as a graph, beside what each op launches.

use crate::layers::{Linear, Norm};
use crate::text::scramble;
use crate::work::{Argument, Location, Work, by_row, each};
use planner_core::{Kind, TensorId};
use workloads::OwnedGraph;

/// Of the transformer and of its data.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Sizes {
    /// Different characters.
    pub(crate) characters: u32,
    /// Numbers for each position of a sequence.
    pub(crate) width: u32,
    pub(crate) layers: u32,
    /// Heads of attention, into which the width is divided.
    pub(crate) heads: u32,
    /// Characters of a sequence.
    pub(crate) context: u32,
    /// Sequences of an iteration.
    pub(crate) batch: u32,
    /// Number of losses that the model keeps.
    pub(crate) iterations: u64,
    /// Adam's step size.
    pub(crate) rate: f32,
}

impl Sizes {
    /// Places in all sequences of an iteration.
    pub(crate) const fn rows(&self) -> u32 {
        self.batch * self.context
    }

    /// Elements of a value that has `width` for each row.
    pub(crate) fn elements(&self, width: u32) -> u64 {
        u64::from(self.rows()) * u64::from(width)
    }
}

/// What a state holds at first; zeros after that.
#[derive(Clone, Copy, Debug)]
pub(crate) enum First {
    Zeros,
    Ones(u64),
    /// This many elements drawn by the parameter's number, with a variance of one in `inputs`.
    Drawn {
        parameter: u64,
        count: u64,
        inputs: u32,
    },
    /// Training that has not begun.
    Progress,
}

/// Weights that are trained, and what Adam keeps of them.
#[derive(Clone, Debug)]
pub(crate) struct Parameter {
    pub(crate) name: String,
    pub(crate) count: u64,
    pub(crate) weights: TensorId,
    /// Of the gradient: a running mean, and one of its square.
    pub(crate) moments: [TensorId; 2],
    pub(crate) gradient: TensorId,
}

/// The graph, and what its ops are.
#[derive(Clone, Debug)]
pub(crate) struct Model {
    pub(crate) sizes: Sizes,
    pub(crate) graph: OwnedGraph,
    /// What each op launches.
    pub(crate) ops: Vec<Vec<Work>>,
    pub(crate) text: TensorId,
    pub(crate) targets: TensorId,
    /// How training goes on, as in the source of the kernels.
    pub(crate) progress: TensorId,
    pub(crate) parameters: Vec<Parameter>,
    first: Vec<First>,
}

/// Words of the progress before the losses, as in the source.
pub(crate) const LOSSES: usize = 3;

/// What ops take until they have been measured.
const UNKNOWN_NS: u64 = 1000;

/// A block of the transformer.
struct Block {
    norms: [Norm; 2],
    /// To queries, keys and values side by side.
    split: Linear,
    merge: Linear,
    widen: Linear,
    narrow: Linear,
}

/// What a block's backward pass needs of its forward pass.
struct Passed {
    inputs: [TensorId; 2],
    normal: [TensorId; 2],
    statistics: [TensorId; 2],
    /// Queries, keys and values side by side.
    split: TensorId,
    /// Of attention.
    weights: TensorId,
    mixed: TensorId,
    wide: TensorId,
    active: TensorId,
}

impl Model {
    pub(crate) fn new(sizes: Sizes) -> Self {
        let mut graph = OwnedGraph::new("transformer");
        let input_bytes = 4 * u64::from(sizes.rows());
        let mut model = Self {
            text: graph.push_tensor("text", input_bytes, Kind::Input),
            targets: graph.push_tensor("targets", input_bytes, Kind::Input),
            progress: TensorId(2),
            sizes,
            graph,
            ops: Vec::new(),
            parameters: Vec::new(),
            first: vec![First::Zeros; 2],
        };
        let words = LOSSES as u64 + sizes.iterations;
        model.progress = model.state("progress".to_owned(), words, First::Progress);
        let rows = u64::from(sizes.characters + sizes.context);
        let table = model.drawn("table", [rows, 0], sizes.width, sizes.width);
        let blocks: Vec<_> = (0..sizes.layers).map(|layer| model.block(layer)).collect();
        let norm = model.new_norm("norm");
        let head = model.new_linear("head", sizes.width, sizes.characters);
        let mut value = model.embed(&table);
        let mut passed = Vec::new();
        for block in &blocks {
            let (pass, output) = model.forward(block, value);
            value = output;
            passed.push(pass);
        }
        let (normal, statistics) = model.norm(&norm, value);
        let logits = model.linear(&head, normal, None);
        let change = model.loss(logits);
        let change = model.linear_back(&head, normal, change);
        let mut change = model.norm_back(&norm, value, statistics, change, None);
        for (block, pass) in blocks.iter().zip(&passed).rev() {
            change = model.back(block, pass, change);
        }
        model.embed_back(&table, change);
        model
    }

    fn block(&mut self, layer: u32) -> Block {
        let width = self.sizes.width;
        let mut linear =
            |name, inputs, outputs| self.new_linear(&format!("{name} {layer}"), inputs, outputs);
        let split = linear("split", width, 3 * width);
        let merge = linear("merge", width, width);
        let widen = linear("widen", width, 4 * width);
        let narrow = linear("narrow", 4 * width, width);
        let norms = [0, 1].map(|half| self.new_norm(&format!("norm {layer} {half}")));
        Block { norms, split, merge, widen, narrow }
    }

    fn forward(&mut self, block: &Block, value: TensorId) -> (Passed, TensorId) {
        let (attended, before) = self.norm(&block.norms[0], value);
        let split = self.linear(&block.split, attended, None);
        let (weights, mixed) = self.attention(split);
        let middle = self.linear(&block.merge, mixed, Some(value));
        let (normal, after) = self.norm(&block.norms[1], middle);
        let wide = self.linear(&block.widen, normal, None);
        let active = self.gelu(wide);
        let output = self.linear(&block.narrow, active, Some(middle));
        let (inputs, normal, statistics) = ([value, middle], [attended, normal], [before, after]);
        (Passed { inputs, normal, statistics, split, weights, mixed, wide, active }, output)
    }

    /// The change of a block's input, by that of its output.
    fn back(&mut self, block: &Block, pass: &Passed, change: TensorId) -> TensorId {
        let changed = self.linear_back(&block.narrow, pass.active, change);
        let changed = self.gelu_back(pass.wide, changed);
        let changed = self.linear_back(&block.widen, pass.normal[1], changed);
        let [first, second] = &block.norms;
        let middle =
            self.norm_back(second, pass.inputs[1], pass.statistics[1], changed, Some(change));
        let changed = self.linear_back(&block.merge, pass.mixed, middle);
        let changed = self.attention_back(pass.split, pass.weights, changed);
        let changed = self.linear_back(&block.split, pass.normal[0], changed);
        self.norm_back(first, pass.inputs[0], pass.statistics[0], changed, Some(middle))
    }

    fn embed(&mut self, table: &Parameter) -> TensorId {
        let Sizes { characters, width, context, .. } = self.sizes;
        let (out, count) = (self.value("embedded", width), self.sizes.elements(width));
        let mut arguments = vec![self.text.into(), table.weights.into(), out.into()];
        arguments.push(Argument::Long(count));
        arguments.extend([context, characters, width].map(Argument::Word));
        let work = each("embed", count, arguments);
        self.push("embed", 0, &[self.text, table.weights], &[out], vec![work]);
        out
    }

    fn embed_back(&mut self, table: &Parameter, change: TensorId) {
        let Sizes { characters, width, context, .. } = self.sizes;
        let mut arguments = vec![self.text.into(), change.into(), table.gradient.into()];
        arguments.extend([self.sizes.rows(), context, characters, width].map(Argument::Word));
        let work = each("embed_gradient", table.count, arguments);
        self.push("embed gradient", 0, &[self.text, change], &[table.gradient], vec![work]);
        self.update(table);
    }

    /// The change of the logits.
    fn loss(&mut self, logits: TensorId) -> TensorId {
        let (rows, characters) = (self.sizes.rows(), self.sizes.characters);
        let change = self.value("change of logits", characters);
        let losses = Location::WORKSPACE.into();
        let [from, targets, to] = [logits, self.targets, change].map(Argument::from);
        let arguments = vec![from, targets, to, losses, Argument::Word(characters)];
        let counted = vec![losses, self.progress.into(), Argument::Word(rows)];
        let work = vec![
            by_row("cross_entropy", [rows, characters], arguments),
            by_row("count_loss", [1, rows], counted),
        ];
        let reads = [logits, self.targets, self.progress];
        self.push("loss", 4 * u64::from(rows), &reads, &[change, self.progress], work);
        change
    }

    /// Adam's step, where the gradient is known and the weights have been read for the last time.
    pub(crate) fn update(&mut self, parameter: &Parameter) {
        let Parameter { count, weights, moments: [first, second], gradient, .. } = *parameter;
        let reads = [gradient, weights, first, second, self.progress];
        let mut arguments: Vec<_> = reads.map(Argument::from).into();
        arguments.extend([Argument::Long(count), Argument::Number(self.sizes.rate)]);
        let work = each("adam", count, arguments);
        self.push(&format!("update {}", parameter.name), 0, &reads, &reads[1..4], vec![work]);
    }

    /// A value with `width` elements for each position of a sequence.
    pub(crate) fn value(&mut self, name: &str, width: u32) -> TensorId {
        self.temporary(name, self.sizes.elements(width))
    }

    pub(crate) fn temporary(&mut self, name: &str, count: u64) -> TensorId {
        self.first.push(First::Zeros);
        self.graph.push_tensor(name, 4 * count, Kind::Temporary)
    }

    fn state(&mut self, name: String, count: u64, first: First) -> TensorId {
        self.first.push(first);
        self.graph.push_tensor(name, 4 * count, Kind::State)
    }

    pub(crate) fn parameter(&mut self, name: &str, count: u64, first: First) -> Parameter {
        let weights = self.state(format!("{name} weights"), count, first);
        let moments = ["first", "second"]
            .map(|which| self.state(format!("{name} {which} moment"), count, First::Zeros));
        let gradient = self.temporary(&format!("{name} gradient"), count);
        let parameter = Parameter { name: name.to_owned(), count, weights, moments, gradient };
        self.parameters.push(parameter.clone());
        parameter
    }

    /// A matrix with this many rows drawn at random, and rows of zeros after them.
    pub(crate) fn drawn(
        &mut self,
        name: &str,
        [rows, zeros]: [u64; 2],
        columns: u32,
        inputs: u32,
    ) -> Parameter {
        let (parameter, columns) = (self.parameters.len() as u64, u64::from(columns));
        let first = First::Drawn { parameter, count: rows * columns, inputs };
        self.parameter(name, (rows + zeros) * columns, first)
    }

    pub(crate) fn push(
        &mut self,
        name: &str,
        workspace_bytes: u64,
        reads: &[TensorId],
        writes: &[TensorId],
        work: Vec<Work>,
    ) {
        let op = self.graph.push_op(name, UNKNOWN_NS, workspace_bytes, reads, writes);
        // No kernel draws random numbers or sums in an order of its own, so what makes only
        // temporaries makes the same ones again. The loss and Adam's steps also write states.
        let tensors = &self.graph.tensors;
        if writes.iter().all(|written| tensors[written.index()].kind == Kind::Temporary) {
            self.graph.set_repeatable(op);
        }
        self.ops.push(work);
    }

    /// What a state holds at first, from a byte on.
    pub(crate) fn fill(&self, state: TensorId, first_byte: u64, bytes: &mut [u8]) {
        let first = self.first[state.index()];
        for (at, word) in (first_byte / 4..).zip(bytes.chunks_exact_mut(4)) {
            let value = match first {
                First::Ones(count) if at < count => 1.0,
                First::Drawn { parameter, count, inputs } if at < count => {
                    let drawn = scramble(parameter << 32 | at) >> 40;
                    (3.0 / inputs as f32).sqrt() * (drawn as f32 / (1 << 23) as f32 - 1.0)
                }
                First::Progress if at == 1 || at == 2 => 1.0f32,
                _ => 0.0,
            };
            word.copy_from_slice(&value.to_ne_bytes());
        }
    }
}
