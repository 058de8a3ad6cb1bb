"""Estimates of training steps on devices that are not there."""

import copy
import json
import subprocess
import sys
from dataclasses import replace

import pytest
import torch
from eager import same_dicts
from models import classify
from torch import nn

import spillway
import spillway.torch
from spillway.torch import Speeds, capture, estimate
from spillway.torch.batches import call
from spillway.torch.estimating import launched

pytestmark = pytest.mark.short

SPEEDS = Speeds(tflops=100, float32_tflops=10, memory_gb_s=1000, host_gb_s=50)
LLAMA = dict(
    model_type="llama",
    hidden_size=4096,
    intermediate_size=14336,
    num_hidden_layers=32,
    num_attention_heads=32,
    num_key_value_heads=8,
    vocab_size=128256,
)


def perceptron():
    return nn.Sequential(nn.Linear(20, 64), nn.ReLU(), nn.Dropout(), nn.Linear(64, 5))


def rows():
    return torch.randn(16, 20), torch.randint(5, (16,))


def adamw(model):
    return torch.optim.AdamW(model.parameters())


def without_costs(graph):
    found = json.loads(graph.to_json())
    for op in found["ops"]:
        op["time_ns"] = op["workspace_bytes"] = 0
    return found


@pytest.mark.parametrize("device", ["cpu", "meta"])
def test_the_graph_with_a_scaler_is_that_of_a_capture(device):
    captured, model = perceptron(), perceptron().to(device)
    scalers = [torch.amp.GradScaler("cpu") for _ in range(2)]
    step = capture(captured, classify, adamw(captured), rows(), scaler=scalers[0])
    given = model, classify, adamw(model), [t.to(device) for t in rows()]
    found = estimate(*given, speeds=SPEEDS, scaler=scalers[1])
    assert without_costs(found.graph) == without_costs(step.graph)
    assert without_costs(found.graph) != without_costs(estimate(*given, speeds=SPEEDS).graph)
    assert scalers[1]._scale is None, "the scaler is as it was"
    with pytest.raises(spillway.torch.CaptureError, match="scaler cannot check all gradients"):
        estimate(*given, speeds=NETWORKED, devices=2, scaler=scalers[1])


@pytest.mark.parametrize("device", ["cpu", "meta"])
def test_the_graph_is_that_of_a_capture(device):
    captured = perceptron()
    step = capture(captured, classify, adamw(captured), rows())
    model = perceptron().to(device)
    found = estimate(model, classify, adamw(model), [t.to(device) for t in rows()], speeds=SPEEDS)
    assert without_costs(found.graph) == without_costs(step.graph)
    assert all(p.device.type == device for p in model.parameters())


def test_without_an_optimizer_the_step_is_an_inference():
    model = perceptron().eval()
    step = spillway.torch.capture_inference(model, rows()[0])
    found = estimate(model.to("meta"), call, None, rows()[0], speeds=SPEEDS)
    assert without_costs(found.graph) == without_costs(step.graph)
    assert found.plans[0].figures.d2h_bytes == call(model, rows()[0].to("meta")).nbytes


def times(dtype, size=1024):
    """Returns the time of each op by its name."""
    with torch.device("meta"):
        model = nn.Linear(size, size, bias=False, dtype=dtype)
        x = torch.zeros(4 * size, size, dtype=dtype)
    sgd = torch.optim.SGD(model.parameters(), lr=0.1)
    found = estimate(model, lambda m, x: m(x).sum(), sgd, x, speeds=SPEEDS)
    return {op["name"]: op["time_ns"] for op in json.loads(found.graph.to_json())["ops"]}


@pytest.mark.parametrize(("dtype", "tflops"), [(torch.bfloat16, 100), (torch.float32, 10)])
def test_a_product_takes_its_arithmetic(dtype, tflops):
    assert times(dtype)["mm"] == round(5000 + 2 * 4 * 1024**3 / (tflops * 1e3))


def test_other_ops_take_their_bytes():
    found = times(torch.float32)
    assert found["sum"] == round(5000 + (4 * 1024**2 * 4 + 4) / 1000)
    # The op reads the gradient and the weight, and writes the weight.
    assert found["add_"] == round(5000 + 3 * 1024**2 * 4 / 1000)


