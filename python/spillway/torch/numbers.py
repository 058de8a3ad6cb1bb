"""Numbers that a step on another device keeps on the processor, as eager mode does: step counts, learning
rates, and the state of the generator."""

import torch

from .memory import viewed


class Numbers:
    """The values of such numbers on the processor, so that an op reads one without waiting for the device.

    A number is in planned memory too, for the session to keep. It is read from there when it is first needed,
    and again after `forget`. Numbers in `elsewhere` are written by ops on the host, and always read from there.
    """

    def __init__(self, elsewhere=()):
        self._elsewhere = frozenset(elsewhere)
        self._bytes = {}  # by tensor
        self._known = set()

    def forget(self):
        """Reads all numbers again, since others have written them."""
        self._known.clear()

    def of(self, view, tensor):
        """Returns the number of a view, given its tensor in planned memory."""
        memory = torch.tensor([], dtype=torch.uint8, device=tensor.device).set_(tensor.untyped_storage())
        if view.tensor not in self._bytes:
            self._bytes[view.tensor] = torch.empty(memory.numel(), dtype=torch.uint8)
        return Number(self, view, self._bytes[view.tensor], memory)

    def is_known(self, tensor):
        """Returns whether the value on the processor is the last one."""
        return tensor in self._known

    def know(self, tensor):
        """Notes that the value on the processor is the last one."""
        if tensor not in self._elsewhere:
            self._known.add(tensor)


class Number:
    """A number on the processor, and its planned memory."""

    def __init__(self, numbers, view, its_bytes, memory):
        self._numbers, self._tensor = numbers, view.tensor
        self._bytes, self._memory = its_bytes, memory
        self._value = viewed(its_bytes, view)

    def read(self):
        """Returns the number."""
        if not self._numbers.is_known(self._tensor):
            self._bytes.copy_(self._memory)
            self._numbers.know(self._tensor)
        return self._value

    def item(self):
        """Returns the number as Python has it."""
        return self.read().item()

    def copy_(self, value):
        """Writes the number."""
        if self._value.nbytes < self._bytes.nbytes:
            self.read()  # the rest of the tensor, which `written` hands on too
        self._value.copy_(value)
        self.written()

    def written(self):
        """Hands what was written to the result of `read` to the planned memory."""
        # The driver copies so few bytes before the call returns.
        self._memory.copy_(self._bytes, non_blocking=True)
        self._numbers.know(self._tensor)


def placed(view, tensor_of):
    """Returns the number of a view, or its tensor if it is none; None where a repeat leaves it alone."""
    tensor, numbers = tensor_of(view), tensor_of.numbers
    is_number = numbers is not None and view.is_host_number and tensor is not None
    return numbers.of(view, tensor) if is_number else tensor


def value_of(tensor):
    """Returns a tensor, or the value of a number."""
    return tensor.read() if isinstance(tensor, Number) else tensor
