"""Every optimizer of PyTorch, and those of other packages."""

import importlib

import pytest
import torch
from parts import classify, mlp, rows
from sides import STEPS, refused, same


def trains(make, eager_steps=0):
    """Returns the program that trains with an optimizer, after some eager steps."""

    def program(side):
        model, data = mlp(), rows(STEPS + 2)
        optimizer = make(model)
        for x in data[:eager_steps]:
            classify(model, x).backward()
            optimizer.step()
            optimizer.zero_grad()
        side.train(model, classify, optimizer, data[eager_steps:])

    return program


def of_torch(name, mark, label=None, **settings):
    def make(model):
        cls = getattr(torch.optim, name, None)
        if cls is None:
            pytest.skip(f"ignored: this PyTorch has no {name}")
        parameters = list(model.parameters())
        if name == "Muon":
            parameters = [p for p in parameters if p.dim() == 2]
        return cls(parameters, **settings)

    program = trains(make)
    program.__name__ = f"torch_{label or name}"
    mark(program)


BRANCHES = refused("Python needs the value of a tensor")
FIRST = "run one step without Spillway first"

of_torch("Adadelta", same)
of_torch("Adafactor", same)
of_torch("Adagrad", same, lr_decay=0.01)
of_torch("Adam", same)
of_torch("Adam", same, "Adam_amsgrad", amsgrad=True, weight_decay=0.1)
of_torch("Adam", same, "Adam_maximize", maximize=True)
of_torch("Adam", same, "Adam_foreach", foreach=True)
of_torch("Adam", same, "Adam_fused", fused=True)
of_torch("AdamW", same)
of_torch("AdamW", same, "AdamW_fused", fused=True, amsgrad=True)
of_torch("Adamax", same)
of_torch("ASGD", BRANCHES)
of_torch("LBFGS", refused("calls a closure", names_line=False))
of_torch("Muon", same)
of_torch("NAdam", same)
of_torch("RAdam", same)
of_torch("RMSprop", same, centered=True, momentum=0.9)
of_torch("Rprop", same)
of_torch("SGD", same, lr=0.1)
of_torch("SGD", same, "SGD_nesterov", lr=0.1, momentum=0.9, nesterov=True, weight_decay=0.1)
of_torch("SGD", same, "SGD_fused", lr=0.1, momentum=0.9, fused=True)
of_torch("SGD", refused(FIRST, names_line=False), "SGD_dampening", lr=0.1, momentum=0.9, dampening=0.5)
of_torch("Adam", same, "Adam_tensor_lr", lr=torch.tensor(0.01))
of_torch("AdamW", same, "AdamW_tensor_lr", lr=torch.tensor(0.01))
of_torch("SGD", same, "SGD_tensor_lr", lr=torch.tensor(0.01))


def of_package(package, name, mark, label=None, **settings):
    def make(model):
        try:
            module = importlib.import_module(package)
        except ImportError as error:
            pytest.skip(f"ignored: {package} cannot be had: {error}")
        optimizer = getattr(module, name)(model.parameters(), **settings)
        if hasattr(optimizer, "train"):
            optimizer.train()
        return optimizer

    program = trains(make, eager_steps=1)
    program.__name__ = f"{package.replace('.', '_')}_{label or name}"
    mark(program)


BRANCH = refused("Python needs the value of a tensor", names_line=False)
INTEGER = refused("Python needs the value of 'step' of a state", names_line=False)

of_package("transformers", "Adafactor", same, lr=1e-3, relative_step=False, scale_parameter=False)
of_package("transformers", "Adafactor", BRANCH, "Adafactor_scaled", lr=1e-3, relative_step=False)
of_package("transformers", "Adafactor", refused("lr of the optimizer is None", names_line=False), "Adafactor_relative")
of_package("timm.optim", "Lamb", same, lr=1e-3)
of_package("timm.optim", "Lion", same, lr=1e-3)
of_package("timm.optim", "Adan", same, lr=1e-3)
of_package("lion_pytorch", "Lion", same, lr=1e-3)
of_package("adabelief_pytorch", "AdaBelief", INTEGER, lr=1e-3, print_change_log=False)
of_package("pytorch_optimizer", "Lamb", same, lr=1e-3)
of_package("pytorch_optimizer", "Tiger", same, lr=1e-3)
of_package("pytorch_optimizer", "RAdam", same, lr=1e-3)
of_package("prodigyopt", "Prodigy", BRANCH)
of_package("schedulefree", "AdamWScheduleFree", same)


