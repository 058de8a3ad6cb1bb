#include "spillway_residency.h"

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <cstdarg>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <mutex>
#include <set>
#include <thread>

#include "ggml-alloc.h"
#include "ggml-cpu.h"
#include "spillway.h"

namespace spillway {

namespace {

using Clock = std::chrono::steady_clock;

uint64_t ns_since(Clock::time_point start) {
    return std::chrono::duration_cast<std::chrono::nanoseconds>(Clock::now() - start).count();
}

__attribute__((format(printf, 1, 2))) void say(const char* format, ...) {
    va_list arguments;
    va_start(arguments, format);
    fprintf(stderr, "spillway: ");
    vfprintf(stderr, format, arguments);
    fprintf(stderr, "\n");
    va_end(arguments);
}

bool is_set(const char* name, const char* value) {
    const char* given = getenv(name);
    return given != nullptr && strcmp(given, value) == 0;
}

// The speed of a slower link than this machine has, or 0: copies then last as long as they would over it.
uint64_t link_bytes_per_s() {
    const char* given = getenv("SPILLWAY_LINK_BYTES_PER_S");
    return given == nullptr ? 0 : strtoull(given, nullptr, 10);
}

void pace(Clock::time_point start, uint64_t bytes) {
    if (const uint64_t rate = link_bytes_per_s()) {
        std::this_thread::sleep_until(start + std::chrono::nanoseconds(uint64_t(bytes * 1e9 / rate)));
    }
}

// The weights of one segment, which lie together, in the host's memory and on the device.
struct Layer {
    std::string name;
    std::vector<ggml_tensor*> weights;
    std::vector<void*> host;         // where they are in the host's memory
    std::vector<uint64_t> offsets;   // where they are in the layer
    uint64_t bytes = 0;
    uint64_t copied_bytes = 0;       // without padding
    uint64_t time_ns = 0;
    std::vector<ggml_tensor> bound;  // as the device has them
};

bool operator==(const Layer& one, const Layer& other) {
    return one.weights == other.weights && one.bytes == other.bytes;
}

// A step of a stream: an upload, or the launch of a segment. It waits for a step of the other stream.
struct Step {
    uint32_t layer;
    uint64_t offset_bytes;
    SpillwayWait wait;
};

// What repeats for ever. Its iterations differ in their offsets and waits, and repeat too.
struct Schedule {
    struct Iteration {
        std::vector<Step> uploads, launches;
    };
    std::vector<Iteration> iterations;
    std::vector<Step> at_start;
    uint64_t slab_bytes = 0;
    uint64_t period_ns = 0;  // as planned; 0: unknown
};

// The unit of addresses in a plan, a multiple of any device's alignment. With 64 bytes, which the processor
// needs, the planner takes ten seconds for some lists; with this, some milliseconds.
constexpr uint64_t CHUNK_BYTES = 64 << 10;

// Asks the planner. Returns false, and has printed why, where there is no plan.
bool plan_layers(const std::vector<Layer>& layers, uint64_t budget_bytes, uint64_t h2d_bytes_per_s,
                 Schedule& schedule) {
    SpillwayError error;
    std::vector<SpillwayLayer> given(layers.size());
    uint64_t all_bytes = 0;
    for (size_t i = 0; i < layers.size(); i++) {
        given[i] = {};
        given[i].struct_bytes = sizeof given[i];
        given[i].name = layers[i].name.c_str();
        given[i].bytes = layers[i].bytes;
        given[i].time_ns = layers[i].time_ns;
        all_bytes += layers[i].bytes;
    }
    SpillwayMachineDescription description = {};
    description.struct_bytes = sizeof description;
    SpillwayMachineParameters& parameters = description.parameters;
    parameters.device_bytes = budget_bytes;
    parameters.host_bytes = all_bytes;
    parameters.chunk_bytes = CHUNK_BYTES;
    parameters.h2d_bytes_per_s = parameters.d2h_bytes_per_s = h2d_bytes_per_s;
    SpillwayMachine* machine = nullptr;
    SpillwayPlan* plan = nullptr;
    SpillwayFigures figures = {};
    figures.struct_bytes = sizeof figures;
    std::vector<SpillwayStep> steps;
    std::vector<SpillwayRun> runs;
    size_t step_count = 0, run_count = 0;
    uint32_t iterations = 0;
    const auto ok = [](SpillwayCode code) { return code == SPILLWAY_CODE_OK; };
    bool is_planned = ok(spillway_machine_new("link", &description, &machine, &error)) &&
                      ok(spillway_streaming_plan(given.data(), given.size(), machine, nullptr, &plan, &error)) &&
                      ok(spillway_plan_figures(plan, &figures, &error));
    if (is_planned) {
        spillway_plan_steps(plan, nullptr, sizeof(SpillwayStep), 0, &step_count, nullptr, nullptr);
        spillway_plan_addresses(plan, nullptr, sizeof(SpillwayRun), 0, &run_count, nullptr, nullptr);
        steps.resize(step_count);
        runs.resize(run_count);
        is_planned =
            ok(spillway_plan_steps(plan, steps.data(), sizeof(SpillwayStep), step_count, &step_count, &iterations,
                                   &error)) &&
            ok(spillway_plan_addresses(plan, runs.data(), sizeof(SpillwayRun), run_count, &run_count,
                                       &schedule.slab_bytes, &error));
    }
    spillway_plan_free(plan);
    spillway_machine_free(machine);
    if (!is_planned) {
        say("%s", error.message);
        return false;
    }
    schedule.period_ns = figures.period_ns;
    schedule.iterations.resize(iterations);
    for (const SpillwayRun& run : runs) {
        if (run.step == SPILLWAY_NONE) {
            schedule.at_start.push_back({run.id, run.offset_bytes, {SPILLWAY_NONE, 0}});
            continue;
        }
        const SpillwayStep& step = steps[run.step];
        Schedule::Iteration& iteration = schedule.iterations[run.step / (step_count / iterations)];
        if (step.kind == SPILLWAY_PREFETCH) {
            iteration.uploads.push_back({step.id, run.offset_bytes, step.waits[SPILLWAY_COMPUTE]});
        } else if (step.kind == SPILLWAY_LAUNCH) {
            iteration.launches.push_back({step.id, run.offset_bytes, step.waits[SPILLWAY_UPLOAD]});
        } else if (step.kind != SPILLWAY_EVICT) {
            say("the plan has a step of a kind that this cannot run: %u", step.kind);
            return false;
        }
    }
    return true;
}

// For comparison, the rule that later versions of the runtime have: the first segments stay, as many as fit,
// and each of the others comes while the one before it runs. So two slots are for others.
bool keep_prefix(const std::vector<Layer>& layers, uint64_t budget_bytes, Schedule& schedule) {
    const uint32_t count = layers.size();
    uint32_t kept = count;
    uint64_t kept_bytes = 0, slot_bytes = 0;
    for (const Layer& layer : layers) {
        kept_bytes += layer.bytes;
    }
    while (kept > 0 && kept_bytes + 2 * slot_bytes > budget_bytes) {
        kept_bytes -= layers[--kept].bytes;
        slot_bytes = std::max(slot_bytes, layers[kept].bytes);
    }
    schedule.slab_bytes = kept_bytes + 2 * slot_bytes;
    if (schedule.slab_bytes > budget_bytes) {
        say("the budget of %.1f MiB is too small: two segments need %.1f MiB", budget_bytes / 1048576.0,
            schedule.slab_bytes / 1048576.0);
        return false;
    }
    schedule.iterations.resize(1);
    uint64_t offset_bytes = 0;
    for (uint32_t i = 0; i < count; i++) {
        SpillwayWait for_upload = {SPILLWAY_NONE, 0};
        if (i < kept) {
            schedule.at_start.push_back({i, offset_bytes, for_upload});
        } else {
            offset_bytes = kept_bytes + (i - kept) % 2 * slot_bytes;
            for_upload = {i - kept, 0};
            // Once the segment before the one before it has ended; nothing comes before its iteration.
            const SpillwayWait one_ahead = i >= 2 ? SpillwayWait{i - 2, 0} : SpillwayWait{count - 1, 1};
            schedule.iterations[0].uploads.push_back({i, offset_bytes, one_ahead});
        }
        schedule.iterations[0].launches.push_back({i, offset_bytes, for_upload});
        offset_bytes += layers[i].bytes;
    }
    return true;
}

}  // namespace

bool is_on() {
    return getenv("SPILLWAY_RESIDENCY") != nullptr;
}

bool shares_memory(ggml_backend_t backend) {
    return ggml_backend_is_cpu(backend) && getenv("SPILLWAY_PROCESSOR_AS_DEVICE") == nullptr;
}

struct Residency::State {
    std::string runner;
    ggml_backend_t backend = nullptr;
    std::vector<Layer> layers;
    uint64_t budget_bytes = 0;
    bool is_running = false;   // within an iteration
    bool is_bound = false;     // within a segment
    uint32_t next_layer = 0;   // of the iteration
    Clock::time_point segment_start;

