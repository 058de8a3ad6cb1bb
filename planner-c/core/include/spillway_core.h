// Spillway's planner without an operating system, a C library or an allocator. This header is made
// from the sources of the library; docs/c.md is the guide.
//
// Pointers. Each is null, or points to as many values of its type as the function says; input must
// be initialised, and nobody may change it during the call.
//
// Memory. All of it is the caller's: one buffer, of which spillway_core_memory_bytes says the size.
// What a plan points to lies in that buffer.
//
// Errors. A function that can fail returns a code. Where it is not SPILLWAY_CORE_CODE_OK, the function
// has written the code and a sentence into *error, unless error is null, and has left *plan as it
// was. Pointers apart, any input is safe: what is wrong is an error.
//
// Structs. Those that a caller fills in begin with struct_bytes, their size in this header: set it to sizeof.
// Fields may be added at the end, and 0 in them is what was before. So a library takes a struct of an older
// header, and one of a newer header if what it does not know is 0; any other size is an error that names
// the struct. A plan is written as far as its struct_bytes says.
//
// There is no global state. The library calls memcpy, memmove, memset, memcmp and bcmp, as compilers do,
// and nothing else.

#ifndef SPILLWAY_CORE_H
#define SPILLWAY_CORE_H

#include <stddef.h>
#include <stdint.h>

// Bytes of a message, with the zero at its end.
#define SPILLWAY_CORE_MESSAGE_BYTES 256

// A tensor that keeps its value from one iteration to the next.
#define SPILLWAY_CORE_STATE 0

// A tensor that has a new value on the host in each iteration.
#define SPILLWAY_CORE_INPUT 1

// A tensor that an op writes before any op reads it.
#define SPILLWAY_CORE_TEMPORARY 2

// A tensor that an op writes before any op reads it, and whose last value each iteration leaves on
// the host.
#define SPILLWAY_CORE_OUTPUT 3

// Allocates device memory for a range of a tensor, and copies its value in. Of an input, after the
// last launch of the list that reads it: the value of the next iteration.
#define SPILLWAY_CORE_PREFETCH 0

// Runs an op. What it writes is allocated where it is not on the device, and so is its workspace.
#define SPILLWAY_CORE_LAUNCH 1

// Copies a range of a tensor to the host; it stays on the device.
#define SPILLWAY_CORE_OFFLOAD 2

// Gives back the device memory of a range of a tensor.
#define SPILLWAY_CORE_EVICT 3

// Runs an op on the host: on the host's copies of its tensors, and without device memory. Of an input,
// that is the value of this iteration.
#define SPILLWAY_CORE_HOST_RUN 4

// Launches run on this stream.
#define SPILLWAY_CORE_COMPUTE 0

// Prefetches run on this stream.
#define SPILLWAY_CORE_UPLOAD 1

// Offloads run on this stream.
#define SPILLWAY_CORE_DOWNLOAD 2

// Ops that run on the host run on this stream.
#define SPILLWAY_CORE_HOST 3

// No step: there is nothing to wait for.
#define SPILLWAY_CORE_NONE UINT32_MAX

// All objects of a tensor.
#define SPILLWAY_CORE_ALL UINT64_MAX

// What became of a call.
typedef enum {
  // It did what was asked.
  SPILLWAY_CORE_CODE_OK = 0,
  // A pointer is null, a text is not UTF-8, or a number is none that the function knows.
  SPILLWAY_CORE_CODE_ARGUMENT = 1,
  // The graph or the machine is malformed.
  SPILLWAY_CORE_CODE_GRAPH = 2,
  // The budget is too small; the sentence names the least that will do, and the op that needs it.
  SPILLWAY_CORE_CODE_INFEASIBLE = 4,
  // There is no plan for another reason.
  SPILLWAY_CORE_CODE_NO_PLAN = 5,
  // The buffer is too short.
  SPILLWAY_CORE_CODE_BUFFER_TOO_SHORT = 7,
} SpillwayCoreCode;

// A tensor; its id is its position.
typedef struct {
  // The size of this struct.
  size_t struct_bytes;
  // Its size, not zero.
  uint64_t bytes;
  // `SPILLWAY_CORE_STATE`, `SPILLWAY_CORE_INPUT`, `SPILLWAY_CORE_TEMPORARY` or
  // `SPILLWAY_CORE_OUTPUT`.
  uint32_t kind;
} SpillwayCoreTensor;

// An op; its id is its position, and ops stand in one legal order. Its operands follow those of the
// op before it: first the tensors that it reads, then those that it writes.
typedef struct {
  // The size of this struct.
  size_t struct_bytes;
  // How long it runs.
  uint64_t time_ns;
  // Device memory that it needs only while it runs.
  uint64_t workspace_bytes;
  // How many tensors it reads.
  uint32_t reads;
  // How many it writes. One that it also reads is updated in place.
  uint32_t writes;
  // Whether plans may launch it again in the same iteration: 1, or 0.
  uint8_t repeatable;
  // How long it takes on the host, where plans may run it instead. 0: on the device alone, as an op
  // that writes an input must.
  uint64_t host_ns;
} SpillwayCoreOp;

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
} SpillwayCoreMachineParameters;

