// Spillway plans every transfer between host and device memory before the first one starts, proves
// the plan safe, and runs it. This header is generated from the sources of the library. docs/c.md is
// the guide.
//
// Pointers. Each is null, or points to as many values of its type as the function says. Input must
// be initialised, and nobody may change it during the call. Texts are UTF-8 and end with a zero.
//
// Handles. Each is made by one function and freed by another. Graphs, machines and plans never
// change, so threads may share them. A session belongs to one thread at a time. The handles from
// which a handle was made may be freed before it.
//
// Errors. A function that can fail returns a code. If the code is not SPILLWAY_CODE_OK, the function
// has written the code and a message into *error, unless error is null, and has left all other output
// unchanged. All input is checked, except pointers, and bad input is an error.
//
// Structs. A struct that a caller fills in begins with struct_bytes, its size in this header: set it
// to sizeof. Later versions may add fields at the end, and 0 in them keeps the earlier behaviour. A
// library therefore accepts a struct of an older header. It accepts a struct of a newer header if all
// fields that it does not know are 0. Any other size is an error that names the struct. Figures are
// written up to struct_bytes. Arrays that the library writes take the size of an entry as an argument.
// Structs that callbacks get begin with the library's size, which may be larger than in this header.
// SpillwayError and SpillwayWait never change.
//
// There is no global state.

#ifndef SPILLWAY_H
#define SPILLWAY_H

#include <stddef.h>
#include <stdint.h>

// The size of a message, including the zero at its end.
#define SPILLWAY_MESSAGE_BYTES 512

// A tensor that keeps its value from one iteration to the next.
#define SPILLWAY_STATE 0

// A tensor that has a new value on the host in each iteration.
#define SPILLWAY_INPUT 1

// A tensor that an op writes before any op reads it.
#define SPILLWAY_TEMPORARY 2

// A tensor that an op writes before any op reads it. Each iteration leaves its last value on the
// host.
#define SPILLWAY_OUTPUT 3

// Allocates device memory for a range of a tensor, and copies its value to the device. For an
// input, after the last launch of the list that reads it, this is the value of the next iteration.
#define SPILLWAY_PREFETCH 0

// Runs an op. Its workspace and the tensors that it writes are allocated if they are not on the
// device.
#define SPILLWAY_LAUNCH 1

// Copies a range of a tensor to the host. The range stays on the device.
#define SPILLWAY_OFFLOAD 2

// Frees the device memory of a range of a tensor.
#define SPILLWAY_EVICT 3

// Runs an op on the host: on the host's copies of its tensors, and without device memory. The
// value of an input is the value of this iteration.
#define SPILLWAY_HOST_RUN 4

// Launches run on this stream, except of collectives.
#define SPILLWAY_COMPUTE 0

// Prefetches run on this stream.
#define SPILLWAY_UPLOAD 1

// Offloads run on this stream.
#define SPILLWAY_DOWNLOAD 2

// Ops that run on the host run on this stream.
#define SPILLWAY_HOST 3

// Launches of collectives run on this stream.
#define NETWORK 4

// No step, so there is nothing to wait for.
#define SPILLWAY_NONE UINT32_MAX

// All objects of a tensor.
#define SPILLWAY_ALL UINT64_MAX

// The outcome of a call.
typedef enum {
  // The call succeeded.
  SPILLWAY_CODE_OK = 0,
  // A pointer is null, a text is not UTF-8, or the function does not know a number.
  SPILLWAY_CODE_ARGUMENT = 1,
  // The graph or the machine is malformed.
  SPILLWAY_CODE_GRAPH = 2,
  // A file cannot be read or written, or its bytes are malformed.
  SPILLWAY_CODE_FILE = 3,
  // The budget is too small. The message names the least budget that is enough.
  SPILLWAY_CODE_INFEASIBLE = 4,
  // There is no plan for another reason.
  SPILLWAY_CODE_NO_PLAN = 5,
  // The plan is not safe, or belongs to another graph or machine.
  SPILLWAY_CODE_INVALID_PLAN = 6,
  // The buffer is too short. The needed size has been written.
  SPILLWAY_CODE_BUFFER_TOO_SHORT = 7,
  // The process has too little memory.
  SPILLWAY_CODE_OUT_OF_MEMORY = 8,
  // A callback reports that the device has no memory left.
  SPILLWAY_CODE_OUT_OF_DEVICE_MEMORY = 9,
  // A callback reports that the host has no memory left that can be pinned.
  SPILLWAY_CODE_OUT_OF_HOST_MEMORY = 10,
  // A callback reports that the device is lost.
  SPILLWAY_CODE_DEVICE_LOST = 11,
  // A callback failed for another reason.
  SPILLWAY_CODE_DEVICE = 12,
  // A bug in this library.
  SPILLWAY_CODE_INTERNAL = 13,
  // A switch between the plans is not possible: their states differ, or the session has too
  // little memory for the other plan.
  SPILLWAY_CODE_NO_SWITCH = 14,
  // The plan does not fix its objects, so it has no addresses.
  SPILLWAY_CODE_NOT_PLACED = 15,
} SpillwayCode;

