"""Tensors over planned addresses."""

import ctypes

import torch


class Memory:
    """Makes tensors over addresses. The same view at the same address is made once."""

    def __init__(self, storages):
        self._storages = storages
        self._tensors = {}

    def at(self, addresses):
        """Returns the function from views to tensors for a launch; `addresses` by tensor."""

        def tensor_of(view):
            if view.tensor is None:
                return torch.empty_strided(view.shape, view.stride, dtype=view.dtype)
            address = addresses[view.tensor]
            if not address:
                return None
            key = address, view
            tensor = self._tensors.get(key)
            if tensor is None:
                tensor = self._tensors[key] = self._make(address, view)
            return tensor

        return tensor_of

    def _make(self, address, view):
        nbytes = self._storages[view.tensor].nbytes
        memory = (ctypes.c_char * nbytes).from_address(address)
        flat = torch.frombuffer(memory, dtype=view.dtype, count=nbytes // view.dtype.itemsize)
        return flat.as_strided(view.shape, view.stride, view.offset)


def bytes_of(tensor):
    """Returns the bytes of a tensor's storage as a writable buffer."""
    storage = tensor.detach().untyped_storage()
    return torch.tensor([], dtype=torch.uint8).set_(storage).numpy()
