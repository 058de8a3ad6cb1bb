// Spillway plans every transfer between host and device memory before the first one starts, proves
// the plan safe, and runs it. This header is made from the sources of the library; docs/c.md is
// the guide.
//
// Pointers. Each is null, or points to as many values of its type as the function says; input must
// be initialised, and nobody may change it during the call. Texts are UTF-8 and end with a zero.
//
// Handles. Each is made by one function and freed by another. Graphs, machines and plans never
// change, so threads may share them; a session belongs to one thread at a time. What a handle was
// made from may be freed before it.
//
// Errors. A function that can fail returns a code. Where it is not SPILLWAY_CODE_OK, the function has
// written the code and a sentence into *error, unless error is null, and has left all other output
// as it was. Pointers apart, any input is safe: what is wrong is an error.
//
// Structs. Those that a caller fills in begin with struct_bytes, their size in this header: set it to sizeof.
// Fields may be added at the end, and 0 in them is what was before. So a library takes a struct of an older
// header, and one of a newer header if what it does not know is 0; any other size is an error that names
// the struct. Figures are written as far as struct_bytes says. Arrays that the library writes take the
// size of an entry as an argument. Structs that callbacks get begin with the library's size: it may be larger
// than in this header. SpillwayError and SpillwayWait never change.
//
// There is no global state.

#ifndef SPILLWAY_H
#define SPILLWAY_H

#include <stddef.h>
#include <stdint.h>

// Bytes of a message, with the zero at its end.
#define SPILLWAY_MESSAGE_BYTES 512

// A tensor that keeps its value from one iteration to the next.
#define SPILLWAY_STATE 0

// A tensor that has a new value on the host in each iteration.
#define SPILLWAY_INPUT 1

// A tensor that an op writes before any op reads it.
#define SPILLWAY_TEMPORARY 2

// A tensor that an op writes before any op reads it, and whose last value each iteration leaves on
// the host.
#define SPILLWAY_OUTPUT 3

// Allocates device memory for a range of a tensor, and copies its value in. Of an input, after the
// last launch of the list that reads it: the value of the next iteration.
#define SPILLWAY_PREFETCH 0

// Runs an op. What it writes is allocated where it is not on the device, and so is its workspace.
#define SPILLWAY_LAUNCH 1

// Copies a range of a tensor to the host; it stays on the device.
#define SPILLWAY_OFFLOAD 2

// Gives back the device memory of a range of a tensor.
#define SPILLWAY_EVICT 3

// Runs an op on the host: on the host's copies of its tensors, and without device memory. Of an input,
// that is the value of this iteration.
#define SPILLWAY_HOST_RUN 4

// Launches run on this stream.
#define SPILLWAY_COMPUTE 0

// Prefetches run on this stream.
#define SPILLWAY_UPLOAD 1

// Offloads run on this stream.
#define SPILLWAY_DOWNLOAD 2

// Ops that run on the host run on this stream.
#define SPILLWAY_HOST 3

// No step: there is nothing to wait for.
#define SPILLWAY_NONE UINT32_MAX

// All objects of a tensor.
#define SPILLWAY_ALL UINT64_MAX

// What became of a call.
typedef enum {
  // It did what was asked.
  SPILLWAY_CODE_OK = 0,
  // A pointer is null, a text is not UTF-8, or a number is none that the function knows.
  SPILLWAY_CODE_ARGUMENT = 1,
  // The graph or the machine is malformed.
  SPILLWAY_CODE_GRAPH = 2,
  // A file cannot be read or written, or its bytes are malformed.
  SPILLWAY_CODE_FILE = 3,
  // The budget is too small; the sentence names the least that will do.
  SPILLWAY_CODE_INFEASIBLE = 4,
  // There is no plan for another reason.
  SPILLWAY_CODE_NO_PLAN = 5,
  // The plan is not safe, or is for another graph or machine.
  SPILLWAY_CODE_INVALID_PLAN = 6,
  // The buffer is too short; the needed size has been written.
  SPILLWAY_CODE_BUFFER_TOO_SHORT = 7,
  // The process has too little memory.
  SPILLWAY_CODE_OUT_OF_MEMORY = 8,
  // A callback says that the device has no memory left.
  SPILLWAY_CODE_OUT_OF_DEVICE_MEMORY = 9,
  // A callback says that the host has no memory left that can be pinned.
  SPILLWAY_CODE_OUT_OF_HOST_MEMORY = 10,
  // A callback says that the device is gone.
  SPILLWAY_CODE_DEVICE_LOST = 11,
  // A callback failed for another reason.
  SPILLWAY_CODE_DEVICE = 12,
  // A bug of this library.
  SPILLWAY_CODE_INTERNAL = 13,
  // There is no switch from one plan to the other: their states differ, or the session has too
  // little memory for the other plan.
  SPILLWAY_CODE_NO_SWITCH = 14,
  // The plan does not fix its objects, so it has no addresses.
  SPILLWAY_CODE_NOT_PLACED = 15,
} SpillwayCode;

