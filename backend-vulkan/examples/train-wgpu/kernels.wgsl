// A layer of a perceptron, forward and backward. Matrices are stored by rows; a weight matrix
// has one row more than there are inputs, the biases. Sums run in one order, so that results
// are the same in each run. All bindings are parts of one buffer, and so read_write.

override ROWS: u32 = 1u;
override INPUTS: u32 = 1u;
override OUTPUTS: u32 = 1u;
// Whether what comes out is cut off below zero.
override CUT: bool = true;

const RATE = 0.05;
const MOMENTUM = 0.9;
const GROUP = 64u;

@group(0) @binding(0) var<storage, read_write> a: array<f32>;
@group(0) @binding(1) var<storage, read_write> b: array<f32>;
@group(0) @binding(2) var<storage, read_write> c: array<f32>;
@group(0) @binding(3) var<storage, read_write> d: array<f32>;

// c = a b, a: inputs, b: weights.
@compute @workgroup_size(GROUP)
fn forward(@builtin(global_invocation_id) id: vec3u) {
    if id.x >= ROWS * OUTPUTS { return; }
    let row = id.x / OUTPUTS;
    let column = id.x % OUTPUTS;
    var sum = b[INPUTS * OUTPUTS + column];
    for (var k = 0u; k < INPUTS; k += 1u) {
        sum += a[row * INPUTS + k] * b[k * OUTPUTS + column];
    }
    if CUT { sum = max(sum, 0.0); }
    c[id.x] = sum;
}

// c = transposed a times b, a: inputs, b: what the outputs should change by.
@compute @workgroup_size(GROUP)
fn gradient(@builtin(global_invocation_id) id: vec3u) {
    if id.x >= (INPUTS + 1u) * OUTPUTS { return; }
    let i = id.x / OUTPUTS;
    let column = id.x % OUTPUTS;
    var sum = 0.0;
    for (var row = 0u; row < ROWS; row += 1u) {
        let change = b[row * OUTPUTS + column];
        if i == INPUTS {
            sum += change;
        } else {
            sum += a[row * INPUTS + i] * change;
        }
    }
    c[id.x] = sum;
}

// d = a times transposed b, where c was not cut; a: what the outputs should change by, b:
// weights, c: inputs.
@compute @workgroup_size(GROUP)
fn backward(@builtin(global_invocation_id) id: vec3u) {
    if id.x >= ROWS * INPUTS { return; }
    let row = id.x / INPUTS;
    let i = id.x % INPUTS;
    var sum = 0.0;
    for (var k = 0u; k < OUTPUTS; k += 1u) {
        sum += a[row * OUTPUTS + k] * b[i * OUTPUTS + k];
    }
    d[id.x] = select(0.0, sum, c[id.x] > 0.0);
}

// b -= RATE c, where c = MOMENTUM c + a; a: gradient, b: weights, c: momenta.
@compute @workgroup_size(GROUP)
fn update(@builtin(global_invocation_id) id: vec3u) {
    if id.x >= (INPUTS + 1u) * OUTPUTS { return; }
    let momentum = MOMENTUM * c[id.x] + a[id.x];
    c[id.x] = momentum;
    b[id.x] -= RATE * momentum;
}

var<workgroup> losses_of_rows: array<f32, ROWS>;

// d = softmax a less one at the right character, per row. The mean of the losses is put after
// those of earlier iterations; c[0] counts them. b holds numbers of characters.
@compute @workgroup_size(ROWS)
fn loss(@builtin(local_invocation_index) row: u32) {
    let first = row * OUTPUTS;
    let right = first + bitcast<u32>(b[row]);
    var most = a[first];
    for (var k = 1u; k < OUTPUTS; k += 1u) { most = max(most, a[first + k]); }
    var sum = 0.0;
    for (var k = 0u; k < OUTPUTS; k += 1u) { sum += exp(a[first + k] - most); }
    for (var at = first; at < first + OUTPUTS; at += 1u) {
        let one = select(0.0, 1.0, at == right);
        d[at] = (exp(a[at] - most) / sum - one) / f32(ROWS);
    }
    losses_of_rows[row] = log(sum) + most - a[right];
    workgroupBarrier();
    if row == 0u {
        var mean = 0.0;
        for (var k = 0u; k < ROWS; k += 1u) { mean += losses_of_rows[k]; }
        c[0] += 1.0;
        c[u32(c[0])] = mean / f32(ROWS);
    }
}