def test_an_embedding_reads_its_rows_alone():
    with torch.device("meta"):
        model, x = nn.Embedding(100_000, 512), torch.zeros(1, 10, dtype=torch.long)
    sgd = torch.optim.SGD(model.parameters(), lr=0.1)
    found = estimate(model, lambda m, x: m(x).sum(), sgd, x, speeds=SPEEDS)
    ops = {op["name"]: op["time_ns"] for op in json.loads(found.graph.to_json())["ops"]}
    assert ops["embedding"] < 5100 < 100_000 < ops["add_"]


def wide():
    with torch.device("meta"):
        return nn.Sequential(*(nn.Linear(4096, 4096) for _ in range(16))), torch.zeros(64, 4096)


def of_wide(speeds=SPEEDS, **how):
    model, x = wide()
    return estimate(model, lambda m, x: m(x).square().mean(), adamw(model), x, speeds=speeds, **how)


def test_more_memory_makes_steps_shorter_until_all_of_it_stays():
    machine = spillway.Machine("small", 6 << 30, 64 << 30, 2 << 20, 10**10, 10**10)
    found = of_wide(machine=machine)
    periods_ns = [plan.figures.period_ns for plan in found.plans]
    assert found.plans[0].budget_bytes == found.min_feasible_bytes and len(periods_ns) >= 3
    assert periods_ns == sorted(periods_ns, reverse=True)
    assert found.limit(found.plans[0]) in ("upload", "download")
    assert found.limit(found.plans[-1]) == "device"
    shares = [share for plan in found.plans for share in found.shares(plan).values()]
    assert all(0 <= share <= 1.001 for share in shares)
    _, first, header, *lines = str(found).splitlines()
    assert first.endswith("small has 6.00 GiB") and "rows/s" in header and len(lines) == len(periods_ns)


def test_the_parts_of_a_fine_tuning():
    with torch.device("meta"):
        model = nn.Sequential(nn.Linear(64, 64), nn.BatchNorm1d(64), nn.Linear(64, 8))
    model[0].requires_grad_(False)
    optimizer = torch.optim.AdamW(p for p in model.parameters() if p.requires_grad)
    x = torch.zeros(16, 64, device="meta")
    parts = estimate(model, lambda m, x: m(x).sum(), optimizer, x, speeds=SPEEDS).parts
    trained = 64 + 64 + 64 * 8 + 8
    assert parts["parameters"] == 4 * trained and parts["frozen parameters"] == 4 * (64 * 64 + 64)
    # Means, variances and a number of batches; two moments and a number of steps for each tensor.
    assert parts["buffers"] == 4 * (64 + 64) + 8 and parts["optimizer"] == 4 * (2 * trained + 4)
    # The batch and the first result are held at once, and not all results of all layers.
    assert 4 * 2 * 16 * 64 <= parts["gradients and activations"] < 4 * 8 * 16 * 64


def test_the_optimizer_runs_on_the_host():
    with_host = of_wide(budgets=["min"], host="optimizer")
    (plan,) = with_host.plans
    assert plan.host_ops and with_host.min_feasible_bytes < of_wide(budgets=[]).min_feasible_bytes
    shares = with_host.shares(plan)
    assert 0 < shares["host"] <= 1.001 and 0 < shares["device"] <= 1.001
    assert with_host.limit(plan) == "host"


def test_a_step_that_does_not_fit():
    machine = spillway.Machine("tiny", 64 << 20, 64 << 30, 2 << 20, 10**10, 10**10)
    found = of_wide(machine=machine)
    assert not found.plans and str(found).endswith("tiny has 64.0 MiB: the step does not fit")


def test_what_is_not_known_is_refused():
    machine = spillway.Machine("own", 1 << 30, 1 << 30, 2 << 20, 10**10, 10**10)
    model = perceptron()
    given = model, classify, adamw(model), rows()
    with pytest.raises(ValueError, match="the speeds of own are not known: give speeds="):
        estimate(*given, machine=machine)
    with pytest.raises(ValueError, match="host='optimizer' needs the speed of the host's memory"):
        estimate(*given, speeds=Speeds(1, 1, 1), host="optimizer")
    with pytest.raises(spillway.Error, match="rtx9999"):
        estimate(*given, machine="rtx9999", speeds=SPEEDS)