// One iteration of a computation that repeats for ever.
typedef struct SpillwayGraph SpillwayGraph;

// A device, its host, and the links between them.
typedef struct SpillwayMachine SpillwayMachine;

// A plan that was proved: it is safe in every order that its waits allow, and its prediction is
// exact.
typedef struct SpillwayPlan SpillwayPlan;

// A plan, the device that runs it, and the kernels that compute its ops.
typedef struct SpillwaySession SpillwaySession;

// A tensor of a graph; its id is its position.
typedef struct {
  // The size of this struct.
  size_t struct_bytes;
  // Its name in messages; null for its number.
  const char *name;
  // Its size, not zero.
  uint64_t bytes;
  // `SPILLWAY_STATE`, `SPILLWAY_INPUT`, `SPILLWAY_TEMPORARY` or `SPILLWAY_OUTPUT`.
  uint32_t kind;
} SpillwayTensor;

// An op of a graph; its id is its position, and ops stand in one legal order.
typedef struct {
  // The size of this struct.
  size_t struct_bytes;
  // Its name in messages; null for its number.
  const char *name;
  // How long it runs.
  uint64_t time_ns;
  // Device memory that it needs only while it runs.
  uint64_t workspace_bytes;
  // The tensors that it reads.
  const uint32_t *reads;
  // How many it reads.
  size_t read_count;
  // The tensors that it writes. One that it also reads is updated in place.
  const uint32_t *writes;
  // How many it writes.
  size_t write_count;
  // Whether plans may launch it again in the same iteration, on the values that it read the
  // first time: 1, or 0. It then writes the same bytes into its temporaries, and neither reads
  // nor writes the states and inputs that it writes.
  uint8_t repeatable;
  // How long it takes on the host, where plans may run it instead. 0: on the device alone, as an op
  // that writes an input must.
  uint64_t host_ns;
} SpillwayOp;

