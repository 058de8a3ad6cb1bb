// Layers of a decoder-only transformer, forward and backward, and Adam.
// `backend-cuda/compile-kernels` makes `kernels.ptx` of it.
//
// Matrices are stored by rows. There are no atomic operations, and every sum is taken in one
// order, so that results are the same bit by bit in each run. A *change* of a value is the
// derivative of the loss by it.

typedef unsigned int u32;
typedef unsigned long long u64;

// Most threads of a block that works on one row; there are as many as a power of two.
#define MOST_THREADS 256

static __device__ u64 thread() { return u64(blockIdx.x) * blockDim.x + threadIdx.x; }

// The sum over all threads of a block, for each of them.
static __device__ float sum_of_block(float value) {
    __shared__ float values[MOST_THREADS];
    values[threadIdx.x] = value;
    __syncthreads();
    for (u32 half = blockDim.x / 2; half > 0; half /= 2) {
        if (threadIdx.x < half) values[threadIdx.x] += values[threadIdx.x + half];
        __syncthreads();
    }
    float sum = values[0];
    __syncthreads();
    return sum;
}

static __device__ float most_of_block(float value) {
    __shared__ float values[MOST_THREADS];
    values[threadIdx.x] = value;
    __syncthreads();
    for (u32 half = blockDim.x / 2; half > 0; half /= 2) {
        if (threadIdx.x < half)
            values[threadIdx.x] = fmaxf(values[threadIdx.x], values[threadIdx.x + half]);
        __syncthreads();
    }
    float most = values[0];
    __syncthreads();
    return most;
}

// ---- Matrix multiplication ----

// A block computes TILE by TILE elements, DEPTH terms of their sums at a time; a thread EACH by
// EACH of them.
#define TILE 64
#define DEPTH 16
#define EACH 4
#define SIDE (TILE / EACH)

// Loads TILE rows of DEPTH elements, from `row` and `k` on, and zeros after the matrix's end.
// Neighbouring threads load neighbours in memory.
static __device__ void load(float (*tile)[TILE + EACH], const float *matrix, u32 row, u32 rows, u32 k,
                            u32 depth, u32 row_step, u32 k_step) {
    for (u32 at = threadIdx.x; at < TILE * DEPTH; at += SIDE * SIDE) {
        u32 i = k_step == 1 ? at / DEPTH : at % TILE;
        u32 j = k_step == 1 ? at % DEPTH : at / TILE;
        bool is_inside = row + i < rows && k + j < depth;
        tile[j][i] = is_inside ? matrix[u64(row + i) * row_step + u64(k + j) * k_step] : 0;
    }
}

// result = scale left right, added to what result holds where `adds`. Steps are from one row,
// column or term of a sum to the next. The third dimension of the grid are `outer` times
// `inner` such products, whose matrices lie so far apart.
extern "C" __global__ void matmul(const float *left, const float *right, float *result, u32 rows,
                                  u32 columns, u32 depth, u32 left_row, u32 left_k,
                                  u32 right_column, u32 right_k, u32 result_row, float scale,
                                  u32 adds, u32 inner, u32 left_outer, u32 left_inner,
                                  u32 right_outer, u32 right_inner, u32 result_outer,
                                  u32 result_inner) {
    __shared__ float lefts[DEPTH][TILE + EACH];
    __shared__ float rights[DEPTH][TILE + EACH];
    u64 i = blockIdx.z / inner, j = blockIdx.z % inner;
    left += i * left_outer + j * left_inner;
    right += i * right_outer + j * right_inner;
    result += i * result_outer + j * result_inner;
    u32 row = blockIdx.y * TILE, column = blockIdx.x * TILE;
    u32 y = threadIdx.x / SIDE * EACH, x = threadIdx.x % SIDE * EACH;
    float sums[EACH][EACH] = {};
    for (u32 k = 0; k < depth; k += DEPTH) {
        load(lefts, left, row, rows, k, depth, left_row, left_k);
        load(rights, right, column, columns, k, depth, right_column, right_k);
        __syncthreads();
        for (u32 term = 0; term < DEPTH; term++)
            for (u32 down = 0; down < EACH; down++)
                for (u32 across = 0; across < EACH; across++)
                    sums[down][across] += lefts[term][y + down] * rights[term][x + across];
        __syncthreads();
    }
    for (u32 down = 0; down < EACH; down++)
        for (u32 across = 0; across < EACH; across++) {
            if (row + y + down >= rows || column + x + across >= columns) continue;
            u64 at = u64(row + y + down) * result_row + column + x + across;
            result[at] = scale * sums[down][across] + (adds ? result[at] : 0);
        }
}

// Each row is the biases, and what is added to it, if anything: a product is added later.
extern "C" __global__ void begin_rows(const float *biases, const float *added, float *result,
                                      u64 count, u32 columns) {
    u64 at = thread();
    if (at < count) result[at] = biases[at % columns] + (added ? added[at] : 0);
}

