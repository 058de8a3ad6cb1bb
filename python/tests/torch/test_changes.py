"""What changes between the steps: the same bits as in eager mode, or a refusal that names it."""

import copy
import types

import numpy as np
import pytest
import torch
from eager import MACHINE, same, same_dicts
from torch import nn
from torch.nn import functional as F
from torch.nn.utils import prune

import spillway.torch
from spillway.torch import ChangedError, guards, holding

pytestmark = pytest.mark.short


def perceptron():
    return nn.Sequential(nn.Linear(8, 16), nn.Dropout(0.5), nn.Tanh(), nn.Linear(16, 4))


def sgd(model):
    return torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)


def adam(model):
    return torch.optim.Adam(model.parameters(), lr=0.01)


def loss_fn(model, batch):
    return F.cross_entropy(model(batch[0]), batch[1])


def batch():
    return torch.randn(6, 8), torch.randint(4, (6,))


def compiled(model, optimizer, loss_fn=loss_fn, example=None, **how):
    step = spillway.torch.capture(model, loss_fn, optimizer, example or batch())
    return step.compile(step.plan("1MiB", MACHINE), machine=MACHINE, **how)


def eagerly(model, optimizer, batch):
    optimizer.zero_grad()
    loss = loss_fn(model, batch)
    loss.backward()
    optimizer.step()
    return loss.detach()


def compare(change, make=perceptron, make_optimizer=sgd, steps=6, syncs=False):
    """Trains twice. `change(k, model, optimizer)` comes before step `k`."""
    torch.manual_seed(7)
    eager_model = make()
    model = copy.deepcopy(eager_model)
    eager, optimizer = make_optimizer(eager_model), make_optimizer(model)
    train = compiled(model, optimizer)
    for k in range(steps):
        if syncs:
            train.sync()
        change(k, eager_model, eager)
        change(k, model, optimizer)
        data = batch()
        state = torch.get_rng_state()
        expected = eagerly(eager_model, eager, data)
        torch.set_rng_state(state)
        same(train(data), expected, f"loss {k}")
    assert train.sync() == steps
    same_dicts(model.state_dict(), eager_model.state_dict(), "model")
    same_dicts(optimizer.state_dict(), eager.state_dict(), "optimizer")
    return train


def evaluates(k, model, optimizer):
    model.train(k % 4 < 2)


def drops_less(k, model, optimizer):
    model[1].p = 0.5 if k < 3 else 0.75


def freezes(k, model, optimizer):
    model[0].requires_grad_(k < 3)


def adds_hook(k, model, optimizer):
    if k == 2:
        model[0].register_forward_hook(lambda module, args, result: 2 * result)


def removes_hook(k, model, optimizer):
    if k == 1:
        model.handle = model[0].register_forward_hook(lambda module, args, result: 2 * result)
    if k == 3:
        model.handle.remove()


def scales_gradients(k, model, optimizer):
    if k == 2:
        optimizer.register_step_pre_hook(halve_gradients)


def halve_gradients(optimizer, *_):
    for p in optimizer.param_groups[0]["params"]:
        p.grad.mul_(0.5)


def adds_group(k, model, optimizer):
    if k == 2:
        optimizer.add_param_group(dict(params=model[3].parameters(), lr=0.05))


def replaces_activation(k, model, optimizer):
    if k == 2:
        model[2] = nn.ReLU()


def decays_rate(k, model, optimizer):
    optimizer.param_groups[0]["lr"] = 0.1 / (k + 1)


@pytest.mark.parametrize(
    "change, captures",
    [
        (evaluates, 2),
        (drops_less, 2),
        (freezes, 2),
        (adds_hook, 2),
        (removes_hook, 3),
        (scales_gradients, 2),
        (adds_group, 2),
        (replaces_activation, 2),
        (decays_rate, 1),
    ],
)
def test_a_change_is_captured_when_it_comes(change, captures):
    first = (lambda m: sgd(m[:3])) if change is adds_group else sgd
    train = compare(change, make_optimizer=first)
    assert sum(len(v.steps) for v in train._captures.variants) == captures