// What is known of a machine.
typedef struct {
  // The size of this struct.
  size_t struct_bytes;
  // The device, its host, and the links between them.
  SpillwayCoreMachineParameters parameters;
} SpillwayCoreMachine;

// What to plan.
typedef struct {
  // The size of this struct.
  size_t struct_bytes;
  // The tensors.
  const SpillwayCoreTensor *tensors;
  // How many.
  size_t tensor_count;
  // The ops.
  const SpillwayCoreOp *ops;
  // How many.
  size_t op_count;
  // The operands of all ops, one op after the other.
  const uint32_t *operands;
  // How many.
  size_t operand_count;
  // Where it runs.
  const SpillwayCoreMachine *machine;
  // Device memory for the plan.
  uint64_t budget_bytes;
  // The name of a strategy of the core. Null for `"auto"`.
  const char *strategy;
  // The size of `SpillwayCoreStep`.
  size_t step_bytes;
} SpillwayCoreWork;

// What must have ended on a stream before a step starts. It has no further fields in later versions.
typedef struct {
  // The position of the awaited step among those of its stream in one iteration; the largest number
  // if there is nothing to wait for.
  uint32_t index;
  // How many iterations back that step lies. If that is before the first, there is nothing to
  // wait for.
  uint32_t iterations_back;
} SpillwayCoreWait;

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
  SpillwayCoreWait waits[4];
} SpillwayCoreStep;

// What is on the device when an iteration starts. It has no further fields in later versions.
typedef struct {
  // The tensor.
  uint32_t tensor;
  // The first object of the range.
  uint64_t first_object;
  // How many objects, the largest number for all.
  uint64_t object_count;
} SpillwayCoreResident;

// A tensor at a fixed offset. It has no further fields in later versions.
typedef struct {
  // The tensor.
  uint32_t tensor;
  // Where it begins in the arena.
  uint64_t offset_bytes;
} SpillwayCoreArena;

// A plan that was proved. What it points to lies in the caller's buffer.
typedef struct {
  // The size of this struct, which the caller sets.
  size_t struct_bytes;
  // The steps of one iteration, which repeat for ever.
  const SpillwayCoreStep *steps;
  // How many.
  size_t step_count;
  // What is on the device when an iteration starts.
  const SpillwayCoreResident *resident;
  // How many.
  size_t resident_count;
  // The tensors that lie in the arena.
  const SpillwayCoreArena *arena;
  // How many.
  size_t arena_count;
  // The size of the arena.
  uint64_t arena_bytes;
  // The pools, from which all other tensors take objects: their size and number. The second has
  // none if all tensors take chunks.
  uint64_t object_bytes[2];
  // How many objects each pool has.
  uint64_t object_counts[2];
  // The pool of each tensor; null where it is pool 0 for all.
  const uint32_t *tensor_pool;
  // Time from one iteration to the next, once under way.
  uint64_t period_ns;
  // The sum of all op times, each op once.
  uint64_t compute_ns;
  // The most device memory that is held.
  uint64_t peak_bytes;
  // Pinned host memory.
  uint64_t host_bytes;
} SpillwayCorePlan;

// Why a call failed. A function that succeeds leaves it as it was.
typedef struct {
  // The code that the function returned.
  SpillwayCoreCode code;
  // A sentence in ASCII that names tensors and ops by number, ended by a zero; cut where it is
  // longer.
  char message[SPILLWAY_CORE_MESSAGE_BYTES];
} SpillwayCoreError;

#ifdef __cplusplus
extern "C" {
#endif // __cplusplus

// Returns the size of the buffer that planning a graph of so many tensors, ops and operands takes: a
// few kilobytes for each operand. The largest number there is where no memory has as much.
size_t spillway_core_memory_bytes(size_t tensors,
                                  size_t ops,
                                  size_t operands);

// Plans, proves the plan, and writes where it lies in `memory`, which must have the bytes that
// `spillway_core_memory_bytes` says, at any alignment.
//
// # Safety
// The pointers are as `spillway_core.h` says; `memory` points to so many bytes.
SpillwayCoreCode spillway_core_plan(const SpillwayCoreWork *work,
                                    uint8_t *memory,
                                    size_t memory_bytes,
                                    SpillwayCorePlan *plan,
                                    SpillwayCoreError *error);

#ifdef __cplusplus
}  // extern "C"
#endif  // __cplusplus

#endif  /* SPILLWAY_CORE_H */
