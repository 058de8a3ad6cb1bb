// Spillway's planner without an operating system, a C library or an allocator. This header is
// generated from the sources of the library. docs/c.md is the guide.
//
// Pointers. Each is null, or points to as many values of its type as the function says. Input must
// be initialised, and nobody may change it during the call.
//
// Memory. All memory belongs to the caller: one buffer, whose size spillway_core_memory_bytes returns.
// The arrays of a plan lie in that buffer.
//
// Errors. A function that can fail returns a code. If the code is not SPILLWAY_CORE_CODE_OK, the
// function has written the code and a message into *error, unless error is null, and has left *plan
// unchanged. All input is checked, except pointers, and bad input is an error.
//
// Structs. A struct that a caller fills in begins with struct_bytes, its size in this header: set it
// to sizeof. Later versions may add fields at the end, and 0 in them keeps the earlier behaviour. A
// library therefore accepts a struct of an older header. It accepts a struct of a newer header if all
// fields that it does not know are 0. Any other size is an error that names the struct. A plan is
// written up to its struct_bytes.
//
// There is no global state. The library calls memcpy, memmove, memset, memcmp and bcmp, as compilers do,
// and nothing else.

#ifndef SPILLWAY_CORE_H
#define SPILLWAY_CORE_H

#include <stddef.h>
#include <stdint.h>

// The size of a message, including the zero at its end.
#define SPILLWAY_CORE_MESSAGE_BYTES 256

// A tensor that keeps its value from one iteration to the next.
#define SPILLWAY_CORE_STATE 0

// A tensor that has a new value on the host in each iteration.
#define SPILLWAY_CORE_INPUT 1

// A tensor that an op writes before any op reads it.
#define SPILLWAY_CORE_TEMPORARY 2

// A tensor that an op writes before any op reads it. Each iteration leaves its last value on the
// host.
#define SPILLWAY_CORE_OUTPUT 3

// Allocates device memory for a range of a tensor, and copies its value to the device. For an
// input, after the last launch of the list that reads it, this is the value of the next iteration.
#define SPILLWAY_CORE_PREFETCH 0

// Runs an op. Its workspace and the tensors that it writes are allocated if they are not on the
// device.
#define SPILLWAY_CORE_LAUNCH 1

// Copies a range of a tensor to the host. The range stays on the device.
#define SPILLWAY_CORE_OFFLOAD 2

// Frees the device memory of a range of a tensor.
#define SPILLWAY_CORE_EVICT 3

// Runs an op on the host: on the host's copies of its tensors, and without device memory. The
// value of an input is the value of this iteration.
#define SPILLWAY_CORE_HOST_RUN 4

// Launches run on this stream, except of collectives.
#define SPILLWAY_CORE_COMPUTE 0

// Prefetches run on this stream.
#define SPILLWAY_CORE_UPLOAD 1

// Offloads run on this stream.
#define SPILLWAY_CORE_DOWNLOAD 2

// Ops that run on the host run on this stream.
#define SPILLWAY_CORE_HOST 3

// Launches of collectives run on this stream.
#define NETWORK 4

// No step, so there is nothing to wait for.
#define SPILLWAY_CORE_NONE UINT32_MAX

// All objects of a tensor.
#define SPILLWAY_CORE_ALL UINT64_MAX

// The outcome of a call.
typedef enum {
  // The call succeeded.
  SPILLWAY_CORE_CODE_OK = 0,
  // A pointer is null, a text is not UTF-8, or the function does not know a number.
  SPILLWAY_CORE_CODE_ARGUMENT = 1,
  // The graph or the machine is malformed.
  SPILLWAY_CORE_CODE_GRAPH = 2,
  // The budget is too small. The message names the least budget that is enough, and the op that
  // needs it.
  SPILLWAY_CORE_CODE_INFEASIBLE = 4,
  // There is no plan for another reason.
  SPILLWAY_CORE_CODE_NO_PLAN = 5,
  // The buffer is too short.
  SPILLWAY_CORE_CODE_BUFFER_TOO_SHORT = 7,
} SpillwayCoreCode;

// A tensor. Its id is its position.
typedef struct {
  // The size of this struct.
  size_t struct_bytes;
  // Its size, which must not be zero.
  uint64_t bytes;
  // `SPILLWAY_CORE_STATE`, `SPILLWAY_CORE_INPUT`, `SPILLWAY_CORE_TEMPORARY` or
  // `SPILLWAY_CORE_OUTPUT`.
  uint32_t kind;
} SpillwayCoreTensor;

