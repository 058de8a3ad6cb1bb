"""What a captured step refuses, checks and hands back."""

import collections
import copy
import dataclasses
import functools
import inspect
import sys

import pytest
import torch
from eager import compare, planned_within, same_dicts
from torch import nn
from torch.nn import functional as F

import spillway.torch

pytestmark = pytest.mark.short


def model():
    torch.manual_seed(3)
    return nn.Sequential(nn.Linear(8, 16), nn.BatchNorm1d(16), nn.Dropout(), nn.Linear(16, 4))


def adam(model):
    return torch.optim.Adam(model.parameters(), lr=0.01)


def loss_fn(model, batch):
    return F.mse_loss(model(batch["x"]), batch["y"])


def batch():
    return {"x": torch.randn(6, 8), "y": torch.randn(6, 4)}


def captured(loss_fn=loss_fn, example=None):
    trained = model()
    optimizer = adam(trained)
    step = spillway.torch.capture(trained, loss_fn, optimizer, example or batch())
    return trained, optimizer, step


def uses_item(model, batch):
    loss = loss_fn(model, batch)
    return loss * (1 / loss.item())


def branches(model, batch):
    loss = loss_fn(model, batch)
    return loss if loss > 0 else -loss


def selects(model, batch):
    return batch["x"][batch["x"] > 0].sum() * model[0].weight.sum()


def prints(model, batch):
    loss = loss_fn(model, batch)
    print(f"{float(loss):.3f}")
    return loss


def draws_elsewhere(model, batch):
    noise = torch.rand(6, 8, generator=torch.Generator())
    return F.mse_loss(model(batch["x"] + noise), batch["y"])


@pytest.mark.parametrize(
    ("refused", "line"),
    [(uses_item, 2), (branches, 2), (selects, 1), (prints, 2), (draws_elsewhere, 1)],
)
def test_what_depends_on_values_is_refused_with_its_line(refused, line):
    first = inspect.getsourcelines(refused)[1]
    with pytest.raises(spillway.torch.CaptureError, match=rf"test_step\.py:{first + line}: "):
        captured(refused)


def test_a_refused_model_is_left_as_it_was():
    trained = model()
    parameters = list(trained.parameters())
    optimizer = adam(trained)
    with pytest.raises(spillway.torch.CaptureError):
        spillway.torch.capture(trained, branches, optimizer, batch())
    assert all(a is b for a, b in zip(parameters, trained.parameters()))
    assert all(a is b for a, b in zip(parameters, optimizer.param_groups[0]["params"]))
    assert not optimizer.state


def test_capture_changes_no_value():
    trained, before = model(), model()
    spillway.torch.capture(trained, loss_fn, adam(trained), batch())
    same_dicts(trained.state_dict(), before.state_dict(), "model")
    assert all(p.grad is None for p in trained.parameters())


def test_training_goes_on_eagerly_from_a_checkpoint():
    trained, optimizer, step = captured()
    expected, resumed = copy.deepcopy(trained), copy.deepcopy(trained)
    expected_optimizer = adam(expected)
    data = [batch() for _ in range(5)]

    def eagerly(model, optimizer, batches):
        for b in batches:
            optimizer.zero_grad()
            loss_fn(model, b).backward()
            optimizer.step()

    torch.manual_seed(5)
    eagerly(expected, expected_optimizer, data)

    torch.manual_seed(5)
    train = step.compile(planned_within(step, "35%"))
    for b in data[:3]:
        train(b)
    train.sync()
    checkpoint = copy.deepcopy((trained.state_dict(), optimizer.state_dict()))
    resumed_optimizer = adam(resumed)
    resumed.load_state_dict(checkpoint[0])
    resumed_optimizer.load_state_dict(checkpoint[1])
    eagerly(resumed, resumed_optimizer, data[3:])
    same_dicts(resumed.state_dict(), expected.state_dict(), "model")
    same_dicts(resumed_optimizer.state_dict(), expected_optimizer.state_dict(), "optimizer")


class Encoding(collections.UserDict):
    """As tokenizers return it."""


@dataclasses.dataclass(frozen=True)
class Example:
    x: torch.Tensor
    y: torch.Tensor
    scale: float = 2.0

    def __getitem__(self, name):
        return getattr(self, name)


def scaled(model, batch):
    return loss_fn(model, batch) * batch["scale"]


@pytest.mark.parametrize(
    "nested",
    [
        lambda b: Encoding(b, scale=2.0),
        lambda b: Example(**b),
        lambda b: Encoding(x=b["x"], y=b["y"], scale=2.0, more=[Example(**b), ("a", None)]),
    ],
)
def test_batches_are_mappings_and_dataclasses_with_fixed_values(nested):
    _, _, step = captured(scaled, nested(batch()))
    batches = [nested(batch()) for _ in range(3)]
    assert step.verify(batches, plan=planned_within(step, "min")) == 3