// One iteration of a computation that repeats forever.
typedef struct SpillwayGraph SpillwayGraph;

// A device, its host, and the links between them.
typedef struct SpillwayMachine SpillwayMachine;

// A proved plan. It is safe in every order that its waits allow, and its prediction is exact.
typedef struct SpillwayPlan SpillwayPlan;

// A plan, the device that runs it, and the kernels that compute its ops.
typedef struct SpillwaySession SpillwaySession;

// A tensor of a graph. Its id is its position.
typedef struct {
  // The size of this struct.
  size_t struct_bytes;
  // Its name in messages. Null for its number.
  const char *name;
  // Its size, which must not be zero.
  uint64_t bytes;
  // `SPILLWAY_STATE`, `SPILLWAY_INPUT`, `SPILLWAY_TEMPORARY` or `SPILLWAY_OUTPUT`.
  uint32_t kind;
} SpillwayTensor;

// An op of a graph. Its id is its position, and the ops are in one legal order.
typedef struct {
  // The size of this struct.
  size_t struct_bytes;
  // Its name in messages. Null for its number.
  const char *name;
  // The time that it runs.
  uint64_t time_ns;
  // The device memory that it needs only while it runs.
  uint64_t workspace_bytes;
  // The tensors that it reads.
  const uint32_t *reads;
  // The number of tensors that it reads.
  size_t read_count;
  // The tensors that it writes. A tensor that it also reads is updated in place.
  const uint32_t *writes;
  // The number of tensors that it writes.
  size_t write_count;
  // Whether plans may launch it again in the same iteration, on the values that it read the
  // first time: 1 or 0. Such a repeat writes the same bytes into its temporaries. It neither
  // reads nor writes the states, inputs and outputs that the op writes.
  uint8_t repeatable;
  // The time that it runs on the host, if plans may run it there. 0 if it runs only on the
  // device. An op that writes an input must have 0.
  uint64_t host_ns;
  // Whether it exchanges data with other processes: 1 or 0. Such a collective runs on
  // `SPILLWAY_NETWORK`, beside the other ops, and must have 0 in `host_ns`.
  uint8_t collective;
} SpillwayOp;

// Why a call failed. A function that succeeds leaves it unchanged.
typedef struct {
  // The code that the function returned.
  SpillwayCode code;
  // A sentence in UTF-8 that names tensors and ops. It ends with a zero, and is cut if it is too
  // long.
  char message[SPILLWAY_MESSAGE_BYTES];
} SpillwayError;

// The parameters of a device, its host, and the links between them.
typedef struct {
  // Device memory in bytes.
  uint64_t device_bytes;
  // Host memory that may be pinned, in bytes.
  uint64_t host_bytes;
  // Size of a chunk, the unit in which device memory is mapped.
  uint64_t chunk_bytes;
  // Bandwidth from host to device.
  uint64_t h2d_bytes_per_s;
  // Bandwidth from device to host.
  uint64_t d2h_bytes_per_s;
  // Fixed cost of one transfer.
  uint64_t transfer_latency_ns;
  // Host time to map one chunk, for executors that map while the plan runs.
  uint64_t map_ns_per_chunk;
  // Host time to unmap one chunk, for executors that map while the plan runs.
  uint64_t unmap_ns_per_chunk;
} SpillwayMachineParameters;

// The properties of a machine.
typedef struct {
  // The size of this struct.
  size_t struct_bytes;
  // The device, its host, and the links between them.
  SpillwayMachineParameters parameters;
} SpillwayMachineDescription;

// How to plan. Null, or 0 in all fields except the first, stands for the defaults.
typedef struct {
  // The size of this struct.
  size_t struct_bytes;
  // The device memory for the plan: a size (`"4GiB"`), a percentage of the memory that the work
  // needs in-core (`"35%"`), or `"min"`. Null for all of the device's memory.
  const char *budget;
  // The name of a strategy, with its settings after a colon: `"window:bytes=512MiB,variant=published"`
  // (`docs/strategies.md`). Null for `"auto"`.
  const char *strategy;
  // Whether the plan may map memory while it runs, instead of before: 1 or 0. Such a plan has no
  // addresses.
  uint8_t unplaced;
} SpillwayPlanOptions;

// The exact figures of a plan for the given times of ops and links.
typedef struct {
  // The size of this struct, which the caller sets.
  size_t struct_bytes;
  // The budget that the plan keeps.
  uint64_t budget_bytes;
  // The time from one iteration to the next in steady state.
  uint64_t period_ns;
  // The sum of all op times, each op once.
  uint64_t compute_ns;
  // The time of the repeats.
  uint64_t repeat_ns;
  // The part of a period in which no op runs on the device: the period less all launches there,
  // including repeats.
  uint64_t stall_ns;
  // A period that no plan can beat. The report says among which plans.
  uint64_t lower_bound_ns;
  // The device memory that the work needs with everything resident.
  uint64_t in_core_peak_bytes;
  // The most device memory that is held at a time.
  uint64_t peak_bytes;
  // Bytes copied to the device in one iteration.
  uint64_t h2d_bytes;
  // Bytes copied to the host in one iteration.
  uint64_t d2h_bytes;
  // The size of the pinned host memory.
  uint64_t host_bytes;
  // The time of the ops that run on the host.
  uint64_t host_ns;
  // The number of ops that run on the host.
  uint64_t on_host;
  // The number of repeats.
  uint64_t repeats;
  // The part of the peak that neither tensors nor workspaces fill.
  uint64_t waste_bytes;
  // Time for which the host maps and unmaps memory in one iteration, if the plan maps as it runs.
  // The period leaves it out.
  uint64_t mapping_ns;
  // Whether ops run in another order than the graph's: 1 or 0.
  uint8_t reordered;
} SpillwayFigures;

