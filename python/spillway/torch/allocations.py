"""Counts the bytes that PyTorch allocates while an op runs."""

import os

import torch

os.environ.setdefault("KINETO_LOG_LEVEL", "6")  # the profiler reports each start otherwise

_MARK = "spillway "


class Allocations:
    """Records allocations while it is entered; `of(number)` marks those of an op."""

    def __init__(self):
        self._profile = torch.autograd.profiler.profile(profile_memory=True)

    def __enter__(self):
        self._profile.__enter__()
        return self

    def __exit__(self, *error):
        self._profile.__exit__(*error)

    def of(self, number):
        """Returns a context whose allocations are those of op `number`."""
        return torch.autograd.profiler.record_function(f"{_MARK}{number}")

    def peaks(self):
        """Returns pairs of an op and the most bytes that it held at once, in launch order."""
        peaks, end = [], 0
        for event in sorted(self._profile.kineto_results.events(), key=lambda e: e.start_ns()):
            if event.name().startswith(_MARK):
                peaks.append([int(event.name()[len(_MARK) :]), 0])
                end, held = event.start_ns() + event.duration_ns(), 0
            elif event.name() == "[memory]" and event.start_ns() <= end:
                held += event.nbytes()
                peaks[-1][1] = max(peaks[-1][1], held)
        return peaks
