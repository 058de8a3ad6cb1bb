"""What changes in an optimizer between steps."""

import torch
from parts import adamw, classify, mlp, rows, sgd
from sides import same
from torch.optim import lr_scheduler


def schedules(make_schedule, make_optimizer=adamw, steps=6):
    def program(side):
        model = mlp()
        optimizer = make_optimizer(model)
        schedule = make_schedule(optimizer)
        side.train(model, classify, optimizer, rows(steps), lambda k: schedule.step())
        side.show(rates=lambda: [g["lr"] for g in optimizer.param_groups])

    return program


@same(short=True)
def warm_up_and_cosine(side):
    def schedule(optimizer):
        warm = lr_scheduler.LinearLR(optimizer, 0.1, total_iters=2)
        cosine = lr_scheduler.CosineAnnealingLR(optimizer, 4)
        return lr_scheduler.SequentialLR(optimizer, [warm, cosine], [2])

    schedules(schedule)(side)


@same
def steps_and_exponentials(side):
    schedules(lambda o: lr_scheduler.ChainedScheduler(
        [lr_scheduler.StepLR(o, 2, 0.5), lr_scheduler.ExponentialLR(o, 0.9)]
    ))(side)  # fmt: skip


@same
def a_schedule_of_a_tensor_rate(side):
    schedules(
        lambda o: lr_scheduler.ExponentialLR(o, 0.9),
        lambda m: torch.optim.SGD(m.parameters(), lr=torch.tensor(0.01)),
    )(side)


@same
def rates_by_a_function(side):
    schedules(lambda o: lr_scheduler.LambdaLR(o, lambda k: 1 / (k + 1)))(side)


@same(short=True)
def one_cycle_with_momentum(side):
    schedules(lambda o: lr_scheduler.OneCycleLR(o, 0.1, total_steps=10))(side)


@same
def a_cycle_of_momentum(side):
    schedules(
        lambda o: lr_scheduler.CyclicLR(o, 0.01, 0.1, step_size_up=2),
        lambda m: torch.optim.SGD(m.parameters(), lr=0.1, momentum=0.9, nesterov=True),
    )(side)


@same
def a_cycle_of_momenta_of_two_groups_on_lists(side):
    schedules(
        lambda o: lr_scheduler.CyclicLR(o, 0.01, 0.1, 2, base_momentum=[0.7, 0.8], max_momentum=0.9),
        lambda m: torch.optim.NAdam([{"params": m[0].parameters()}, {"params": m[2].parameters()}], foreach=True),
    )(side)


@same
def a_cycle_of_momentum_with_centered_gradients(side):
    schedules(
        lambda o: lr_scheduler.CyclicLR(o, 0.001, 0.01, step_size_up=3),
        lambda m: torch.optim.RMSprop(m.parameters(), momentum=0.8, centered=True),
    )(side)


@same
def one_cycle_with_fused_momentum(side):
    schedules(
        lambda o: lr_scheduler.OneCycleLR(o, 0.1, total_steps=10),
        lambda m: torch.optim.AdamW(m.parameters(), fused=True),
    )(side)


@same
def a_cycle_of_momentum_down_to_zero(side):
    schedules(
        lambda o: lr_scheduler.CyclicLR(o, 0.01, 0.1, step_size_up=2, base_momentum=0.0),
        lambda m: torch.optim.SGD(m.parameters(), lr=0.1, momentum=0.9),
    )(side)


@same
def one_cycle_without_momentum(side):
    schedules(lambda o: lr_scheduler.OneCycleLR(o, 0.1, total_steps=10, cycle_momentum=False))(side)


@same
def rates_lowered_on_a_plateau(side):
    model = mlp()
    optimizer = sgd(model)
    schedule = lr_scheduler.ReduceLROnPlateau(optimizer, patience=0, factor=0.5)
    data = rows()
    train = side.capture(model, classify, optimizer, data[0])
    for batch in data:
        schedule.step(train(batch).item())
    side.show(rate=lambda: optimizer.param_groups[0]["lr"])


@same
def weight_decay_that_changes(side):
    model = mlp()
    optimizer = adamw(model)

    def after(k):
        optimizer.param_groups[0]["weight_decay"] = 0.1 * k

    side.train(model, classify, optimizer, rows(), after)


@same(short=True)
def betas_that_change(side):
    model = mlp()
    optimizer = adamw(model)

    def after(k):
        optimizer.param_groups[0]["betas"] = (0.8 - 0.1 * k, 0.9)

    side.train(model, classify, optimizer, rows(), after)


@same
def a_key_of_the_users_in_a_group(side):
    model = mlp()
    optimizer = adamw(model)
    optimizer.param_groups[0]["tag"] = "body"
    side.train(model, classify, optimizer, rows())


@same
def a_group_added_after_capture(side):
    model = mlp()
    optimizer = torch.optim.SGD(model[0].parameters(), lr=0.1)

    def after(k):
        if k == 1:
            optimizer.add_param_group(dict(params=list(model[2].parameters()), lr=0.1))

    side.train(model, classify, optimizer, rows(), after)


@same
def a_rate_that_becomes_a_tensor(side):
    model = mlp()
    optimizer = adamw(model)

    def after(k):
        optimizer.param_groups[0]["lr"] = torch.tensor(0.02)

    side.train(model, classify, optimizer, rows(), after)


@same
def stochastic_weight_averaging(side):
    model = mlp()
    optimizer = sgd(model)
    average = torch.optim.swa_utils.AveragedModel(model)
    schedule = torch.optim.swa_utils.SWALR(optimizer, swa_lr=0.05)
    data = rows()
    train = side.capture(model, classify, optimizer, data[0])
    for batch in data:
        train(batch)
        train.sync()
        average.update_parameters(model)
        schedule.step()
    side.show(average=average.state_dict())
