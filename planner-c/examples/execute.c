// A runtime with an executor of its own: it runs the steps of a plan on four streams, in any order that
// their waits allow, with some ops on the host. All device memory is one allocation.
#include "spillway.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { LAYERS = 6, NUMBERS = 256, ITERATIONS = 60, STREAMS = 4 };
enum { BYTES = NUMBERS * sizeof(uint32_t), TENSORS = 2 * LAYERS + 1, OPS = 2 * LAYERS };
enum { X = LAYERS }; // The weights come before, the values of the layers after it.

static SpillwayError error;
static uint32_t operands[OPS][3]; // What an op reads, and then what it writes.

static void check(SpillwayCode code) {
    if (code != SPILLWAY_CODE_OK) {
        fprintf(stderr, "%s\n", error.message);
        exit(1);
    }
}

// Each layer makes a value; then each, from the last to the first, changes its weight by it.
static SpillwayPlan *make_plan(const char *strategy) {
    SpillwayTensor tensors[TENSORS];
    SpillwayOp ops[OPS];
    for (uint32_t t = 0; t < TENSORS; t++) {
        const uint32_t kind = t < X    ? SPILLWAY_STATE
                              : t == X ? SPILLWAY_INPUT
                                       : SPILLWAY_TEMPORARY;
        tensors[t] = (SpillwayTensor){sizeof *tensors, NULL, BYTES, kind};
    }
    for (uint32_t op = 0; op < OPS; op++) {
        const uint32_t layer = op < LAYERS ? op : OPS - 1 - op, is_forward = op < LAYERS;
        const uint32_t of[] = {layer, X + layer + !is_forward, is_forward ? X + layer + 1 : layer};
        memcpy(operands[op], of, sizeof of);
        // What changes a weight may run on the host.
        ops[op] = (SpillwayOp){
            sizeof *ops, NULL, 3000, 0, operands[op], 2, operands[op] + 2, 1, is_forward,
            is_forward ? 0 : 5000, 0,
        };
    }
    // A chunk is as large as the largest tensor, so that each tensor lies in one piece.
    const SpillwayMachineDescription description = {
        .struct_bytes = sizeof description,
        .parameters = {.device_bytes = 1 << 20, .host_bytes = 1 << 20, .chunk_bytes = BYTES,
                       .h2d_bytes_per_s = 200000000, .d2h_bytes_per_s = 200000000},
    };
    SpillwayGraph *graph;
    SpillwayMachine *machine;
    SpillwayPlan *plan;
    const SpillwayPlanOptions options = {
        .struct_bytes = sizeof options, .budget = "50%", .strategy = strategy,
    };
    check(spillway_graph_new("step", tensors, TENSORS, ops, OPS, &graph, &error));
    check(spillway_machine_new("toy", &description, &machine, &error));
    check(spillway_plan_new(graph, machine, &options, &plan, &error));
    spillway_graph_free(graph);
    spillway_machine_free(machine);
    return plan;
}

// The first value of a weight, and the value of the input in an iteration.
static void fill(uint32_t *to, uint64_t seed) {
    for (uint32_t i = 0; i < NUMBERS; i++) {
        to[i] = (uint32_t)(seed * 977 + i) * 2654435761u;
    }
}

static void kernel(uint32_t op, const uint32_t *weight, const uint32_t *value, uint32_t *to) {
    for (uint32_t i = 0; i < NUMBERS; i++) {
        const uint32_t other = value[(i + 1) % NUMBERS];
        to[i] = op < LAYERS ? weight[i] * 31 + (other ^ other >> 7) : weight[i] + other * 17;
    }
}

static uint32_t host[TENSORS + 1][NUMBERS]; // The input has two values: its own, and the last.
static unsigned char *slab;
static SpillwayStep *steps;
static SpillwayRun *runs;
static size_t count, run_count, per_iteration, *first_run, last_read, host_runs;
// Of each stream: the positions of its steps, how many it has in an iteration, how many have ended.
static size_t *on_stream[STREAMS], of_stream[STREAMS];
static uint64_t ended[STREAMS];

static void *allocate(size_t number, size_t bytes) {
    void *memory = calloc(number, bytes);
    if (memory == NULL) {
        exit(1);
    }
    return memory;
}

static void read_plan(const SpillwayPlan *plan) {
    uint32_t iterations;
    uint64_t slab_bytes;
    spillway_plan_steps(plan, NULL, sizeof(SpillwayStep), 0, &count, NULL, NULL);
    spillway_plan_addresses(plan, NULL, sizeof(SpillwayRun), 0, &run_count, NULL, NULL);
    steps = allocate(count, sizeof *steps);
    runs = allocate(run_count, sizeof *runs);
    check(spillway_plan_steps(plan, steps, sizeof *steps, count, &count, &iterations, &error));
    check(spillway_plan_addresses(plan, runs, sizeof *runs, run_count, &run_count, &slab_bytes,
                                  &error));
    slab = allocate(slab_bytes, 1);
    per_iteration = count / iterations;
    printf("%zu steps, which repeat after %u iterations, in %llu bytes\n", per_iteration, iterations,
           (unsigned long long)slab_bytes);
    // What is there at the start comes first, then the runs of each step.
    first_run = allocate(count + 1, sizeof *first_run);
    size_t run = 0;
    for (size_t i = 0; i <= count; i++) {
        while (run < run_count && (runs[run].step == SPILLWAY_NONE || runs[run].step < i)) {
            run++;
        }
        first_run[i] = run;
    }
    for (int s = 0; s < STREAMS; s++) {
        on_stream[s] = allocate(count, sizeof **on_stream);
    }
    static const int streams[] = {
        [SPILLWAY_PREFETCH] = SPILLWAY_UPLOAD, [SPILLWAY_LAUNCH] = SPILLWAY_COMPUTE,
        [SPILLWAY_OFFLOAD] = SPILLWAY_DOWNLOAD, [SPILLWAY_HOST_RUN] = SPILLWAY_HOST,
    };
    for (size_t i = 0; i < count; i++) {
        const SpillwayStep step = steps[i];
        if (step.kind != SPILLWAY_EVICT) {
            const int s = streams[step.kind];
            on_stream[s][i / per_iteration * of_stream[s] + step.index] = i;
            of_stream[s] += i < per_iteration;
        }
        // No op that reads the input runs on the host.
        if (step.kind == SPILLWAY_LAUNCH && i < per_iteration && operands[step.id][1] == X) {
            last_read = i;
        }
        host_runs += step.kind == SPILLWAY_HOST_RUN && i < per_iteration;
    }
}