def test_what_returns_to_an_earlier_state_is_not_captured_again():
    train = compare(evaluates, steps=12)
    assert sum(len(v.steps) for v in train._captures.variants) == 2


def edits_weights(k, model, optimizer):
    if k == 2:
        with torch.no_grad():
            model[0].weight.mul_(0.5)


def clamps(k, model, optimizer):
    for p in model.parameters() if k else ():
        p.data.clamp_(-0.1, 0.1)


def edits_one_element(k, model, optimizer):
    model[3].weight.data[2, 5] = k


def edits_moments(k, model, optimizer):
    if k == 2:
        optimizer.state[model[0].weight]["exp_avg"].zero_()


def prunes(k, model, optimizer):
    if k == 2:
        prune.l1_unstructured(model[0], "weight", 0.5)


def replaces_memory(k, model, optimizer):
    if k == 2:
        model.double().float()


def loads_optimizer(k, model, optimizer):
    if k == 2:
        optimizer.load_state_dict(copy.deepcopy(optimizer.state_dict()))


@pytest.mark.parametrize(
    "change",
    [
        edits_weights,
        clamps,
        edits_one_element,
        edits_moments,
        prunes,
        replaces_memory,
        loads_optimizer,
    ],
)
def test_tensors_that_are_written_or_replaced_after_sync_are_taken_over(change):
    compare(change, make_optimizer=adam, syncs=True)


@pytest.mark.parametrize(
    "change", [edits_weights, clamps, edits_moments, prunes, replaces_memory, loads_optimizer]
)
def test_tensors_that_are_written_or_replaced_before_sync_are_refused(change):
    with pytest.raises(ChangedError, match="call sync.. before you read or write them"):
        compare(change, make_optimizer=adam)


def test_after_a_refusal_one_says_which_values_go_on():
    model = perceptron()
    train = compiled(model, sgd(model))
    train(batch())
    edits_weights(2, model, None)
    edited = model[0].weight.detach().clone()
    for call in (lambda: train(batch()), train.sync):
        with pytest.raises(ChangedError, match="0.weight was written"):
            call()
    assert train.sync(overwrite=True) == 1
    assert not torch.equal(model[0].weight, edited)
    edits_weights(2, model, None)
    edited = model[0].weight.detach().clone()
    train.load()
    train.sync()
    assert torch.equal(model[0].weight, edited)


def test_a_checkpoint_is_loaded_with_the_states_of_the_optimizer():
    def loads(k, model, optimizer):
        if k == 1:
            kept[id(model)] = copy.deepcopy((model.state_dict(), optimizer.state_dict()))
        if k == 4:
            model.load_state_dict(kept[id(model)][0])
            optimizer.load_state_dict(kept[id(model)][1])

    kept = {}
    compare(loads, make_optimizer=adam, syncs=True)


def test_load_reads_the_optimizer():
    torch.manual_seed(3)
    model = perceptron().eval()
    optimizer = adam(model)
    train = compiled(model, optimizer)
    data = [batch() for _ in range(4)]
    begun = copy.deepcopy((model.state_dict(), optimizer.state_dict()))
    first = [train(b) for b in data]
    model.load_state_dict(begun[0])
    optimizer.load_state_dict(begun[1])
    train.load()
    for a, b in zip([train(b) for b in data], first):
        same(a, b, "loss")
    train.sync()
    assert optimizer.state[model[0].weight]["step"] == 4


def test_parameters_that_the_optimizer_does_not_have_are_refused():
    model = perceptron()
    train = compiled(model, sgd(model))
    train(batch())
    train.sync()
    model.load_state_dict(copy.deepcopy(model.state_dict()), assign=True)
    with pytest.raises(ChangedError, match="0.weight of the model is another tensor than that of the"):
        train(batch())