// Why a call failed. A function that succeeds leaves it as it was.
typedef struct {
  // The code that the function returned.
  SpillwayCode code;
  // A sentence in UTF-8 that names tensors and ops, ended by a zero; cut where it is longer.
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

// What is known of a machine.
typedef struct {
  // The size of this struct.
  size_t struct_bytes;
  // The device, its host, and the links between them.
  SpillwayMachineParameters parameters;
} SpillwayMachineDescription;

// A setting of a strategy.
typedef struct {
  // The size of this struct.
  size_t struct_bytes;
  // Its name.
  const char *name;
  // Its value, as `spillway plan --set` takes it.
  const char *value;
} SpillwaySetting;

// How to plan. No options, or 0 in all fields but the first, stands for the defaults.
typedef struct {
  // The size of this struct.
  size_t struct_bytes;
  // Device memory for the plan: a size (`"4GiB"`), a percentage of what the work needs in-core
  // (`"35%"`), or `"min"`. Null for all of the device's memory.
  const char *budget;
  // The name of a strategy, with its parameters after a colon: `"window:bytes=512MiB,variant=published"`
  // (`docs/strategies.md`). Null for `"auto"`.
  const char *strategy;
  // Settings of the strategy.
  const SpillwaySetting *settings;
  // How many.
  size_t setting_count;
  // Whether the plan may map memory while it runs, instead of before: 1, or 0. Such a plan has no
  // addresses.
  uint8_t unplaced;
} SpillwayPlanOptions;

// What a plan takes, exactly, for the given times of ops and links.
typedef struct {
  // The size of this struct, which the caller sets.
  size_t struct_bytes;
  // The budget that the plan keeps.
  uint64_t budget_bytes;
  // Time from one iteration to the next, once under way.
  uint64_t period_ns;
  // The sum of all op times, each op once.
  uint64_t compute_ns;
  // Time of the ops that run again.
  uint64_t repeat_ns;
  // Time of a period in which no op runs on the device: the period less the launches there, repeats included.
  uint64_t stall_ns;
  // A period that no plan can beat; the report says among which plans.
  uint64_t lower_bound_ns;
  // The most device memory that is held.
  uint64_t peak_bytes;
  // Bytes copied to the device in one iteration.
  uint64_t h2d_bytes;
  // Bytes copied to the host in one iteration.
  uint64_t d2h_bytes;
  // Pinned host memory.
  uint64_t host_bytes;
  // Time of the ops that run on the host, there.
  uint64_t host_ns;
  // Ops that run on the host.
  uint64_t on_host;
  // Launches of ops that run again.
  uint64_t repeats;
  // Of the peak, what is neither tensors nor workspaces.
  uint64_t waste_bytes;
  // Whether ops run in another order than the graph's: 1, or 0.
  uint8_t reordered;
} SpillwayFigures;

// A layer, whose weights only it reads.
typedef struct {
  // The size of this struct.
  size_t struct_bytes;
  // Its name in messages; null for its number.
  const char *name;
  // The size of its weights, not zero. They lie at consecutive addresses.
  uint64_t bytes;
  // How long it computes on the device.
  uint64_t time_ns;
  // How long it computes on the host. 0: it cannot run there.
  uint64_t host_ns;
  // The size of the activation that the next layer reads. After the last layer comes the first, in the
  // next iteration. If all layers have 0, the plan moves no activations. If a layer may run on the
  // host, no layer may have 0.
  uint64_t activation_bytes;
  // The size of its cache, such as a KV cache, which each iteration reads and writes; 0 if it has none. The
  // cache stays at one address of the device or, if the layer runs on the host, there.
  uint64_t cache_bytes;
  // The size of its output, such as the logits of the last layer, which each iteration leaves on the
  // host; 0 if it has none.
  uint64_t output_bytes;
} SpillwayLayer;

// What must have ended on a stream before a step starts. It has no further fields in later versions.
typedef struct {
  // The position of the awaited step among those of its stream in one iteration; the largest number
  // if there is nothing to wait for.
  uint32_t index;
  // How many iterations back that step lies. If that is before the first, there is nothing to
  // wait for.
  uint32_t iterations_back;
} SpillwayWait;

// One step. Steps are enqueued in the order of the list, each on the stream of its kind.
typedef struct {
  // A prefetch, a launch, an offload, an evict or a host run.
  uint32_t kind;
  // The op of a launch or of a host run, else the tensor.
  uint32_t id;
  // The first object of the range; 0 of an op.
  uint64_t first_object;
  // How many objects, the largest number for all; 0 of an op.
  uint64_t object_count;
  // Whether the op has been launched before in this iteration: 1, or 0.
  uint8_t is_repeat;
  // The position among the steps of its stream in one iteration. An evict is on no stream: it has the
  // largest number.
  uint32_t index;
  // What it waits for on each stream, by number. For an evict: what must have ended before its
  // memory is free.
  SpillwayWait waits[4];
} SpillwayStep;

// Bytes that a step touches and that lie at consecutive offsets.
typedef struct {
  // The position of the step among all that `spillway_plan_steps` writes, or `SPILLWAY_NONE` for
  // what is on the device when the first iteration starts.
  uint32_t step;
  // The tensor; for a workspace, the op.
  uint32_t id;
  // Whether it is the workspace of an op: 1, or 0.
  uint8_t is_workspace;
  // Where the bytes begin in the tensor or the workspace.
  uint64_t first_byte;
  // Where they begin in the slab.
  uint64_t offset_bytes;
  // How many there are. Where it is less than the tensor has, the tensor does not lie in one piece:
  // a launch has further runs of it.
  uint64_t bytes;
} SpillwayRun;

// A copy between the slab and the host's copy of a tensor.
typedef struct {
  // The tensor, by its number in the graph of the second plan.
  uint32_t tensor;
  // Whether it goes to the device: 1; 0 if it goes to the host.
  uint8_t is_upload;
  // Whether it waits for all copies before it: 1, or 0. Only uploads do.
  uint8_t waits;
  // Where the bytes begin in the tensor.
  uint64_t first_byte;
  // Where they begin in the slab.
  uint64_t offset_bytes;
  // How many there are.
  uint64_t bytes;
} SpillwaySlabCopy;

// What a switch from one plan to another takes.
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
  // Time to map and unmap memory, before the copies. Ahead of a run, the most that it can be.
  uint64_t mapping_ns;
} SpillwaySwitchFigures;