// ---- Sums of columns ----

// A block of COLUMNS by LANES threads sums COLUMNS columns. Each lane takes every LANES-th row.
#define COLUMNS 32
#define LANES 32

// The sum over the lanes of a column, in their order, for the first of them.
static __device__ float sum_of_lanes(float value) {
    __shared__ float values[LANES][COLUMNS];
    u32 column = threadIdx.x % COLUMNS, lane = threadIdx.x / COLUMNS;
    values[lane][column] = value;
    __syncthreads();
    float sum = 0;
    if (lane == 0)
        for (u32 other = 0; other < LANES; other++) sum += values[other][column];
    __syncthreads();
    return sum;
}

extern "C" __global__ void column_sums(const float *matrix, float *sums, u32 rows, u32 columns) {
    u32 column = blockIdx.x * COLUMNS + threadIdx.x % COLUMNS, lane = threadIdx.x / COLUMNS;
    float sum = 0;
    if (column < columns)
        for (u32 row = lane; row < rows; row += LANES) sum += matrix[u64(row) * columns + column];
    sum = sum_of_lanes(sum);
    if (lane == 0 && column < columns) sums[column] = sum;
}

// ---- Normalization of rows: gains times (in - mean) / deviation, and biases after the gains ----

// A block a row. Notes mean and reciprocal deviation of each.
extern "C" __global__ void normalize(const float *in, const float *gains, float *out,
                                     float *statistics, u32 width) {
    in += u64(blockIdx.x) * width;
    out += u64(blockIdx.x) * width;
    float sum = 0, squares = 0;
    for (u32 at = threadIdx.x; at < width; at += blockDim.x) sum += in[at];
    float mean = sum_of_block(sum) / width;
    for (u32 at = threadIdx.x; at < width; at += blockDim.x)
        squares += (in[at] - mean) * (in[at] - mean);
    float factor = 1 / sqrtf(sum_of_block(squares) / width + 1e-5f);
    for (u32 at = threadIdx.x; at < width; at += blockDim.x)
        out[at] = (in[at] - mean) * factor * gains[at] + gains[width + at];
    if (threadIdx.x == 0) {
        statistics[2 * blockIdx.x] = mean;
        statistics[2 * blockIdx.x + 1] = factor;
    }
}

// A block a row. The change of `in` from that of `out`, and what is added, if anything.
extern "C" __global__ void normalize_back(const float *change, const float *in, const float *gains,
                                          const float *statistics, const float *added,
                                          float *result, u32 width) {
    u64 first = u64(blockIdx.x) * width;
    float mean = statistics[2 * blockIdx.x], factor = statistics[2 * blockIdx.x + 1];
    float sum = 0, along = 0;
    for (u32 at = threadIdx.x; at < width; at += blockDim.x) {
        float normal = (in[first + at] - mean) * factor;
        sum += change[first + at] * gains[at];
        along += change[first + at] * gains[at] * normal;
    }
    sum = sum_of_block(sum) / width;
    along = sum_of_block(along) / width;
    for (u32 at = threadIdx.x; at < width; at += blockDim.x) {
        float normal = (in[first + at] - mean) * factor;
        float changed = factor * (change[first + at] * gains[at] - sum - normal * along);
        result[first + at] = changed + (added ? added[first + at] : 0);
    }
}

// The changes of gains, and after them of biases; threads as for sums of columns.
extern "C" __global__ void normalize_gradient(const float *change, const float *in,
                                              const float *statistics, float *gradient, u32 rows,
                                              u32 width) {
    u32 column = blockIdx.x * COLUMNS + threadIdx.x % COLUMNS, lane = threadIdx.x / COLUMNS;
    float gain = 0, bias = 0;
    if (column < width)
        for (u32 row = lane; row < rows; row += LANES) {
            u64 at = u64(row) * width + column;
            bias += change[at];
            gain += change[at] * (in[at] - statistics[2 * row]) * statistics[2 * row + 1];
        }
    gain = sum_of_lanes(gain);
    bias = sum_of_lanes(bias);
    if (lane == 0 && column < width) {
        gradient[column] = gain;
        gradient[width + column] = bias;
    }
}

// ---- Attention ----

// A block a row, which is the scores of one position with all others. Of those after it, none
// counts.
extern "C" __global__ void softmax_before(float *scores, u32 context) {
    scores += u64(blockIdx.x) * context;
    u32 position = blockIdx.x % context;
    float most = scores[0], sum = 0;
    for (u32 at = threadIdx.x; at <= position; at += blockDim.x) most = fmaxf(most, scores[at]);
    most = most_of_block(most);
    for (u32 at = threadIdx.x; at <= position; at += blockDim.x) sum += expf(scores[at] - most);
    sum = sum_of_block(sum);
    for (u32 at = threadIdx.x; at < context; at += blockDim.x)
        scores[at] = at <= position ? expf(scores[at] - most) / sum : 0;
}

