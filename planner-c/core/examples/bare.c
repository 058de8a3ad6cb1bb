// Plans a training step of two layers on Linux without a C library: its own start, one static buffer,
// and a system call to print.
#include "spillway_core.h"

int bcmp(const void *, const void *, size_t);

// What compilers call, whatever a program does.
void *memcpy(void *to, const void *from, size_t bytes) {
    for (size_t i = 0; i < bytes; i++) {
        ((unsigned char *)to)[i] = ((const unsigned char *)from)[i];
    }
    return to;
}

void *memmove(void *to, const void *from, size_t bytes) {
    if ((uintptr_t)to <= (uintptr_t)from) {
        return memcpy(to, from, bytes);
    }
    while (bytes-- > 0) {
        ((unsigned char *)to)[bytes] = ((const unsigned char *)from)[bytes];
    }
    return to;
}

void *memset(void *to, int byte, size_t bytes) {
    for (size_t i = 0; i < bytes; i++) {
        ((unsigned char *)to)[i] = (unsigned char)byte;
    }
    return to;
}

int memcmp(const void *one, const void *other, size_t bytes) {
    for (size_t i = 0; i < bytes; i++) {
        const int a = ((const unsigned char *)one)[i], b = ((const unsigned char *)other)[i];
        if (a != b) {
            return a - b;
        }
    }
    return 0;
}

int bcmp(const void *one, const void *other, size_t bytes) {
    return memcmp(one, other, bytes);
}

static long system_call(long number, long a, long b, long c) {
    long result;
    __asm__ volatile("syscall" : "=a"(result) : "a"(number), "D"(a), "S"(b), "d"(c)
                     : "rcx", "r11", "memory");
    return result;
}

static void print(const char *text) {
    size_t length = 0;
    while (text[length] != 0) {
        length++;
    }
    system_call(1, 1, (long)text, (long)length);
}

static void print_number(uint64_t number) {
    char text[21];
    size_t at = sizeof text - 1;
    text[at] = 0;
    do {
        text[--at] = (char)('0' + number % 10);
        number /= 10;
    } while (number > 0);
    print(text + at);
}

enum { X, W1, W2, H, G2, G1, TENSORS };
enum { MIB = 1 << 20, MEMORY_BYTES = 4 << 20 };

static const SpillwayCoreTensor tensors[TENSORS] = {
    [X] = {sizeof(SpillwayCoreTensor), 8 * MIB, SPILLWAY_CORE_INPUT},       [W1] = {sizeof(SpillwayCoreTensor), 64 * MIB, SPILLWAY_CORE_STATE},
    [W2] = {sizeof(SpillwayCoreTensor), 64 * MIB, SPILLWAY_CORE_STATE},     [H] = {sizeof(SpillwayCoreTensor), 8 * MIB, SPILLWAY_CORE_TEMPORARY},
    [G2] = {sizeof(SpillwayCoreTensor), 8 * MIB, SPILLWAY_CORE_TEMPORARY},  [G1] = {sizeof(SpillwayCoreTensor), 8 * MIB, SPILLWAY_CORE_TEMPORARY},
};
static const SpillwayCoreOp ops[] = {
    {sizeof(SpillwayCoreOp), 5000000, 0, 2, 1, 0, 0, 0},
    {sizeof(SpillwayCoreOp), 5000000, 0, 2, 1, 0, 0, 0},
    {sizeof(SpillwayCoreOp), 10000000, 0, 3, 2, 0, 0, 0},
    {sizeof(SpillwayCoreOp), 10000000, 0, 3, 1, 0, 0, 0},
};
static const uint32_t operands[] = {X, W1, H, H, W2, G2, G2, H, W2, W2, G1, G1, X, W1, W1};
enum { OPS = sizeof ops / sizeof *ops, OPERANDS = sizeof operands / sizeof *operands };

static unsigned char memory[MEMORY_BYTES];
static SpillwayCoreError error;
static SpillwayCorePlan plan = {.struct_bytes = sizeof plan};

static int run(void) {
    const SpillwayCoreMachine machine = {
        .struct_bytes = sizeof machine,
        .parameters = {.device_bytes = 1 << 30, .host_bytes = 1 << 30, .chunk_bytes = 2 * MIB,
                       .h2d_bytes_per_s = 12000000000, .d2h_bytes_per_s = 12000000000,
                       .transfer_latency_ns = 10000},
    };
    SpillwayCoreWork work = {
        .struct_bytes = sizeof work, .step_bytes = sizeof(SpillwayCoreStep), .machine = &machine,
        .tensors = tensors, .tensor_count = TENSORS, .ops = ops, .op_count = OPS,
        .operands = operands, .operand_count = OPERANDS, .budget_bytes = 1 << 20,
    };
    if (spillway_core_memory_bytes(TENSORS, OPS, OPERANDS) > MEMORY_BYTES) {
        print("the buffer is too short\n");
        return 1;
    }
    if (spillway_core_plan(&work, memory, MEMORY_BYTES, &plan, &error) != SPILLWAY_CORE_CODE_INFEASIBLE) {
        return 1;
    }
    print("the budget is too small: ");
    print(error.message);
    print("\n");
    work.budget_bytes = 128 * MIB;
    if (spillway_core_plan(&work, memory, MEMORY_BYTES, &plan, &error) != SPILLWAY_CORE_CODE_OK) {
        print(error.message);
        return 1;
    }
    static const char *const kinds[] = {"prefetch tensor ", "launch op ", "offload tensor ", "evict tensor ", "host run of op "};
    for (size_t i = 0; i < plan.step_count; i++) {
        print(kinds[plan.steps[i].kind]);
        print_number(plan.steps[i].id);
        print("\n");
    }
    print("period ");
    print_number(plan.period_ns);
    print(" ns\n");
    return 0;
}

// The stack is aligned as a call expects it.
__attribute__((force_align_arg_pointer, noreturn)) void _start(void) {
    system_call(60, run(), 0, 0);
    __builtin_unreachable();
}