    // While nothing is planned, the runtime uploads, and this measures.
    uint64_t upload_ns = 0;

    // While a plan runs, a thread is the upload stream. It may be an iteration ahead.
    Schedule schedule;
    ggml_backend_buffer_t slab = nullptr;
    std::thread uploader;
    std::mutex mutex;
    std::condition_variable changed;
    bool is_stopped = false;
    uint64_t uploads_done = 0, launches_done = 0;
    uint64_t iteration = 0;  // from 0

    // For the report.
    std::vector<uint64_t> iteration_ns;
    Clock::time_point iteration_start;
    uint64_t uploaded_bytes = 0, peak_bytes = 0;

    ~State() { stop(); }

    bool is_planned() const { return slab != nullptr; }

    // How many steps of a stream must have ended for a wait, if each iteration has `count` of them.
    static uint64_t needed(const SpillwayWait& wait, uint64_t iteration, size_t count) {
        return wait.index == SPILLWAY_NONE || wait.iterations_back > iteration
                   ? 0
                   : (iteration - wait.iterations_back) * count + wait.index + 1;
    }

    void upload(const Step& step) {
        const auto start = Clock::now();
        Layer& layer = layers[step.layer];
        char* base = static_cast<char*>(ggml_backend_buffer_get_base(slab)) + step.offset_bytes;
        for (size_t i = 0; i < layer.weights.size(); i++) {
            ggml_tensor& bound = layer.bound[i];
            bound.buffer = nullptr;
            bound.data = nullptr;
            bound.extra = nullptr;
            if (ggml_backend_tensor_alloc(slab, &bound, base + layer.offsets[i]) != GGML_STATUS_SUCCESS) {
                GGML_ABORT("spillway: the device takes no tensor at the planned address");
            }
            ggml_backend_tensor_set(&bound, layer.host[i], 0, ggml_nbytes(&bound));
        }
        pace(start, layer.copied_bytes);
        uploaded_bytes += layer.copied_bytes;
    }