// A block a row. The changes of weights become those of scores.
extern "C" __global__ void softmax_back(const float *weights, float *changes, u32 context) {
    weights += u64(blockIdx.x) * context;
    changes += u64(blockIdx.x) * context;
    float sum = 0;
    for (u32 at = threadIdx.x; at < context; at += blockDim.x) sum += weights[at] * changes[at];
    sum = sum_of_block(sum);
    for (u32 at = threadIdx.x; at < context; at += blockDim.x)
        changes[at] = weights[at] * (changes[at] - sum);
}

// ---- The activation: GELU by its approximation with tanh, which is x / (1 + exp(-slope)) ----

static __device__ float slope(float x) { return 1.5957691216f * (x + 0.044715f * x * x * x); }

extern "C" __global__ void gelu(const float *in, float *out, u64 count) {
    u64 at = thread();
    if (at < count) out[at] = in[at] / (1 + expf(-slope(in[at])));
}

extern "C" __global__ void gelu_back(const float *change, const float *in, float *result, u64 count) {
    u64 at = thread();
    if (at >= count) return;
    float x = in[at], open = 1 / (1 + expf(-slope(x)));
    float steep = 1.5957691216f * (1 + 3 * 0.044715f * x * x);
    result[at] = change[at] * (open + x * open * (1 - open) * steep);
}

// ---- The ends ----

// A row for each character of the text, and after those of all characters one for each position.
extern "C" __global__ void embed(const u32 *text, const float *table, float *out, u64 count,
                                 u32 context, u32 characters, u32 width) {
    u64 at = thread();
    if (at >= count) return;
    u64 row = at / width, column = at % width;
    out[at] = table[text[row] * u64(width) + column] +
              table[(characters + row % context) * width + column];
}

// A thread an element of the table.
extern "C" __global__ void embed_gradient(const u32 *text, const float *change, float *gradient,
                                          u32 rows, u32 context, u32 characters, u32 width) {
    u64 at = thread();
    if (at >= u64(characters + context) * width) return;
    u32 entry = at / width, column = at % width;
    float sum = 0;
    if (entry < characters) {
        for (u32 row = 0; row < rows; row++)
            if (text[row] == entry) sum += change[u64(row) * width + column];
    } else {
        for (u32 row = entry - characters; row < rows; row += context)
            sum += change[u64(row) * width + column];
    }
    gradient[at] = sum;
}

// A block a row. The loss of each, and the changes by their mean.
extern "C" __global__ void cross_entropy(const float *logits, const u32 *targets, float *change,
                                         float *losses, u32 characters) {
    logits += u64(blockIdx.x) * characters;
    change += u64(blockIdx.x) * characters;
    u32 target = targets[blockIdx.x];
    float most = logits[0], sum = 0;
    for (u32 at = threadIdx.x; at < characters; at += blockDim.x) most = fmaxf(most, logits[at]);
    most = most_of_block(most);
    for (u32 at = threadIdx.x; at < characters; at += blockDim.x) sum += expf(logits[at] - most);
    sum = sum_of_block(sum);
    for (u32 at = threadIdx.x; at < characters; at += blockDim.x)
        change[at] = (expf(logits[at] - most) / sum - (at == target)) / gridDim.x;
    if (threadIdx.x == 0) losses[blockIdx.x] = logf(sum) + most - logits[target];
}

#define BETA1 0.9f
#define BETA2 0.999f

// How training goes on: how many iterations there were, powers of the betas, and the losses.
struct Progress {
    u32 iterations;
    float power1, power2;
    float losses[1];
};

// One block. Puts the mean after those of earlier iterations.
extern "C" __global__ void count_loss(const float *losses, Progress *progress, u32 rows) {
    float sum = 0;
    for (u32 row = threadIdx.x; row < rows; row += blockDim.x) sum += losses[row];
    sum = sum_of_block(sum);
    if (threadIdx.x > 0) return;
    progress->losses[progress->iterations] = sum / rows;
    progress->iterations += 1;
    progress->power1 *= BETA1;
    progress->power2 *= BETA2;
}

// Kingma and Ba, Adam: a method for stochastic optimization, 2015, algorithm 1.
extern "C" __global__ void adam(const float *gradient, float *weights, float *first, float *second,
                                const Progress *progress, u64 count, float rate) {
    u64 at = thread();
    if (at >= count) return;
    float slope = gradient[at];
    float mean = first[at] = BETA1 * first[at] + (1 - BETA1) * slope;
    float square = second[at] = BETA2 * second[at] + (1 - BETA2) * slope * slope;
    float deviation = sqrtf(square / (1 - progress->power2)) + 1e-8f;
    weights[at] -= rate / (1 - progress->power1) * mean / deviation;
}