NETWORKED = replace(SPEEDS, network_gb_s=10)


def of_devices(devices, **how):
    return of_wide(NETWORKED, devices=devices, **how)


@pytest.mark.parametrize("devices", [2, 4])
def test_devices_share_states_and_exchange_them(devices):
    """All 16 biases are in one bundle, which is reduced by one op."""
    one, several = of_devices(1, clip_grad=1.0), of_devices(devices, clip_grad=1.0)
    assert several.min_feasible_bytes < one.min_feasible_bytes
    state_bytes = [sum(_states(found)) for found in (one, several)]
    assert state_bytes[1] == pytest.approx(state_bytes[0] / devices, rel=1e-3)
    assert several.items == (64 * devices, "rows")
    plan = several.plans[-1]
    shares = several.shares(plan)
    assert 0 < shares["network"] <= 1.001 < shares["network"] + shares["device"], "nothing runs at the same time"
    assert several.limit(plan) == "network" and "network" in str(several) and "network" not in str(one)
    ops = {op["name"]: op["time_ns"] for op in json.loads(several.graph.to_json())["ops"]}
    exchanged = 4096 * 4096 * 4 * (devices - 1) / devices
    assert ops["gather 3.weight"] == round(5000 + exchanged / 10)
    scattered = sorted(ns for name, ns in ops.items() if name.startswith("reduce_scatter"))
    assert len(scattered) == 17 and scattered[-1] == ops["gather 3.weight"]
    assert ops["all_reduce_"] == round(5000 + 2 * 32 * 4 * (devices - 1) / devices / 10)


def _states(found):
    return [t["bytes"] for t in json.loads(found.graph.to_json())["tensors"] if t["kind"] == "state"]


def test_a_gather_that_is_launched_again_counts_again():
    found = of_devices(2, budgets=["min"])
    (plan,) = found.plans
    exchanges = [op for op in launched(plan) if op in found.exchanges]
    network_ns = sum(found.times_ns[op] for op in exchanges)
    assert len(exchanges) > len(set(exchanges)), "the plan gathers weights again"
    assert found.shares(plan)["network"] == pytest.approx(network_ns / plan.figures.period_ns)


def test_each_device_has_a_host():
    found = of_devices(2, budgets=["min"], host="optimizer")
    (plan,) = found.plans
    assert plan.host_ops and not found.exchanges & {*plan.host_ops}
    alone = of_devices(1, budgets=["min"], host="optimizer")
    assert plan.figures.host_ns < 0.6 * alone.plans[0].figures.host_ns


def test_the_model_and_the_optimizer_stay_as_they_were():
    model = perceptron()
    optimizer = adamw(model)
    classify(model, rows()).backward()
    optimizer.step()
    before = copy.deepcopy((model.state_dict(), optimizer.state_dict()))
    places = [p.data_ptr() for p in model.parameters()]
    for devices in (1, 3):
        estimate(model, classify, optimizer, rows(), speeds=NETWORKED, devices=devices)
        same_dicts(model.state_dict(), before[0], "model")
        for index, state in optimizer.state_dict()["state"].items():
            same_dicts(state, before[1]["state"][index], f"state {index}")
        assert places == [p.data_ptr() for p in model.parameters()]
    capture(model, classify, optimizer, rows())


def test_steps_that_devices_cannot_share_are_refused():
    given = (model := perceptron()), classify, adamw(model), rows()
    with pytest.raises(ValueError, match="need the speed of their network: Speeds"):
        estimate(*given, speeds=SPEEDS, devices=2)
    with pytest.raises(ValueError, match="devices is 0"):
        estimate(*given, speeds=NETWORKED, devices=0)
    with pytest.raises(ValueError, match="an inference is estimated for one device"):
        estimate(model, call, None, rows()[0], speeds=NETWORKED, devices=2)
    with pytest.raises(spillway.torch.CaptureError, match="clip_grad is a function"):
        estimate(*given, speeds=NETWORKED, devices=2, clip_grad=lambda parameters: None)