@refused("sparse")
def torch_SparseAdam(side):
    model = torch.nn.Sequential(torch.nn.Embedding(20, 8, sparse=True))
    optimizer = torch.optim.SparseAdam(model.parameters())
    data = [torch.randint(20, (3,)) for _ in range(3)]
    side.train(model, lambda m, x: m(x).square().sum(), optimizer, data)


class Handwritten(torch.optim.Optimizer):
    """As in many repositories: the step count is a number of Python."""

    def __init__(self, params, lr=1e-2):
        super().__init__(params, dict(lr=lr))

    @torch.no_grad()
    def step(self, closure=None):
        for group in self.param_groups:
            for p in group["params"]:
                if p.grad is None:
                    continue
                state = self.state[p]
                if not state:
                    state["step"], state["m"] = 0, torch.zeros_like(p)
                state["step"] += 1
                state["m"].lerp_(p.grad, 0.1)
                p.sub_(state["m"] / (1 - 0.9 ** state["step"]), alpha=group["lr"])


@refused(FIRST, names_line=False)
def handwritten_with_a_step_count(side):
    trains(lambda m: Handwritten(m.parameters()))(side)


@same
def handwritten_after_one_eager_step(side):
    trains(lambda m: Handwritten(m.parameters()), eager_steps=1)(side)


class Signs(torch.optim.Optimizer):
    def __init__(self, params):
        super().__init__(params, dict(lr=1e-2))

    @torch.no_grad()
    def step(self, closure=None):
        for group in self.param_groups:
            for p in group["params"]:
                p.sub_(p.grad.sign(), alpha=group["lr"])


@same
def handwritten_without_states(side):
    trains(lambda m: Signs(m.parameters()))(side)


@same
def dampening_after_one_eager_step(side):
    trains(lambda m: torch.optim.SGD(m.parameters(), lr=0.1, momentum=0.9, dampening=0.5), eager_steps=1)(side)


@refused("Python needs the value of a tensor")
def sharpness_aware_minimisation(side):
    class Sharpness(torch.optim.Optimizer):
        def __init__(self, params):
            super().__init__(params, dict(lr=0.1))

        @torch.no_grad()
        def step(self, closure=None):
            for group in self.param_groups:
                norm = torch.stack([p.grad.norm() for p in group["params"]]).norm()
                if norm > 0.1:
                    for p in group["params"]:
                        p.sub_(p.grad / norm, alpha=group["lr"])

    trains(lambda m: Sharpness(m.parameters()))(side)


@same
def groups_with_settings_of_their_own(side):
    model = mlp()
    groups = [
        dict(params=[p for p in model.parameters() if p.dim() > 1], weight_decay=0.1, lr=0.01),
        dict(params=[p for p in model.parameters() if p.dim() == 1], weight_decay=0.0),
    ]
    side.train(model, classify, torch.optim.AdamW(groups, lr=0.02), rows())


def after_one_eager_step(package, name, mark):
    def program(side):
        module = pytest.importorskip(package, reason=f"ignored: {package} cannot be had")
        model, data = mlp(), rows()
        optimizer = getattr(module, name)(model.parameters(), lr=1e-3)
        classify(model, data[0]).backward()
        optimizer.step()
        side.train(model, classify, optimizer, data[1:])

    program.__name__ = f"{package.replace('.', '_')}_{name}_after_one_eager_step"
    mark(program)


after_one_eager_step("lion_pytorch", "Lion", same)
after_one_eager_step("timm.optim", "Lion", same)
after_one_eager_step("timm.optim", "Lamb", same)

