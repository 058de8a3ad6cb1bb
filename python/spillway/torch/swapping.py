"""Puts fake tensors into a model and an optimizer while a step is captured."""

import copy
import inspect
from contextlib import contextmanager
from functools import partial

import torch
from torch._subclasses.fake_tensor import FakeTensor
from torch.optim.optimizer import _foreach_supported_types

from .carrying import Replaced
from .counting import Place
from .errors import CaptureError, FirstStepError
from .layouts import captured_strides


class Fakes:
    """Fake tensors for the parameters, buffers and optimizer states of a step."""

    def __init__(self, recorder, previous=None):
        """`previous` has the fake tensors of an earlier run, which may have left some."""
        self.recorder, self._previous = recorder, previous
        self._fakes, self._real_of = {}, {}  # by identity of the real and of the fake tensor
        self._real = []
        self._whole = {}  # gathered parameters, by identity of the real ones
        self._names = {}  # of the tensors that have been given fake ones
        self.replaced = []  # what the step has put in the place of buffers

    def of(self, tensor, name, stays=False):
        """Returns the fake tensor of a state: on the device of the step, unless it `stays`."""
        if id(tensor) not in self._fakes:
            fake = self.recorder.fake_mode.from_tensor(tensor)
            fake.grad = None
            self._require_gradient_as_before(tensor, fake)
            if not stays and fake.device != self.recorder.measure.device.torch_device:
                fake = self._moved(tensor, name)
            self.recorder.adopt(fake, "state", name, tensor)
            self.recorder.own(tensor, fake)
            self._fakes[id(tensor)] = fake
            self._real_of[id(fake)] = tensor
            self._real.append(tensor)
            _copy_hooks(tensor, fake)
        return self._fakes[id(tensor)]

    def _require_gradient_as_before(self, tensor, fake):
        """Makes a parameter require a gradient, or not, as it did at the end of the previous run."""
        before = self._previous._fakes.get(id(tensor)) if self._previous else None
        if before is not None and before.is_leaf and fake.is_leaf:
            fake.requires_grad_(before.requires_grad)

    def gather(self, tensor, whole):
        """Gives the model a whole parameter in place of the rows of this process."""
        self._whole[id(tensor)], self._real_of[id(whole)] = whole, tensor

    def gathered_in(self, model):
        """Returns each place where a model holds a whole parameter: the module, the name, the whole fake
        tensor, and the fake tensor of the rows."""
        wholes = {id(whole): self._fakes[real] for real, whole in self._whole.items()}
        return [
            (module, name, whole, wholes[id(whole)])
            for module in model.modules()
            for name, whole in module._parameters.items()
            if id(whole) in wholes
        ]

    def rows(self, tensor):
        """Returns the fake tensor of a state, which has only rows of a sharded parameter."""
        return self._fakes[id(tensor)]

    def in_model(self, tensor):
        """Returns the fake tensor that the model holds for a state."""
        return self._whole.get(id(tensor), self._fakes[id(tensor)])

    def give(self, tensor, fake, name):
        """Has a fake tensor stand for a real one that is no state of the step."""
        self.recorder.own(tensor, fake)
        self._fakes[id(tensor)], self._real_of[id(fake)] = fake, tensor
        self._real.append(tensor)
        self._names[id(tensor)] = name

    def of_module(self, model):
        """Makes fake tensors of parameters and buffers, and returns where they are: a module, a
        name and the real tensor."""
        found = []
        for path, module in model.named_modules():
            for tensors in (module._parameters, module._buffers):
                for name, tensor in tensors.items():
                    if tensor is not None:
                        self.of(tensor, f"{path}.{name}" if path else name)
                        found.append((module, name, tensor))
        return found

    def known(self, value):
        """Returns the fake tensor of a state, and any other value as it is."""
        if self._previous is not None and isinstance(value, FakeTensor):
            value = self._previous.real(value)
        if id(value) in self._whole and not self.recorder.is_updating:
            return self._whole[id(value)]
        return self._fakes.get(id(value), value)

    def real(self, fake):
        """Returns the real tensor of a state's fake one, and any other value as it is."""
        real = self._real_of.get(id(fake), fake)
        return self._previous.real(real) if real is fake and self._previous else real

    def leaves(self, module, name, tensor):
        """Notes what a module holds in place of a state's fake tensor."""
        own = vars(module)
        holders = own["_parameters"], own["_buffers"], own
        after = next((holder[name] for holder in holders if name in holder), None)
        fake = self.in_model(tensor)
        if after is not fake:
            view = self.recorder.view(fake)
            name = "empty" if view.tensor is None else self.recorder.storages[view.tensor].name
            self.replaced.append(Replaced(f"model.{name}", fake, after))

    def with_gradient(self):
        """Returns the real tensors that have gradients of the capture themselves."""
        return [t for t in self._real if t.is_leaf and isinstance(t.grad, FakeTensor)]

    def _moved(self, tensor, name):
        """Returns a fake tensor on the device of the step for one that is elsewhere."""
        storage = tensor.untyped_storage()
        if any(storage._cdata == real.untyped_storage()._cdata for real in self._real):
            raise CaptureError(f"{name} shares memory with another state: copy it, or move the model")
        device = self.recorder.measure.device.torch_device
        with self.recorder.fake_mode:
            fake = torch.empty_strided(
                tensor.shape, tensor.stride(), dtype=tensor.dtype, device=device
            )
        if fake.untyped_storage().nbytes() != storage.nbytes():
            raise CaptureError(f"{name} is part of a larger tensor: copy it, or move the model")
        if isinstance(tensor, torch.nn.Parameter):
            return torch.nn.Parameter(fake, tensor.requires_grad)
        return fake.requires_grad_(tensor.requires_grad)

    def name(self, tensor):
        """Returns the name in the graph of a tensor that has a fake one."""
        if id(tensor) in self._names:
            return self._names[id(tensor)]
        number = self.recorder.view(self._fakes[id(tensor)]).tensor
        return "empty" if number is None else self.recorder.storages[number].name

    def on_gradients(self, function):
        """Has a function called with each parameter whose gradient is ready, and its fake."""
        for real in self._real:
            if real.requires_grad:
                hook = partial(function, real)
                self.in_model(real).register_post_accumulate_grad_hook(hook)

    def has_gradient(self, parameter):
        """Returns whether the captured backward pass gave a parameter a gradient."""
        fake = self._fakes.get(id(parameter))
        return fake is not None and fake.grad is not None


