"""What users do around the steps: save, load, freeze, edit."""

import copy

import torch
from parts import adam, adamw, classify, mlp, rows, sgd
from sides import refused, same
from torch import nn


def dropping():
    return nn.Sequential(nn.Linear(8, 16), nn.Dropout(), nn.Linear(16, 4))


@same(short=True)
def a_checkpoint_loaded_before_capture(side):
    source = mlp()
    its = adamw(source)
    classify(source, rows(1)[0]).backward()
    its.step()
    model = mlp()
    optimizer = adamw(model)
    model.load_state_dict(copy.deepcopy(source.state_dict()))
    optimizer.load_state_dict(copy.deepcopy(its.state_dict()))
    side.train(model, classify, optimizer, rows())


@same
def a_checkpoint_of_the_run_loaded_again(side):
    model, data = mlp(), rows()
    optimizer = adamw(model)
    train = side.capture(model, classify, optimizer, data[0])
    for batch in data[:2]:
        train(batch)
    train.sync()
    kept = copy.deepcopy((model.state_dict(), optimizer.state_dict()))
    for batch in data[2:]:
        train(batch)
    model.load_state_dict(kept[0])
    optimizer.load_state_dict(kept[1])
    train.load()
    for batch in data[2:]:
        train(batch)


@same
def a_checkpoint_with_new_tensors(side):
    model, other, data = mlp(), mlp(), rows()
    train = side.capture(model, classify, sgd(model), data[0])
    train(data[0])
    train.sync()
    with torch.no_grad():
        for p, q in zip(model.parameters(), other.parameters()):
            p.copy_(q)
    train.load()
    for batch in data[1:]:
        train(batch)


@refused("is another tensor than that of the optimizer", names_line=False)
def a_checkpoint_that_is_assigned(side):
    model, other, data = mlp(), mlp(), rows()
    optimizer = sgd(model)
    train = side.capture(model, classify, optimizer, data[0])
    train(data[0])
    model.load_state_dict(other.state_dict(), assign=True)
    train.load()
    for batch in data[1:]:
        train(batch)


@same
def a_model_cast_to_and_fro(side):
    model, data = mlp(), rows()
    train = side.capture(model, classify, sgd(model), data[0])
    train(data[0])
    train.sync()
    model.double().float()
    for batch in data[1:]:
        train(batch)


@same(short=True)
def evaluation_mode_after_capture(side):
    model = dropping()
    side.train(model, classify, sgd(model), rows(), lambda k: model.train(k < 1))


@same
def evaluation_between_steps_after_sync(side):
    model, data, seen = dropping(), rows(), []
    train = side.capture(model, classify, sgd(model), data[0])
    for batch in data:
        train(batch)
        train.sync()
        model.eval()
        with torch.no_grad():
            seen.append(model(batch[0]))
        model.train()
    side.show(seen=seen)


@same
def a_dropout_rate_that_changes(side):
    model = dropping()

    def after(k):
        model[1].p = 0.1

    side.train(model, classify, sgd(model), rows(), after)


@same
def layers_frozen_after_capture(side):
    model = mlp()

    def after(k):
        model[0].requires_grad_(k < 1)

    side.train(model, classify, sgd(model), rows(), after)


@same
def a_module_replaced_after_capture(side):
    model = mlp()

    def after(k):
        if k == 1:
            model[1] = nn.Identity()

    side.train(model, classify, sgd(model), rows(), after)


@refused("is another tensor than that of the optimizer", names_line=False)
def a_head_replaced_after_capture(side):
    model = mlp()
    optimizer = sgd(model)

    def after(k):
        if k == 1:
            model[2] = nn.Linear(16, 4)

    side.train(model, classify, optimizer, rows(), after)


@refused("call sync() before you", names_line=False)
def weights_edited_without_load(side):
    model = mlp()

    def after(k):
        with torch.no_grad():
            model[0].weight.mul_(0.5)

    side.train(model, classify, sgd(model), rows(), after)


@same
def weights_edited_between_sync_and_load(side):
    model, data = mlp(), rows()
    train = side.capture(model, classify, adam(model), data[0])
    for batch in data:
        train(batch)
        train.sync()
        with torch.no_grad():
            model[0].weight.mul_(0.5)
        train.load()


