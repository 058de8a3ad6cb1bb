// Streams the weights of twelve layers through half the memory that they take, while some layers run on
// the host. The runtime is a few lines: one allocation, and the steps in their order, with their waits
// left out since each step ends before the next one starts.
#include "spillway.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { LAYERS = 12, LAYER_BYTES = 3 << 20, VALUE_BYTES = 4096, ITERATIONS = 5 };

static SpillwayError error;
static unsigned char weights[LAYERS][LAYER_BYTES];
// What each layer hands on, where the host has it.
static unsigned char values[LAYERS][VALUE_BYTES];

static void check(SpillwayCode code) {
    if (code != SPILLWAY_CODE_OK) {
        fprintf(stderr, "%s\n", error.message);
        exit(1);
    }
}

static SpillwayPlan *plan_layers(void) {
    SpillwayLayer layers[LAYERS];
    for (int i = 0; i < LAYERS; i++) {
        // The first layer cannot run on the host.
        layers[i] = (SpillwayLayer){.struct_bytes = sizeof *layers, .bytes = LAYER_BYTES - (i % 3) * 70000, .time_ns = 20000,
                                    .host_ns = i == 0 ? 0 : 60000, .activation_bytes = VALUE_BYTES};
        memset(weights[i], i + 1, sizeof weights[i]);
    }
    const SpillwayMachineDescription description = {
        .struct_bytes = sizeof description,
        .parameters = {.device_bytes = 1 << 30, .host_bytes = 1 << 30, .chunk_bytes = 4096,
                       .h2d_bytes_per_s = 25000000000, .d2h_bytes_per_s = 25000000000,
                       .transfer_latency_ns = 5000},
    };
    SpillwayMachine *machine;
    check(spillway_machine_new("link", &description, &machine, &error));
    SpillwayPlan *plan;
    if (spillway_streaming_plan(layers, LAYERS, machine, "1MiB", &plan, &error) ==
        SPILLWAY_CODE_INFEASIBLE) {
        printf("%s\n", error.message);
    }
    check(spillway_streaming_plan(layers, LAYERS, machine, "50%", &plan, &error));
    spillway_machine_free(machine);
    return plan;
}

// The host's copy of a tensor: weights, or what a layer hands on.
static unsigned char *host(uint32_t tensor) {
    return tensor < LAYERS ? weights[tensor] : values[tensor - LAYERS];
}

// A kernel, on the device or on the host: all bytes of the layer's weights must be its own, and each layer
// adds its number to each byte of its input.
static void run_layer(uint32_t layer, const unsigned char *weight, uint64_t weight_bytes,
                      const unsigned char *given, unsigned char *handed_on) {
    for (uint64_t i = 0; i < weight_bytes; i++) {
        if (weight[i] != layer + 1) {
            fprintf(stderr, "layer %u has other weights\n", layer);
            exit(1);
        }
    }
    for (int i = 0; i < VALUE_BYTES; i++) {
        handed_on[i] = given[i] + weight[0];
    }
}

// A launch finds its operands in the slab: the layer's weights, its input and its output.
static void launch(unsigned char *slab, uint32_t layer, const SpillwayRun *runs) {
    const unsigned char *weight = NULL, *given = NULL;
    unsigned char *handed_on = NULL;
    uint64_t weight_bytes = 0;
    for (int i = 0; i < 3; i++) {
        unsigned char *at = slab + runs[i].offset_bytes;
        if (runs[i].id == layer) {
            weight = at;
            weight_bytes = runs[i].bytes;
        } else if (runs[i].id == LAYERS + layer) {
            handed_on = at;
        } else {
            given = at;
        }
    }
    run_layer(layer, weight, weight_bytes, given, handed_on);
}

int main(void) {
    SpillwayPlan *plan = plan_layers();
    SpillwayFigures figures = {.struct_bytes = sizeof figures};
    check(spillway_plan_figures(plan, &figures, &error));
    printf("period %.3f ms, of which the host computes %.3f ms\n", figures.period_ns / 1e6,
           figures.host_ns / 1e6);

    size_t step_count, run_count;
    uint32_t iterations;
    uint64_t slab_bytes;
    spillway_plan_steps(plan, NULL, sizeof(SpillwayStep), 0, &step_count, NULL, &error);
    spillway_plan_addresses(plan, NULL, sizeof(SpillwayRun), 0, &run_count, NULL, &error);
    SpillwayStep *steps = malloc(step_count * sizeof *steps);
    SpillwayRun *runs = malloc(run_count * sizeof *runs);
    check(spillway_plan_steps(plan, steps, sizeof *steps, step_count, &step_count, &iterations,
                              &error));
    check(spillway_plan_addresses(plan, runs, sizeof *runs, run_count, &run_count, &slab_bytes,
                                  &error));
    unsigned char *slab = malloc(slab_bytes);

    size_t next = 0;
    for (; next < run_count && runs[next].step == SPILLWAY_NONE; next++) {
        const SpillwayRun run = runs[next];
        memcpy(slab + run.offset_bytes, host(run.id), run.bytes);
    }
    const size_t at_start = next;
    const int rounds = ITERATIONS * (int)iterations;
    int on_host = 0;
    for (int round = 0; round < ITERATIONS; round++) {
        next = at_start;
        for (uint32_t step = 0; step < step_count; step++) {
            const SpillwayRun *run = runs + next;
            while (next < run_count && runs[next].step == step) {
                next++;
            }
            const uint32_t layer = steps[step].id;
            if (steps[step].kind == SPILLWAY_PREFETCH) {
                memcpy(slab + run->offset_bytes, host(run->id), run->bytes);
            } else if (steps[step].kind == SPILLWAY_OFFLOAD) {
                memcpy(host(run->id), slab + run->offset_bytes, run->bytes);
            } else if (steps[step].kind == SPILLWAY_LAUNCH) {
                launch(slab, layer, run);
            } else if (steps[step].kind == SPILLWAY_HOST_RUN) {
                const uint32_t before = (layer + LAYERS - 1) % LAYERS;
                run_layer(layer, weights[layer], LAYER_BYTES, values[before], values[layer]);
                on_host++;
            }
        }
    }
    // Each iteration adds the numbers of all layers to what the last one handed on.
    unsigned char last[VALUE_BYTES];
    memcpy(last, values[LAYERS - 1], VALUE_BYTES);
    for (size_t i = 0; i < run_count && runs[i].step == SPILLWAY_NONE; i++) {
        if (runs[i].id == 2 * LAYERS - 1) {
            memcpy(last, slab + runs[i].offset_bytes, VALUE_BYTES);
        }
    }
    if (last[0] != rounds * LAYERS * (LAYERS + 1) / 2 % 256) {
        fprintf(stderr, "a layer was left out\n");
        return 1;
    }
    printf("%d layers in %.1f MiB, %d of them on the host: the weights are right\n", LAYERS,
           slab_bytes / (1024.0 * 1024), on_host / rounds);
    free(slab);
    free(runs);
    free(steps);
    spillway_plan_free(plan);
    return 0;
}
