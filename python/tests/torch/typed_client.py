"""A program that uses all public names of spillway.torch, for `mypy --strict`: never run. Where a comment
ignores an error, the line is a wrong use, which must be refused: a needless one is an error itself."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.amp.grad_scaler import GradScaler
from typing_extensions import assert_type

import spillway
import spillway.torch
from spillway.torch.backend import compile_graph
from spillway.torch.knapsack import KnapsackSolver


@dataclass
class Pairs:
    x: Tensor
    y: Tensor


class Perceptron(nn.Module):
    def predict(self, x: Tensor) -> Tensor:
        return x


def loss_fn(model: Perceptron, batch: Pairs) -> Tensor:
    return (model.predict(batch.x) - batch.y).square().mean()


def loss_and_prediction(model: nn.Module, batch: Mapping[str, Tensor]) -> tuple[Tensor, int]:
    return batch["x"].mean(), 3


def correct(model: Perceptron, batch: Tensor) -> int:
    return 1


def no_loss(model: nn.Module, batch: Pairs) -> float:
    return 0.0


def halve(parameters: list[Tensor]) -> None:
    torch.nn.utils.clip_grad_value_(parameters, 0.5)


def train(data: list[Pairs]) -> None:
    model = Perceptron()
    adam = torch.optim.AdamW(model.parameters())
    step = spillway.torch.capture(model, loss_fn, adam, data[0], device="cuda", verify=True)
    spillway.torch.capture(model, loss_fn, adam, data[0], clip_grad=1.0)
    spillway.torch.capture(model, loss_fn, adam, data[0], clip_grad=halve)
    spillway.torch.capture(model, loss_fn, adam, data[0], scaler=GradScaler("cpu"))
    spillway.torch.capture(model, loss_fn, adam, data[0], shard=True)
    both = spillway.torch.capture(model, loss_fn, [adam, torch.optim.SGD(model.parameters())], data[0])
    assert_type(both, spillway.torch.Step[Pairs, Tensor])
    assert_type(spillway.torch.full_state_dict(model), dict[str, object])
    spillway.torch.capture(model, loss_fn, adam, data[0], clip_grad="1.0")  # type: ignore[call-overload]
    assert_type(step, spillway.torch.Step[Pairs, Tensor])
    assert_type(step.graph, spillway.Graph)
    assert_type(step.optimizers, tuple[torch.optim.Optimizer, ...])
    assert_type(step.example(), Pairs)
    assert_type(step.min_feasible_bytes(host="optimizer"), int)
    assert_type(step.verify(data, steps=2), int)
    plan = step.plan("8GiB", settings={"effort": 50, "repeats": False}, chunk_bytes=1 << 21)
    assert_type(plan, spillway.Plan)
    with step.compile(plan, strict=True, max_shapes=4) as run:
        assert_type(run, spillway.torch.Compiled[Pairs, Tensor])
        for batch in data:
            assert_type(run(batch), Tensor)
        run.use(step.plan(1 << 30))
        run.load()
        assert_type(run.sync(overwrite=True), int)
        assert_type(run.iterations, int)
        assert_type(run.switched, spillway.SwitchFigures | None)
        evaluate = run.evaluate(correct)
        assert_type(evaluate(data[0].y), int)
        assert_type(run.evaluate()(data[0].y), Any)
    run.close()

    evaluate(data[0])  # type: ignore[arg-type]

    run({"x": data[0].x})  # type: ignore[arg-type]
    run.sink()  # type: ignore[attr-defined]
    step.plan(0.5)  # type: ignore[arg-type]
    step.plan(host="optimiser")  # type: ignore[arg-type]
    step.compile("8GiB")  # type: ignore[arg-type]
    step.verify(data[0])  # type: ignore[arg-type]
    spillway.torch.capture(model, loss_fn, adam, data)  # type: ignore[arg-type]
    spillway.torch.capture(model, no_loss, adam, data[0])  # type: ignore[type-var]
    spillway.torch.capture(model, loss_fn, model, data[0])  # type: ignore[call-overload]
    spillway.torch.capture(nn.Linear(3, 3), loss_fn, adam, data[0])  # type: ignore[arg-type]


def train_on_mappings(batch: dict[str, Tensor]) -> None:
    model = nn.Linear(3, 3)
    sgd = torch.optim.SGD(model.parameters(), lr=0.1)
    step = spillway.torch.capture(model, loss_and_prediction, sgd, batch)
    loss, number = step.compile(step.plan("min"))(batch)
    assert_type(loss, Tensor)
    assert_type(number, int)


def compare_devices(x: Tensor) -> None:
    model = Perceptron()
    given = model, loss_fn, torch.optim.SGD(model.parameters()), Pairs(x, x)
    found = spillway.torch.estimate(*given, machine="gh200", budgets=["min", 1 << 30])
    assert_type(found, spillway.torch.Estimate)
    own = spillway.torch.Speeds(tflops=100, float32_tflops=50, memory_gb_s=900, host_gb_s=60)
    machine = spillway.Machine.builtin("rtx4090")
    found = spillway.torch.estimate(*given, machine=machine, speeds=own, host="optimizer")
    for plan in found.plans:
        assert_type(plan, spillway.Plan)
        assert_type(found.items_per_s(plan), float)
        assert_type(found.limit(plan), str)
        assert_type(found.shares(plan)["upload"], float)
    assert_type(found.min_feasible_bytes, int)
    spillway.torch.estimate(*given, speeds=spillway.torch.Speeds(1, 1, 1, network_gb_s=1), devices=4)
    spillway.torch.estimate(model, Perceptron.predict, None, x)
    spillway.torch.estimate(*given, scaler=GradScaler("cpu"))
    spillway.torch.estimate(*given, host="optimiser")  # type: ignore[arg-type]


def infer(x: Tensor) -> None:
    model = Perceptron()
    step = spillway.torch.capture_inference(model, x, device=torch.device("cpu"))
    assert_type(step, spillway.torch.Step[Tensor, Any])
    own = spillway.torch.capture_inference(model, x, Perceptron.predict)
    assert_type(own, spillway.torch.Step[Tensor, Tensor])
    spillway.torch.capture_inference(model, Pairs(x, x), Perceptron.predict)  # type: ignore[arg-type]
    spillway.torch.capture_inference(model)  # type: ignore[call-overload]


def masked_loss(model: nn.Module, x: Tensor, scale: float) -> Tensor:
    loss: Tensor = (model(x) * scale).mean()
    return loss


def train_on_tuples(x: Tensor) -> None:
    model = nn.Linear(3, 3)
    sgd = torch.optim.SGD(model.parameters(), lr=0.1)
    step = spillway.torch.capture(model, masked_loss, sgd, (x, 0.5))
    assert_type(step, spillway.torch.Step[tuple[Tensor, float], Tensor])
    spillway.torch.capture(model, masked_loss, sgd, (x, x))  # type: ignore[arg-type]
    train = step.compile(step.plan("min"))
    assert_type(train((x, 0.5)), Tensor)
    evaluate = train.evaluate(masked_loss)
    assert_type(evaluate((x, 2.0)), Tensor)
    infer = spillway.torch.capture_inference(model, (x, 0.5), masked_loss)
    assert_type(infer, spillway.torch.Step[tuple[Tensor, float], Tensor])


class Wrapper:
    """As Lightning has it."""

    def __init__(self, optimizer: torch.optim.AdamW) -> None:
        self.optimizer = optimizer


def join(model: nn.Module) -> None:
    adam = torch.optim.AdamW(model.parameters())
    assert_type(spillway.torch.optimizer(adam), torch.optim.AdamW)
    assert_type(spillway.torch.optimizer(Wrapper(adam)), Wrapper)
    spillway.torch.optimizer(model.parameters())  # type: ignore[type-var]


def partition(model: nn.Module, graph: torch.fx.GraphModule) -> None:
    compile_graph(graph, [], options={"budget": "8GiB"})
    KnapsackSolver(cuts=30)
    KnapsackSolver("dp")  # type: ignore[arg-type]


def error_of(work: Exception) -> str:
    if isinstance(work, (spillway.torch.CaptureError, spillway.torch.AllocationError)):
        return str(work)
    if isinstance(work, (spillway.torch.ChangedError, spillway.torch.BatchError)):
        assert_type(work.args, tuple[Any, ...])
    if isinstance(work, (spillway.torch.LostError, spillway.torch.ProcessError)):
        raise work
    return ""