// A layer. No other layer reads its weights.
typedef struct {
  // The size of this struct.
  size_t struct_bytes;
  // Its name in messages. Null for its number.
  const char *name;
  // The size of its weights, which must not be zero. They lie at consecutive addresses.
  uint64_t bytes;
  // The time that it computes on the device.
  uint64_t time_ns;
  // The time that it computes on the host. 0 if it cannot run there.
  uint64_t host_ns;
  // The size of the activation that the next layer reads. The first layer follows the last, in
  // the next iteration. If all layers have 0, the plan moves no activations. If a layer may run
  // on the host, no layer may have 0.
  uint64_t activation_bytes;
  // The size of its cache, such as a KV cache, which each iteration reads and writes. 0 if it
  // has none. The cache stays at one address of the device or, if the layer runs on the host, at
  // one address of the host.
  uint64_t cache_bytes;
  // The size of its output, such as the logits of the last layer, which each iteration leaves on
  // the host. 0 if it has none.
  uint64_t output_bytes;
} SpillwayLayer;

// A step of a stream that must have ended before another step starts. Later versions add no
// fields.
typedef struct {
  // The position of the awaited step among the steps of its stream in one iteration. The largest
  // number if there is nothing to wait for.
  uint32_t index;
  // The number of iterations since the awaited step. If it lies before the first iteration,
  // there is nothing to wait for.
  uint32_t iterations_back;
} SpillwayWait;

// One step. Steps are enqueued in the order of the list, each on the stream of its kind; the launch
// of a collective on the stream for collectives.
typedef struct {
  // A prefetch, a launch, an offload, an evict or a host run.
  uint32_t kind;
  // The op of a launch or of a host run. Otherwise the tensor.
  uint32_t id;
  // The first object of the range. 0 for an op.
  uint64_t first_object;
  // The number of objects. The largest number stands for all. 0 for an op.
  uint64_t object_count;
  // Whether the op has been launched before in this iteration: 1 or 0.
  uint8_t is_repeat;
  // The position among the steps of its stream in one iteration. An evict is on no stream and
  // has the largest number.
  uint32_t index;
  // The waits on each stream, by number. For an evict, the steps that must have ended before its
  // memory is free.
  SpillwayWait waits[5];
} SpillwayStep;

// Bytes that a step touches, at consecutive offsets.
typedef struct {
  // The position of the step among all steps that `spillway_plan_steps` writes. `SPILLWAY_NONE`
  // for bytes that are on the device when the first iteration starts.
  uint32_t step;
  // The tensor. For a workspace, the op.
  uint32_t id;
  // Whether it is the workspace of an op: 1 or 0.
  uint8_t is_workspace;
  // The offset of the bytes in the tensor or the workspace.
  uint64_t first_byte;
  // The offset of the bytes in the slab.
  uint64_t offset_bytes;
  // The number of bytes. If it is less than the tensor's size, the tensor does not lie in one
  // piece, and a launch has further runs of it.
  uint64_t bytes;
} SpillwayRun;

// A copy between the slab and the host's copy of a tensor.
typedef struct {
  // The tensor, by its number in the graph of the second plan.
  uint32_t tensor;
  // The direction: 1 to the device, 0 to the host.
  uint8_t is_upload;
  // Whether it waits for all copies before it: 1 or 0. Only an upload does.
  uint8_t waits;
  // The offset of the bytes in the tensor.
  uint64_t first_byte;
  // The offset of the bytes in the slab.
  uint64_t offset_bytes;
  // The number of bytes.
  uint64_t bytes;
} SpillwaySlabCopy;

// The cost of a switch from one plan to another.
typedef struct {
  // The size of this struct, which the caller sets.
  size_t struct_bytes;
  // Bytes of states that stay on the device.
  uint64_t kept_bytes;
  // Bytes copied to the device.
  uint64_t h2d_bytes;
  // Bytes copied to the host.
  uint64_t d2h_bytes;
  // Time of all copies.
  uint64_t time_ns;
  // Time to map and unmap memory, before the copies. Before a run, the most that this time can
  // be.
  uint64_t mapping_ns;
} SpillwaySwitchFigures;

