// Fits a line through points, one layer with its own optimizer, in less memory than it needs, on a
// device of host memory; then with its optimizer on the host. All work is done when it is enqueued, so
// streams are four counters.
#include "spillway.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { CHUNK = 4096, NUMBERS = 4096, LAYERS = 6, STEPS = 20 };

static SpillwayError error;

static void check(SpillwayCode code) {
    if (code != SPILLWAY_CODE_OK) {
        fprintf(stderr, "%s\n", error.message);
        exit(1);
    }
}

// ---- the device ----

typedef struct {
    unsigned char *memory; // chunks
    uint64_t *mapped;      // the chunk at each chunk of addresses
    uint64_t addresses;    // chunks of addresses that are reserved
    unsigned char *host;
    uint64_t signals[4];
} Device;

// Address 0 stands for none, so addresses begin with the second chunk.
static unsigned char *at(Device *device, uint64_t address) {
    const uint64_t chunk = device->mapped[address / CHUNK - 1];
    return device->memory + chunk * CHUNK + address % CHUNK;
}

static int32_t create(void *context, uint64_t chunks) {
    Device *device = context;
    device->memory = malloc(chunks * CHUNK);
    return device->memory ? 0 : SPILLWAY_CODE_OUT_OF_DEVICE_MEMORY;
}

static int32_t reserve(void *context, uint64_t chunks, uint64_t *address) {
    Device *device = context;
    const uint64_t all = device->addresses + chunks;
    uint64_t *mapped = realloc(device->mapped, all * sizeof *mapped);
    if (!mapped) {
        return SPILLWAY_CODE_OUT_OF_HOST_MEMORY;
    }
    device->mapped = mapped;
    *address = (device->addresses + 1) * CHUNK;
    device->addresses = all;
    return 0;
}

static int32_t map(void *context, uint64_t address, uint64_t first, uint64_t chunks) {
    Device *device = context;
    for (uint64_t i = 0; i < chunks; i++) {
        device->mapped[address / CHUNK - 1 + i] = first + i;
    }
    return 0;
}

static int32_t unmap(void *context, uint64_t address, uint64_t chunks) {
    (void)context, (void)address, (void)chunks;
    return 0;
}

static int32_t create_host(void *context, uint64_t bytes) {
    Device *device = context;
    device->host = malloc(bytes);
    return device->host ? 0 : SPILLWAY_CODE_OUT_OF_HOST_MEMORY;
}

static int32_t write_host(void *context, uint64_t offset, const uint8_t *from, size_t bytes) {
    memcpy(((Device *)context)->host + offset, from, bytes);
    return 0;
}

static int32_t read_host(void *context, uint64_t offset, uint8_t *into, size_t bytes) {
    memcpy(into, ((Device *)context)->host + offset, bytes);
    return 0;
}

// The part of a range that lies in one chunk.
static uint64_t piece(uint64_t address, uint64_t bytes) {
    const uint64_t rest = CHUNK - address % CHUNK;
    return bytes < rest ? bytes : rest;
}

static int32_t upload(void *context, uint64_t offset, uint64_t bytes, uint64_t address) {
    Device *device = context;
    for (uint64_t part; bytes > 0; bytes -= part, offset += part, address += part) {
        part = piece(address, bytes);
        memcpy(at(device, address), device->host + offset, part);
    }
    return 0;
}

static int32_t download(void *context, uint64_t address, uint64_t offset, uint64_t bytes) {
    Device *device = context;
    for (uint64_t part; bytes > 0; bytes -= part, offset += part, address += part) {
        part = piece(address, bytes);
        memcpy(device->host + offset, at(device, address), part);
    }
    return 0;
}

static int32_t wait_for(void *context, uint32_t stream, uint32_t of, uint64_t signal) {
    (void)stream;
    return signal <= ((Device *)context)->signals[of] ? 0 : SPILLWAY_CODE_DEVICE;
}

static int32_t signal_on(void *context, uint32_t stream, uint64_t *signal) {
    *signal = ++((Device *)context)->signals[stream];
    return 0;
}

static int32_t reached(void *context, uint32_t stream, uint64_t signal, uint8_t *is_reached) {
    *is_reached = 1;
    return wait_for(context, stream, stream, signal);
}

static int32_t block_until(void *context, uint32_t stream, uint64_t signal) {
    return wait_for(context, stream, stream, signal);
}

// ---- the kernels ----

