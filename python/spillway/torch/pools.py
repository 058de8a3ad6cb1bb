"""Memory that PyTorch allocates on a CUDA device while an op runs: the op's workspace, and planned memory for results.

PyTorch's allocator takes memory in segments, and rounds their sizes up. Each launch has a pool of its own, and `_core`
gives the pool segments in planned memory. A result lies at the start of a segment. In a pool that splits no segment,
the op allocates nothing else in the result's segment. See "Using custom memory allocators for CUDA" in PyTorch's
notes on CUDA, and `c10/cuda/CUDACachingAllocator.cpp`.
"""

from dataclasses import dataclass

import torch

from spillway import _core

from .errors import CaptureError
from .workspaces import Place, Workspace

ALIGNMENT = 512  # of PyTorch's allocations
FILLING = 0x5A


@dataclass
class _Taken:
    """What a launch has returned, and what it has allocated."""

    made: list | None  # the addresses of the results that it has made, if they may have to be copied
    segments: list  # pairs of an address and bytes
    held: int  # segments that it has not given back
    refused_bytes: int


class Pools:
    """Runs launches that allocate in given memory of a device."""

    def __init__(self, torch_device):
        self._device = torch_device
        self._allocators = [_allocator()]  # kept here, since a pool does not keep its allocator alive

    def run(self, launch, address, nbytes, places=(), whole=False):
        """Runs a launch that may allocate `nbytes` bytes from an address on. `places` has the number, the bytes and the
        address of each segment that lies elsewhere. With `whole` or places, the pool splits no segment."""
        pool = torch.cuda.MemPool(self._allocators[-1], no_split=bool(whole or places))
        made = raised = None
        _core.begin_workspace(address, nbytes, places)
        with torch.cuda.use_mem_pool(pool, self._device):
            try:
                made = launch()
            except BaseException as error:
                raised = error  # raised in the block, its traceback would keep the pool alive
        pool = None
        taken = _Taken(made, *_core.end_workspace())
        if taken.held:  # An allocator may not give out an address twice, and the next launch may use this address.
            self._allocators.append(_allocator())
        if raised is not None and not (taken.refused_bytes and isinstance(raised, torch.OutOfMemoryError)):
            raise raised
        return taken

    def measured(self, launch, sizes):
        """Returns the workspace of a launch, which it runs several times. `sizes` has the bytes of each result, and
        None for a result that has no memory of its own."""
        taken = self._with_room(launch)
        split = Workspace(sum(nbytes for _, nbytes in taken.segments))
        if not taken.made or not any(sizes):
            return split
        taken = self._with_room(launch, whole=True)
        places = list(_places(taken, sizes))
        others = taken.segments.copy()
        for place in places:
            others[place.segment] = (0, 0)
        nbytes = sum(nbytes for _, nbytes in others)
        return Workspace(nbytes, tuple(places)) if self._stays_within(launch, nbytes, places, sizes) else split

    def _with_room(self, launch, whole=False):
        """Runs a launch with all the memory that it asks for. The first run allocates without a limit: after cuDNN was
        refused memory for an algorithm once, it keeps using a slower algorithm."""
        for _ in range(2):
            nbytes = self._allocated_bytes(launch, whole)
            memory = memory_for_pools(nbytes, self._device)
            taken = self.run(launch, memory.data_ptr(), nbytes, whole=whole)
            if taken.held:
                raise CaptureError("an op keeps memory that it has allocated, beyond its end")
            if not taken.refused_bytes:
                return taken
            torch.cuda.empty_cache()  # PyTorch may have given memory back meanwhile, which was counted
        raise CaptureError("an op does not allocate the same each time")

    def _allocated_bytes(self, launch, whole):
        """Returns the bytes of the segments from which PyTorch allocates for a launch."""
        before = torch.cuda.memory_reserved(self._device)
        pool = torch.cuda.MemPool(no_split=whole)
        with torch.cuda.use_mem_pool(pool, self._device):
            launch()
        return torch.cuda.memory_reserved(self._device) - before

    def _stays_within(self, launch, nbytes, places, sizes):
        """Returns whether a launch makes results in places and writes nothing behind them."""
        workspace = memory_for_pools(nbytes, self._device)
        memory = [memory_for_pools(place.nbytes, self._device).fill_(FILLING) for place in places]
        located = [place.at(one.data_ptr()) for place, one in zip(places, memory)]
        taken = self.run(launch, workspace.data_ptr(), nbytes, located, whole=True)
        return (
            not taken.held
            and not taken.refused_bytes
            and all(taken.made[place.result] == one.data_ptr() for place, one in zip(places, memory))
            and all((one[sizes[place.result] :] == FILLING).all() for place, one in zip(places, memory))
        )


def _allocator():
    names = "spillway_workspace_allocate", "spillway_workspace_free"
    return torch.cuda.memory.CUDAPluggableAllocator(_core.__file__, *names).allocator()


def memory_for_pools(nbytes, device):
    """Returns memory of PyTorch in which pools may have segments. No segment may begin where a tensor of PyTorch's
    allocator begins, since the allocator knows both by their addresses."""
    return torch.empty(ALIGNMENT + nbytes, dtype=torch.uint8, device=device)[ALIGNMENT:]


def _places(taken, sizes):
    """Yields the place of each result that is alone in its segment."""
    for result, (address, size) in enumerate(zip(taken.made, sizes)):
        for number, (start, nbytes) in enumerate(taken.segments):
            others = [x for x in taken.made if x is not None and start <= x < start + nbytes]
            if address == start and size and size <= nbytes and others == [address]:
                yield Place(result, number, nbytes)