// A state or an input that a callback fills. It is valid only during the call.
//
// A device may instead write the bytes of the host block from `offset_bytes` on itself.
typedef struct {
  // The size of this struct, which the library sets.
  size_t struct_bytes;
  // The tensor.
  uint32_t tensor;
  // The iteration, counted from 1. 0 for a state.
  uint64_t iteration;
  // The size of the tensor.
  uint64_t bytes;
  // The offset of its value in the host block.
  uint64_t offset_bytes;
  // Private to the library.
  void *writer;
} SpillwayFill;

// A device has three streams of work, and may have one for ops on the host and one for collectives. It
// has a block of host
// memory, and device memory in chunks that are mapped at addresses. A session calls these
// functions from the thread that calls the session. Each function gets `context` first.
//
// Functions that return `int32_t` return 0, or a `SpillwayCode` that says why they failed:
// `SPILLWAY_CODE_OUT_OF_DEVICE_MEMORY`, `SPILLWAY_CODE_OUT_OF_HOST_MEMORY` or
// `SPILLWAY_CODE_DEVICE_LOST`. Any other number becomes `SPILLWAY_CODE_DEVICE`. A function that
// fails changes nothing. Only `submit` and `signal_unawaited` may be null. No function may unwind.
//
// `docs/backends.md` states the promises of each function.
typedef struct {
  // The size of this struct.
  size_t struct_bytes;
  // The first argument of the functions. It must live as long as the session.
  void *context;
  // The size of a chunk. It must be the chunk size of the machine in the plan.
  uint64_t chunk_bytes;
  // Creates this many chunks of device memory. Called once.
  int32_t (*create)(void *context, uint64_t chunks);
  // Reserves addresses for this many chunks. They must not begin at 0, which means no address to
  // kernels.
  int32_t (*reserve)(void *context, uint64_t chunks, uint64_t *address);
  // Maps consecutive chunks, by number, at an address.
  int32_t (*map)(void *context, uint64_t address, uint64_t first_chunk, uint64_t chunks);
  // Unmaps chunks from an address: one mapping, or several adjacent mappings. No work in flight
  // uses them.
  int32_t (*unmap)(void *context, uint64_t address, uint64_t chunks);
  // Creates the host block. Called once.
  int32_t (*create_host)(void *context, uint64_t bytes);
  // Copies bytes into the host block, at once.
  int32_t (*write_host)(void *context, uint64_t offset_bytes, const uint8_t *from, size_t bytes);
  // Copies bytes out of the host block, at once.
  int32_t (*read_host)(void *context, uint64_t offset_bytes, uint8_t *into, size_t bytes);
  // Enqueues a copy from the host block to an address, on the stream for uploads.
  int32_t (*upload)(void *context, uint64_t offset_bytes, uint64_t bytes, uint64_t address);
  // Enqueues a copy from an address to the host block, on the stream for downloads.
  int32_t (*download)(void *context, uint64_t address, uint64_t offset_bytes, uint64_t bytes);
  // Makes all later work and later signals on a stream wait for a signal of a stream. A signal
  // that has not been enqueued is an error.
  int32_t (*wait)(void *context, uint32_t stream, uint32_t signal_stream, uint64_t signal);
  // Enqueues a signal on a stream, and returns its number. Each stream counts 1, 2, 3 and so on.
  int32_t (*signal)(void *context, uint32_t stream, uint64_t *signal);
  // Tells whether a signal has been reached: 1 or 0.
  int32_t (*reached)(void *context, uint32_t stream, uint64_t signal, uint8_t *is_reached);
  // Blocks the calling thread until a signal is reached.
  int32_t (*block_until)(void *context, uint32_t stream, uint64_t signal);
  // Submits all work that is enqueued so far, if the device gathers work. Called at the end of
  // each iteration. It may be null if the device submits work at once. Other functions may also
  // submit work, and `block_until` must.
  int32_t (*submit)(void *context);
  // Whether the device also has a stream for ops that run on the host, `SPILLWAY_HOST`: 1 or 0.
  // Without it, a session does not start if its plan runs ops on the host.
  uint8_t has_host_stream;
  // Enqueues a signal like `signal`. No later call names this signal, but calls may name later
  // signals of the stream. If it is null, the library calls `signal`.
  int32_t (*signal_unawaited)(void *context, uint32_t stream, uint64_t *signal);
  // The most chunks that one call of `reserve` can have; 0 for no limit.
  uint64_t most_range_chunks;
  // Whether the device also has a stream for collectives, `SPILLWAY_NETWORK`: 1 or 0. Without it,
  // a session does not start if its graph has collectives.
  uint8_t has_network_stream;
} SpillwayDevice;

// A range of bytes at an address of the device.
typedef struct {
  // The address of the first byte.
  uint64_t address;
  // The number of bytes.
  uint64_t bytes;
} SpillwayDeviceRange;

