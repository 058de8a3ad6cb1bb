"""Copies between memory of the processor that is not pinned and a CUDA device.

PyTorch and the driver do such a copy after all earlier work of the stream, while the caller waits. Copies through
pinned memory wait only for room in it.
"""

import threading
from collections import deque

import torch

from .memory import ALIGNMENT
from .recording import View

STAGED_BYTES = 64 << 20
PART_BYTES = 8 << 20  # so that the processor fills a part while the device copies another


class Staging:
    """Pinned memory, as a ring, through which parts of tensors are copied.

    `pinned` returns so many bytes of memory, `event` makes an event, and `enqueue` enqueues a copy of the first tensor
    to the second one. All act on the current stream.
    """

    def __init__(self, pinned, event=torch.cuda.Event, enqueue=None, nbytes=STAGED_BYTES, part_bytes=PART_BYTES):
        self._pinned, self._event = pinned, event
        self._enqueue = enqueue or (lambda source, target: target.copy_(source, non_blocking=True))
        self._nbytes, self._part_bytes = nbytes, part_bytes
        self._most_waiting = nbytes // part_bytes // 2
        self._memory = None
        self._end = 0  # of the part that was taken last, counted over all rounds of the ring
        self._busy = deque()  # the start of parts, and the events after which they are free
        self._lock = threading.Lock()

    def upload(self, source, target):
        """Enqueues a copy of a tensor on the processor, which may be written again when this returns."""
        with self._lock:
            for one, other in self._parts(source, target):
                start, staged = self._take(len(one))
                staged.copy_(one)
                self._enqueue(staged, other)
                self._release(start)

    def download(self, source, target):
        """Copies a tensor to the processor, where its value is when this returns."""
        under_way = deque()
        with self._lock:
            for one, other in self._parts(source, target):
                # Events do not tell whether the processor has copied a part.
                if len(under_way) == self._most_waiting:
                    _finish(*under_way.popleft())
                start, staged = self._take(len(one))
                self._enqueue(one, staged)
                under_way.append((self._release(start), staged, other))
            for part in under_way:
                _finish(*part)

    def _parts(self, source, target):
        """Yields pairs of parts of two tensors with the same layout, as bytes."""
        whole = [_bytes(tensor) for tensor in (source, target)]
        return zip(*(one.split(self._part_bytes) for one in whole))

    def _take(self, nbytes):
        """Returns the start of free memory, and the memory. Waits for the device if none is free."""
        if self._memory is None:
            self._memory = self._pinned(self._nbytes)
        start = -(-self._end // ALIGNMENT) * ALIGNMENT
        if start % self._nbytes + nbytes > self._nbytes:
            start = -(-start // self._nbytes) * self._nbytes
        self._end = start + nbytes
        while self._busy and self._busy[0][0] < self._end - self._nbytes:
            self._busy.popleft()[1].synchronize()
        return start, self._memory[start % self._nbytes :][:nbytes]

    def _release(self, start):
        """Has the part at a start be free after what is enqueued. Returns the event."""
        event = self._event()
        event.record()
        self._busy.append((start, event))
        return event


def may_be_staged(source, target):
    """Returns whether both tensors have the same layout, without gaps."""
    one, other = (View(None, tuple(t.shape), t.stride(), 0, t.dtype) for t in (source, target))
    return one == other and one.fills(one.nbytes)


def _bytes(tensor):
    return tensor.detach().as_strided((tensor.numel(),), (1,)).view(torch.uint8)


def _finish(event, staged, target):
    event.synchronize()
    target.copy_(staged)
