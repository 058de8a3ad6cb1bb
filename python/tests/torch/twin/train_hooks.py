"""Hooks of modules, tensors, optimizers; clipping."""

import torch
from parts import adamw, classify, mlp, rows, sgd
from sides import refused, same
from torch import nn


@same(short=True)
def clipping_before_the_step(side):
    model = mlp()
    optimizer = sgd(model)

    def clip(optimizer, args, kwargs):
        parameters = [p for group in optimizer.param_groups for p in group["params"]]
        nn.utils.clip_grad_norm_(parameters, 0.01)

    optimizer.register_step_pre_hook(clip)
    side.train(model, classify, optimizer, rows())


@same(short=True)
def clipping_a_list_made_before(side):
    model = mlp()
    optimizer, parameters = sgd(model), list(model.parameters())
    optimizer.register_step_pre_hook(lambda *_: clip(parameters))
    side.train(model, classify, optimizer, rows())


def shrink(p):
    p.grad.mul_(0.1)


def clip(parameters):
    nn.utils.clip_grad_norm_(parameters, 0.01)


@same
def clipping_of_values(side):
    model = mlp()
    optimizer, parameters = sgd(model), list(model.parameters())
    optimizer.register_step_pre_hook(
        lambda *_: nn.utils.clip_grad_value_(parameters, 0.001)
    )
    side.train(model, classify, optimizer, rows())


@same
def gradients_clamped_by_hooks_on_parameters(side):
    model = mlp()
    for p in model.parameters():
        p.register_hook(lambda g: g.clamp(-1e-3, 1e-3))
    side.train(model, classify, sgd(model), rows())


@same
def hooks_once_gradients_are_accumulated(side):
    model = mlp()
    for p in model.parameters():
        p.register_post_accumulate_grad_hook(shrink)
    side.train(model, classify, sgd(model), rows())


@refused("stand in for yours")
def an_optimizer_in_each_backward_hook(side):
    model = mlp()
    optimizers = {p: torch.optim.SGD([p], lr=0.1) for p in model[0].parameters()}

    def step(p):
        optimizers[p].step()
        p.grad = None

    for p in model[0].parameters():
        p.register_post_accumulate_grad_hook(step)
    side.train(model, classify, torch.optim.SGD(model[2].parameters(), lr=0.1), rows())


@same
def backward_hooks_of_modules(side):
    model = mlp()
    model[2].register_full_backward_hook(lambda m, gi, go: tuple(0.5 * g for g in gi))
    model[0].register_full_backward_pre_hook(lambda m, go: tuple(2 * g for g in go))
    side.train(model, classify, sgd(model), rows())


@same
def forward_hooks_of_modules(side):
    model = mlp()
    model[0].register_forward_pre_hook(lambda m, args: (args[0] * 2,))
    model[1].register_forward_hook(lambda m, args, out: out + 0.1)
    side.train(model, classify, sgd(model), rows())


@same
def features_taken_by_a_hook(side):
    model, features = mlp(), {}
    model[0].register_forward_hook(lambda m, args, out: features.update(out=out))

    def loss_fn(m, batch):
        return classify(m, batch) + 0.1 * features["out"].square().mean()

    side.train(model, loss_fn, sgd(model), rows())


@same
def hooks_on_activations(side):
    def loss_fn(m, batch):
        hidden = m[0](batch[0])
        hidden.register_hook(lambda g: g * 0.5)
        return nn.functional.cross_entropy(m[2](m[1](hidden)), batch[1])

    model = mlp()
    side.train(model, loss_fn, sgd(model), rows())


@same
def noise_added_to_gradients(side):
    model = mlp()
    for p in model.parameters():
        p.register_hook(lambda g: g + 0.01 * torch.randn_like(g))
    side.train(model, classify, sgd(model), rows())


@same
def a_forward_hook_added_after_capture(side):
    model = mlp()

    def after(k):
        if k == 1:
            model[0].register_forward_hook(lambda m, args, out: out * 2)

    side.train(model, classify, sgd(model), rows(), after)


@same
def a_hook_of_the_optimizer_added_after_capture(side):
    model = mlp()
    optimizer = sgd(model)

    def after(k):
        if k == 1:
            optimizer.register_step_pre_hook(lambda o, *_: [p.grad.mul_(0.1) for p in model.parameters()] and None)

    side.train(model, classify, optimizer, rows(), after)


@same
def a_hook_on_a_parameter_added_after_capture(side):
    model = mlp()

    def after(k):
        if k == 1:
            model[0].weight.register_hook(lambda g: g * 0.1)

    side.train(model, classify, sgd(model), rows(), after)


@same
def weights_clamped_after_the_step(side):
    model = mlp()
    optimizer = adamw(model)
    parameters = list(model.parameters())

    def clamp(*_):
        with torch.no_grad():
            for p in parameters:
                p.clamp_(-0.1, 0.1)

    optimizer.register_step_post_hook(clamp)
    side.train(model, classify, optimizer, rows())


@same
def gradients_centralised(side):
    model = mlp()
    optimizer = sgd(model)

    def centralise(optimizer, *_):
        for group in optimizer.param_groups:
            for p in group["params"]:
                if p.dim() > 1:
                    p.grad.sub_(p.grad.mean(1, keepdim=True))

    optimizer.register_step_pre_hook(centralise)
    side.train(model, classify, optimizer, rows())


@refused("Python needs the value of a tensor")
def gradient_norms_printed_by_a_hook(side):
    model, norms = mlp(), []
    for p in model.parameters():
        p.register_hook(lambda g: norms.append(g.norm().item()))
    side.train(model, classify, sgd(model), rows())


@same
def saved_tensors_packed_by_hooks(side):
    def loss_fn(m, batch):
        with torch.autograd.graph.saved_tensors_hooks(lambda x: x.half(), lambda x: x.float()):
            return classify(m, batch)

    model = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 4))
    side.train(model, lambda m, b: classify(m, b), sgd(model), rows())


@same
def an_average_of_the_weights_after_the_step(side):
    model, average = mlp(), mlp()
    optimizer = adamw(model)

    @torch.no_grad()
    def follow(*_):
        for mine, its in zip(average.parameters(), model.parameters()):
            mine.lerp_(its, 0.1)

    optimizer.register_step_post_hook(follow)
    side.train(model, classify, optimizer, rows())
    side.show(average=average.state_dict())


@refused("the step differs when it is captured again")
def a_scaler_of_the_loss(side):
    model, scaler = mlp(), torch.amp.GradScaler("cpu")
    optimizer = sgd(model)
    optimizer.register_step_pre_hook(lambda *_: scaler.unscale_(optimizer))
    optimizer.register_step_post_hook(lambda *_: scaler.update())
    side.train(model, lambda m, batch: scaler.scale(classify(m, batch)), optimizer, rows())
