//! A small decoder: its steps as graphs, and what their ops compute.

use spillway::{Error, Graph, GraphBuilder, TensorId};

pub(crate) const LAYERS: usize = 80;
pub(crate) const WIDTH: usize = 32;
pub(crate) const HIDDEN: usize = 4 * WIDTH;
pub(crate) const VOCABULARY: usize = 256;
/// Tokens whose keys and values are in one page of a cache.
pub(crate) const PAGE: usize = 16;
/// Pages of a cache.
pub(crate) const PAGES: usize = 4;

/// Numbers of a layer's matrices: of queries, keys, values and results, and of the two of the MLP.
const ATTENTION: usize = 4 * WIDTH * WIDTH;
const MLP: usize = 2 * WIDTH * HIDDEN;
/// Keys and values of a page.
const PAGE_NUMBERS: usize = 2 * PAGE * WIDTH;

/// What one iteration does.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Step {
    /// Fills the first pages of the caches from a prompt, and predicts the token after it.
    Prompt { pages: usize },
    /// Adds the token that was predicted last to the caches, and predicts the next one. The caches have
    /// tokens in so many pages, of which the last gets the new one.
    Token { pages: usize },
}

/// What each op of a graph is.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Op {
    Embed,
    Attention,
    Mlp,
    Predict,
}

/// The graph of a step, and its tensors that have names in the program.
#[derive(Clone, Debug)]
pub(crate) struct Work {
    pub(crate) step: Step,
    pub(crate) graph: Graph,
    pub(crate) ops: Vec<Op>,
    /// How many tokens there are, and which.
    pub(crate) prompt: Option<TensorId>,
    pub(crate) logits: TensorId,
}

fn bytes(numbers: usize) -> u64 {
    4 * numbers as u64
}

/// The graph of a step. All steps have the same states, so that a session can switch between them; pages
/// that a step does not use take no memory of the device.
pub(crate) fn work(step: Step) -> Result<Work, Error> {
    let (name, tokens, pages) = match step {
        Step::Prompt { pages } => (format!("prompt of {pages} pages"), pages * PAGE, pages),
        Step::Token { pages } => (format!("token in {pages} pages"), 1, pages),
    };
    let (mut graph, mut ops) = (GraphBuilder::new(name), Vec::new());
    // How many tokens the caches have, and the token that comes after them.
    let cursor = graph.state("cursor", bytes(2));
    let table = graph.state("table", bytes(VOCABULARY * WIDTH));
    let logits = graph.output("logits", bytes(VOCABULARY));
    let prompt = match step {
        Step::Prompt { .. } => Some(graph.input("prompt", bytes(1 + tokens))),
        Step::Token { .. } => None,
    };
    let given = prompt.unwrap_or(cursor);
    // Times of a device with ten times the speed of the link, by the numbers that an op reads.
    let time_ns = |numbers: usize| bytes(numbers) / 10;
    let mut x = graph.temporary("embedded", bytes(tokens * WIDTH));
    graph.op("embed", time_ns(tokens * WIDTH)).reads([given, table]).writes([x]);
    ops.push(Op::Embed);
    for layer in 0..LAYERS {
        let matrices = graph.state(format!("attention {layer}"), bytes(ATTENTION));
        let mlp = graph.state(format!("mlp {layer}"), bytes(MLP));
        let cache = (0..PAGES).map(|at| format!("cache {layer}, page {at}"));
        let cache: Vec<_> = cache.map(|name| graph.state(name, bytes(PAGE_NUMBERS))).collect();
        // A prompt writes all of its pages, a token the last one.
        let first_written = if prompt.is_some() { 0 } else { pages - 1 };
        let attended = graph.temporary(format!("attended {layer}"), bytes(tokens * WIDTH));
        let time = time_ns(ATTENTION + pages * PAGE_NUMBERS);
        let attention = graph.op(format!("attention {layer}"), time);
        let attention = attention.reads([x, given, matrices]).reads(cache[..pages].iter().copied());
        attention.writes([attended]).writes(cache[first_written..pages].iter().copied());
        x = graph.temporary(format!("value {layer}"), bytes(tokens * WIDTH));
        let op = graph.op(format!("mlp {layer}"), time_ns(MLP)).reads([attended, mlp]).writes([x]);
        if prompt.is_none() {
            // The host's processor has three times the speed of the link.
            op.host_ns(bytes(MLP) / 3);
        }
        ops.extend([Op::Attention, Op::Mlp]);
    }
    let predict = graph.op("predict", time_ns(VOCABULARY * WIDTH));
    predict.reads([x, table, given]).writes([logits, cursor]);
    ops.push(Op::Predict);
    Ok(Work { step, graph: graph.build()?, ops, prompt, logits })
}