// A state or an input that a callback fills. It is valid during the call alone.
//
// A device with other means may write the bytes of the host block from `offset_bytes` on itself.
typedef struct {
  // The size of this struct, which the library sets.
  size_t struct_bytes;
  // The tensor.
  uint32_t tensor;
  // The iteration, counted from 1; 0 for a state.
  uint64_t iteration;
  // The size of the tensor.
  uint64_t bytes;
  // Where its value lies in the host block.
  uint64_t offset_bytes;
  // The library's own.
  void *writer;
} SpillwayFill;

// A device: three streams of work, or four where ops run on the host too, a block of host memory, and
// device memory that consists of chunks which are mapped at addresses. A session calls these functions from the thread that calls
// the session. Each gets `context` first.
//
// Functions that return `int32_t` return 0, or a `SpillwayCode` that says why they failed:
// `SPILLWAY_CODE_OUT_OF_DEVICE_MEMORY`, `SPILLWAY_CODE_OUT_OF_HOST_MEMORY`, `SPILLWAY_CODE_DEVICE_LOST`, or any
// other number, which becomes `SPILLWAY_CODE_DEVICE`. A function that fails changes nothing. Only `submit` may be null, and none may unwind.
//
// The promises of each are those of `docs/backends.md`.
typedef struct {
  // The size of this struct.
  size_t struct_bytes;
  // What the functions get first. It must live as long as the session.
  void *context;
  // The size of a chunk. It must be that of the machine for which was planned.
  uint64_t chunk_bytes;
  // Creates this many chunks of device memory. Called once.
  int32_t (*create)(void *context, uint64_t chunks);
  // Reserves addresses for this many chunks. They do not begin at 0, which kernels take for no
  // address.
  int32_t (*reserve)(void *context, uint64_t chunks, uint64_t *address);
  // Maps chunks, by number, at an address.
  int32_t (*map)(void *context, uint64_t address, uint64_t first_chunk, uint64_t chunks);
  // Unmaps chunks from an address: one mapping, or several that follow one another. No work under
  // way uses them.
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
  // Makes all later work on a stream, and its later signals, wait for a signal of a stream. One
  // that has not been enqueued is an error.
  int32_t (*wait)(void *context, uint32_t stream, uint32_t signal_stream, uint64_t signal);
  // Enqueues a signal on a stream, and gives its number: 1, 2, 3 and so on, by stream.
  int32_t (*signal)(void *context, uint32_t stream, uint64_t *signal);
  // Says whether a signal has been reached: 1, or 0.
  int32_t (*reached)(void *context, uint32_t stream, uint64_t signal, uint8_t *is_reached);
  // Blocks the calling thread until a signal is reached.
  int32_t (*block_until)(void *context, uint32_t stream, uint64_t signal);
  // Hands over what has been enqueued so far, if the device gathers work before it does so. Called
  // at the end of each iteration; a device that hands work over at once may leave it null. Other
  // functions may hand work over too, and `block_until` must.
  int32_t (*submit)(void *context);
  // Whether there is a stream for ops that run on the host, `SPILLWAY_HOST`, beside the others: 1,
  // or 0. Without it, no session starts whose plan runs ops on the host.
  uint8_t has_host_stream;
} SpillwayDevice;

// Bytes at an address of the device.
typedef struct {
  // The address of the first of them.
  uint64_t address;
  // How many there are.
  uint64_t bytes;
} SpillwayDeviceRange;

// One launch of an op.
typedef struct {
  // The size of this struct, which the library sets.
  size_t struct_bytes;
  // The op.
  uint32_t op;
  // Whether the op has been launched before in this iteration: 1, or 0. A repeat writes the same
  // bytes into its temporaries.
  uint8_t is_repeat;
  // The iteration, counted from 1.
  uint64_t iteration;
  // The ranges of the tensors that the op reads, in the op's order. Each is a whole tensor; null for a
  // state, an input or an output that a repeat leaves alone.
  const SpillwayDeviceRange *const *reads;
  // How many it reads.
  size_t read_count;
  // The ranges of the tensors that the op writes, in the op's order. Each is a whole tensor; null for
  // a state, an input or an output that a repeat leaves alone.
  const SpillwayDeviceRange *const *writes;
  // How many it writes.
  size_t write_count;
  // The workspace of the op. Null if it needs none.
  const SpillwayDeviceRange *workspace;
} SpillwayLaunch;

