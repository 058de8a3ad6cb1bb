"""Finds the tensors of a model and an optimizer wherever the code of a step reaches them."""

import gc

import torch
from torch import distributed
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_map

from .arguments import groups_of
from .errors import CaptureError
from .substitutes import has_numbers

# The optimizers' kernels that take some settings only as plain numbers.
FUSED = {torch._fused_sgd_, torch._fused_adam_, torch._fused_adamw_, torch._fused_adagrad_}


class Substitution(TorchFunctionMode):
    """Within it, each function of PyTorch gets the fake tensors of the states that it is given,
    also of those that the code has kept from before the capture."""

    def __init__(self, fakes):
        super().__init__()
        self._known, self._stand_in = fakes.known, fakes.recorder.stand_ins.of

    def __torch_function__(self, function, types, args=(), kwargs=None):
        args, kwargs = tree_map(self._known, (args, kwargs or {}))
        if function in (torch.tensor, torch.as_tensor) and args:
            if has_numbers(args[0] if isinstance(args[0], (list, tuple)) else args[:1]):
                return _tensor(*args, **kwargs)
        if function in FUSED:
            args, kwargs = tree_map(self._stand_in, (args, kwargs))
        if function is torch.Tensor.backward:
            with self:  # for the hooks
                return _backward(*args, **kwargs)
        return function(*args, **kwargs)

    def __enter__(self):
        # Modules that ask whether a tensor has functions of its own take other ways then.
        self._asked = torch.overrides.has_torch_function
        torch.overrides.has_torch_function = _has_torch_function
        return super().__enter__()

    def __exit__(self, *error):
        torch.overrides.has_torch_function = self._asked
        return super().__exit__(*error)


def _tensor(data, *args, **kwargs):
    """Does what `torch.tensor` does, which would need the values of numbers."""
    if isinstance(data, torch.SymFloat):
        return torch.full((), data, *args, **kwargs)
    return torch.stack([torch.full((), value, *args, **kwargs) for value in data])


def _backward(loss, gradient=None, retain_graph=None, create_graph=False, inputs=None):
    torch.autograd.backward(loss, gradient, retain_graph, create_graph, inputs=inputs)


def _has_torch_function(args):
    plain = torch.Tensor.__torch_function__, torch._C._disabled_torch_function_impl
    functions = (getattr(type(arg), "__torch_function__", None) for arg in args)
    return any(f is not None and f not in plain for f in functions)


def refuse_gradients_elsewhere(fakes, storages):
    """Refuses a step whose backward pass has reached real tensors, and takes the gradients away."""
    constants = [s.value for s in storages if s.value is not None and s.value.is_leaf]
    for tensor in fakes.with_gradient() + [
        t for t in constants if isinstance(t.grad, torch._subclasses.FakeTensor)
    ]:
        tensor.grad = None
        raise CaptureError(
            f"the step computes a gradient of a tensor of shape {tuple(tensor.shape)} that a"
            " torch.autograd.Function is given from outside of the model: give it the attribute of"
            " a module of the model"
        )


def refuse_parameters_elsewhere(model, optimizers):
    """Refuses parameters that `DistributedDataParallel` would not average."""
    own = {id(p) for p in model.parameters()}
    for label, group in groups_of(optimizers):
        for n, parameter in enumerate(group["params"]):
            if id(parameter) not in own:
                raise CaptureError(
                    f"parameter {n} of {label}, of shape {tuple(parameter.shape)}, is not the model's, so"
                    " processes would not average its gradient: add it to a module of the model"
                )


WRAPPERS = "DistributedDataParallel", "FullyShardedDataParallel", "FSDPModule"


def refuse_wrapped(model, group):
    """Refuses modules that average or gather gradients and parameters by themselves."""
    for name, module in model.named_modules():
        wrapper = _wrapper(module)
        if wrapper:
            where = f"model.{name}" if name else "model"
            _refuse(f"{where} is a {wrapper}", wrapper, group)
    if group is None and distributed.is_available() and distributed.is_initialized():
        own = {id(p) for p in model.parameters()}
        for module in filter(_is_parallel, gc.get_objects()):
            if any(id(p) in own for p in module.parameters()):
                _refuse(
                    "a DistributedDataParallel has the parameters of the model, and would average"
                    " their gradients",
                    "DistributedDataParallel",
                    group,
                )


def _wrapper(module):
    names = [kind.__name__ for kind in type(module).__mro__ if kind.__module__.startswith("torch.")]
    return next((name for name in WRAPPERS if name in names), None)


def _is_parallel(thing):
    return torch.nn.parallel.DistributedDataParallel in type(thing).__mro__


def _refuse(what, wrapper, group):
    if wrapper == "DistributedDataParallel":
        advice = (
            "give capture the module that DistributedDataParallel wraps, and its process_group"
        )
    else:
        advice = (
            "give capture the module before it is sharded, with process_group and shard=True"
        )
    raise CaptureError(f"{what}: {advice}")