def _copy_hooks(tensor, fake):
    """Gives a parameter's fake tensor the hooks of the parameter."""
    if tensor.is_leaf and tensor.requires_grad:
        for hook in (tensor._backward_hooks or {}).values():
            fake.register_hook(hook)
        for hook in (tensor._post_accumulate_grad_hooks or {}).values():
            fake.register_post_accumulate_grad_hook(hook)


@contextmanager
def swapped_module(model, fakes):
    """Within it, the model's parameters and buffers are fake."""
    real = fakes.of_module(model)
    try:
        for module, name, tensor in real:
            setattr(module, name, fakes.in_model(tensor))
        yield
    finally:
        for module, name, tensor in real:
            fakes.leaves(module, name, tensor)
            setattr(module, name, tensor)


@contextmanager
def rows_in_module(model, fakes):
    """Within it, sharded parameters of a swapped model are the rows that this process has."""
    held = fakes.gathered_in(model)
    try:
        for module, name, _, rows in held:
            setattr(module, name, rows)
        yield
    finally:
        for module, name, whole, _ in held:
            setattr(module, name, whole)


def given(recorder, name, value, device=None, strides_of=captured_strides):
    """Returns the fake tensor of what the caller supplies in each iteration, on a device if it is
    copied there."""
    strides = strides_of(value)
    with recorder.fake_mode:
        fake = torch.empty_strided(value.shape, strides, dtype=value.dtype, device=device or value.device)
    recorder.adopt(fake, "given", name)
    return fake.requires_grad_(value.requires_grad)


