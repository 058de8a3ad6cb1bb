// The arithmetic of the crate `integrity`, in three passes, and a kernel that takes time.
// `backend-cuda/compile-kernels` makes `kernels.ptx` of it.

typedef unsigned int u32;
typedef unsigned long long u64;

struct Value {
    u32 low, high;
};

// What is found in a tensor.
struct Reading {
    Value value;
    u32 deviation;
};

static __device__ u32 scramble(u32 word) {
    word = (word ^ (word >> 16)) * 0x85ebca6bu;
    word = (word ^ (word >> 13)) * 0xc2b2ae35u;
    return word ^ (word >> 16);
}

static __device__ Value fold(Value value, u32 word) {
    u32 high = scramble(value.low ^ word);
    return Value{scramble(value.high + high + 0x9e3779b9u), high};
}

static __device__ u32 word_of(Value value, u32 index) {
    if (index == 0) return value.low;
    if (index == 1) return value.high;
    return scramble(value.low + scramble(value.high ^ index));
}

// The bits of word `index` that lie in a tensor of this many bytes.
static __device__ u32 mask(u64 bytes, u64 index) {
    if (bytes <= 4 * index) return 0;
    u64 left = bytes - 4 * index;
    return left >= 4 ? 0xffffffffu : (1u << (8 * left)) - 1;
}

static __device__ u64 words(u64 bytes) { return (bytes + 3) / 4; }

// Each block takes runs of as many words as it has threads. Runs begin `spread` words apart: side by
// side if that is as many, or else with words between them that are left alone.
static __device__ u64 first(u64 spread) { return blockIdx.x * spread + threadIdx.x; }

static __device__ u64 stride(u64 spread) { return gridDim.x * spread; }

// Adds to the deviation, which is zero before the first pass.
extern "C" __global__ void integrity_read(
    const u32 *tensor, u64 bytes, Reading *reading, u64 spread
) {
    __shared__ u32 of_block;
    if (threadIdx.x == 0) of_block = 0;
    __syncthreads();
    Value value = {tensor[0] & mask(bytes, 0), 0};
    if (bytes > 4) value.high = tensor[1] & mask(bytes, 1);
    u32 deviation = 0;
    for (u64 at = first(spread); at < words(bytes); at += stride(spread))
        deviation += scramble((tensor[at] ^ word_of(value, u32(at))) & mask(bytes, at));
    atomicAdd(&of_block, deviation);
    __syncthreads();
    if (threadIdx.x == 0) {
        atomicAdd(&reading->deviation, of_block);
        if (blockIdx.x == 0) reading->value = value;
    }
}

// One thread. The first result is of the first `repeated` readings, which repeats of the op make
// as well; the second is of all. Leaves the deviations zero for the next op.
extern "C" __global__ void integrity_combine(
    Reading *readings, Value *results, u32 op, u32 repeated, u32 reads
) {
    Value value = fold(Value{3, 0}, op);
    results[0] = value;
    for (u32 read = 0; read < reads; read++) {
        value = fold(fold(value, readings[read].value.low), readings[read].value.high);
        value = fold(value, readings[read].deviation);
        readings[read].deviation = 0;
        if (read < repeated) results[0] = value;
    }
    results[1] = value;
}

// Writes whole words; what it puts after the tensor's end does not matter.
extern "C" __global__ void integrity_write(
    u32 *tensor, u64 bytes, const Value *result, u32 position, u64 spread
) {
    Value value = fold(*result, position);
    value.low &= mask(bytes, 0);
    value.high &= mask(bytes, 1);
    for (u64 at = first(spread); at < words(bytes); at += stride(spread))
        tensor[at] = word_of(value, u32(at));
}

// One thread. Sets a number to the sum of another, if there is one, and a constant.
extern "C" __global__ void set_number(u64 *number, const u64 *other, u64 addend) {
    *number = (other ? *other : 0) + addend;
}

#ifdef __CUDACC__
// One thread, which waits for so long.
extern "C" __global__ void occupy(u64 duration_ns) {
    u64 start, now;
    asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(start));
    do asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(now));
    while (now - start < duration_ns);
}

// One thread. The least time between two readings of the timer that differ.
extern "C" __global__ void timer_tick(u64 *tick_ns) {
    u64 last, now, least = ~0ull;
    asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(last));
    for (u32 changes = 0; changes < 16; changes++) {
        do asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(now));
        while (now == last);
        least = now - last < least ? now - last : least;
        last = now;
    }
    *tick_ns = least;
}
#endif