// Bytes of the host block.
typedef struct {
  // The first of them.
  uint64_t offset_bytes;
  // How many there are.
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
  // How many it reads.
  size_t read_count;
  // The ranges of the host block that the op writes, in the op's order. Each is a whole tensor. A
  // tensor that it updates in place has one range in both lists.
  const SpillwayHostRange *const *writes;
  // How many it writes.
  size_t write_count;
} SpillwayHostLaunch;

// What ops compute, and the values of states and inputs. Each function gets `context` first, and
// returns 0, or a number as the functions of a device do. None may unwind.
typedef struct {
  // The size of this struct.
  size_t struct_bytes;
  // What the functions get first. It must live as long as the session.
  void *context;
  // Enqueues an op on the stream for compute. It may touch exactly what the launch names.
  int32_t (*launch)(void *context, const SpillwayLaunch *launch);
  // Fills a state with its first value, by `spillway_fill_f32` and the like. Called once for each state. If
  // it is null, states are zeros.
  int32_t (*fill_state)(void *context, SpillwayFill *state);
  // Fills an input with its value in an iteration, by the same functions. Called once for each input and
  // iteration. May be null if the graph has no inputs.
  int32_t (*fill_input)(void *context, SpillwayFill *input);
  // Enqueues an op on the stream for the host. It may touch exactly the bytes of the host block that
  // the launch names, which is valid during this call alone. If it is null, no session starts whose plan
  // runs ops on the host.
  int32_t (*launch_on_host)(void *context, const SpillwayHostLaunch *launch);
} SpillwayKernels;

