"""Trains models on the first CUDA device: twice eagerly, which shows whether the device gives the same
bits again, and once within a plan. All bits are compared.

    on_gpu.py            each case in a process of its own, four at once
    on_gpu.py CASE …     these cases, one after the other

With SPILLWAY_CUDA_DRIVER, the path of the emulated driver, five cases run on it. Ends with status 77 and a
sentence if there is no device or a package is missing.
"""

import copy
import os
import subprocess
import sys
import tempfile
import time
import traceback
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

PARENTS = Path(__file__).resolve().parents
EMULATED = bool(os.environ.get("SPILLWAY_CUDA_DRIVER"))

# The folder of the tests has one called torch, so it comes last.
sys.path[:0] = map(str, (PARENTS[0], PARENTS[2]))
sys.path.append(str(PARENTS[1]))
try:
    import eager
    import models
    import test_mlp
    import torch
    from torch import distributed, nn
    from torch.utils._pytree import tree_map

    import spillway.torch
    from spillway.torch import backend, capturing, nccl
except ImportError as error:
    print(f"not run: {error}")
    sys.exit(77)

MIB = 1 << 20
PROCESSES = 4
SECONDS = 120
DEVICE = "cpu" if EMULATED else "cuda"


def on_device(tree):
    return tree_map(lambda x: x.to(DEVICE) if isinstance(x, torch.Tensor) else x, tree)


def wide_with_dropout():
    wide = nn.Linear(20, 1024), nn.Dropout(0.3), nn.Linear(1024, 1024), nn.ReLU()
    return nn.Sequential(*wide, nn.Linear(1024, 5))


def adam(model, **settings):
    return torch.optim.Adam(model.parameters(), lr=0.01, **settings)


def sgd(model):
    return torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)


OPTIMIZERS = {
    "sgd": sgd,
    "adam": adam,
    "adam-loop": partial(adam, foreach=False),
    "adam-fused": partial(adam, fused=True),
}
PERCEPTRONS = {"perceptron": test_mlp.mlp, "dropout": wide_with_dropout}
MODELS = ["gpt2", "gpt2-bf16", "llama", "resnet50", "unet", "lstm", "bert", "t5", "vit", "experts"]
CASES = [
    *(f"{model}:{optimizer}" for model in PERCEPTRONS for optimizer in OPTIMIZERS),
    *(f"processor:{optimizer}" for optimizer in OPTIMIZERS),
    "sharded:adam",
    *(f"{loop}:{name}" for loop in ("loop", "moved") for name in (*OPTIMIZERS, "gpt2")),
    *MODELS,
]


def case(name):
    """Returns the function that makes a model, its loss, the maker of its optimizer, and its batches."""
    model, _, optimizer = name.partition(":")
    if optimizer:
        return PERCEPTRONS[model], test_mlp.loss_fn, OPTIMIZERS[optimizer], test_mlp.batches
    base, _, number = model.partition("-")
    make, loss_fn, make_optimizer, batches = models.model(base)
    if not number:
        return make, loss_fn, make_optimizer, batches

    def loss_in_bf16(model, batch):
        with torch.autocast("cuda", torch.bfloat16):
            return loss_fn(model, batch)

    return make, loss_in_bf16, make_optimizer, batches


def compare(name):
    """Compares eager mode with itself, and with a plan."""
    make, loss_fn, make_optimizer, batches = case(name)
    make_on_device = lambda: make().to(DEVICE)
    batches_on_device = lambda k: on_device(batches(k))
    first, second = (trained(make_on_device, loss_fn, make_optimizer, batches_on_device) for _ in range(2))
    for ours, its, what in zip(first, second, ("losses", "model", "optimizer")):
        eager.same_dicts(ours, its, f"eager mode twice: {what}")
    start = time.monotonic()
    step, train = eager.compare(make_on_device, loss_fn, make_optimizer, batches_on_device, budget="50%")
    figures = train.plan.figures
    places = sum(len(op.measured.places) for op in step.operations)
    return (
        f"{len(step.operations)} ops, {places} results in their places, {figures.h2d_bytes} bytes up an iteration,"
        f" {time.monotonic() - start:.1f} s"
    )