// One launch of an op.
typedef struct {
  // The size of this struct, which the library sets.
  size_t struct_bytes;
  // The op.
  uint32_t op;
  // Whether the op has been launched before in this iteration: 1 or 0. Such a repeat writes the
  // same bytes into its temporaries.
  uint8_t is_repeat;
  // The iteration, counted from 1.
  uint64_t iteration;
  // The ranges of the tensors that the op reads, in the op's order. Each is a whole tensor. Null
  // for a state, an input or an output that a repeat leaves alone.
  const SpillwayDeviceRange *const *reads;
  // The number of tensors that it reads.
  size_t read_count;
  // The ranges of the tensors that the op writes, in the op's order. Each is a whole tensor.
  // Null for a state, an input or an output that a repeat leaves alone.
  const SpillwayDeviceRange *const *writes;
  // The number of tensors that it writes.
  size_t write_count;
  // The workspace of the op. Null if it needs none.
  const SpillwayDeviceRange *workspace;
  // The stream that runs it: `SPILLWAY_NETWORK` for a collective, else `SPILLWAY_COMPUTE`.
  uint32_t stream;
} SpillwayLaunch;

// A range of bytes in the host block.
typedef struct {
  // The offset of the first byte.
  uint64_t offset_bytes;
  // The number of bytes.
  uint64_t bytes;
} SpillwayHostRange;

// One run of an op on the host.
typedef struct {
  // The size of this struct, which the library sets.
  size_t struct_bytes;
  // The op.
  uint32_t op;
  // The iteration, counted from 1.
  uint64_t iteration;
  // The ranges of the host block that the op reads, in the op's order. Each is a whole tensor.
  const SpillwayHostRange *const *reads;
  // The number of tensors that it reads.
  size_t read_count;
  // The ranges of the host block that the op writes, in the op's order. Each is a whole tensor. A
  // tensor that it updates in place has one range in both lists.
  const SpillwayHostRange *const *writes;
  // The number of tensors that it writes.
  size_t write_count;
} SpillwayHostLaunch;

// The work of ops, and the values of states and inputs. Each function gets `context` first. It
// returns 0 or an error, as the functions of a device do. No function may unwind.
typedef struct {
  // The size of this struct.
  size_t struct_bytes;
  // The first argument of the functions. It must live as long as the session.
  void *context;
  // Enqueues an op on the launch's stream. It may touch only the ranges that the launch names.
  int32_t (*launch)(void *context, const SpillwayLaunch *launch);
  // Fills a state with its first value, by a function such as `spillway_fill_f32`. Called once
  // for each state. If it is null, states are zeros.
  int32_t (*fill_state)(void *context, SpillwayFill *state);
  // Fills an input with its value in an iteration, by the same functions. Called once for each
  // input and iteration. May be null if the graph has no inputs.
  int32_t (*fill_input)(void *context, SpillwayFill *input);
  // Enqueues an op on the host stream. It may touch only the ranges of the host block that the
  // launch names. The launch is valid only during this call. If the function is null, a session
  // does not start if its plan runs ops on the host.
  int32_t (*launch_on_host)(void *context, const SpillwayHostLaunch *launch);
} SpillwayKernels;

