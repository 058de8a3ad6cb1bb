"""Which process groups run collectives of CUDA tensors in planned memory: those of `ProcessGroupNCCL`.

A collective is launched while its stream is the current one: the session's stream for collectives, or that for ops.
What the calls do is taken from these sources:

- torch/csrc/distributed/c10d/ProcessGroupNCCL.cpp (PyTorch 2.11 and later): a collective of
  `torch.ops._c10d_functional` runs on a stream of the group, which waits for what the current stream has
  (`syncStream`). `wait_tensor` has the current stream wait for the end, and lets go of the tensors
  (`WorkNCCL::synchronizeStream`). The host waits for neither. So events of the current stream after the wait, by which
  plans reuse memory, come after the collective. Tensors are kept by reference until the wait (`TensorShelf`), and
  `record_stream` is not used, so that PyTorch's allocator has a workspace's memory back after the wait.
- The same file, and "User Buffer Registration" in NCCL's manual (2.30): memory can be registered with NCCL, which then
  remembers its addresses. Planned memory is mapped and unmapped, and must not be registered. `ProcessGroupNCCL`
  registers all memory only if TORCH_NCCL_USE_TENSOR_REGISTER_ALLOCATOR_HOOK is set.
- torch/csrc/distributed/c10d/nccl2/NCCLCachingAllocatorHook.cpp (PyTorch 2.15): `ProcessGroupNCCL2`, which is the
  backend "nccl" there, registers the segments of all pools, also those of workspaces, and refuses a second segment
  at an address. It does so for all of a process, once one group has it.
- `_register_builtin_nccl_legacy_backend` in torch/distributed/distributed_c10d.py (PyTorch 2.15): "nccl-legacy" is
  `ProcessGroupNCCL`.
- NCCL_RUNTIME_CONNECT among the environment variables in NCCL's manual (2.22 and later): a communicator may allocate
  device memory at the first collective of a size. All collectives of a step run when they are measured, before the
  memory of the device is.
"""

import os

import torch
from torch import distributed

from .errors import CaptureError
from .processes import everyones

# Since PyTorch 2.15, "nccl" is `ProcessGroupNCCL2`.
BACKEND = "cpu:gloo,cuda:nccl-legacy" if hasattr(distributed, "ProcessGroupNCCL2") else "cpu:gloo,cuda:nccl"
WAY = f"make all groups by torch.distributed.init_process_group({BACKEND!r})"
REGISTERS_ALL = "TORCH_NCCL_USE_TENSOR_REGISTER_ALLOCATOR_HOOK"
NEEDED = {"cpu": "ProcessGroupGloo", "cuda": "ProcessGroupNCCL"}


def refuse_group(group, torch_device):
    """Raises `CaptureError`, in all processes, unless a step on the device can use the group: its backends are Gloo,
    by which the processes agree on plans, and `ProcessGroupNCCL`, and each process has a device of its own."""
    for kind, needed in NEEDED.items():
        found = backend_name(group, kind)
        if found != needed:
            raise CaptureError(
                f"process_group has {found} for {kind} tensors, but several processes on CUDA need {needed}: {WAY}"
            )
    device = str(torch.cuda.get_device_properties(torch_device).uuid)
    everyone = everyones(group, (device, _lack(group, torch_device)))
    devices = [its for its, _ in everyone]
    for process, (its, lack) in enumerate(everyone):
        if lack:
            raise CaptureError(f"process {process} cannot run the step: {lack}")
        if devices.index(its) != process:
            raise CaptureError(
                f"processes {devices.index(its)} and {process} have the same CUDA device, but NCCL needs one for each:"
                " move the model to torch.device('cuda', local_rank), or give capture(..., device=...)"
            )


def _lack(group, torch_device):
    """Returns what this process lacks to run a step over the group, or an empty text."""
    bound = group.bound_device_id
    if bound is not None and bound != torch_device:
        return f"process_group is for {bound}, but the step is on {torch_device}: give both the same device"
    for other in distributed.distributed_c10d._world.pg_map:
        found = backend_name(other, "cuda")
        if found in ("ProcessGroupNCCL2", "ProcessGroupNCCLLazy"):
            return f"another group of it has {found}, which registers the memory of ops with NCCL: {WAY}"
    if os.environ.get(REGISTERS_ALL, "0") != "0":
        return f"{REGISTERS_ALL} is set, which registers the memory of ops with NCCL: start it without"
    return ""


def backend_name(group, kind):
    """Returns the name of what runs a group's collectives of tensors on a kind of device."""
    try:
        return type(group._get_backend(torch.device(kind))).__name__
    except RuntimeError:
        return "no backend"