// An op. Its id is its position, and the ops are in one legal order. Its operands follow the
// operands of the op before it: first the tensors that it reads, then the tensors that it writes.
typedef struct {
  // The size of this struct.
  size_t struct_bytes;
  // The time that it runs.
  uint64_t time_ns;
  // The device memory that it needs only while it runs.
  uint64_t workspace_bytes;
  // The number of tensors that it reads.
  uint32_t reads;
  // The number of tensors that it writes. A tensor that it also reads is updated in place.
  uint32_t writes;
  // Whether plans may launch it again in the same iteration: 1 or 0.
  uint8_t repeatable;
  // The time that it runs on the host, if plans may run it there. 0 if it runs only on the
  // device. An op that writes an input must have 0.
  uint64_t host_ns;
  // Whether it exchanges data with other processes: 1 or 0. Such a collective runs on
  // `SPILLWAY_CORE_NETWORK`, beside the other ops, and must have 0 in `host_ns`.
  uint8_t collective;
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

// The properties of a machine.
typedef struct {
  // The size of this struct.
  size_t struct_bytes;
  // The device, its host, and the links between them.
  SpillwayCoreMachineParameters parameters;
} SpillwayCoreMachine;

// The input of planning.
typedef struct {
  // The size of this struct.
  size_t struct_bytes;
  // The tensors.
  const SpillwayCoreTensor *tensors;
  // The number of tensors.
  size_t tensor_count;
  // The ops.
  const SpillwayCoreOp *ops;
  // The number of ops.
  size_t op_count;
  // The operands of all ops, one op after the other.
  const uint32_t *operands;
  // The number of operands.
  size_t operand_count;
  // The machine that runs the plan.
  const SpillwayCoreMachine *machine;
  // The device memory for the plan.
  uint64_t budget_bytes;
  // The name of one of the core's strategies. Null for `"auto"`.
  const char *strategy;
  // The size of `SpillwayCoreStep`.
  size_t step_bytes;
} SpillwayCoreWork;

// A step of a stream that must have ended before another step starts. Later versions add no
// fields.
typedef struct {
  // The position of the awaited step among the steps of its stream in one iteration. The largest
  // number if there is nothing to wait for.
  uint32_t index;
  // The number of iterations since the awaited step. If it lies before the first iteration,
  // there is nothing to wait for.
  uint32_t iterations_back;
} SpillwayCoreWait;

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
  SpillwayCoreWait waits[5];
} SpillwayCoreStep;

// A range of a tensor that is on the device when an iteration starts. Later versions add no
// fields.
typedef struct {
  // The tensor.
  uint32_t tensor;
  // The first object of the range.
  uint64_t first_object;
  // The number of objects. The largest number stands for all.
  uint64_t object_count;
} SpillwayCoreResident;

// A tensor at a fixed offset. Later versions add no fields.
typedef struct {
  // The tensor.
  uint32_t tensor;
  // Its offset in the arena.
  uint64_t offset_bytes;
} SpillwayCoreArena;

// A proved plan. Its arrays lie in the caller's buffer.
typedef struct {
  // The size of this struct, which the caller sets.
  size_t struct_bytes;
  // The steps of one iteration, which repeat forever.
  const SpillwayCoreStep *steps;
  // The number of steps.
  size_t step_count;
  // The ranges that are on the device when an iteration starts.
  const SpillwayCoreResident *resident;
  // The number of ranges.
  size_t resident_count;
  // The tensors in the arena.
  const SpillwayCoreArena *arena;
  // The number of tensors in the arena.
  size_t arena_count;
  // The size of the arena.
  uint64_t arena_bytes;
  // The size of an object of each pool. All tensors outside of the arena take objects from a
  // pool. The second pool is empty if all tensors take chunks.
  uint64_t object_bytes[2];
  // The number of objects of each pool.
  uint64_t object_counts[2];
  // The pool of each tensor. Null if all tensors are in pool 0.
  const uint32_t *tensor_pool;
  // The time from one iteration to the next in steady state.
  uint64_t period_ns;
  // The sum of all op times, each op once.
  uint64_t compute_ns;
  // The most device memory that is held at a time.
  uint64_t peak_bytes;
  // The size of the pinned host memory.
  uint64_t host_bytes;
} SpillwayCorePlan;

// Why a call failed. A function that succeeds leaves it unchanged.
typedef struct {
  // The code that the function returned.
  SpillwayCoreCode code;
  // A sentence in ASCII that names tensors and ops by number. It ends with a zero, and is cut if
  // it is too long.
  char message[SPILLWAY_CORE_MESSAGE_BYTES];
} SpillwayCoreError;

#ifdef __cplusplus
extern "C" {
#endif // __cplusplus

// Returns the size of the buffer that is needed to plan a graph with these numbers of tensors, ops
// and operands: a few kilobytes for each operand. Returns the largest number if no memory is so
// large.
size_t spillway_core_memory_bytes(size_t tensors, size_t ops, size_t operands);

// Plans, proves the plan, and describes it in `plan`. The plan's arrays lie in `memory`, which
// must have the size that `spillway_core_memory_bytes` returns. Any alignment will do.
//
// # Safety
// The pointers are as `spillway_core.h` requires, and `memory` points to `memory_bytes` bytes.
SpillwayCoreCode spillway_core_plan(const SpillwayCoreWork *work,
                                    uint8_t *memory,
                                    size_t memory_bytes,
                                    SpillwayCorePlan *plan,
                                    SpillwayCoreError *error);

#ifdef __cplusplus
}  // extern "C"
#endif  // __cplusplus

#endif  /* SPILLWAY_CORE_H */