/// What an op makes of the tensors that it reads, in the order of the graph: the tensors that it writes.
pub(crate) fn compute(step: Step, op: Op, mut read: Vec<Vec<f32>>) -> Vec<Vec<f32>> {
    match op {
        Op::Embed => {
            let rows = tokens(step, &read[0]).into_iter().map(|token| row(&read[1], token));
            vec![rows.collect::<Vec<_>>().concat()]
        }
        Op::Attention => {
            let mut cache = read.split_off(3);
            let first = first_position(step, &read[1]);
            let attended = attend(&read[0], &read[2], &mut cache, first);
            let written = match step {
                Step::Prompt { .. } => cache,
                Step::Token { pages } => cache.split_off(pages - 1),
            };
            [vec![attended], written].concat()
        }
        Op::Mlp => vec![mlp(&read[0], &read[1])],
        Op::Predict => {
            let given = &read[2];
            let count = match step {
                Step::Prompt { .. } => given[0] as usize,
                Step::Token { .. } => 1,
            };
            let last = row(&read[0], count - 1);
            let logits = product(&read[1], last);
            let position = first_position(step, given) + count;
            let cursor = vec![position as f32, best(&logits) as f32];
            vec![logits, cursor]
        }
    }
}

/// The token with the largest of the logits.
pub(crate) fn best(logits: &[f32]) -> usize {
    let best = (0..logits.len()).max_by(|&a, &b| logits[a].total_cmp(&logits[b]));
    best.unwrap_or(0)
}

/// The tokens that a step is given.
fn tokens(step: Step, given: &[f32]) -> Vec<usize> {
    let given = match step {
        Step::Prompt { .. } => &given[1..],
        Step::Token { .. } => &given[1..2],
    };
    given.iter().map(|&token| token as usize).collect()
}

/// The position of the first of these tokens.
fn first_position(step: Step, given: &[f32]) -> usize {
    if matches!(step, Step::Prompt { .. }) { 0 } else { given[0] as usize }
}

fn row(matrix: &[f32], at: usize) -> &[f32] {
    &matrix[at * WIDTH..(at + 1) * WIDTH]
}

/// A matrix times a vector of `WIDTH` numbers.
fn product(matrix: &[f32], vector: &[f32]) -> Vec<f32> {
    let dot = |row: &[f32]| row.iter().zip(vector).map(|(a, b)| a * b).sum();
    matrix.chunks(vector.len()).map(dot).collect()
}

fn normalized(x: &[f32]) -> Vec<f32> {
    let square = x.iter().map(|x| x * x).sum::<f32>() / x.len() as f32;
    x.iter().map(|x| x / (square + 1e-5).sqrt()).collect()
}

fn sum(a: &[f32], b: &[f32]) -> Vec<f32> {
    a.iter().zip(b).map(|(a, b)| a + b).collect()
}

/// Adds the keys and values of tokens to the pages of a cache, and what each token takes from those up to
/// its own to the token.
fn attend(x: &[f32], matrices: &[f32], cache: &mut [Vec<f32>], first: usize) -> Vec<f32> {
    let matrices: Vec<_> = matrices.chunks(WIDTH * WIDTH).collect();
    let attended = x.chunks(WIDTH).zip(first..).map(|(x, position)| {
        let [query, key, value] = [0, 1, 2].map(|at| product(matrices[at], &normalized(x)));
        let page = &mut cache[position / PAGE];
        for (at, numbers) in [(position % PAGE, key), (PAGE + position % PAGE, value)] {
            page[at * WIDTH..(at + 1) * WIDTH].copy_from_slice(&numbers);
        }
        let cached = |at: usize, part| row(&cache[at / PAGE], part * PAGE + at % PAGE);
        let score = |at| product(cached(at, 0), &query)[0] / (WIDTH as f32).sqrt();
        let scores: Vec<f32> = (0..=position).map(|at| f32::exp(score(at))).collect();
        let total: f32 = scores.iter().sum();
        let mut taken = vec![0.0; WIDTH];
        for (at, score) in scores.iter().enumerate() {
            for (taken, value) in taken.iter_mut().zip(cached(at, 1)) {
                *taken += score / total * value;
            }
        }
        sum(x, &product(matrices[3], &taken))
    });
    attended.collect::<Vec<_>>().concat()
}

fn mlp(x: &[f32], matrices: &[f32]) -> Vec<f32> {
    let (up, down) = matrices.split_at(WIDTH * HIDDEN);
    let rows = x.chunks(WIDTH).map(|x| {
        let hidden: Vec<_> = product(up, &normalized(x)).iter().map(|x| x.max(0.0)).collect();
        sum(x, &product(down, &hidden))
    });
    rows.collect::<Vec<_>>().concat()
}
