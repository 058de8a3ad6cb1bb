"""Estimates from the configuration of a language model: `python -m spillway.torch estimate config.json`."""

import argparse
import json
import sys
from dataclasses import replace
from pathlib import Path

import torch

from spillway import Error

from .estimating import estimate
from .roofline import SPEEDS

OPTIMIZERS = {
    "adamw": lambda parameters: torch.optim.AdamW(parameters, lr=1e-4, fused=True),
    "adam": lambda parameters: torch.optim.Adam(parameters, lr=1e-4, fused=True),
    "sgd": lambda parameters: torch.optim.SGD(parameters, lr=1e-4, momentum=0.9, fused=True),
}


def main(arguments=None):
    """Runs the program; returns its exit status."""
    parser = argparse.ArgumentParser(prog="python -m spillway.torch", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    about = "Estimate the training step of a causal language model on a machine that is not there."
    command = commands.add_parser("estimate", help=about, description=about)
    add = command.add_argument
    add("config", type=Path, help="config.json of a model, as transformers writes it")
    add("--batch", type=_count, default=1, metavar="ROWS", help="rows of a batch [1]")
    add("--sequence", type=_count, default=2048, metavar="TOKENS", help="tokens of a row [2048]")
    help = "[adamw]; sgd has momentum; all use PyTorch's fused kernels"
    add("--optimizer", choices=OPTIMIZERS, default="adamw", help=help)
    help = "of weights, gradients and moments; mixed: float32, computed with in bfloat16 [bf16]"
    add("--precision", choices=["bf16", "mixed", "float32"], default="bf16", help=help)
    add("--machine", choices=SPEEDS, default="rtx4090", help="[rtx4090]")
    help = "a size (16GiB), a percentage (35%%), or min; may be given several times [min and quarters]"
    add("--budget", action="append", metavar="B", help=help)
    add("--devices", type=_count, default=1, metavar="N", help="shard the model among N machines [1]")
    add("--network", type=float, metavar="GB_S", help="what each of them sends while it receives as much")
    add("--host-optimizer", action="store_true", help="run the optimizer on the host")
    add("--graph", type=Path, metavar="FILE", help="write the graph, for `spillway plan FILE`")
    options = parser.parse_args(arguments)
    try:
        if options.devices > 1 and (options.network or 0) <= 0:
            raise ValueError("several devices need the speed of their network: --network GB_S")
        found = _estimate(options)
        print(found)
        if options.graph:
            options.graph.write_bytes(found.graph.to_json())
    except (Error, OSError, ValueError, ImportError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    return 0


def _count(text):
    if not text.isdecimal() or not int(text):
        raise argparse.ArgumentTypeError(f"{text} is not a whole number from 1 on")
    return int(text)


def _estimate(options):
    model = _model(options.config, options.precision)
    tokens = torch.zeros(options.batch, options.sequence, dtype=torch.long, device="meta")
    optimizer = OPTIMIZERS[options.optimizer](model.parameters())

    def loss_fn(model, tokens):
        with torch.autocast("cpu", torch.bfloat16, enabled=options.precision == "mixed"):
            return model(input_ids=tokens, labels=tokens).loss

    host = "optimizer" if options.host_optimizer else None
    speeds = replace(SPEEDS[options.machine], network_gb_s=options.network)
    how = dict(machine=options.machine, budgets=options.budget, host=host)
    how |= dict(speeds=speeds, devices=options.devices)
    return estimate(model, loss_fn, optimizer, tokens, **how)


def _model(path, precision):
    """Returns a model that has no memory."""
    try:
        import transformers
    except ImportError as error:
        raise ImportError("estimates of a configuration need the package transformers") from error
    settings = json.loads(path.read_text())
    if "model_type" not in settings:
        raise ValueError(f'{path} has no "model_type": give the config.json of a model')
    kind = settings.pop("model_type")
    config = transformers.AutoConfig.for_model(kind, **{**settings, "use_cache": False})
    with torch.device("meta"):
        model = transformers.AutoModelForCausalLM.from_config(config)
    return model.to(torch.bfloat16 if precision == "bf16" else torch.float32).train()


if __name__ == "__main__":
    sys.exit(main())