def of_items(model, x, y, scale=2.0):
    return scale * F.mse_loss(model(x), y)


def of_all_items(model, *items):
    return of_items(model, *items)


@pytest.mark.parametrize("takes_items", [of_items, of_all_items, functools.partial(of_items, scale=3.0)])
@pytest.mark.parametrize("container", [tuple, list])
def test_a_function_of_several_arguments_gets_the_items_of_a_batch(takes_items, container):
    def items():
        return container(batch().values())

    _, _, step = captured(takes_items, items())
    assert step.verify([items() for _ in range(3)], plan=planned_within(step, "min")) == 3
    given = items()
    with torch.no_grad():
        expected = takes_items(model().eval(), *given)
    inferred = spillway.torch.capture_inference(model().eval(), given, takes_items)
    assert torch.equal(inferred.compile(planned_within(inferred, "min"))(given), expected)


def test_a_function_of_one_argument_gets_a_tuple_whole():
    _, _, step = captured(lambda model, pair: of_items(model, *pair), tuple(batch().values()))
    assert step.verify(steps=2) == 2


def test_another_fixed_value_is_captured_as_another_shape():
    _, _, step = captured(scaled, dict(batch(), scale=2))
    train = step.compile(planned_within(step, "50%"), max_shapes=3)
    b = batch()
    losses = []
    for scale in (2, 3, 3, 2.0):
        train.load()
        torch.manual_seed(1)
        losses.append(train(dict(b, scale=scale)))
    torch.testing.assert_close(losses[1], 1.5 * losses[0])
    assert torch.equal(losses[1], losses[2]) and torch.equal(losses[0], losses[3])
    with pytest.raises(ValueError, match="int 4.* give numbers that change as tensors"):
        train(dict(b, scale=4))
    with pytest.raises(spillway.torch.BatchError, match="'scale': tensor}, but .*'scale': 2} was"):
        train(dict(b, scale=torch.tensor(2.0)))


@pytest.mark.parametrize(
    ("form", "kind"),
    [
        (lambda loss, y: (loss, y), tuple),
        (lambda loss, y: [loss, {"y": y}], list),
        (lambda loss, y: {"loss": loss, "logits": y, "count": 3}, dict),
    ],
)
def test_outputs_are_handed_back_beside_the_loss(form, kind):
    def with_outputs(model, batch):
        y = model(batch["x"])
        return form(F.mse_loss(y, batch["y"]), y)

    trained, _, step = captured(with_outputs)
    assert step.verify([batch() for _ in range(3)], plan=planned_within(step, "min")) == 3
    returned = step.compile(planned_within(step, "min"))(batch())
    assert isinstance(returned, kind)
    assert "loss" not in returned or returned["count"] == 3


def nested_tensor():
    return torch.nested.nested_tensor([torch.randn(3, 8), torch.randn(2, 8)])


def draws_from_distribution(model, batch):
    drawn = torch.distributions.Categorical(logits=model(batch["x"]), validate_args=True)
    return -drawn.sample().mean()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (dict(model=len), "the model is of type builtin_function_or_method: give a torch.nn.Module"),
        (dict(loss_fn=3), "int cannot be called"),
        (dict(optimizer=None), "of type NoneType: .* use capture_inference"),
        (dict(optimizer=[]), "of type list: give one; capture.* list of optimizers"),
        (
            dict(optimizer=torch.optim.lr_scheduler.StepLR(adam(model()), 1)),
            "of type StepLR: give its optimizer",
        ),
        (dict(loss_fn=lambda m, b: m(b["x"])), r"the loss is a tensor of shape \[6, 4\]: "),
        (dict(loss_fn=lambda m, b: {"y": m(b["x"])}), "the loss is NoneType"),
        (dict(loss_fn=draws_from_distribution), "test_step.py:.*: give the distribution `validate_args=False`"),
        (dict(batch={"x": torch.randn(6, 8).to_sparse()}), r"batch.0 is a sparse tensor.*to_dense\(\)"),
        (dict(batch={"x": nested_tensor()}), "batch.0 is a nested tensor.* pad it"),
        (dict(batch={"x": [torch.randn(6, 8).numpy()]}), r"batch\['x'\]\[0\] is of type ndarray"),
    ],
)
def test_wrong_arguments_of_capture_are_refused_with_a_way_that_works(change, message):
    trained = model()
    given = dict(model=trained, loss_fn=loss_fn, optimizer=adam(trained), batch=batch()) | change
    with pytest.raises(spillway.torch.CaptureError, match=message) as raised:
        spillway.torch.capture(*given.values())
    assert "tensor([" not in str(raised.value)


