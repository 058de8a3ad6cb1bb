"""Training by several processes: gradients are averaged as `DistributedDataParallel` does it."""

from contextlib import nullcontext
from itertools import zip_longest
from math import prod

import torch
from torch import distributed

from .collectives import ALL_REDUCE, is_collective
from .errors import CaptureError
from .machine import measure_copies

FIRST_BUCKET_BYTES = distributed._DEFAULT_FIRST_BUCKET_BYTES  # type: ignore[attr-defined]
BUCKET_BYTES = 25 << 20


class Alone:
    """One process, which runs the step by itself."""

    group = None
    have_one_plan = False
    averages_each_pass = True  # if loss_fn runs the passes and the optimizers' steps itself

    def measure_copies(self):
        """Returns the bytes that it copies in a second."""
        return measure_copies()

    def machine(self, device, tensor_bytes, copied_bytes_per_s):
        """Returns the machine that plans are for, where none is given."""
        return device.machine(tensor_bytes, copied_bytes_per_s)

    def find_buckets(self, backward):
        """Finds which gradients are averaged together."""

    def cut(self):
        """Returns a context in which a process keeps only its part of the parameters."""
        return nullcontext()

    def begin(self, recorder, fakes):
        """Begins a run of the step on fake tensors."""

    def averaging(self, fakes):
        """Returns the function that averages a gradient when it is ready, if there is one."""

    def end_backward(self):
        """Averages the gradients that still wait after a backward pass."""

    def agree(self, calls, name_of):
        """Compares the collectives of all processes."""

    def clip(self, clipping, parameters):
        """Clips the gradients of parameters."""
        clipping.clip(parameters)

    def refuse_mixing(self, calls, storages):
        """Refuses an optimizer that would need more than a process has."""

    def share(self, ops, storages):
        """Compares the graphs of all processes, and gives ops the costs that plans are made with."""

    def longest(self, times):
        """Returns the times of ops on the host that plans are made with."""
        return times

    def planned(self, how, make):
        """Returns the plan that `make` makes. `how` is what it is asked for."""
        return make()

    def check(self, plan):
        """Checks that all processes run a plan."""

    def together(self):
        """Returns a context that compares what the processes do: each adds it to a list."""
        return nullcontext([])


class Processes(Alone):
    """The processes of a group, each of which captures the same step.

    What is exchanged while a step is captured is exchanged for its first shape alone, since only
    that comes to all processes at the same time.
    """

    def __init__(self, group, tensors):
        """All get the values of process 0 for tensors."""
        self.group = group
        self._buckets = None
        self._agreed = None
        self._receive(tensors)

    def _receive(self, tensors):
        for tensor in tensors:
            distributed.broadcast(tensor.detach(), group=self.group, group_src=0)

    def measure_copies(self):
        """Returns the bytes that each process copies in a second while all do."""
        return measure_copies(lambda: distributed.barrier(self.group))

    def find_buckets(self, backward):
        """Puts the parameters into buckets in the order in which their gradients are ready.

        `backward` runs a backward pass, and calls a function with each parameter whose gradient
        is ready. It is not run for further shapes, whose buckets are the same. It returns whether `loss_fn` runs
        all passes and steps itself: then each pass has buckets of its own.
        """
        if self._buckets is None:
            ready = []
            if backward(lambda parameter, fake: ready.append(parameter)):
                self._buckets = []
                return
            limits, numbers = [FIRST_BUCKET_BYTES, BUCKET_BYTES], list(range(len(ready)))
            are_sparse = [False for _ in ready]
            assign = distributed._compute_bucket_assignment_by_size
            buckets, _ = assign(ready, limits, are_sparse, numbers)
            self._buckets = [[ready[k] for k in bucket] for bucket in buckets]

    @property
    def averages_each_pass(self):
        return not self._buckets

    def averaging(self, fakes):
        """Returns the function that averages a gradient when it is ready."""
        scale = 1 / distributed.get_world_size(self.group)
        return _Averaging(self._buckets, self._sum, scale) if self._buckets else _AveragingOfPasses(self._sum, scale)

    def _sum(self, bucket):
        ALL_REDUCE(bucket, "sum", self.group.group_name)

    def agree(self, calls, name_of):
        """Checks that all processes run the same collectives, in the same order.

        `name_of` returns the name of a parameter. Raises `CaptureError` in all processes where
        two differ.
        """
        sequence = [f"averages {', '.join(map(name_of, bucket))}" for bucket in self._buckets]
        sequence += self._sequence(calls)
        if self._agreed is not None:
            compare(sequence, self._agreed, "with this batch", "with the first one")
            return
        everyone = everyones(self.group, sequence)
        for process, other in enumerate(everyone):
            compare(other, everyone[0], f"process {process}", "process 0")
        self._agreed = sequence

    def _sequence(self, calls):
        return [self._described(call) for call in calls if is_collective(call)]

    def _described(self, call):
        given, *how, group_name = call.args
        views = given if isinstance(given, list) else [given]
        if group_name != self.group.group_name:
            raise CaptureError(f"{call.line}: a collective of another group than process_group")
        name = call.function._schema.name.split("::")[1].removesuffix("_out").rstrip("_")
        how = ", ".join(map(str, how))
        count = sum(prod(view.shape) for view in views)
        return f"{name} ({how}) of {count} values of {views[0].dtype}"