#ifdef __cplusplus
extern "C" {
#endif // __cplusplus

// The version of this library, such as `"0.1.0"`: the header of the same version describes it.
const char *spillway_version(void);

// Makes a graph of `tensor_count` tensors and `op_count` ops. `name` may be null.
//
// # Safety
// The pointers are as `spillway.h` says.
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
// The pointers are as `spillway.h` says.
SpillwayCode spillway_graph_from_json(const uint8_t *json,
                                      size_t json_bytes,
                                      SpillwayGraph **graph,
                                      SpillwayError *error);

// Frees a graph. Null does nothing.
//
// # Safety
// The pointer is as `spillway.h` says.
void spillway_graph_free(SpillwayGraph *graph);

// Makes a machine. `name` may be null.
//
// # Safety
// The pointers are as `spillway.h` says.
SpillwayCode spillway_machine_new(const char *name,
                                  const SpillwayMachineDescription *description,
                                  SpillwayMachine **machine,
                                  SpillwayError *error);

// Makes one of the machines that `spillway plan --machine list` prints.
//
// # Safety
// The pointers are as `spillway.h` says.
SpillwayCode spillway_machine_builtin(const char *name,
                                      SpillwayMachine **machine,
                                      SpillwayError *error);

// Reads a machine from the bytes of a machine file (`spillway.machine.v1`).
//
// # Safety
// The pointers are as `spillway.h` says.
SpillwayCode spillway_machine_from_json(const uint8_t *json,
                                        size_t json_bytes,
                                        SpillwayMachine **machine,
                                        SpillwayError *error);

// Frees a machine. Null does nothing.
//
// # Safety
// The pointer is as `spillway.h` says.
void spillway_machine_free(SpillwayMachine *machine);

// Gives the smallest budget with which a graph can be planned for a machine. `options` may be null; of
// its fields, only the strategy and its settings matter.
//
// # Safety
// The pointers are as `spillway.h` says.
SpillwayCode spillway_graph_min_feasible_bytes(const SpillwayGraph *graph,
                                               const SpillwayMachine *machine,
                                               const SpillwayPlanOptions *options,
                                               uint64_t *min_feasible_bytes,
                                               SpillwayError *error);

// Plans a graph for a machine, and proves the plan. `options` may be null.
//
// # Safety
// The pointers are as `spillway.h` says.
SpillwayCode spillway_plan_new(const SpillwayGraph *graph,
                               const SpillwayMachine *machine,
                               const SpillwayPlanOptions *options,
                               SpillwayPlan **plan,
                               SpillwayError *error);

// Reads a plan from the bytes of a plan file (`spillway.plan.v1`), and proves it.
//
// # Safety
// The pointers are as `spillway.h` says.
SpillwayCode spillway_plan_from_json(const SpillwayGraph *graph,
                                     const SpillwayMachine *machine,
                                     const uint8_t *json,
                                     size_t json_bytes,
                                     SpillwayPlan **plan,
                                     SpillwayError *error);

// Writes the bytes of a plan file into a buffer, and their number into `needed`. Where the buffer
// is too short, only the number is written.
//
// # Safety
// The pointers are as `spillway.h` says.
SpillwayCode spillway_plan_to_json(const SpillwayPlan *plan,
                                   uint8_t *into,
                                   size_t capacity,
                                   size_t *needed,
                                   SpillwayError *error);

// Writes a report, one self-contained page of HTML, into a buffer, and its size into `needed`.
// Where the buffer is too short, only the size is written.
//
// # Safety
// The pointers are as `spillway.h` says.
SpillwayCode spillway_plan_report(const SpillwayPlan *plan,
                                  uint8_t *into,
                                  size_t capacity,
                                  size_t *needed,
                                  SpillwayError *error);

// Makes the same plan with its arena laid out after that of `earlier`, so that a switch from that plan
// to the new one copies less: states in both arenas have the same offsets. The plan is as it was if its
// budget is too small for that.
//
// # Safety
// The pointers are as `spillway.h` says.
SpillwayCode spillway_plan_arranged_after(const SpillwayPlan *plan,
                                          const SpillwayPlan *earlier,
                                          SpillwayPlan **arranged,
                                          SpillwayError *error);

// Makes a plan of the same work in the same budget for one iteration between two iterations of `other`,
// such as a prompt between tokens. States that `other` holds may stay on the device for it. Of the
// plans that are tried, and of `plan`, it is the one for which the period and the copies of both
// switches take the least time. Plans the work up to ten times.
//
// # Safety
// The pointers are as `spillway.h` says.
SpillwayCode spillway_plan_between(const SpillwayPlan *plan,
                                   const SpillwayPlan *other,
                                   SpillwayPlan **between,
                                   SpillwayError *error);

// Gives the figures of a plan.
//
// # Safety
// The pointers are as `spillway.h` says.
SpillwayCode spillway_plan_figures(const SpillwayPlan *plan,
                                   SpillwayFigures *figures,
                                   SpillwayError *error);

// Frees a plan. Null does nothing.
//
// # Safety
// The pointer is as `spillway.h` says.
void spillway_plan_free(SpillwayPlan *plan);

// Plans which layers stay on the device, when and where others come, and which run on the host. The
// result is a plan like any other, in which a layer, its op and its tensor have the same number, and
// a layer's activation is the tensor `layer_count` numbers behind. The caches have the next numbers, in the
// order of the layers that have one, and then the outputs. The plan has addresses, and each
// tensor lies in one piece. `budget` is as in `SpillwayPlanOptions`, for weights, caches, outputs and, if
// layers have activations, for three times the largest of these; percentages are of all but the last, and
// `"min"` is the size that `spillway_streaming_min_feasible` returns. Addresses are multiples of the machine's
// `chunk_bytes`, which may be as small as the device's alignment.
//
// # Safety
// The pointers are as `spillway.h` says.
SpillwayCode spillway_streaming_plan(const SpillwayLayer *layers,
                                     size_t layer_count,
                                     const SpillwayMachine *machine,
                                     const char *budget,
                                     SpillwayPlan **plan,
                                     SpillwayError *error);

// Gives the least budget with which layers can be streamed, and the first layer that needs it: the size of the
// largest layer that cannot run on the host, of the caches and outputs of all such layers, and of activations.
//
// # Safety
// The pointers are as `spillway.h` says.
SpillwayCode spillway_streaming_min_feasible(const SpillwayLayer *layers,
                                             size_t layer_count,
                                             const SpillwayMachine *machine,
                                             uint64_t *budget_bytes,
                                             size_t *layer,
                                             SpillwayError *error);

// Writes the steps of a plan into a buffer, and their number into `needed`. `step_bytes` is the size of
// `SpillwayStep`. Where the buffer is
// too short, only the number is written. The list repeats for ever: it has the steps of one
// iteration, or of `iterations`, one after the other, which differ only in their waits.
//
// # Safety
// The pointers are as `spillway.h` says.
SpillwayCode spillway_plan_steps(const SpillwayPlan *plan,
                                 SpillwayStep *into,
                                 size_t step_bytes,
                                 size_t capacity,
                                 size_t *needed,
                                 uint32_t *iterations,
                                 SpillwayError *error);

// Writes the offsets of all that the plan touches into a buffer, and their number into `needed`;
// `run_bytes` is the size of `SpillwayRun`;
// where the buffer is too short, only the number. They are offsets in one slab, which the runtime
// allocates once, of `slab_bytes`. First comes what is on the device at the start, then what each step
// touches, in the order of the steps: of a copy, a part of a tensor; of a launch, each of its tensors
// once, then its workspace.
//
// A plan that does not fix its objects has no offsets: `SPILLWAY_CODE_NOT_PLACED`.
//
// # Safety
// The pointers are as `spillway.h` says.
SpillwayCode spillway_plan_addresses(const SpillwayPlan *plan,
                                     SpillwayRun *into,
                                     size_t run_bytes,
                                     size_t capacity,
                                     size_t *needed,
                                     uint64_t *slab_bytes,
                                     SpillwayError *error);

// Writes the copies of a switch from one plan, after so many iterations, to another into a buffer, and
// their number into `needed`; if the buffer is too short, only the number. `copy_bytes` is the size of
// `SpillwaySlabCopy`. Both plans have the same
// states and lie in one slab, each at its `spillway_plan_addresses`; `slab_bytes` becomes the larger
// size. Bytes that both hold at the same offset stay. Downloads go in order on one stream and uploads on another.
// `figures` may be null; it becomes the cost of the copies.
//
// # Safety
// The pointers are as `spillway.h` says.
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

// Writes numbers of 32 bits (`float`) as the value of a state or an input, which they must fill.
//
// # Safety
// The pointers are as `spillway.h` says.
SpillwayCode spillway_fill_f32(SpillwayFill *fill,
                               const float *values,
                               size_t count,
                               SpillwayError *error);

// Writes numbers of 64 bits (`double`) as the value of a state or an input, which they must fill.
//
// # Safety
// The pointers are as `spillway.h` says.
SpillwayCode spillway_fill_f64(SpillwayFill *fill,
                               const double *values,
                               size_t count,
                               SpillwayError *error);

// Writes integers of 32 bits as the value of a state or an input, which they must fill.
//
// # Safety
// The pointers are as `spillway.h` says.
SpillwayCode spillway_fill_i32(SpillwayFill *fill,
                               const int32_t *values,
                               size_t count,
                               SpillwayError *error);

// Writes integers of 64 bits as the value of a state or an input, which they must fill.
//
// # Safety
// The pointers are as `spillway.h` says.
SpillwayCode spillway_fill_i64(SpillwayFill *fill,
                               const int64_t *values,
                               size_t count,
                               SpillwayError *error);

// Writes numbers of 16 bits, such as those of half precision, as the value of a state or an input, which they must fill.
//
// # Safety
// The pointers are as `spillway.h` says.
SpillwayCode spillway_fill_u16(SpillwayFill *fill,
                               const uint16_t *values,
                               size_t count,
                               SpillwayError *error);

// Writes bytes as the value of a state or an input, which they must fill.
//
// # Safety
// The pointers are as `spillway.h` says.
SpillwayCode spillway_fill_bytes(SpillwayFill *fill,
                                 const uint8_t *values,
                                 size_t count,
                                 SpillwayError *error);

// Sets up device and host memory for a plan, fills states and the first inputs, and uploads what is
// resident at the start of an iteration. The tables of callbacks are copied.
//
// # Safety
// The pointers are as `spillway.h` says.
SpillwayCode spillway_session_new(const SpillwayPlan *plan,
                                  const SpillwayDevice *device,
                                  const SpillwayKernels *kernels,
                                  SpillwaySession **session,
                                  SpillwayError *error);

// The same, with enough memory on the device and on the host for each of some other plans, so that
// the session can be switched to them.
//
// # Safety
// The pointers are as `spillway.h` says.
SpillwayCode spillway_session_with_others(const SpillwayPlan *plan,
                                          const SpillwayPlan *const *others,
                                          size_t other_count,
                                          const SpillwayDevice *device,
                                          const SpillwayKernels *kernels,
                                          SpillwaySession **session,
                                          SpillwayError *error);

// Says what a switch between two plans takes, ahead of a session.
//
// # Safety
// The pointers are as `spillway.h` says.
SpillwayCode spillway_plan_switch_to(const SpillwayPlan *from,
                                     const SpillwayPlan *to,
                                     SpillwaySwitchFigures *figures,
                                     SpillwayError *error);

// Ends the plan of a session and starts another between two iterations. States that both plans
// hold on the device stay there where that can be. The plans may be for two graphs whose states
// have the same names and sizes.
//
// `kernels` are those of the other graph; null keeps the callbacks. `fill_state` is not called;
// `fill_input` is called for the next iteration, also if it has been called for that with the old
// plan. `figures` may be null. If the code is `SPILLWAY_CODE_NO_SWITCH`, the session goes on with
// the old plan; after an error of the device, no further iteration runs.
//
// # Safety
// The pointers are as `spillway.h` says.
SpillwayCode spillway_session_switch(SpillwaySession *session,
                                     const SpillwayPlan *plan,
                                     const SpillwayKernels *kernels,
                                     SpillwaySwitchFigures *figures,
                                     SpillwayError *error);

// Enqueues iterations. Returns when the last is enqueued, not when it has ended. After an error of
// the device, no further iteration runs.
//
// # Safety
// The pointers are as `spillway.h` says.
SpillwayCode spillway_session_run(SpillwaySession *session,
                                  uint64_t iterations,
                                  SpillwayError *error);

// Waits until all iterations so far have ended, with all copies for the next one.
//
// # Safety
// The pointers are as `spillway.h` says.
SpillwayCode spillway_session_wait(SpillwaySession *session, SpillwayError *error);

// Waits for all iterations, and reads bytes of the value that a state then has, from `first_byte` on.
// Copies these from the device if only the device has them, and nothing else.
//
// # Safety
// The pointers are as `spillway.h` says.
SpillwayCode spillway_session_read_state(SpillwaySession *session,
                                         uint32_t tensor,
                                         uint64_t first_byte,
                                         uint8_t *into,
                                         size_t bytes,
                                         SpillwayError *error);

// Waits for all iterations, and gives bytes of a state another value, from `first_byte` on. The next
// iteration begins with it.
//
// # Safety
// The pointers are as `spillway.h` says.
SpillwayCode spillway_session_write_state(SpillwaySession *session,
                                          uint32_t tensor,
                                          uint64_t first_byte,
                                          const uint8_t *value,
                                          size_t bytes,
                                          SpillwayError *error);

// Waits for all iterations, and writes the value of every state into a file in the format
// safetensors: each state is a tensor of bytes (`U8`) under its name, and the metadata
// `spillway.iterations` says how many iterations had run. An older file of the name is replaced once
// all is written.
//
// # Safety
// The pointers are as `spillway.h` says.
SpillwayCode spillway_session_save_states(SpillwaySession *session,
                                          const char *path,
                                          SpillwayError *error);

// Waits for all iterations, and gives states the values that a file in the format safetensors holds.
// The tensors in it may have any type, and must have the names and sizes of states. If `all` is not 0,
// every state must be in the file; otherwise states that the file lacks keep their values. Nothing is
// written if something in the file does not fit. `iterations` may be null; it becomes the number of
// iterations that had run when the file was saved, or 0 if the file does not say so.
//
// # Safety
// The pointers are as `spillway.h` says.
SpillwayCode spillway_session_load_states(SpillwaySession *session,
                                          const char *path,
                                          uint8_t all,
                                          uint64_t *iterations,
                                          SpillwayError *error);

// Waits for an iteration, and reads the value that it left in an output. `bytes` is its size.
// Iterations are counted from 1 over all plans. Those of the last two that were enqueued can be read,
// and 0 stands for the last.
//
// # Safety
// The pointers are as `spillway.h` says.
SpillwayCode spillway_session_read_output(SpillwaySession *session,
                                          uint32_t tensor,
                                          uint64_t iteration,
                                          uint8_t *into,
                                          size_t bytes,
                                          SpillwayError *error);

// Gives how many iterations have been enqueued, over all plans.
//
// # Safety
// The pointers are as `spillway.h` says.
SpillwayCode spillway_session_iterations(const SpillwaySession *session,
                                         uint64_t *iterations,
                                         SpillwayError *error);

// Gives the device's memory that a session has taken for its plans.
//
// # Safety
// The pointers are as `spillway.h` says.
SpillwayCode spillway_session_device_bytes(const SpillwaySession *session,
                                           uint64_t *device_bytes,
                                           SpillwayError *error);

// Frees a session. Null does nothing. The device must have ended all work before its own memory
// goes.
//
// # Safety
// The pointer is as `spillway.h` says.
void spillway_session_free(SpillwaySession *session);

#ifdef __cplusplus
}  // extern "C"
#endif  // __cplusplus

#endif  /* SPILLWAY_H */