#ifdef __cplusplus
extern "C" {
#endif // __cplusplus

// The version of this library, such as `"0.1.0"`. The header of the same version describes it.
const char *spillway_version(void);

// Makes a graph of `tensor_count` tensors and `op_count` ops. `name` may be null.
//
// # Safety
// The pointers are as `spillway.h` requires.
SpillwayCode spillway_graph_new(const char *name,
                                const SpillwayTensor *tensors,
                                size_t tensor_count,
                                const SpillwayOp *ops,
                                size_t op_count,
                                SpillwayGraph **graph,
                                SpillwayError *error);

// Reads a graph from the bytes of a graph file (`spillway.graph.v1`), plain or compressed by gzip.
//
// # Safety
// The pointers are as `spillway.h` requires.
SpillwayCode spillway_graph_from_json(const uint8_t *json,
                                      size_t json_bytes,
                                      SpillwayGraph **graph,
                                      SpillwayError *error);

// Frees a graph. Null does nothing.
//
// # Safety
// The pointer is as `spillway.h` requires.
void spillway_graph_free(SpillwayGraph *graph);

// Makes a machine. `name` may be null.
//
// # Safety
// The pointers are as `spillway.h` requires.
SpillwayCode spillway_machine_new(const char *name,
                                  const SpillwayMachineDescription *description,
                                  SpillwayMachine **machine,
                                  SpillwayError *error);

// Makes one of the machines that `spillway plan --machine list` prints.
//
// # Safety
// The pointers are as `spillway.h` requires.
SpillwayCode spillway_machine_builtin(const char *name,
                                      SpillwayMachine **machine,
                                      SpillwayError *error);

// Reads a machine from the bytes of a machine file (`spillway.machine.v1`).
//
// # Safety
// The pointers are as `spillway.h` requires.
SpillwayCode spillway_machine_from_json(const uint8_t *json,
                                        size_t json_bytes,
                                        SpillwayMachine **machine,
                                        SpillwayError *error);

// Frees a machine. Null does nothing.
//
// # Safety
// The pointer is as `spillway.h` requires.
void spillway_machine_free(SpillwayMachine *machine);

// Returns the smallest budget with which a graph can be planned for a machine. `options` may be
// null. Only the strategy in it matters.
//
// # Safety
// The pointers are as `spillway.h` requires.
SpillwayCode spillway_graph_min_feasible_bytes(const SpillwayGraph *graph,
                                               const SpillwayMachine *machine,
                                               const SpillwayPlanOptions *options,
                                               uint64_t *min_feasible_bytes,
                                               SpillwayError *error);

// Plans a graph for a machine, and proves the plan. `options` may be null.
//
// # Safety
// The pointers are as `spillway.h` requires.
SpillwayCode spillway_plan_new(const SpillwayGraph *graph,
                               const SpillwayMachine *machine,
                               const SpillwayPlanOptions *options,
                               SpillwayPlan **plan,
                               SpillwayError *error);

// Reads a plan from the bytes of a plan file (`spillway.plan.v1`), and proves it.
//
// # Safety
// The pointers are as `spillway.h` requires.
SpillwayCode spillway_plan_from_json(const SpillwayGraph *graph,
                                     const SpillwayMachine *machine,
                                     const uint8_t *json,
                                     size_t json_bytes,
                                     SpillwayPlan **plan,
                                     SpillwayError *error);

// Writes the bytes of a plan file into a buffer, and their number into `needed`. If the buffer is
// too short, writes only the number.
//
// # Safety
// The pointers are as `spillway.h` requires.
SpillwayCode spillway_plan_to_json(const SpillwayPlan *plan,
                                   uint8_t *into,
                                   size_t capacity,
                                   size_t *needed,
                                   SpillwayError *error);

// Writes a report, one self-contained page of HTML, into a buffer, and its size into `needed`. If
// the buffer is too short, writes only the size.
//
// # Safety
// The pointers are as `spillway.h` requires.
SpillwayCode spillway_plan_report(const SpillwayPlan *plan,
                                  uint8_t *into,
                                  size_t capacity,
                                  size_t *needed,
                                  SpillwayError *error);

// Writes why a plan maps memory while it runs into a buffer, as text without a zero at its end, and
// its size into `needed`. The text is empty if the plan does not map while it runs, if the options
// allowed it (`unplaced`), or if the plan comes from a file. If the buffer is too short, writes only
// the size.
//
// # Safety
// The pointers are as `spillway.h` requires.
SpillwayCode spillway_plan_unplaced(const SpillwayPlan *plan,
                                    uint8_t *into,
                                    size_t capacity,
                                    size_t *needed,
                                    SpillwayError *error);

// Makes the same plan with an arena that is laid out after the arena of `earlier`. A switch from
// `earlier` to the new plan then copies less, since states in both arenas have the same offsets.
// If the plan's budget is too small for that, the plan is unchanged.
//
// # Safety
// The pointers are as `spillway.h` requires.
SpillwayCode spillway_plan_arranged_after(const SpillwayPlan *plan,
                                          const SpillwayPlan *earlier,
                                          SpillwayPlan **arranged,
                                          SpillwayError *error);

// Makes a plan of the same work in the same budget for one iteration between two iterations of
// `other`, such as a prompt between tokens. If possible, the plan ends with all states on the
// device that `other` holds. Returns the best of `plan` and the plans that are tried: its period
// and the copies of both switches take the least time together. Plans the work up to twice.
//
// # Safety
// The pointers are as `spillway.h` requires.
SpillwayCode spillway_plan_between(const SpillwayPlan *plan,
                                   const SpillwayPlan *other,
                                   SpillwayPlan **between,
                                   SpillwayError *error);

// Returns the figures of a plan.
//
// # Safety
// The pointers are as `spillway.h` requires.
SpillwayCode spillway_plan_figures(const SpillwayPlan *plan,
                                   SpillwayFigures *figures,
                                   SpillwayError *error);

// Frees a plan. Null does nothing.
//
// # Safety
// The pointer is as `spillway.h` requires.
void spillway_plan_free(SpillwayPlan *plan);

// Plans which layers stay on the device, when and where other layers are uploaded, and which
// layers run on the host. The result is an ordinary plan. A layer, its op and its tensor have the
// same number. A layer's activation is the tensor whose number is larger by `layer_count`. The
// caches have the next numbers, in the order of the layers that have one, and then the outputs.
// The plan has addresses, and each tensor lies in one piece. `budget` is as in
// `SpillwayPlanOptions`. It covers weights, caches, outputs and, if layers have activations, three
// times the largest activation. A percentage counts all of these except the activations. `"min"`
// is the size that `spillway_streaming_min_feasible` returns. Addresses are multiples of the
// machine's `chunk_bytes`, which may be as small as the device's alignment.
//
// # Safety
// The pointers are as `spillway.h` requires.
SpillwayCode spillway_streaming_plan(const SpillwayLayer *layers,
                                     size_t layer_count,
                                     const SpillwayMachine *machine,
                                     const char *budget,
                                     SpillwayPlan **plan,
                                     SpillwayError *error);

// Returns the least budget with which layers can be streamed, and the first layer that needs it.
// The budget is the size of the largest layer that cannot run on the host, of the caches and
// outputs of all such layers, and of activations.
//
// # Safety
// The pointers are as `spillway.h` requires.
SpillwayCode spillway_streaming_min_feasible(const SpillwayLayer *layers,
                                             size_t layer_count,
                                             const SpillwayMachine *machine,
                                             uint64_t *budget_bytes,
                                             size_t *layer,
                                             SpillwayError *error);

// Writes the steps of a plan into a buffer, and their number into `needed`. If the buffer is too
// short, writes only the number. `step_bytes` is the size of `SpillwayStep`. The list repeats
// forever. It has the steps of one iteration, or of `iterations` iterations one after the other,
// which differ only in their waits.
//
// # Safety
// The pointers are as `spillway.h` requires.
SpillwayCode spillway_plan_steps(const SpillwayPlan *plan,
                                 SpillwayStep *into,
                                 size_t step_bytes,
                                 size_t capacity,
                                 size_t *needed,
                                 uint32_t *iterations,
                                 SpillwayError *error);

// Writes the offsets of all bytes that the plan touches into a buffer, and the number of runs into
// `needed`. If the buffer is too short, writes only the number. `run_bytes` is the size of
// `SpillwayRun`. The offsets are in one slab of `slab_bytes`, which the runtime allocates once.
// The bytes on the device at the start come first. The bytes of each step follow, in the order of
// the steps: for a copy, a part of a tensor; for a launch, each of its tensors once, then its
// workspace.
//
// A plan that does not fix its objects has no offsets: `SPILLWAY_CODE_NOT_PLACED`.
//
// # Safety
// The pointers are as `spillway.h` requires.
SpillwayCode spillway_plan_addresses(const SpillwayPlan *plan,
                                     SpillwayRun *into,
                                     size_t run_bytes,
                                     size_t capacity,
                                     size_t *needed,
                                     uint64_t *slab_bytes,
                                     SpillwayError *error);

// Writes the copies of a switch from one plan to another after `iterations` iterations into a
// buffer, and their number into `needed`. If the buffer is too short, writes only the number.
// `copy_bytes` is the size of `SpillwaySlabCopy`. Both plans have the same states and lie in one
// slab, each at its `spillway_plan_addresses`. `slab_bytes` is set to the larger of their sizes.
// Bytes that both plans hold at the same offset stay. Downloads run in order on one stream, and
// uploads on another. `figures` may be null. It is set to the cost of the copies.
//
// # Safety
// The pointers are as `spillway.h` requires.
SpillwayCode spillway_plan_slab_switch_to(const SpillwayPlan *from,
                                          uint64_t iterations,
                                          const SpillwayPlan *to,
                                          SpillwaySlabCopy *into,
                                          size_t copy_bytes,
                                          size_t capacity,
                                          size_t *needed,
                                          uint64_t *slab_bytes,
                                          SpillwaySwitchFigures *figures,
                                          SpillwayError *error);

// Writes numbers of 32 bits (`float`) as the whole value of a state or an input.
//
// # Safety
// The pointers are as `spillway.h` requires.
SpillwayCode spillway_fill_f32(SpillwayFill *fill,
                               const float *values,
                               size_t count,
                               SpillwayError *error);

// Writes numbers of 64 bits (`double`) as the whole value of a state or an input.
//
// # Safety
// The pointers are as `spillway.h` requires.
SpillwayCode spillway_fill_f64(SpillwayFill *fill,
                               const double *values,
                               size_t count,
                               SpillwayError *error);

// Writes integers of 32 bits as the whole value of a state or an input.
//
// # Safety
// The pointers are as `spillway.h` requires.
SpillwayCode spillway_fill_i32(SpillwayFill *fill,
                               const int32_t *values,
                               size_t count,
                               SpillwayError *error);

// Writes integers of 64 bits as the whole value of a state or an input.
//
// # Safety
// The pointers are as `spillway.h` requires.
SpillwayCode spillway_fill_i64(SpillwayFill *fill,
                               const int64_t *values,
                               size_t count,
                               SpillwayError *error);

// Writes numbers of 16 bits, such as half precision, as the whole value of a state or an input.
//
// # Safety
// The pointers are as `spillway.h` requires.
SpillwayCode spillway_fill_u16(SpillwayFill *fill,
                               const uint16_t *values,
                               size_t count,
                               SpillwayError *error);

// Writes bytes as the whole value of a state or an input.
//
// # Safety
// The pointers are as `spillway.h` requires.
SpillwayCode spillway_fill_bytes(SpillwayFill *fill,
                                 const uint8_t *values,
                                 size_t count,
                                 SpillwayError *error);

// Sets up device and host memory for a plan, fills the states and the first inputs, and uploads
// everything that is resident at the start of an iteration. Copies the tables of callbacks.
//
// # Safety
// The pointers are as `spillway.h` requires.
SpillwayCode spillway_session_new(const SpillwayPlan *plan,
                                  const SpillwayDevice *device,
                                  const SpillwayKernels *kernels,
                                  SpillwaySession **session,
                                  SpillwayError *error);

// As `spillway_session_new`, with enough memory on the device and the host for each of the other
// plans, so that the session can switch to them.
//
// # Safety
// The pointers are as `spillway.h` requires.
SpillwayCode spillway_session_with_others(const SpillwayPlan *plan,
                                          const SpillwayPlan *const *others,
                                          size_t other_count,
                                          const SpillwayDevice *device,
                                          const SpillwayKernels *kernels,
                                          SpillwaySession **session,
                                          SpillwayError *error);

// Returns the cost of a switch between two plans, without a session.
//
// # Safety
// The pointers are as `spillway.h` requires.
SpillwayCode spillway_plan_switch_to(const SpillwayPlan *from,
                                     const SpillwayPlan *to,
                                     SpillwaySwitchFigures *figures,
                                     SpillwayError *error);

// Ends the plan of a session and starts another between two iterations. States that both plans
// hold on the device stay there if possible. The plans may belong to two graphs whose states have
// the same names and sizes.
//
// `kernels` are the kernels of the other graph. Null keeps the callbacks. `fill_state` is not
// called. `fill_input` is called for the next iteration, even if it has already been called for it
// under the old plan. `figures` may be null. After `SPILLWAY_CODE_NO_SWITCH`, the session
// continues with the old plan. After an error of the device, no further iteration runs.
//
// # Safety
// The pointers are as `spillway.h` requires.
SpillwayCode spillway_session_switch(SpillwaySession *session,
                                     const SpillwayPlan *plan,
                                     const SpillwayKernels *kernels,
                                     SpillwaySwitchFigures *figures,
                                     SpillwayError *error);

// Enqueues iterations. Returns once the last is enqueued, before it has ended. After an error of
// the device, no further iteration runs.
//
// # Safety
// The pointers are as `spillway.h` requires.
SpillwayCode spillway_session_run(SpillwaySession *session,
                                  uint64_t iterations,
                                  SpillwayError *error);

// Waits until all iterations so far and all copies for the next one have ended.
//
// # Safety
// The pointers are as `spillway.h` requires.
SpillwayCode spillway_session_wait(SpillwaySession *session, SpillwayError *error);

// Waits for all iterations, and reads bytes of the current value of a state, from `first_byte` on.
// Copies only these bytes from the device, and only if the host does not have them.
//
// # Safety
// The pointers are as `spillway.h` requires.
SpillwayCode spillway_session_read_state(SpillwaySession *session,
                                         uint32_t tensor,
                                         uint64_t first_byte,
                                         uint8_t *into,
                                         size_t bytes,
                                         SpillwayError *error);

// Waits for all iterations, and writes bytes of a state, from `first_byte` on. The next iteration
// begins with the new value.
//
// # Safety
// The pointers are as `spillway.h` requires.
SpillwayCode spillway_session_write_state(SpillwaySession *session,
                                          uint32_t tensor,
                                          uint64_t first_byte,
                                          const uint8_t *value,
                                          size_t bytes,
                                          SpillwayError *error);

// Waits for all iterations, and writes the value of every state into a file in the format
// safetensors. Each state is a tensor of bytes (`U8`) under its name, and the metadata
// `spillway.iterations` gives the number of iterations so far. An older file of this name is
// replaced once everything is written.
//
// # Safety
// The pointers are as `spillway.h` requires.
SpillwayCode spillway_session_save_states(SpillwaySession *session,
                                          const char *path,
                                          SpillwayError *error);

// Waits for all iterations, and sets states to the values in a file in the format safetensors. The
// tensors in it may have any type, and must have the names and sizes of states. If `all` is not 0,
// every state must be in the file. Otherwise states that the file lacks keep their values. If
// something in the file does not fit, nothing is written. `iterations` may be null. It is set to
// the number of iterations before the file was saved, or to 0 if the file does not give it.
//
// # Safety
// The pointers are as `spillway.h` requires.
SpillwayCode spillway_session_load_states(SpillwaySession *session,
                                          const char *path,
                                          uint8_t all,
                                          uint64_t *iterations,
                                          SpillwayError *error);

// Waits for an iteration, and reads the value that it left in an output. `bytes` is the size of
// the output. Iterations are counted from 1 over all plans. Only the last two enqueued iterations
// can be read. 0 stands for the last.
//
// # Safety
// The pointers are as `spillway.h` requires.
SpillwayCode spillway_session_read_output(SpillwaySession *session,
                                          uint32_t tensor,
                                          uint64_t iteration,
                                          uint8_t *into,
                                          size_t bytes,
                                          SpillwayError *error);

// Returns the number of iterations that have been enqueued, over all plans.
//
// # Safety
// The pointers are as `spillway.h` requires.
SpillwayCode spillway_session_iterations(const SpillwaySession *session,
                                         uint64_t *iterations,
                                         SpillwayError *error);

// Returns the size of the device memory that a session has taken for its plans.
//
// # Safety
// The pointers are as `spillway.h` requires.
SpillwayCode spillway_session_device_bytes(const SpillwaySession *session,
                                           uint64_t *device_bytes,
                                           SpillwayError *error);

// Frees a session. Null does nothing. The device must have ended all work before its own memory is
// freed.
//
// # Safety
// The pointer is as `spillway.h` requires.
void spillway_session_free(SpillwaySession *session);

#ifdef __cplusplus
}  // extern "C"
#endif  // __cplusplus

#endif  /* SPILLWAY_H */
