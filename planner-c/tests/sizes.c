// Structs whose size is too small, and those of a newer header: with a field more, which is 0 or not.
#include "spillway.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define NEWER(type) struct { type now; uint64_t later; }

static SpillwayError error;
static int failures;

static void expect(SpillwayCode code, SpillwayCode wanted, const char *says, int line) {
    if (code != wanted || strstr(error.message, says) == NULL) {
        fprintf(stderr, "line %d: code %d, \"%s\", not \"%s\"\n", line, code, error.message, says);
        failures++;
    }
    error.message[0] = 0;
}

#define ACCEPTED(call) expect(call, SPILLWAY_CODE_OK, "", __LINE__)
#define REFUSED(call, says) expect(call, SPILLWAY_CODE_ARGUMENT, says, __LINE__)

// A call that takes a struct: of 0 bytes, of the newer header, and of that with a field that is not 0.
#define SIZES(name, newer, call, free)                                                              \
    (newer).now.struct_bytes = 0;                                                                   \
    REFUSED(call, "struct_bytes of " name " is 0, but");                                            \
    (newer).now.struct_bytes = sizeof(newer).now - 1;                                               \
    REFUSED(call, "struct_bytes of " name " is");                                                   \
    (newer).now.struct_bytes = SIZE_MAX;                                                            \
    REFUSED(call, "which is too large for a struct");                                               \
    (newer).now.struct_bytes = sizeof(newer);                                                       \
    (newer).later = 1;                                                                              \
    REFUSED(call, "the header is newer than the library");                                          \
    (newer).later = 0;                                                                              \
    ACCEPTED(call);                                                                                 \
    free

static SpillwayMachine *machine;
static SpillwayGraph *graph;
static SpillwayPlan *plan;

static void machines_and_graphs(void) {
    NEWER(SpillwayMachineDescription) description = {{
        .parameters = {.device_bytes = 1 << 20, .host_bytes = 1 << 20, .chunk_bytes = 64,
                       .h2d_bytes_per_s = 1 << 30, .d2h_bytes_per_s = 1 << 30},
    }, 0};
    SIZES("the description", description,
          spillway_machine_new(NULL, &description.now, &machine, &error), (void)0);

    NEWER(SpillwayTensor) tensors[2] = {{{.bytes = 64}, 0}, {{sizeof *tensors, NULL, 64, SPILLWAY_STATE}, 0}};
    const uint32_t ids[] = {0, 1};
    const SpillwayOp op = {.struct_bytes = sizeof op, .time_ns = 1000, .reads = ids, .read_count = 2};
    SIZES("a tensor", tensors[0],
          spillway_graph_new(NULL, &tensors->now, 2, &op, 1, &graph, &error), spillway_graph_free(graph));
    tensors[1].now.struct_bytes = sizeof(SpillwayTensor);
    REFUSED(spillway_graph_new(NULL, &tensors->now, 2, &op, 1, &graph, &error), "not the size of each entry");
    tensors[1].now.struct_bytes = sizeof *tensors;

    NEWER(SpillwayOp) ops[2] = {{{.time_ns = 1000, .reads = ids, .read_count = 1}, 0},
                                {{.time_ns = 1000, .reads = ids + 1, .read_count = 1}, 0}};
    ops[1].now.struct_bytes = sizeof *ops;
    SIZES("an op", ops[0], spillway_graph_new(NULL, &tensors->now, 2, &ops->now, 2, &graph, &error), (void)0);
}

static void plans(void) {
    NEWER(SpillwayPlanOptions) options = {{.budget = "min"}, 0};
    SIZES("options", options, spillway_plan_new(graph, machine, &options.now, &plan, &error),
          spillway_plan_free(plan));
    uint64_t bytes = 0;
    ACCEPTED(spillway_graph_min_feasible_bytes(graph, machine, &options.now, &bytes, &error));
    options.now.strategy = "auto:effort=0";
    ACCEPTED(spillway_plan_new(graph, machine, &options.now, &plan, &error));
    SpillwayPlan *none;
    options.now.strategy = "auto:effort=many";
    REFUSED(spillway_plan_new(graph, machine, &options.now, &none, &error), "effort=many");
    options.now.strategy = "auto:size=1";
    REFUSED(spillway_plan_new(graph, machine, &options.now, &none, &error), "auto has no parameter");

    // What the library writes, it writes as far as it knows.
    NEWER(SpillwayFigures) figures = {{0}, 99};
    REFUSED(spillway_plan_figures(plan, &figures.now, &error), "struct_bytes of figures is 0, but");
    figures.now.struct_bytes = sizeof figures;
    ACCEPTED(spillway_plan_figures(plan, &figures.now, &error));
    failures += figures.later != 0 || figures.now.struct_bytes != sizeof figures;
    failures += figures.now.peak_bytes != bytes || figures.now.budget_bytes != bytes;
    NEWER(SpillwaySwitchFigures) moved = {{0}, 99};
    REFUSED(spillway_plan_switch_to(plan, plan, &moved.now, &error), "struct_bytes of figures is 0, but");
    moved.now.struct_bytes = sizeof moved;
    ACCEPTED(spillway_plan_switch_to(plan, plan, &moved.now, &error));
    failures += moved.later != 0;

    NEWER(SpillwayStep) steps[64];
    memset(steps, 0xff, sizeof steps);
    size_t count, size = sizeof(SpillwayStep) - 1;
    REFUSED(spillway_plan_steps(plan, &steps->now, size, 64, &count, NULL, &error), "step_bytes is");
    ACCEPTED(spillway_plan_steps(plan, &steps->now, sizeof *steps, 64, &count, NULL, &error));
    for (size_t i = 0; i < count; i++) {
        failures += steps[i].later != 0 || steps[i].now.kind > SPILLWAY_HOST_RUN;
    }
    SpillwayRun run;
    REFUSED(spillway_plan_addresses(plan, &run, 8, 1, &count, NULL, &error), "run_bytes is 8");
}

static void layers(void) {
    NEWER(SpillwayLayer) layers[2] = {{{.bytes = 64, .time_ns = 1000}, 0},
                                      {{.bytes = 64, .time_ns = 1000}, 0}};
    layers[1].now.struct_bytes = sizeof *layers;
    SpillwayPlan *streamed;
    SIZES("a layer", layers[0],
          spillway_streaming_plan(&layers->now, 2, machine, "min", &streamed, &error),
          spillway_plan_free(streamed));
}

// The tables are read before their functions are looked for.
static void sessions(void) {
    NEWER(SpillwayDevice) device = {0};
    NEWER(SpillwayKernels) kernels = {0};
    SpillwaySession *session;
#define START spillway_session_new(plan, &device.now, &kernels.now, &session, &error)
    REFUSED(START, "struct_bytes of the device is 0, but");
    device.now.struct_bytes = sizeof device, device.later = 1;
    REFUSED(START, "the header is newer than the library");
    device.later = 0;
    REFUSED(START, "struct_bytes of the kernels is 0, but");
    kernels.now.struct_bytes = sizeof kernels, kernels.later = 1;
    REFUSED(START, "the header is newer than the library");
    kernels.later = 0;
    REFUSED(START, "the device's create is null");
}

int main(void) {
    machines_and_graphs();
    plans();
    layers();
    sessions();
    spillway_plan_free(plan);
    spillway_graph_free(graph);
    spillway_machine_free(machine);
    printf("%s\n", failures == 0 ? "all sizes are checked" : "some sizes are not checked");
    return failures != 0;
}