    void run_uploads() {
        for (uint64_t n = 0;; n++) {
            const Schedule::Iteration& steps = schedule.iterations[n % schedule.iterations.size()];
            if (steps.uploads.empty()) {
                return;
            }
            for (const Step& step : steps.uploads) {
                const uint64_t launches = needed(step.wait, n, steps.launches.size());
                {
                    std::unique_lock<std::mutex> lock(mutex);
                    changed.wait(lock, [&] { return is_stopped || launches_done >= launches; });
                    if (is_stopped) {
                        return;
                    }
                }
                upload(step);
                {
                    std::lock_guard<std::mutex> lock(mutex);
                    uploads_done++;
                }
                changed.notify_all();
            }
        }
    }

    bool start() {
        uint64_t copied_bytes = 0;
        for (const Layer& layer : layers) {
            copied_bytes += layer.copied_bytes;
        }
        const uint64_t rate = uint64_t(copied_bytes * 1e9 / std::max<uint64_t>(upload_ns, 1));
        schedule = {};
        const auto planning = Clock::now();
        if (!(is_set("SPILLWAY_RESIDENCY", "prefix")
                  ? keep_prefix(layers, budget_bytes, schedule)
                  : plan_layers(layers, budget_bytes, std::max<uint64_t>(rate, 1), schedule))) {
            return false;
        }
        const uint64_t planning_ns = ns_since(planning);
        slab = ggml_backend_alloc_buffer(backend, schedule.slab_bytes);
        if (slab == nullptr) {
            say("the device does not give %.1f MiB in one piece", schedule.slab_bytes / 1048576.0);
            return false;
        }
        ggml_backend_buffer_set_usage(slab, GGML_BACKEND_BUFFER_USAGE_WEIGHTS);
        say("%s: %zu segments in %.1f MiB, %zu of them at the start, %zu uploads an iteration at %.2f GB/s, "
            "planned in %.1f ms",
            runner.c_str(), layers.size(), schedule.slab_bytes / 1048576.0, schedule.at_start.size(),
            schedule.iterations[0].uploads.size(), rate / 1e9, planning_ns / 1e6);
        peak_bytes = std::max(peak_bytes, schedule.slab_bytes);
        for (Layer& layer : layers) {
            layer.bound.clear();
            for (const ggml_tensor* weight : layer.weights) {
                layer.bound.push_back(*weight);
            }
        }
        for (const Step& step : schedule.at_start) {
            upload(step);
        }
        is_stopped = false;
        uploads_done = launches_done = iteration = 0;
        uploader = std::thread([this] { run_uploads(); });
        return true;
    }

