"""Tensors over planned memory."""

import ctypes
from sys import getrefcount

import torch

ALIGNMENT = 64
SMALL_BYTES = 1 << 20
LEAST_BYTES = 1 << 20
INTEGERS = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


class Tensors:
    """The tensors of views over the memory of their storages; None where a repeat leaves that alone.
    `numbers` has the numbers on the processor, or is None if the step is there."""

    def __init__(self, memory, device, numbers):
        self._memory, self._device, self.numbers = memory, device, numbers

    def __call__(self, view):
        if view.tensor is None:
            return empty(view, self._device.torch_device)
        at = self._memory[view.tensor]
        return viewed(self._device.at(at), view) if at else None


def viewed(memory, view):
    """Returns a view of a storage, given the storage's bytes."""
    whole_bytes = len(memory) // view.dtype.itemsize * view.dtype.itemsize
    return memory[:whole_bytes].view(view.dtype).as_strided(view.shape, view.stride, view.offset)


def empty(view, device):
    """Returns a tensor of the shape and strides of a view, with any values."""
    return torch.empty_strided(view.shape, view.stride, dtype=view.dtype, device=device)


def have_same_bits(one, other):
    """Returns whether the elements of two tensors of one shape, type and device have the same bits."""
    return torch.equal(_as_integers(one), _as_integers(other))


def _as_integers(tensor):
    tensor = torch.view_as_real(tensor) if tensor.is_complex() else tensor
    return tensor.view(INTEGERS[tensor.element_size()])


def form(view):
    """Returns a tensor without memory of the shape and strides of a view."""
    return empty(view, "meta")


class Memory:
    """Memory that is handed out again and again, since touching fresh pages takes long. If a caller needs
    more memory than any caller before, it gets further pages. After that, one piece of memory replaces all pages,
    with an eighth more than that caller needed."""

    def __init__(self, device):
        self._device = device
        self._pages = []  # parts are taken from the last of them
        self._size, self._taken = 0, 0  # of the last pages
        self._needed = self._expected = 0

    def take(self, nbytes):
        """Returns bytes aligned as PyTorch's own are, and which PyTorch cannot resize either."""
        start = -(-self._taken // ALIGNMENT) * ALIGNMENT
        if start + nbytes > self._size:
            self._size = max(nbytes, LEAST_BYTES, 0 if self._pages else self._expected)
            self._pages.append(self._device.pages(self._size))
            start = 0
        self._taken = start + nbytes
        self._needed += nbytes + ALIGNMENT
        return self._device.part(self._pages[-1], start, nbytes)

    def take_back(self):
        """Takes back all that was handed out."""
        if len(self._pages) > 1:
            self._expected = self._needed + self._needed // 8
            self._pages, self._size = [], 0
        self._taken = self._needed = 0


class Lent:
    """Memory that callers get and may keep. On the processor, once nobody has it, the next tensor of the same name and
    size gets it, since touching fresh pages takes long. PyTorch's allocators for other devices do so themselves."""

    def __init__(self, torch_device):
        self._device = torch_device
        self._lent = {}  # by name
        self._alone = _uses(_Lent(None, torch.empty(1)))

    def tensor(self, name, view):
        """Returns a tensor of the shape and strides of a view, with any values."""
        if self._device.type != "cpu":
            return empty(view, "cpu" if view.is_host_number else self._device)
        lent = self._lent.get(name)
        if lent is None or not self._is_free(lent, view):
            lent = self._lent[name] = _Lent(view, empty(view, "cpu"))
        elif lent.view is not view:
            whole = torch.empty(0, dtype=view.dtype).set_(lent.storage, 0, view.shape, view.stride)
            lent = self._lent[name] = _Lent(view, whole)
        return lent.tensor.data

    def _is_free(self, lent, view):
        """Returns whether memory has the size of a view, and nobody else refers to it, nor another process."""
        if _uses(lent) != self._alone or lent.storage.is_shared() or lent.storage.nbytes() != lent.nbytes:
            return False  # a caller may have resized it
        return lent.view is view or form(view).untyped_storage().nbytes() == lent.nbytes


class _Lent:
    """A tensor of a view, of which callers get aliases."""

    def __init__(self, view, tensor):
        self.view, self.tensor, self.storage = view, tensor, tensor.untyped_storage()
        self.nbytes = self.storage.nbytes()


def _uses(lent):
    """Returns how many references there are to lent memory, in C++ and in Python."""
    return torch._C._storage_Use_Count(lent.storage._cdata), getrefcount(lent.storage)


def bytes_of(tensor):
    """Returns the bytes of a tensor's storage as a writable buffer; a copy of a CUDA tensor's."""
    storage = tensor.detach().untyped_storage().cpu()
    return torch.tensor([], dtype=torch.uint8).set_(storage).numpy()


def bytes_if_small(tensor):
    """Returns the bytes of a tensor on the processor; None where they are many."""
    nbytes = tensor.untyped_storage().nbytes()
    if tensor.device.type != "cpu" or nbytes > SMALL_BYTES:
        return None
    return ctypes.string_at(tensor.untyped_storage().data_ptr(), nbytes)


def set_bytes_of(tensor, buffer):
    """Gives a tensor's storage the bytes of a buffer that `bytes_of` has returned."""
    if tensor.device.type != "cpu":  # otherwise they are the same
        storage = tensor.detach().untyped_storage()
        whole = torch.tensor([], dtype=torch.uint8, device=tensor.device).set_(storage)
        whole.copy_(torch.from_numpy(buffer))
