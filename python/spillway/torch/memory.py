"""Tensors over planned addresses."""

import ctypes

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


def new_memory(nbytes):
    """Returns bytes aligned as PyTorch's own are, and which PyTorch cannot resize either."""
    memory = bytearray(nbytes + ALIGNMENT)
    offset = -ctypes.addressof(ctypes.c_char.from_buffer(memory)) % ALIGNMENT
    return torch.frombuffer(memory, dtype=torch.uint8, count=nbytes, offset=offset)


def bytes_of(tensor):
    """Returns the bytes of a tensor's storage as a writable buffer."""
    storage = tensor.detach().untyped_storage()
    return torch.tensor([], dtype=torch.uint8).set_(storage).numpy()
