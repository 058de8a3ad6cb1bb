"""One plan for all processes of a group: from the longest of their times and the least of their memory."""

import zlib
from contextlib import contextmanager
from dataclasses import replace

import torch
from torch import distributed

from .errors import CaptureError, ProcessError
from .machine import memory_bytes, slowest, this_machine
from .processes import Processes, compare, everyones


class Common(Processes):
    """The processes of a group, all of which run one plan."""

    have_one_plan = True

    def __init__(self, group, tensors, device):
        super().__init__(group, tensors)
        self._device = device
        self._own_machine = self._machine = None  # this process's and everyone's, of a device with own memory
        self._memory_bytes = min(self._everyones(memory_bytes()))

    def measure_copies(self):
        """Returns the bytes that the slowest process copies in a second while all do."""
        return min(self._everyones(super().measure_copies()))

    def machine(self, device, tensor_bytes, copied_bytes_per_s):
        """Returns a machine with the memory that every process has."""
        if self._machine is not None:
            return self._machine
        return this_machine(tensor_bytes, copied_bytes_per_s, self._memory_bytes)

    def agree(self, calls, name_of):
        """Checks that all processes run the same collectives, in the same order."""
        sequence = self._sequence(calls)
        for process, other in enumerate(self._everyones(sequence)):
            compare(other, sequence, f"process {process}", f"process {self.group.rank()}")

    def share(self, ops, storages):
        """Gives ops the largest costs that a process has measured. Raises `CaptureError` in all
        processes where the graphs of two differ."""
        tensors = [f"{s.kind} {s.name} of {s.nbytes} bytes" for s in storages]
        form = tensors + [f"{op.name} from {op.reads} to {op.writes}" for op in ops]
        costs = [(op.measured, op.repeatable) for op in ops]
        everyone = self._everyones((form, costs))
        for process, (other, _) in enumerate(everyone):
            _compare_forms(process, other, everyone[0][0])
        for k, op in enumerate(ops):
            found = [costs[k] for _, costs in everyone]
            largest = _largest([measured for measured, _ in found])
            # Each device has its own places of results.
            op.measured = replace(largest, places=op.measured.places)
            op.repeatable = all(repeatable for _, repeatable in found)
        if self._machine is None and self._device.torch_device.type != "cpu":
            self._measure_device()

    def _measure_device(self):
        """Measures the devices, all at the same time. The memory of their collectives, which have run, is not theirs
        any more."""
        self._own_machine = self._device.machine(None, None)
        self._machine = slowest(self._everyones(self._own_machine))

    def longest(self, times):
        """Returns the longest of the processes' times of each op."""
        columns = zip(*self._everyones(times))
        return [None if None in column else max(column) for column in columns]

    def planned(self, how, make):
        """Returns the plan that process 0 makes. `how` is what it is asked for, in all processes alike."""
        for process, other in enumerate(self._everyones(repr(how))):
            if other != repr(how):
                raise ProcessError(
                    f"process {process} plans with {other}, but process {self.group.rank()} with"
                    f" {how!r}: all processes run one plan, so give them the same"
                )
        outcome = [None]
        if not self.group.rank():
            try:
                outcome = [make()]
            except Exception as error:
                outcome = [error]
        distributed.broadcast_object_list(outcome, group=self.group, group_src=0)
        if isinstance(outcome[0], Exception):
            raise outcome[0]
        return outcome[0]

    def check(self, plan):
        """Refuses a plan in all processes where one has another, or cannot run it."""
        own = zlib.crc32(plan.to_json())
        everyone = self._everyones((own, self._lack(plan)))
        for process, (other, lack) in enumerate(everyone):
            if other != everyone[0][0]:
                raise ProcessError(
                    f"process {process} has another plan than process 0: use what step.plan(...) returns"
                    " in all processes"
                )
            if lack:
                raise ProcessError(f"process {process} cannot run the plan: {lack}")

    @contextmanager
    def together(self):
        """Checks that all processes do the same. In its body, each process adds to a list what it does. If one
        process fails, all processes do."""
        said, failed = [], None
        try:
            yield said
        except Exception as error:
            failed = error
        self._compare_said(f"fails: {failed}" if failed else ", ".join(said), bool(failed))
        if failed is not None:
            raise failed

    def _compare_said(self, text, is_failure):
        digest = zlib.crc32(text.encode()) - is_failure * (1 << 40)
        ends = torch.tensor([digest, -digest])
        distributed.all_reduce(ends, distributed.ReduceOp.MAX, self.group)
        if ends[0] == -ends[1] and not is_failure:
            return
        others = self._everyones(text)
        if not is_failure:
            process = next(k for k, other in enumerate(others) if other != text)
            raise ProcessError(
                f"process {process} {others[process]}, but process {self.group.rank()} {text}: all"
                " processes of a sharded step call it with batches of the same shapes"
            )

    def _everyones(self, value):
        return everyones(self.group, value)

    def _lack(self, plan):
        """Returns what this process lacks to run a plan, or an empty text."""
        budget_bytes, host_bytes, has = plan.budget_bytes, plan.figures.host_bytes, memory_bytes()
        if self._own_machine is not None and budget_bytes > self._own_machine.device_bytes:
            return f"its budget takes {budget_bytes} bytes, but its device has {self._own_machine.device_bytes}"
        if self._own_machine is not None and host_bytes > has:
            return f"the states outside of its budget take {host_bytes} bytes, but its machine has {has}"
        needed = budget_bytes + host_bytes
        if self._own_machine is None and needed > has:
            return f"its budget and the states outside of it take {needed} bytes, but its machine has {has}"
        if plan.mappings > self._device.most_mappings:
            return f"it takes {plan.mappings} mappings, but a process has {self._device.most_mappings}"
        return ""


def _compare_forms(process, other, first):
    for one, its in zip(first, other):
        if one != its:
            raise CaptureError(
                f"process {process} captures {its!r} where process 0 captures {one!r}, but all processes"
                " of a sharded step run one plan: give them batches of the same shapes"
            )
    if len(other) != len(first):
        raise CaptureError(
            f"process {process} captures {len(other)} tensors and ops, but process 0 {len(first)}: give"
            " all processes of a sharded step batches of the same shapes"
        )


def _largest(costs):
    return replace(
        costs[0],
        time_ns=max(c.time_ns for c in costs),
        workspace_bytes=max(c.workspace_bytes for c in costs),
    )