@pytest.mark.parametrize("optimizer", [torch.optim.AdamW, torch.optim.Adam, torch.optim.SGD, torch.optim.Adagrad])
def test_fused_optimizers_need_no_memory(optimizer):
    graphs = []
    for device in "cpu", "meta":
        model = perceptron().to(device)
        fused = optimizer(model.parameters(), lr=1e-3, fused=True)
        batch = [t.to(device) for t in rows()]
        graphs.append(estimate(model, classify, fused, batch, speeds=SPEEDS, budgets=[]).graph)
    assert graphs[0].to_json() == graphs[1].to_json()
    assert sum("_fused_" in op["name"] for op in json.loads(graphs[1].to_json())["ops"]) >= 1
    # Outside of an estimate, PyTorch refuses the device as before.
    for parameter in model.parameters():
        parameter.grad = torch.zeros_like(parameter)
    with pytest.raises(RuntimeError, match="fused"):
        fused.step()


def run(*arguments):
    command = sys.executable, "-m", "spillway.torch", "estimate", *map(str, arguments)
    return subprocess.run(command, capture_output=True, text=True, timeout=240)


def test_a_decoder_of_8_billion_parameters_from_its_configuration(tmp_path):
    pytest.importorskip("transformers")
    config, graph = tmp_path / "config.json", tmp_path / "graph.json"
    config.write_text(json.dumps(LLAMA))
    budgets = "--budget", "min", "--budget", "20GiB"
    done = run(config, "--batch", 4, "--machine", "rtx4090", *budgets, "--graph", graph)
    assert not done.returncode, done.stderr
    parts, first, header, *lines = done.stdout.splitlines()
    assert parts.startswith("parameters 14.96 GiB, buffers 0.2 KiB, optimizer 29.92 GiB, gradients and ")
    assert first.startswith("least device memory 11.7") and "tokens/s" in header and len(lines) == 2
    tokens_per_s = [float(line.split()[4].replace(",", "")) for line in lines]
    # A token takes 6 operations for each parameter. Attention takes more.
    most = 165e12 / (6 * 8e9)
    assert most / 4 < tokens_per_s[0] < most and tokens_per_s[0] * 0.99 < tokens_per_s[1] < most
    assert len(spillway.Graph.from_json(graph.read_bytes()).name) > 0


def test_weights_are_updated_after_their_copies_have_been_read(tmp_path):
    pytest.importorskip("transformers")
    config, graph = tmp_path / "config.json", tmp_path / "graph.json"
    sizes = dict(hidden_size=1024, intermediate_size=2816, num_hidden_layers=8, vocab_size=8000)
    config.write_text(json.dumps(LLAMA | sizes | dict(num_attention_heads=16, num_key_value_heads=4)))
    step = config, "--sequence", 512, "--precision", "mixed", "--budget", "30%", "--graph", graph
    assert not run(*step).returncode
    # If a weight is updated first, its copy in 16 bits must stay: such a plan takes 2.5 times as long as its ops.
    plan = spillway.Graph.from_json(graph.read_bytes()).plan(spillway.Machine.builtin("rtx4090"), "30%")
    assert plan.figures.period_ns < 2.45 * plan.figures.compute_ns


def test_a_decoder_on_several_devices(tmp_path):
    pytest.importorskip("transformers")
    config = tmp_path / "config.json"
    config.write_text(json.dumps(LLAMA | dict(num_hidden_layers=2)))
    done = run(config, "--devices", 2)
    assert done.returncode == 1 and "need the speed of their network: --network" in done.stderr
    done = run(config, "--devices", 2, "--network", 25, "--budget", "20GiB")
    assert not done.returncode, done.stderr
    _, _, header, line = done.stdout.splitlines()
    assert "network" in header and line.count("%") == 5


@pytest.mark.parametrize(
    ("text", "message"),
    [('{"hidden_size": 8}', 'has no "model_type"'), ("{", "Expecting property name"), (None, "No such file")],
)
def test_a_configuration_that_is_none(text, message, tmp_path):
    if text is not None:
        (tmp_path / "config.json").write_text(text)
    done = run(tmp_path / "config.json")
    assert done.returncode == 1 and done.stderr.startswith("error: ") and message in done.stderr
