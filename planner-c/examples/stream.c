// Streams the weights of twelve layers through half the memory that they take. The runtime is a few
// lines: one allocation, and the steps in their order, with their waits left out since each step
// ends before the next one starts.
#include "spillway.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { LAYERS = 12, LAYER_BYTES = 3 << 20, ITERATIONS = 5 };

static SpillwayError error;
static unsigned char weights[LAYERS][LAYER_BYTES];

static void check(SpillwayCode code) {
    if (code != SPILLWAY_CODE_OK) {
        fprintf(stderr, "%s\n", error.message);
        exit(1);
    }
}

static SpillwayPlan *plan_layers(void) {
    SpillwayLayer layers[LAYERS];
    for (int i = 0; i < LAYERS; i++) {
        layers[i] = (SpillwayLayer){.bytes = LAYER_BYTES - (i % 3) * 70000, .time_ns = 200000};
        memset(weights[i], i + 1, sizeof weights[i]);
    }
    const SpillwayMachineDescription description = {
        .device_bytes = 1 << 30, .host_bytes = 1 << 30, .chunk_bytes = 4096,
        .h2d_bytes_per_s = 25000000000, .d2h_bytes_per_s = 25000000000,
        .transfer_latency_ns = 5000,
    };
    SpillwayMachine *machine;
    check(spillway_machine_new("link", &description, &machine, &error));
    SpillwayPlan *plan;
    if (spillway_plan_layers(layers, LAYERS, machine, "1MiB", &plan, &error) ==
        SPILLWAY_CODE_INFEASIBLE) {
        printf("%s\n", error.message);
    }
    check(spillway_plan_layers(layers, LAYERS, machine, "50%", &plan, &error));
    spillway_machine_free(machine);
    return plan;
}

// A kernel: all bytes of the layer's weights must be its own.
static void launch(const unsigned char *slab, SpillwayRun run) {
    for (uint64_t i = 0; i < run.bytes; i++) {
        if (slab[run.offset_bytes + i] != run.id + 1) {
            fprintf(stderr, "layer %u has other weights\n", run.id);
            exit(1);
        }
    }
}

int main(void) {
    SpillwayPlan *plan = plan_layers();
    SpillwayFigures figures;
    check(spillway_plan_figures(plan, &figures, &error));
    printf("period %.3f ms, stall %.3f ms, at the least %.3f ms\n", figures.period_ns / 1e6,
           figures.stall_ns / 1e6, figures.bound_ns / 1e6);

    size_t step_count, run_count;
    uint32_t iterations;
    uint64_t slab_bytes;
    spillway_plan_steps(plan, NULL, 0, &step_count, NULL, &error);
    spillway_plan_addresses(plan, NULL, 0, &run_count, NULL, &error);
    SpillwayStep *steps = malloc(step_count * sizeof *steps);
    SpillwayRun *runs = malloc(run_count * sizeof *runs);
    check(spillway_plan_steps(plan, steps, step_count, &step_count, &iterations, &error));
    check(spillway_plan_addresses(plan, runs, run_count, &run_count, &slab_bytes, &error));
    unsigned char *slab = malloc(slab_bytes);

    size_t at_start = 0;
    for (; at_start < run_count && runs[at_start].step == SPILLWAY_NONE; at_start++) {
        const SpillwayRun run = runs[at_start];
        memcpy(slab + run.offset_bytes, weights[run.id], run.bytes);
    }
    for (int round = 0; round < ITERATIONS; round++) {
        for (size_t i = at_start; i < run_count; i++) {
            const SpillwayRun run = runs[i];
            if (steps[run.step].kind == SPILLWAY_PREFETCH) {
                memcpy(slab + run.offset_bytes, weights[run.id] + run.first_byte, run.bytes);
            } else if (steps[run.step].kind == SPILLWAY_LAUNCH) {
                launch(slab, run);
            }
        }
    }
    printf("%d layers in %.1f MiB: the weights are right\n", LAYERS, slab_bytes / (1024.0 * 1024));
    free(slab);
    free(runs);
    free(steps);
    spillway_plan_free(plan);
    return 0;
}