// Whether all that a step waits for has ended. Iterations are counted from 0.
static int is_ready(const SpillwayStep *step, uint64_t iteration) {
    for (int s = 0; s < STREAMS; s++) {
        const SpillwayWait wait = step->waits[s];
        if (wait.index != SPILLWAY_NONE && wait.iterations_back <= iteration &&
            ended[s] <= (iteration - wait.iterations_back) * of_stream[s] + wait.index) {
            return 0;
        }
    }
    return 1;
}

static unsigned char *host_bytes(SpillwayRun run, uint64_t iteration) {
    const uint32_t tensor = run.id == X && iteration % 2 == 1 ? TENSORS : run.id;
    return (unsigned char *)host[tensor] + run.first_byte;
}

static void upload(SpillwayRun run, uint64_t iteration) {
    if (run.id == X) {
        fill((uint32_t *)host_bytes(run, iteration), iteration);
    }
    memcpy(slab + run.offset_bytes, host_bytes(run, iteration), run.bytes);
}

static void execute(size_t position, uint64_t iteration) {
    const SpillwayStep step = steps[position];
    // After its last use, the input has the value of the next iteration.
    const int is_next = position % per_iteration > last_read;
    uint32_t *tensors[TENSORS];
    for (size_t i = first_run[position]; i < first_run[position + 1]; i++) {
        unsigned char *at = slab + runs[i].offset_bytes;
        if (step.kind == SPILLWAY_PREFETCH) {
            upload(runs[i], iteration + is_next);
        } else if (step.kind == SPILLWAY_OFFLOAD) {
            memcpy(host_bytes(runs[i], iteration), at, runs[i].bytes);
        } else {
            tensors[runs[i].id] = (uint32_t *)at;
        }
    }
    const uint32_t *of = operands[step.id];
    if (step.kind == SPILLWAY_LAUNCH) {
        kernel(step.id, tensors[of[0]], tensors[of[1]], tensors[of[2]]);
    } else if (step.kind == SPILLWAY_HOST_RUN) {
        kernel(step.id, host[of[0]], host[of[1]], host[of[2]]);
    }
}

// Runs any step that is next on its stream and ready, until all have ended.
static void run_all(void) {
    for (size_t left = ITERATIONS * (of_stream[0] + of_stream[1] + of_stream[2] + of_stream[3]);
         left > 0;) {
        const int s = rand() % STREAMS;
        if (of_stream[s] == 0 || ended[s] == ITERATIONS * of_stream[s]) {
            continue;
        }
        const uint64_t iteration = ended[s] / of_stream[s];
        const size_t position = on_stream[s][ended[s] % (count / per_iteration * of_stream[s])];
        if (is_ready(&steps[position], iteration)) {
            execute(position, iteration);
            ended[s]++;
            left--;
        }
    }
}

// Follows the plan of a strategy; null for the default.
static int follow(const char *strategy) {
    SpillwayPlan *plan = make_plan(strategy);
    memset(of_stream, 0, sizeof of_stream);
    memset(ended, 0, sizeof ended);
    host_runs = 0;
    read_plan(plan);
    spillway_plan_free(plan);
    static uint32_t plain[TENSORS][NUMBERS];
    for (uint32_t layer = 0; layer < LAYERS; layer++) {
        fill(host[layer], 1000 + layer);
        fill(plain[layer], 1000 + layer);
    }
    for (size_t i = 0; i < first_run[0]; i++) {
        upload(runs[i], 0);
    }
    run_all();
    // The weights that are on the device at the start have their last values there.
    for (size_t i = 0; i < first_run[0]; i++) {
        memcpy(host_bytes(runs[i], 0), slab + runs[i].offset_bytes, runs[i].bytes);
    }
    for (uint64_t iteration = 0; iteration < ITERATIONS; iteration++) {
        fill(plain[X], iteration);
        for (uint32_t op = 0; op < OPS; op++) {
            const uint32_t *of = operands[op];
            kernel(op, plain[of[0]], plain[of[1]], plain[of[2]]);
        }
    }
    for (int s = 0; s < STREAMS; s++) {
        free(on_stream[s]);
    }
    free(first_run);
    free(slab);
    free(runs);
    free(steps);
    return memcmp(host, plain, LAYERS * BYTES) == 0;
}

int main(void) {
    int is_right = follow(NULL);
    is_right &= follow("optimizer-offload") && host_runs == LAYERS;
    printf("%d iterations, then %d with %zu ops on the host: %s\n", ITERATIONS, ITERATIONS, host_runs,
           is_right ? "the weights are right" : "the weights are wrong");
    return !is_right;
}
