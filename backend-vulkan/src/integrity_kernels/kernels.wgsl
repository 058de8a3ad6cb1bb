// The arithmetic of the crate `integrity`, in three passes.

fn scramble(a: u32) -> u32 {
    var word = (a ^ (a >> 16u)) * 0x85ebca6bu;
    word = (word ^ (word >> 13u)) * 0xc2b2ae35u;
    return word ^ (word >> 16u);
}

// A value: x is its low word, y the high one.
fn fold(value: vec2u, word: u32) -> vec2u {
    let high = scramble(value.x ^ word);
    return vec2u(scramble(value.y + high + 0x9e3779b9u), high);
}

fn word_of(value: vec2u, index: u32) -> u32 {
    if index == 0u { return value.x; }
    if index == 1u { return value.y; }
    return scramble(value.x + scramble(value.y ^ index));
}

// Words of a tensor: `words` of them, from word `first` on, which is word `skip` of the
// binding. `masks` cut the tensor's words 0 and 1 short, `last_mask` the last of these.
struct Piece {
    skip: u32,
    first: u32,
    words: u32,
    last_mask: u32,
    masks: vec2u,
    // Read: where word 0 is in the binding of the tensor's start.
    head: u32,
    // Fold: the op, and its reads. Write: the position.
    number: u32,
    reads: u32,
    // Words from one reading to the next. Fold: the two results are `result` words from the
    // start; write: the result that is written.
    stride: u32,
    result: u32,
    // Fold: of the reads, those that repeats of the op read as well.
    repeated: u32,
}
var<immediate> p: Piece;

struct Reading {
    value: vec2u,
    deviation: atomic<u32>,
}

const GROUP: u32 = 128u;

@group(0) @binding(0) var<storage, read> start: array<u32>;
@group(0) @binding(1) var<storage, read> piece: array<u32>;
@group(0) @binding(2) var<storage, read_write> reading: Reading;

var<workgroup> deviation_of_group: atomic<u32>;

@compute @workgroup_size(GROUP)
fn take(
    @builtin(local_invocation_index) local: u32,
    @builtin(global_invocation_id) id: vec3u,
    @builtin(num_workgroups) groups: vec3u,
) {
    let value = vec2u(start[p.head], start[p.head + 1u]) & p.masks;
    var deviation = 0u;
    for (var at = id.x; at < p.words; at += groups.x * GROUP) {
        let mask = select(0xffffffffu, p.last_mask, at + 1u == p.words);
        deviation += scramble((piece[p.skip + at] ^ word_of(value, p.first + at)) & mask);
    }
    atomicAdd(&deviation_of_group, deviation);
    workgroupBarrier();
    if local == 0u {
        atomicAdd(&reading.deviation, atomicLoad(&deviation_of_group));
        if id.x == 0u { reading.value = value; }
    }
}

@group(0) @binding(0) var<storage, read_write> readings: array<u32>;

// The first result is of the first `repeated` readings, the second of all.
@compute @workgroup_size(1)
fn combine() {
    var value = fold(vec2u(3u, 0u), p.number);
    var of_repeated = value;
    for (var read = 0u; read < p.reads; read += 1u) {
        let at = read * p.stride;
        value = fold(fold(value, readings[at]), readings[at + 1u]);
        value = fold(value, readings[at + 2u]);
        if read < p.repeated { of_repeated = value; }
    }
    readings[p.result] = of_repeated.x;
    readings[p.result + 1u] = of_repeated.y;
    readings[p.result + 2u] = value.x;
    readings[p.result + 3u] = value.y;
}

@group(0) @binding(0) var<storage, read> result: array<u32>;
@group(0) @binding(1) var<storage, read_write> written: array<u32>;

@compute @workgroup_size(GROUP)
fn put(
    @builtin(global_invocation_id) id: vec3u,
    @builtin(num_workgroups) groups: vec3u,
) {
    let value = fold(vec2u(result[p.result], result[p.result + 1u]), p.number) & p.masks;
    for (var at = id.x; at < p.words; at += groups.x * GROUP) {
        written[p.skip + at] = word_of(value, p.first + at);
    }
}