def everyones(group, value):
    """Returns the values of all processes of a group."""
    everyone = [None] * group.size()
    distributed.all_gather_object(everyone, value, group)
    return everyone


def averaged_twice():
    return CaptureError(
        "loss_fn runs the backward pass itself, but the processes average each gradient once: return"
        " the mean of all losses"
    )


def compare(sequence, agreed, who, whom):
    """Refuses a sequence of collectives that differs from the one agreed on."""
    for k, (one, other) in enumerate(zip_longest(sequence, agreed, fillvalue="nothing more")):
        if one != other:
            raise CaptureError(
                f"the processes would wait for each other for ever: collective {k} {who} is"
                f" {one!r}, but {other!r} {whom}"
            )


class _Averaging:
    """Copies each gradient into its bucket, divided by the number of processes, and sums a bucket
    over the processes once it and those before it are full."""

    def __init__(self, buckets, sum_bucket, scale):
        self._slots = {p: (k, start) for k, b in enumerate(buckets) for p, start in _starts(b)}
        self._sizes = [sum(p.numel() for p in bucket) for bucket in buckets]
        self._missing = [len(bucket) for bucket in buckets]
        self._flat = [None for _ in buckets]
        self._summed = 0
        self._sum_bucket = sum_bucket
        self._scale = scale

    @torch.no_grad()
    def __call__(self, parameter, fake):
        if parameter not in self._slots:
            raise CaptureError(
                f"a parameter of shape {tuple(parameter.shape)} has a gradient that it did not"
                " have with the first batch"
            )
        k, start = self._slots[parameter]
        if self._flat[k] is None:
            self._flat[k] = fake.grad.new_empty(self._sizes[k])
        _put(fake, self._flat[k], parameter, start, self._scale)
        self._missing[k] -= 1
        while self._summed < len(self._missing) and not self._missing[self._summed]:
            self._sum_bucket(self._flat[self._summed])
            self._summed += 1


class _AveragingOfPasses:
    """Averages the gradients of each backward pass. They wait until they fill a bucket, or the pass ends."""

    def __init__(self, sum_bucket, scale):
        self._sum_bucket, self._scale = sum_bucket, scale
        self._limits, self._waiting = {}, {}  # bytes of buckets, and fake tensors by parameter, by type

    @torch.no_grad()
    def __call__(self, parameter, fake):
        if not self._limits:
            torch.autograd.Variable._execution_engine.queue_callback(self._end)
        limit = self._limits.setdefault(fake.dtype, FIRST_BUCKET_BYTES)
        waiting = self._waiting.setdefault(fake.dtype, {})
        waiting[parameter] = fake
        if sum(p.nbytes for p in waiting) >= limit:
            self._average(self._waiting.pop(fake.dtype))
            self._limits[fake.dtype] = BUCKET_BYTES

    @torch.no_grad()
    def _end(self):
        for waiting in self._waiting.values():
            self._average(waiting)
        self._limits, self._waiting = {}, {}

    def _average(self, waiting):
        flat = next(iter(waiting.values())).grad.new_empty(sum(p.numel() for p in waiting))
        for parameter, start in _starts(waiting):
            _put(waiting[parameter], flat, parameter, start, self._scale)
        self._sum_bucket(flat)


def _put(fake, flat, parameter, start, scale):
    """Copies the gradient of a parameter's fake tensor into a bucket, scaled. The copy becomes the gradient."""
    average = flat.as_strided(parameter.shape, torch.empty_like(parameter, device="meta").stride(), start)
    torch.mul(fake.grad, scale, out=average)
    fake.grad = average


def _starts(bucket):
    """Yields the parameters of a bucket with their positions in it."""
    start = 0
    for parameter in bucket:
        yield parameter, start
        start += parameter.numel()