class SwappedOptimizer:
    """Within it, an optimizer updates fake parameters, with the numbers that it is `supplied` with."""

    def __init__(self, optimizer, fakes, supplied):
        self._optimizer, self._fakes, self._supplied = optimizer, fakes, supplied
        self._groups, self._state = optimizer.param_groups, optimizer.state
        # These have their step counts on the device; the others compute with them on the processor.
        on_device = [g for g in self._groups if g.get("fused") or g.get("capturable")]
        self._with_counts = {id(p) for group in on_device for p in group["params"]}

    def __enter__(self):
        optimizer, state = self._optimizer, self._state
        # Optimizers choose between kernels by the types of parameters, among others.
        _foreach_supported_types.append(FakeTensor)
        try:
            optimizer.param_groups = [
                dict(self._with_numbers(k, group), params=[self._fake(p) for p in group["params"]])
                for k, group in enumerate(self._groups)
            ]
            optimizer.state = type(state)(state.default_factory)
            self._add_states()
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *error):
        self._optimizer.param_groups, self._optimizer.state = self._groups, self._state
        _foreach_supported_types.remove(FakeTensor)

    @property
    def states(self):
        """The states of real parameters."""
        return self._state

    def initialise(self):
        """Gives the optimizer the states that its next step would make. Returns whether it can be done."""
        optimizer = self._optimizer
        fake = optimizer.param_groups, optimizer.state
        optimizer.param_groups, optimizer.state = self._groups, self._state
        try:
            return initialise(optimizer, self._fakes.has_gradient)
        finally:
            optimizer.param_groups, optimizer.state = fake
            self._add_states()

    def _add_states(self):
        """Makes fake tensors of the states of parameters that have no fake states yet."""
        fakes = self._optimizer.state
        for p, values in self._state.items():
            if not isinstance(values, dict):
                raise CaptureError(
                    f"{type(self._optimizer).__name__} keeps {p!r} among the states of its parameters: use"
                    " torch.compile(model, backend='spillway'), which leaves the optimizer outside"
                )
            fake = self._fake(p)
            if values and not fakes.get(fake):
                fakes[fake] = {key: self._fake_state(p, key, v) for key, v in values.items()}

    def _with_numbers(self, k, group):
        """Returns a group with what stands for its learning rate and counts."""
        group = dict(group)
        for place, number in self._supplied.numbers.items():
            if isinstance(place.owner, int) and place.owner == k:
                place.put(group, number)
        return group

    def _fake(self, parameter):
        # Some optimizers have states of their own, under names.
        is_tensor = isinstance(parameter, torch.Tensor)
        return self._fakes.of(parameter, "parameter") if is_tensor else parameter

    def _fake_state(self, parameter, key, value):
        number = self._supplied.numbers.get(Place(parameter, key))
        if number is not None or not isinstance(value, torch.Tensor):
            return value if number is None else number
        stays = value.dim() == 0 and id(parameter) not in self._with_counts
        is_tensor = isinstance(parameter, torch.Tensor)
        owner = self._fakes.name(parameter) if is_tensor else parameter
        return self._fakes.of(value, f"{owner}.{key}", stays)


@contextmanager
def kept(optimizers, always=False):
    """Puts the present states of optimizers back if the body fails, or in any case if `always` is set."""
    before = [{p: copy.copy(values) for p, values in one.state.items()} for one in optimizers]
    is_done = False
    try:
        yield
        is_done = True
    finally:
        for one, states in zip(optimizers, before) if always or not is_done else ():
            one.state.clear()
            one.state.update(states)


def initialise(optimizer, has_gradient):
    """Gives an optimizer the states that its first step would make, as that step would begin.

    `has_gradient` says which parameters have one. Returns whether it can be done.
    """
    gradients, is_done = {}, True
    for group in optimizer.param_groups:
        for p in group["params"]:
            gradients[p] = p.grad
            zero = torch.zeros((), dtype=p.dtype, device=p.device)
            p.grad = zero.expand_as(p) if has_gradient(p) else None
    try:
        for group in optimizer.param_groups:
            if any(p.grad is not None and not optimizer.state.get(p) for p in group["params"]):
                is_done = _initialise_group(optimizer, group) and is_done
    finally:
        for p, gradient in gradients.items():
            p.grad = gradient
    return is_done


def _initialise_group(optimizer, group):
    if isinstance(optimizer, torch.optim.SGD):
        return _initialise_momentum(optimizer, group)
    if not hasattr(optimizer, "_init_group"):
        return False
    lists = list(inspect.signature(optimizer._init_group).parameters)[1:]
    optimizer._init_group(group, *([] for _ in lists))
    return True


def refuse_first_step(optimizer, cause=None):
    """Refuses an optimizer whose states cannot be made before its first step."""
    raise FirstStepError(
        f"{type(optimizer).__name__} makes its states in its first step:"
        " run one step without Spillway first"
    ) from cause


def _initialise_momentum(optimizer, group):
    """Fills momentum with -0.0, to which the first gradient adds itself without any change."""
    if not group["momentum"]:
        return True
    if group["dampening"]:
        raise FirstStepError(
            "the first step of SGD with dampening differs from the others:"
            " run one step without Spillway first"
        )
    for p in group["params"]:
        if p.grad is not None and optimizer.state[p].get("momentum_buffer") is None:
            optimizer.state[p]["momentum_buffer"] = torch.full_like(p, -0.0, requires_grad=False)
    return True
