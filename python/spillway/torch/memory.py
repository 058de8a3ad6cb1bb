"""Tensors over planned addresses."""

import ctypes
import mmap

import torch

ALIGNMENT = 64


def tensors_at(addresses, storages):
    """Returns the function from views to tensors over the addresses of their storages; it gives
    None where the address is 0."""

    def tensor_of(view):
        if view.tensor is None:
            return torch.empty_strided(view.shape, view.stride, dtype=view.dtype)
        address = addresses[view.tensor]
        return _tensor(address, storages[view.tensor].nbytes, view) if address else None

    return tensor_of


def _tensor(address, nbytes, view):
    memory = (ctypes.c_char * nbytes).from_address(address)
    flat = torch.frombuffer(memory, dtype=view.dtype, count=nbytes // view.dtype.itemsize)
    return flat.as_strided(view.shape, view.stride, view.offset)


class Memory:
    """Memory that is handed out again and again, since touching fresh pages takes long."""

    def __init__(self):
        self._pages, self._taken = mmap.mmap(-1, 1 << 20), 0

    def take(self, nbytes):
        """Returns bytes aligned as PyTorch's own are, and which PyTorch cannot resize either."""
        start = -(-self._taken // ALIGNMENT) * ALIGNMENT
        if start + nbytes > len(self._pages):
            # What was handed out keeps the pages before.
            self._pages, start = mmap.mmap(-1, max(nbytes, 2 * len(self._pages))), 0
        self._taken = start + nbytes
        return torch.frombuffer(self._pages, dtype=torch.uint8, count=nbytes, offset=start)

    def take_back(self):
        """Takes back all that was handed out."""
        self._taken = 0


def bytes_of(tensor):
    """Returns the bytes of a tensor's storage as a writable buffer."""
    storage = tensor.detach().untyped_storage()
    return torch.tensor([], dtype=torch.uint8).set_(storage).numpy()