@pytest.mark.parametrize("fails", [False, True])
def test_a_context_hands_back_what_was_trained(fails):
    trained, optimizer, step = captured()
    expected, _, other = captured()
    b = batch()
    torch.manual_seed(5)
    train = other.compile(planned_within(other, "35%"))
    for _ in range(2):
        train(b)
    train.sync()

    torch.manual_seed(5)
    try:
        with step.compile(planned_within(step, "35%")) as train:
            train(b)
            train(b)
            assert repr(train).startswith("Compiled(Step(Sequential, ")
            assert "2 iterations" in repr(train)
            if fails:
                raise ZeroDivisionError
    except ZeroDivisionError:
        assert fails
    same_dicts(trained.state_dict(), expected.state_dict(), "model")
    same_dicts(optimizer.state_dict(), other.optimizers[0].state_dict(), "optimizer")
    with torch.no_grad():
        trained[3].weight.zero_()  # nothing has newer values


def test_an_error_in_a_context_comes_out_even_if_the_values_cannot_be_handed_back():
    trained, _, step = captured()

    def write():
        with torch.no_grad():
            trained[3].weight.zero_()

    with pytest.raises(ZeroDivisionError) as raised:
        with step.compile(planned_within(step, "35%")) as train:
            train(batch())
            write()
            raise ZeroDivisionError
    if sys.version_info >= (3, 11):
        assert "sync() failed: " in raised.value.__notes__[0]
    write()  # nothing has newer values

    with pytest.raises(spillway.torch.ChangedError, match="3.weight was written"):
        with step.compile(planned_within(step, "35%")) as train:
            train(batch())
            write()
    write()


def test_values_that_are_loaded_into_the_model_are_taken_over():
    trained, _, step = captured()
    train = step.compile(planned_within(step, "35%"))
    with torch.no_grad():
        trained[3].weight.zero_()
        trained[3].bias.zero_()
    train.load()
    b = batch()
    torch.testing.assert_close(train(b), b["y"].square().mean())


def test_seeds_work_between_steps():
    _, _, step = captured()
    train = step.compile(planned_within(step, "35%"))
    b = batch()
    losses = []
    for seed in (1, 1, 2):
        train.load()
        torch.manual_seed(seed)
        losses.append(train(b))
    assert losses[0] == losses[1] != losses[2]


def test_other_batches_are_refused():
    _, _, step = captured()
    train = step.compile(planned_within(step, "35%"))
    with pytest.raises(ValueError, match=r"batch\.0 is torch.float64, but torch.float32"):
        train({"x": torch.randn(6, 8).double(), "y": torch.randn(6, 4)})
    with pytest.raises(ValueError, match="the batch is"):
        train([torch.randn(6, 8), torch.randn(6, 4)])


def test_settings_of_the_optimizer_may_change():
    """The first change takes one more capture."""

    def between(optimizer):
        decays = iter([0.0, 0.5, 0.25, 0.25])
        return lambda: optimizer.param_groups[0].update(weight_decay=next(decays))

    _, train = compare(model, loss_fn, adam, lambda k: batch(), between, budget="35%", steps=4)
    assert len(train._steps) == 2


def test_strict_mode_names_the_op_that_allocates_more_than_its_workspace():
    _, _, step = captured()
    (op,) = [o for o in step.operations if o.name == "mse_loss"]
    assert op.measured.workspace_bytes > 0
    op.measured = dataclasses.replace(op.measured, workspace_bytes=op.measured.workspace_bytes - 1)
    train = step.compile(planned_within(step, "35%"), strict=True)
    with pytest.raises(spillway.torch.AllocationError, match="mse_loss .* allocated"):
        train(batch())
    step.compile(planned_within(step, "35%"))(batch())


def test_large_work_has_a_longer_time_and_a_larger_workspace():
    def step(width):
        linear = nn.Conv2d(3, width, 3)
        x = torch.randn(1, 3, 32, 32)
        sgd = torch.optim.SGD(linear.parameters(), lr=0.1)
        step = spillway.torch.capture(linear, lambda m, x: m(x).sum(), sgd, x)
        (op,) = [o for o in step.operations if o.name == "convolution_backward"]
        return op.measured

    small, large = step(1), step(256)
    assert large.time_ns > small.time_ns
    assert large.workspace_bytes > small.workspace_bytes


def test_a_number_that_the_step_makes_a_tensor_of_begins_anew_in_each_iteration():
    def accumulated(model, batch):
        loss = torch.tensor(0.5)
        for k in range(2):
            loss += loss_fn(model, {name: value[3 * k : 3 * k + 3] for name, value in batch.items()})
        return loss

    compare(model, accumulated, adam, lambda k: batch())
    compare(model, accumulated, adam, lambda k: batch(), budget="90%")
