"""Prints the predicted time of a training step with its optimizer on the device and on the host, with and
without clipping by the norm of all gradients.

    OMP_NUM_THREADS=1 python3 python/benches/host.py

The model is a GPT-2 of 12 layers of width 384. All plans are for the same times of ops.
"""

from unittest import mock

import torch
import transformers

import spillway.torch
from spillway.torch.machine import measure_copies
from spillway.torch.measuring import Measurements
from spillway.torch.processor import Processor

MIB = 1 << 20
BUDGETS = "35%", "10%"


def loss_fn(model, tokens):
    return model(input_ids=tokens, labels=tokens).loss


def captured(clip):
    config = transformers.GPT2Config(vocab_size=256, n_layer=12, n_embd=384, n_head=6)
    model = transformers.GPT2LMHeadModel(config).train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4, fused=True)

    def clip_gradients(*_):
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)

    if clip:
        optimizer.register_step_pre_hook(clip_gradients)
    return spillway.torch.capture(model, loss_fn, optimizer, torch.randint(256, (2, 128)))


def main():
    on_device, on_host, speed = Measurements(Processor()), Measurements(Processor()), measure_copies()
    with (
        mock.patch("spillway.torch.capturing.Measurements", lambda device: on_device),
        mock.patch("spillway.torch.hosting.Measurements", lambda device: on_host),
        mock.patch("spillway.torch.capturing.measure_copies", lambda: speed),
    ):
        print(f"links of {speed / 1e9:.1f} GB/s")
        for clip in (False, True):
            step = captured(clip)
            print("clipped" if clip else "not clipped")
            for host in (None, "optimizer"):
                plans = [step.plan(budget, host=host) for budget in BUDGETS]
                times = ", ".join(
                    f"{b}: {p.figures.period_ns / 1e6:.1f} ms" for b, p in zip(BUDGETS, plans)
                )
                least = step.min_feasible_bytes(host=host) / MIB
                print(f"  {host or 'device'}: {times}; least budget {least:.1f} MiB")


if __name__ == "__main__":
    main()