// Tensors: the input, then a weight and an activation for each layer, and the loss. Ops: each layer
// forward, the loss, and the step of each weight, the last layer first.
enum { X = 0, LOSS = 1 + 2 * LAYERS, TENSORS, OPS = 2 * LAYERS + 1 };
static uint32_t weight(uint32_t layer) { return 1 + layer; }
static uint32_t activation(uint32_t layer) { return 1 + LAYERS + layer; }

static double *number(Device *device, uint64_t address, uint32_t position) {
    return (double *)at(device, address + position * sizeof(double));
}

static double input(uint64_t iteration, uint32_t position) {
    return (double)((position + iteration) % 7) - 3.0;
}

// What the ops compute: a layer forward, and the step of its weight.
static double forward(double x, double w) { return 0.9 * x + w; }
static double update(double w, double y) { return w - 0.01 * y; }

static int32_t launch(void *context, const SpillwayLaunch *launch) {
    Device *device = context;
    // No op that writes a state runs again here, so no operand is null.
    if (launch->op == LAYERS) {
        double *loss = number(device, launch->writes[0]->address, 0);
        *loss = 0.0;
        for (uint32_t i = 0; i < NUMBERS; i++) {
            *loss += *number(device, launch->reads[0]->address, i);
        }
        return 0;
    }
    for (uint32_t i = 0; i < NUMBERS; i++) {
        const double first = *number(device, launch->reads[0]->address, i);
        const double second = *number(device, launch->reads[1]->address, i);
        *number(device, launch->writes[0]->address, i) =
            launch->op < LAYERS ? forward(first, second) : update(first, second);
    }
    return 0;
}

// Steps alone run on the host. Each tensor lies in one piece in the host block.
static int32_t launch_on_host(void *context, const SpillwayHostLaunch *launch) {
    unsigned char *host = ((Device *)context)->host;
    const double *y = (const double *)(host + launch->reads[1]->offset_bytes);
    double *w = (double *)(host + launch->writes[0]->offset_bytes); // It is read there, too.
    for (uint32_t i = 0; i < NUMBERS; i++) {
        w[i] = update(w[i], y[i]);
    }
    return 0;
}

// All states are weights.
static int32_t fill_state(void *context, SpillwayFill *state) {
    static const double zeros[NUMBERS];
    (void)context;
    return spillway_fill_f64(state, zeros, NUMBERS, NULL);
}

// There is one input.
static int32_t fill_input(void *context, SpillwayFill *to) {
    double values[NUMBERS];
    (void)context;
    for (uint32_t i = 0; i < NUMBERS; i++) {
        values[i] = input(to->iteration, i);
    }
    return spillway_fill_f64(to, values, NUMBERS, NULL);
}

// ---- the program ----

static SpillwayPlan *make_plan(const char *budget, const char *strategy) {
    SpillwayTensor tensors[TENSORS] = {
        [X] = {sizeof *tensors, "x", NUMBERS * sizeof(double), SPILLWAY_INPUT},
        [LOSS] = {sizeof *tensors, "loss", sizeof(double), SPILLWAY_OUTPUT},
    };
    const uint32_t last = activation(LAYERS - 1), loss = LOSS;
    SpillwayOp ops[OPS] = {[LAYERS] = {sizeof *ops, "loss", 5000, 0, &last, 1, &loss, 1, 0, 0}};
    uint32_t operands[OPS][3];
    for (uint32_t layer = 0; layer < LAYERS; layer++) {
        const uint32_t w = weight(layer), y = activation(layer);
        tensors[w] = (SpillwayTensor){sizeof *tensors, "weight", NUMBERS * sizeof(double), SPILLWAY_STATE};
        tensors[y] = (SpillwayTensor){sizeof *tensors, "activation", NUMBERS * sizeof(double),
                                      SPILLWAY_TEMPORARY};
        uint32_t *const forward = operands[layer];
        forward[0] = layer == 0 ? X : activation(layer - 1), forward[1] = w, forward[2] = y;
        ops[layer] = (SpillwayOp){sizeof *ops, "forward", 20000, 0, forward, 2, forward + 2, 1, 1, 0, 0};
        const uint32_t op = 2 * LAYERS - layer;
        operands[op][0] = w, operands[op][1] = y;
        // On the host it takes twice as long.
        ops[op] = (SpillwayOp){sizeof *ops, "update", 20000, 0, operands[op], 2, operands[op], 1, 0, 40000, 0};
    }
    SpillwayGraph *graph;
    check(spillway_graph_new("layers", tensors, TENSORS, ops, OPS, &graph, &error));
    const SpillwayMachineDescription description = {
        .struct_bytes = sizeof description,
        .parameters = {.device_bytes = 1 << 30, .host_bytes = 1 << 30, .chunk_bytes = CHUNK,
                       .h2d_bytes_per_s = 10000000000, .d2h_bytes_per_s = 10000000000},
    };
    SpillwayMachine *machine;
    check(spillway_machine_new("host", &description, &machine, &error));
    SpillwayPlan *plan;
    const SpillwayPlanOptions options = {
        .struct_bytes = sizeof options, .budget = budget, .strategy = strategy,
    };
    check(spillway_plan_new(graph, machine, &options, &plan, &error));
    spillway_machine_free(machine);
    spillway_graph_free(graph);
    return plan;
}

