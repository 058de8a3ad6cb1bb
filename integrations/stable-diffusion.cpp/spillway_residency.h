// Which weights of a runner stay on the device, and when the others come: hooks of Spillway in
// stable-diffusion.cpp. `hooks.py` inserts the calls.
#pragma once

#include <cstddef>
#include <memory>
#include <string>
#include <vector>

#include "ggml_graph_cut.h"

namespace spillway {

// Whether a plan decides, and not the runtime: SPILLWAY_RESIDENCY is set.
bool is_on();

// Whether a backend computes in the memory where the weights are. If SPILLWAY_PROCESSOR_AS_DEVICE is set,
// the processor is a device with memory of its own: an upload is then a copy from memory to memory.
bool shares_memory(ggml_backend_t backend);

// The weights of one runner. An iteration is one run of all segments of its graph, such as a sampling step.
class Residency {
public:
    Residency();
    ~Residency();

    // Starts an iteration. Returns false, and has printed why, if it cannot run within the budget.
    bool begin(ggml_cgraph* graph, const sd::ggml_graph_cut::Plan& plan, size_t budget_bytes,
               ggml_backend_t backend, const std::string& runner, bool has_adapter);
    void end();

    // Before a segment: binds its weights to device memory, and returns true. Returns false where the
    // runtime has to upload them itself; it then calls `brought`.
    bool bring(const std::vector<ggml_tensor*>& weights);
    void brought(const std::vector<ggml_tensor*>& weights);
    // After a segment, as often as the runtime likes: binds its weights to the host again.
    void done();

    // Between iterations: gives back all device memory, and prints what was moved. During one, does nothing.
    void release();

private:
    struct State;
    std::unique_ptr<State> state;
};

}  // namespace spillway