def trained(make, loss_fn, make_optimizer, batches):
    """Returns losses, model and optimizer of an eager training."""
    torch.manual_seed(7)
    model = make()
    optimizer = make_optimizer(model)
    data = [batches(k) for k in range(eager.STEPS)]
    losses = eager.losses_of(model, loss_fn, optimizer, data)
    return dict(enumerate(losses)), model.state_dict(), optimizer.state_dict()


def compare_from_processor(name):
    """Compares a model on the device with one that stays on the processor, and trains on the device."""
    make_optimizer = OPTIMIZERS[name.partition(":")[2]]
    planned_model = test_mlp.mlp()
    model = copy.deepcopy(planned_model).cuda()
    optimizer, planned = make_optimizer(model), make_optimizer(planned_model)
    data = [test_mlp.batches(k) for k in range(eager.STEPS)]
    loss_fn = test_mlp.loss_fn
    step = spillway.torch.capture(planned_model, loss_fn, planned, data[0], device="cuda")
    train = eager.compiled_within(step, "50%")
    for k, batch in enumerate(data):
        optimizer.zero_grad()
        loss = loss_fn(model, on_device(batch))
        loss.backward()
        optimizer.step()
        eager.same(train(batch), loss.detach(), f"loss {k}")
    train.sync()
    eager.same_dicts(planned_model.state_dict(), model.cpu().state_dict(), "model")
    return f"{len(step.operations)} ops"


def compare_sharded(name):
    """Compares a model with one whose step runs collectives, over NCCL. One process is enough for it."""
    make_optimizer = OPTIMIZERS[name.partition(":")[2]]
    model = test_mlp.mlp().to(DEVICE)
    planned_model = copy.deepcopy(model)
    optimizer, planned = make_optimizer(model), make_optimizer(planned_model)
    data = [on_device(test_mlp.batches(k)) for k in range(eager.STEPS)]
    loss_fn, backend = test_mlp.loss_fn, "gloo" if EMULATED else nccl.BACKEND
    with tempfile.TemporaryDirectory() as folder:
        distributed.init_process_group(backend, init_method=f"file://{folder}/rendezvous", rank=0, world_size=1)
        how = dict(process_group=distributed.group.WORLD, shard=True)
        step = spillway.torch.capture(planned_model, loss_fn, planned, data[0], **how)
        train = eager.compiled_within(step, "50%")
        for k, batch in enumerate(data):
            optimizer.zero_grad()
            loss = loss_fn(model, batch)
            loss.backward()
            optimizer.step()
            eager.same(train(batch), loss.detach(), f"loss {k}")
        train.sync()
        eager.same_dicts(spillway.torch.full_state_dict(planned_model), model.state_dict(), "model")
        train.close()
        distributed.destroy_process_group()
    return f"{sum(op.exchanges for op in step.operations)} collectives among {len(step.operations)} ops"


def compare_loop(name):
    """Compares the usual loop with one whose model is compiled and whose optimizer has joined."""
    make, loss_fn, make_optimizer, batches = loop_case(name)
    model = make().to(DEVICE)

    def backward(called, k):
        loss = loss_fn(called, on_device(batches(k)))
        loss.backward()
        nn.utils.clip_grad_norm_(called.parameters(), 0.5)
        return loss.detach()

    return compare_loops(model, copy.deepcopy(model), backward, make_optimizer)


def compare_moved(name):
    """Compares training on the device with the usual loop of a model on the processor, whose graph runs on the
    device. The graph has the loss, since the processor computes other bits."""
    make, loss_fn, make_optimizer, batches = loop_case(name)
    planned_model = WithLoss(make(), loss_fn)
    model = copy.deepcopy(planned_model).to(DEVICE)

    def backward(called, k):
        loss = called(on_device(batches(k)) if called is model else batches(k))
        loss.backward()
        return loss.detach()

    return compare_loops(model, planned_model, backward, make_optimizer, device=DEVICE)


class WithLoss(nn.Module):
    """A model that returns its loss."""

    def __init__(self, model, loss_fn):
        super().__init__()
        self.model, self._loss_fn = model, loss_fn

    def forward(self, batch):
        return self._loss_fn(self.model, batch)


