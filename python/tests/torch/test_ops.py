"""PyTorch's own samples of its functions, also transposed and with gaps: the bits of eager mode, or a refusal.
`SPILLWAY_OPS=1` tests all functions, and not only one in 40; `SPILLWAY_OPS=7` one in seven."""

import os

import pytest
import torch
from eager import losses_of, same
from torch import nn
from torch.utils._pytree import tree_leaves, tree_map

import spillway.torch

pytest.importorskip("expecttest", reason="PyTorch's samples of its functions need expecttest")
from torch.testing._internal.common_methods_invocations import op_db  # noqa: E402

pytestmark = pytest.mark.short

SAMPLES = 2
FUNCTIONS = op_db[:: int(os.environ.get("SPILLWAY_OPS", 40))]
EACH = pytest.mark.parametrize("function", FUNCTIONS, ids=lambda f: f"{f.name}{f.variant_test_name}")

# Within any dispatch mode, PyTorch computes singular values and eigenvalues with the vectors, and these gradients by
# other ops than in eager mode.
VECTORS = {"linalg.cond", "linalg.eigvalsh", "linalg.svdvals", "norm"}
GRADIENTS = {"clamp", "linalg.householder_product", "masked_fill", "prod"}
# Eager mode returns undefined elements: of new memory, or of memory that is not an operand's.
UNDEFINED = {"empty", "empty_like", "empty_permuted", "empty_strided", "new_empty", "new_empty_strided"} | {
    "torch.ops.aten._scaled_dot_product_flash_attention_for_cpu"
}


def transposed(tensor):
    return tensor.transpose(0, -1).contiguous().transpose(0, -1) if tensor.dim() > 1 else tensor


def with_gaps(tensor):
    return torch.stack([tensor, tensor], -1)[..., 0]


LAYOUTS = pytest.mark.parametrize("laid_out", [lambda x: x, transposed, with_gaps], ids=["", "transposed", "with gaps"])


def samples(function, laid_out):
    """Yields the operands of each sample, and the function of its tensors."""
    for _, sample in zip(range(SAMPLES), function.sample_inputs("cpu", torch.float32, requires_grad=False)):
        given = (sample.input, *sample.args), sample.kwargs
        tensors = [leaf for leaf in tree_leaves(given) if isinstance(leaf, torch.Tensor)]

        def call(tensors, given=given):
            left = iter(tensors)
            args, kwargs = tree_map(lambda x: next(left) if isinstance(x, torch.Tensor) else x, given)
            return function(*args, **kwargs)

        if all(tensor.layout == torch.strided for tensor in tensors):
            yield list(map(laid_out, tensors)), call


def results_of(eager, tensors):
    """Returns the tensors that eager mode returns, from a fixed state of the generator; None if it refuses the operands
    or returns sparse tensors."""
    torch.manual_seed(3)
    try:
        results = [x for x in tree_leaves(eager(copies(tensors))) if isinstance(x, torch.Tensor)]
    except Exception:
        return None
    return results if all(x.layout == torch.strided for x in results) else None


def planned(capture, tensors):
    """Returns the tensors that the captured function returns from this state; None if the capture refuses it."""
    try:
        step = capture(copies(tensors))
    except spillway.torch.CaptureError:
        return None
    with step.compile(step.plan()) as run:
        torch.manual_seed(3)
        return [x for x in tree_leaves(run(copies(tensors))) if isinstance(x, torch.Tensor)]


def copies(tensors):
    return [torch.empty_strided(t.shape, t.stride(), dtype=t.dtype).copy_(t) for t in tensors]


def plain(tensor):
    """Returns numbers that have the same bits if the tensor's elements have, or are NaN."""
    wide = torch.complex128 if tensor.is_complex() else torch.float64
    is_exact = not (tensor.is_complex() or tensor.is_floating_point())
    return tensor if is_exact else tensor.detach().to(wide).resolve_conj().resolve_neg().nan_to_num(nan=7.0)


def compare(found, expected, name):
    assert len(found) == len(expected)
    for a, b in zip(found, expected):
        same(plain(a), plain(b), name)


@LAYOUTS
@EACH
def test_results(function, laid_out):
    if function.name in VECTORS | UNDEFINED:
        pytest.skip("its results have other bits")
    for tensors, call in samples(function, laid_out):
        capture = lambda x, call=call: spillway.torch.capture_inference(nn.Identity(), x, lambda _, x: call(x))
        with torch.no_grad():
            expected = results_of(call, tensors)
        if expected and (found := planned(capture, tensors)):
            compare(found, expected, function.name)


class Scale(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(3))

    def forward(self, tensors):
        return [t * self.weight.sum() if t.is_floating_point() else t for t in tensors]


def scale():
    """Returns a model and its optimizer."""
    model = Scale()
    return model, torch.optim.SGD(model.parameters(), lr=0.1)


@LAYOUTS
@EACH
def test_gradients(function, laid_out):
    if function.name in GRADIENTS | UNDEFINED:
        pytest.skip("its gradients have other bits")
    for tensors, call in samples(function, laid_out):

        def loss_fn(model, tensors):
            results = [x for x in tree_leaves(call(model(tensors))) if isinstance(x, torch.Tensor)]
            return sum((x.square().sum() for x in results if x.grad_fn is not None), model.weight.sum())

        def trained(tensors):
            model, optimizer = scale()
            return *losses_of(model, loss_fn, optimizer, [tensors]), model.weight

        expected = results_of(trained, tensors)
        if expected is None or not expected[0].isfinite():
            continue
        model, optimizer = scale()
        found = planned(lambda x: spillway.torch.capture(model, loss_fn, optimizer, x), tensors)
        if found:
            compare((*found, model.weight), expected, function.name)
