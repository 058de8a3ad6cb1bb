// Plans a training step of two layers for 80 % of the memory that it needs, and lists the steps, as
// a runtime with an executor of its own would read them.
#include "spillway.h"
#include <stdio.h>
#include <stdlib.h>

static SpillwayError error;

static void check(SpillwayCode code) {
    if (code != SPILLWAY_CODE_OK) {
        fprintf(stderr, "%s\n", error.message);
        exit(1);
    }
}

enum { X, W1, W2, H, G2, G1, TENSORS };
enum { MIB = 1 << 20 };

static SpillwayGraph *training_step(void) {
    const SpillwayTensor tensors[TENSORS] = {
        [X] = {sizeof(SpillwayTensor), "x", 8 * MIB, SPILLWAY_INPUT},
        [W1] = {sizeof(SpillwayTensor), "w1", 64 * MIB, SPILLWAY_STATE},
        [W2] = {sizeof(SpillwayTensor), "w2", 64 * MIB, SPILLWAY_STATE},
        [H] = {sizeof(SpillwayTensor), "h", 8 * MIB, SPILLWAY_TEMPORARY},
        [G2] = {sizeof(SpillwayTensor), "g2", 8 * MIB, SPILLWAY_TEMPORARY},
        [G1] = {sizeof(SpillwayTensor), "g1", 8 * MIB, SPILLWAY_TEMPORARY},
    };
    const SpillwayOp ops[] = {
        {sizeof(SpillwayOp), "forward 1", 5000000, 0, (const uint32_t[]){X, W1}, 2, (const uint32_t[]){H}, 1, 1, 0, 0},
        {sizeof(SpillwayOp), "forward 2", 5000000, 0, (const uint32_t[]){H, W2}, 2, (const uint32_t[]){G2}, 1, 1, 0, 0},
        {sizeof(SpillwayOp), "backward 2", 10000000, 0, (const uint32_t[]){G2, H, W2}, 3, (const uint32_t[]){W2, G1}, 2, 0, 0, 0},
        {sizeof(SpillwayOp), "backward 1", 10000000, 0, (const uint32_t[]){G1, X, W1}, 3, (const uint32_t[]){W1}, 1, 0, 0, 0},
    };
    SpillwayGraph *graph;
    check(spillway_graph_new("step", tensors, TENSORS, ops, 4, &graph, &error));
    return graph;
}

int main(void) {
    SpillwayGraph *graph = training_step();
    SpillwayMachine *machine;
    check(spillway_machine_builtin("v100-pcie3", &machine, &error));
    SpillwayPlan *plan;
    const SpillwayPlanOptions options = {.struct_bytes = sizeof options, .budget = "80%"};
    check(spillway_plan_new(graph, machine, &options, &plan, &error));
    spillway_graph_free(graph);
    spillway_machine_free(machine);

    SpillwayFigures figures = {.struct_bytes = sizeof figures};
    check(spillway_plan_figures(plan, &figures, &error));
    printf("period %.1f ms, compute %.1f ms, at the least %.1f ms, peak %.1f MiB\n",
           figures.period_ns / 1e6, figures.compute_ns / 1e6, figures.lower_bound_ns / 1e6,
           figures.peak_bytes / (double)MIB);

    size_t count;
    uint32_t iterations;
    spillway_plan_steps(plan, NULL, sizeof(SpillwayStep), 0, &count, NULL, &error);
    SpillwayStep *steps = malloc(count * sizeof *steps);
    check(spillway_plan_steps(plan, steps, sizeof *steps, count, &count, &iterations, &error));
    const char *const kinds[] = {"prefetch", "launch", "offload", "evict", "host run"};
    const char *const streams[] = {"compute", "upload", "download", "host"};
    for (size_t i = 0; i < count / iterations; i++) {
        printf("%-8s %s %u", kinds[steps[i].kind],
               steps[i].kind == SPILLWAY_LAUNCH || steps[i].kind == SPILLWAY_HOST_RUN ? "op" : "tensor",
               steps[i].id);
        for (int s = 0; s < 4; s++) {
            const SpillwayWait wait = steps[i].waits[s];
            if (wait.index != SPILLWAY_NONE) {
                printf(", after %s step %u", streams[s], wait.index);
                if (wait.iterations_back > 0) {
                    printf(" of %u iterations back", wait.iterations_back);
                }
            }
        }
        printf("\n");
    }
    free(steps);
    spillway_plan_free(plan);
    return 0;
}