def annealed(settings):
    return lambda model, batch: loss_fn(model, batch) * settings["weight"]


def with_attribute(settings):
    return lambda model, batch: loss_fn(model, batch) * settings.weight


WEIGHT = 0.5


def with_global(model, batch):
    return loss_fn(model, batch) * WEIGHT


class Trainer:
    def __init__(self):
        self.weight, self.count = 0.5, 0

    def loss(self, model, batch):
        return self.scaled(loss_fn(model, batch))

    def scaled(self, loss):
        return loss * self.weight


@pytest.mark.parametrize("kind", ["dict", "namespace", "global", "method"])
def test_a_number_that_the_loss_takes_from_elsewhere_is_refused_once_it_changes(kind, monkeypatch):
    model = perceptron()
    settings, trainer = {"weight": 0.5, "epoch": 0}, Trainer()
    namespace = types.SimpleNamespace(weight=0.5, epoch=0)
    functions = dict(
        dict=annealed(settings),
        namespace=with_attribute(namespace),
        method=trainer.loss,
    )
    functions["global"] = with_global
    train = compiled(model, sgd(model), functions[kind])
    train(batch())
    trainer.count = namespace.epoch = 7  # which the loss does not use
    train(batch())
    settings["weight"] = trainer.weight = namespace.weight = 0.25
    monkeypatch.setattr("test_changes.WEIGHT", 0.25)
    with pytest.raises(ChangedError, match="(?i)weight of .*is 0.25, but 0.5 was captured.* batch"):
        train(batch())
    assert train.sync() == 2


def test_a_number_of_the_model_that_changes_in_each_step_is_refused():
    model = perceptron()
    train = compiled(model, sgd(model), max_shapes=3)
    for k in range(3):
        model[1].p = 0.5 - k / 10
        train(batch())
    model[1].p = 0.9
    with pytest.raises(ChangedError, match="p of model.1 is 0.9.* one capture more than the 3"):
        train(batch())
    model[1].p = 0.4
    train(batch())
    assert train.sync() == 4


def test_autocast_of_the_caller_is_refused():
    model = perceptron()
    train = compiled(model, sgd(model))
    with torch.autocast("cpu", torch.bfloat16), pytest.raises(ChangedError, match="autocast"):
        train(batch())
    train(batch())


def test_evaluation_between_the_steps_changes_nothing():
    model = perceptron()
    train = compiled(model, sgd(model))
    for _ in range(3):
        train(batch())
        train.sync()
        model.eval()
        with torch.no_grad():
            model(batch()[0])
        model.train()
    assert len(train._captures.variants) == 1


@pytest.mark.parametrize("has_versions", [True, False])
def test_a_value_is_compared_once_its_dict_was_written(has_versions, monkeypatch):
    if not has_versions:
        monkeypatch.setattr(guards, "dict_version", None)
    model = perceptron()
    step = spillway.torch.capture(model, loss_fn, sgd(model), batch())
    around = step.surroundings
    model[1].p = model[1].p
    assert around.change() is None
    model[1].p = 0.25
    assert around.change().sentence == "p of model.1 is 0.25, but 0.5 was captured"
    model[1].p = 0.5
    assert around.change() is None
    del model._modules["1"]
    assert around.change().sentence == "model has other members"


def test_words_are_read_where_they_are():
    sizes = [(1, torch.uint8), (3, torch.uint8), (5, torch.int16), (1, torch.float32), (999, torch.float32)]
    tensors = [torch.zeros(size, dtype=dtype) for size, dtype in sizes]
    helds = [holding.held(tensor) for tensor in tensors]
    words = holding._Words(helds)
    assert np.array_equal(words.now(), words.seen())
    for tensor, held in zip(tensors, helds):
        tensor.data[0] = 1
        assert not np.array_equal(words.now(), words.seen())
        held.look()
        assert np.array_equal(words.now(), words.seen())
    assert holding._Words([]).now().size == 0