    void stop() {
        if (uploader.joinable()) {
            {
                std::lock_guard<std::mutex> lock(mutex);
                is_stopped = true;
            }
            changed.notify_all();
            uploader.join();
        }
        if (slab != nullptr) {
            ggml_backend_buffer_free(slab);
            slab = nullptr;
        }
    }

    // Binds the weights of a segment to the device, or to the host again.
    void bind(Layer& layer, bool to_device) {
        for (size_t i = 0; i < layer.weights.size(); i++) {
            std::swap(layer.weights[i]->buffer, layer.bound[i].buffer);
            std::swap(layer.weights[i]->data, layer.bound[i].data);
            std::swap(layer.weights[i]->extra, layer.bound[i].extra);
        }
        is_bound = to_device;
    }
};

Residency::Residency() : state(new State) {}
Residency::~Residency() = default;

bool Residency::begin(ggml_cgraph* graph, const sd::ggml_graph_cut::Plan& plan, size_t budget_bytes,
                      ggml_backend_t backend, const std::string& runner, bool has_adapter) {
    State& s = *state;
    s.runner = runner;
    s.backend = backend;
    if (is_on()) {
        if (!is_set("SPILLWAY_RESIDENCY", "plan") && !is_set("SPILLWAY_RESIDENCY", "prefix")) {
            say("SPILLWAY_RESIDENCY is neither plan nor prefix");
            return false;
        }
        const std::string device = ggml_backend_name(backend);
        if (device != "CPU" && device.rfind("Vulkan", 0) != 0 && getenv("SPILLWAY_UNTESTED_DEVICE") == nullptr) {
            say("%s: this has not run on %s; set SPILLWAY_UNTESTED_DEVICE to try", runner.c_str(), device.c_str());
            return false;
        }
        if (has_adapter) {
            say("%s: adapters such as LoRA at runtime are weights that no plan sees", runner.c_str());
            return false;
        }
        const ggml_backend_buffer_type_t type = ggml_backend_get_default_buffer_type(backend);
        const uint64_t alignment_bytes = ggml_backend_buft_get_alignment(type);
        GGML_ASSERT(CHUNK_BYTES % alignment_bytes == 0);
        std::vector<Layer> layers;
        std::set<ggml_tensor*> seen;
        uint64_t other_bytes = 0;
        for (const auto& segment : plan.segments) {
            Layer layer;
            layer.name = segment.group_name;
            layer.weights = sd::ggml_graph_cut::param_tensors(graph, segment);
            for (ggml_tensor* weight : layer.weights) {
                if (!seen.insert(weight).second) {
                    say("%s: more than one segment reads %s", runner.c_str(), weight->name);
                    return false;
                }
                if (weight->buffer == nullptr || !ggml_backend_buffer_is_host(weight->buffer)) {
                    say("%s: %s is not in the host's memory", runner.c_str(), weight->name);
                    return false;
                }
                layer.offsets.push_back(layer.bytes);
                layer.host.push_back(weight->data);
                layer.bytes += GGML_PAD(ggml_backend_buft_get_alloc_size(type, weight), alignment_bytes);
                layer.copied_bytes += ggml_nbytes(weight);
            }
            if (layer.weights.empty()) {
                say("%s: %s has no weights; the runtime uploads all for it", runner.c_str(), layer.name.c_str());
                return false;
            }
            layers.push_back(std::move(layer));
            other_bytes = std::max<uint64_t>(other_bytes, segment.compute_buffer_size + segment.output_bytes +
                                                              segment.input_previous_cut_bytes);
        }
        // What is no weight must fit beside the weights, as the runtime counts it.
        const uint64_t weights_bytes = budget_bytes > other_bytes ? budget_bytes - other_bytes : 0;
        if (!(layers == s.layers) || (s.is_planned() && weights_bytes < s.schedule.slab_bytes)) {
            s.stop();
            s.layers = std::move(layers);
            s.upload_ns = 0;
        } else if (!s.is_planned()) {
            s.budget_bytes = weights_bytes;
            if (!s.start()) {
                return false;
            }
        }
    }
    s.iteration_start = Clock::now();
    s.next_layer = 0;
    s.is_running = true;
    return true;
}

void Residency::end() {
    State& s = *state;
    s.is_running = false;
    s.iteration++;
    s.iteration_ns.push_back(ns_since(s.iteration_start));
}

bool Residency::bring(const std::vector<ggml_tensor*>& weights) {
    State& s = *state;
    s.segment_start = Clock::now();
    if (!s.is_planned()) {
        return false;
    }
    Layer& layer = s.layers.at(s.next_layer);
    const Schedule::Iteration& steps = s.schedule.iterations[s.iteration % s.schedule.iterations.size()];
    const Step& step = steps.launches.at(s.next_layer);
    GGML_ASSERT(weights == layer.weights && step.layer == s.next_layer);
    const uint64_t uploads = State::needed(step.wait, s.iteration, steps.uploads.size());
    {
        std::unique_lock<std::mutex> lock(s.mutex);
        s.changed.wait(lock, [&] { return s.uploads_done >= uploads; });
    }
    char* base = static_cast<char*>(ggml_backend_buffer_get_base(s.slab)) + step.offset_bytes;
    GGML_ASSERT(layer.bound[0].data == base + layer.offsets[0]);
    s.bind(layer, true);
    return true;
}

void Residency::brought(const std::vector<ggml_tensor*>& weights) {
    State& s = *state;
    uint64_t bytes = 0;
    for (const ggml_tensor* weight : weights) {
        bytes += ggml_nbytes(weight);
    }
    pace(s.segment_start, bytes);
    s.uploaded_bytes += bytes;
    s.peak_bytes = std::max(s.peak_bytes, bytes);
    s.upload_ns += ns_since(s.segment_start);
    s.segment_start = Clock::now();
    s.is_bound = true;
}

void Residency::done() {
    State& s = *state;
    if (!s.is_bound) {
        return;
    }
    if (s.is_planned()) {
        s.bind(s.layers[s.next_layer], false);
        {
            std::lock_guard<std::mutex> lock(s.mutex);
            s.launches_done++;
        }
        s.changed.notify_all();
    } else if (is_on()) {
        s.layers.at(s.next_layer).time_ns = std::max<uint64_t>(ns_since(s.segment_start), 1);
    }
    s.is_bound = false;
    s.next_layer++;
}

void Residency::release() {
    State& s = *state;
    if (s.is_running || s.iteration_ns.empty()) {
        return;
    }
    s.stop();
    std::string times;
    for (uint64_t ns : s.iteration_ns) {
        times += (times.empty() ? "" : ", ") + std::to_string(ns);
    }
    say("{\"runner\": \"%s\", \"uploaded_bytes\": %llu, \"weights_bytes\": %llu, \"planned_ns\": %llu, "
        "\"iterations_ns\": [%s]}",
        s.runner.c_str(), (unsigned long long)s.uploaded_bytes, (unsigned long long)s.peak_bytes,
        (unsigned long long)s.schedule.period_ns, times.c_str());
    state.reset(new State);
}

}  // namespace spillway