@refused("call sync() before you", names_line=False)
def a_buffer_edited_without_load(side):
    class Scaled(nn.Module):
        def __init__(self):
            super().__init__()
            self.net = mlp()
            self.register_buffer("beta", torch.tensor(1.0))

        def forward(self, x):
            return self.net(x) * self.beta

    model = Scaled()
    side.train(model, classify, sgd(model), rows(), lambda k: model.beta.fill_(1.0 + k))


@refused("call sync() before you", names_line=False)
def states_of_the_optimizer_reset_without_load(side):
    model = mlp()
    optimizer = adam(model)

    def after(k):
        if k == 1:
            for state in optimizer.state.values():
                state["exp_avg"].zero_()

    side.train(model, classify, optimizer, rows(), after)


@same
def states_of_the_optimizer_cleared(side):
    model = mlp()
    optimizer = adam(model)

    def after(k):
        if k == 1:
            optimizer.state.clear()

    side.train(model, classify, optimizer, rows(), after)


@refused("call sync() before you", names_line=False)
def a_constant_edited_without_load(side):
    model, weight = mlp(), torch.ones(4)

    def loss_fn(m, batch):
        return nn.functional.cross_entropy(m(batch[0]), batch[1], weight=weight)

    side.train(model, loss_fn, sgd(model), rows(), lambda k: weight.mul_(1.5).roll(1))


@refused("put what changes into the batch", names_line=False)
def a_constant_replaced_by_another_tensor(side):
    model, held = mlp(), dict(weight=torch.ones(4))

    def loss_fn(m, batch):
        return nn.functional.cross_entropy(m(batch[0]) * held["weight"], batch[1])

    def after(k):
        held["weight"] = torch.full((4,), 1.0 / (k + 1))

    side.train(model, loss_fn, sgd(model), rows(), after)


@same
def one_model_after_the_other(side):
    for width in (8, 12):
        model = mlp(width)
        train = side.train(model, classify, adamw(model), rows(2))
        train.sync()
        train.close()


@same
def eager_steps_between(side):
    model, data = mlp(), rows()
    optimizer = adam(model)
    train = side.capture(model, classify, optimizer, data[0])
    train(data[0])
    train.sync()
    optimizer.zero_grad()
    classify(model, data[1]).backward()
    optimizer.step()
    optimizer.zero_grad()
    train.load()
    train(data[2])


@same
def eager_steps_between_without_load(side):
    model, data = mlp(), rows()
    optimizer = adam(model)
    train = side.capture(model, classify, optimizer, data[0])
    train(data[0])
    train.sync()
    optimizer.zero_grad()
    classify(model, data[1]).backward()
    optimizer.step()
    train(data[2])


@same
def captured_again_with_other_layers_frozen(side):
    model, data = mlp(), rows(6)
    optimizer = sgd(model)
    train = side.capture(model, classify, optimizer, data[0])
    for batch in data[:3]:
        train(batch)
    train.sync()
    train.close()
    model[0].requires_grad_(False)
    train = side.capture(model, classify, optimizer, data[3])
    for batch in data[3:]:
        train(batch)


@refused("is torch.float64, but torch.float32 was captured", names_line=False)
def another_type_of_batch(side):
    model, data = mlp(), rows(2)
    train = side.capture(model, classify, sgd(model), data[0])
    train(data[0])
    if side.is_planned:
        train((data[1][0].double(), data[1][1]))


@same
def labels_out_of_range_after_good_steps(side):
    model, data = mlp(), rows()
    train = side.capture(model, classify, sgd(model), data[0])
    for batch in data[:3]:
        train(batch)
    try:
        train((data[3][0], torch.full((6,), 9)))
    except Exception:  # noqa: BLE001
        pass
    train.sync()


@refused("give capture the module that", names_line=False)
def a_wrapper_of_data_parallel_training_without_a_group(side):
    store = torch.distributed.HashStore()
    torch.distributed.init_process_group("gloo", store=store, rank=0, world_size=1)
    try:
        model = nn.parallel.DistributedDataParallel(mlp())
        side.train(model, classify, sgd(model), rows(3))
    finally:
        torch.distributed.destroy_process_group()