// The weights after all steps, and the loss of each, worked out with all of them in memory.
static void expect(double weights[LAYERS][NUMBERS], double losses[STEPS + 1]) {
    memset(weights, 0, LAYERS * sizeof *weights);
    for (uint64_t iteration = 1; iteration <= STEPS; iteration++) {
        losses[iteration] = 0.0;
        for (uint32_t i = 0; i < NUMBERS; i++) {
            double y[LAYERS], x = input(iteration, i);
            for (uint32_t layer = 0; layer < LAYERS; layer++) {
                x = y[layer] = forward(x, weights[layer][i]);
            }
            losses[iteration] += x;
            for (uint32_t layer = 0; layer < LAYERS; layer++) {
                weights[layer][i] = update(weights[layer][i], y[layer]);
            }
        }
    }
}

int main(void) {
    SpillwayPlan *plan = make_plan("50%", NULL), *more = make_plan("80%", NULL);
    SpillwayPlan *hosted = make_plan("50%", "optimizer-offload");
    SpillwayFigures figures = {.struct_bytes = sizeof figures}, on_host = {.struct_bytes = sizeof on_host};
    check(spillway_plan_figures(plan, &figures, &error));
    check(spillway_plan_figures(hosted, &on_host, &error));
    Device memory = {0};
    const SpillwayDevice device = {
        sizeof device, &memory,  CHUNK,  create,   reserve,  map,       unmap,   create_host,
        write_host,    read_host, upload, download, wait_for, signal_on, reached, block_until,
        NULL,          1,        NULL,     0,       0,
    };
    const SpillwayKernels kernels = {
        sizeof kernels, &memory, launch, fill_state, fill_input, launch_on_host,
    };
    SpillwaySession *session;
    const SpillwayPlan *others[] = {more, hosted};
    check(spillway_session_with_others(plan, others, 2, &device, &kernels, &session, &error));
    check(spillway_session_run(session, STEPS / 2, &error));
    // Half of the steps in more memory: what both plans hold on the device stays there.
    SpillwaySwitchFigures moved = {.struct_bytes = sizeof moved};
    check(spillway_session_switch(session, more, NULL, &moved, &error));
    check(spillway_session_run(session, STEPS / 4, &error));
    check(spillway_session_switch(session, hosted, NULL, NULL, &error));
    spillway_plan_free(plan), spillway_plan_free(more), spillway_plan_free(hosted);
    check(spillway_session_run(session, STEPS / 4, &error));

    static double expected[LAYERS][NUMBERS], losses[STEPS + 1], trained[NUMBERS];
    expect(expected, losses);
    int is_same = on_host.host_ns == LAYERS * 40000;
    // The losses of the last two steps are there.
    for (uint64_t iteration = STEPS - 1; iteration <= STEPS; iteration++) {
        double loss;
        check(spillway_session_read_output(session, LOSS, iteration, (uint8_t *)&loss, sizeof loss,
                                           &error));
        is_same &= loss == losses[iteration];
    }
    for (uint32_t layer = 0; layer < LAYERS; layer++) {
        check(spillway_session_read_state(session, weight(layer), 0, (uint8_t *)trained,
                                          sizeof trained, &error));
        is_same &= memcmp(trained, expected[layer], sizeof trained) == 0;
    }
    spillway_session_free(session);
    free(memory.memory), free(memory.mapped), free(memory.host);
    printf("%d steps in %llu bytes of device memory, with %llu bytes uploaded in each: %s\n", STEPS,
           (unsigned long long)figures.peak_bytes, (unsigned long long)figures.h2d_bytes,
           is_same ? "the weights are right" : "the weights are wrong");
    printf("a switch to more memory kept %llu bytes, uploaded %llu and downloaded %llu\n",
           (unsigned long long)moved.kept_bytes, (unsigned long long)moved.h2d_bytes,
           (unsigned long long)moved.d2h_bytes);
    return !is_same;
}