def loop_case(name):
    of = name.partition(":")[2]
    return case(f"dropout:{of}" if of in OPTIMIZERS else of)


def compare_loops(model, planned_model, backward, make_optimizer, **more):
    """Compares the usual loop of a model with that of its copy, which is compiled and has its optimizer in the plan.
    `backward(called, number)` runs both passes of a step, and returns its loss."""
    options = dict(budget="min", machine=eager.MACHINE, **more)
    compiled = torch.compile(planned_model, backend="spillway", options=options)
    optimizer, planned = make_optimizer(model), spillway.torch.optimizer(make_optimizer(planned_model))

    def step(called, optimizer, k):
        torch.manual_seed(k)
        loss = backward(called, k)
        optimizer.step()
        optimizer.zero_grad()
        return loss, torch.get_rng_state()

    for k in range(eager.STEPS):
        (loss, state), (planned_loss, planned_state) = step(model, optimizer, k), step(compiled, planned, k)
        eager.same(planned_loss.to(loss.device), loss, f"loss {k}")
        eager.same(planned_state, state, f"generator {k}")
    planned_state = {name: value.to(DEVICE) for name, value in planned_model.state_dict().items()}
    eager.same_dicts(planned_state, model.state_dict(), "model")
    moments = (value for values in planned.state.values() for value in values.values())
    assert all(value.device.type == "cpu" for value in moments)
    return f"{len(planned.state)} parameters with states on the processor"


SPECIAL = {
    "processor": compare_from_processor,
    "sharded": compare_sharded,
    "loop": compare_loop,
    "moved": compare_moved,
}


def run(names):
    """Runs cases, and returns how many failed."""
    if EMULATED:
        from on_emulated import Emulated

        device = Emulated()
        capturing.device_of = lambda tensors, given: device
        backend.device_of = lambda tensors, given: device
    else:
        # The generator of the step is the device's.
        torch.get_rng_state, torch.set_rng_state = torch.cuda.get_rng_state, torch.cuda.set_rng_state
        eager.MACHINE = spillway.Machine("gpu", 8 << 30, 8 << 30, 2 * MIB, 10**10, 10**10)
    torch.use_deterministic_algorithms(True)
    torch.backends.cudnn.benchmark = False
    failed = 0
    for name in names:
        torch.backends.cudnn.enabled = name != "lstm"  # its recurrent networks cannot be captured
        try:
            said = SPECIAL.get(name.partition(":")[0], compare)(name)
            print(f"{name}: the same. {said}", flush=True)
        except Exception as error:
            failed += 1
            traceback.print_exc()
            print(f"{name}: FAILED: {type(error).__name__}: {error}".splitlines()[0], flush=True)
    return failed


def run_apart(names):
    """Runs each case in a process of its own, and returns how many failed."""
    environment = dict(os.environ, CUBLAS_WORKSPACE_CONFIG=":4096:8", OMP_NUM_THREADS="2")

    def process(name):
        command = [sys.executable, __file__, name]
        try:
            ran = subprocess.run(
                command, env=environment, capture_output=True, text=True, timeout=SECONDS, check=False
            )
        except subprocess.TimeoutExpired:
            print(f"{name}: FAILED: longer than {SECONDS} s", flush=True)
            return 1
        said = [line for line in ran.stdout.splitlines() if line.startswith(name)]
        print(said[-1] if said else f"{name}: FAILED with status {ran.returncode}", flush=True)
        if ran.returncode:
            print(f"--- {name}\n{ran.stderr[-6000:]}", file=sys.stderr, flush=True)
        return ran.returncode != 0

    with ThreadPoolExecutor(PROCESSES) as pool:
        return sum(pool.map(process, names))


def main(names):
    if names:
        return run(names) > 0
    if EMULATED:
        cases = "perceptron:adam", "dropout:sgd", "sharded:adam", "loop:adam-fused", "moved:adam-fused"
        return run_apart(cases) > 0
    if not torch.cuda.is_available():
        print("not run: PyTorch finds no CUDA device")
        return 77
    return run_apart(CASES) > 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
