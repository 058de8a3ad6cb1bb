"""Copies through pinned memory. A queue stands for the device, and runs no copy before somebody waits for it."""

import pytest
import torch

from spillway.torch.staging import Staging, may_be_staged

pytestmark = pytest.mark.short
BYTES, PART_BYTES = 1024, 128


class Device:
    """A device that is as late as it may be."""

    def __init__(self):
        self._copies, self._done = [], 0
        device = self

        class Event:
            def record(self):
                self._position = len(device._copies)

            def synchronize(self):
                device.run(self._position)

        pinned = lambda nbytes: torch.zeros(nbytes, dtype=torch.uint8)
        self.staging = Staging(pinned, Event, self._enqueue, BYTES, PART_BYTES)

    def _enqueue(self, source, target):
        self._copies.append((source, target))

    def run(self, end=None):
        """Runs copies up to a position, or all."""
        end = len(self._copies) if end is None else end
        for source, target in self._copies[self._done : end]:
            target.copy_(source)
        self._done = max(self._done, end)

    @property
    def is_late(self):
        return self._done < len(self._copies)


def tensors():
    """Returns tensors of all sizes: far below a part, and beyond all pinned memory."""
    torch.manual_seed(0)
    sizes = (1, 7, 32, 33, 500, 0, 2, 2000, 64, 64, 64)
    return [torch.randn(size) for size in sizes] + [torch.randn(30, 40).t(), torch.ones(5, dtype=torch.bool)]


def test_uploads_have_the_values_that_tensors_had():
    device, given = Device(), tensors()
    expected, targets = [x.clone() for x in given], [torch.zeros_like(x) for x in given]
    for source, target in zip(given, targets):
        device.staging.upload(source, target)
        source.zero_()  # as the caller may
    assert device.is_late
    device.run()
    assert all(map(torch.equal, targets, expected))


def test_downloads_have_come_when_they_return():
    device, given = Device(), tensors()
    for source in given:
        target = torch.zeros_like(source)
        device.staging.download(source, target)
        assert torch.equal(target, source)


def test_both_share_the_memory():
    device, given = Device(), tensors()
    expected = [x.clone() for x in given]
    on_device = [torch.zeros_like(x) for x in given]
    for source, target in zip(given, on_device):
        device.staging.upload(source, target)
        source.zero_()
        device.staging.download(target, source)
    assert all(map(torch.equal, given, expected))


def test_tensors_of_other_layouts_are_not_staged():
    x = torch.zeros(4, 6)
    assert may_be_staged(x, x.clone()) and may_be_staged(x.t(), x.clone().t())
    assert may_be_staged(x[1:], x[:3]), "an offset does not matter"
    for other in (x.t().contiguous().t(), x.double(), x[:, :3], torch.zeros(4, 12)[:, ::2]):
        assert not may_be_staged(x, other)
    assert not may_be_staged(x[:, :3], x[:, 3:]), "there are gaps"
