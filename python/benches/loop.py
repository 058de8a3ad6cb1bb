"""CPU time of the usual training loop with its optimizer in the plan, divided by the CPU time in eager mode, and in
brackets the elapsed time divided by the plan's prediction: `OMP_NUM_THREADS=1 python3 python/benches/loop.py`.
`docs/research/pytorch.md` shows the rows. Other work on the machine raises the figures in brackets, since plans copy
beside ops."""

import copy
import subprocess
import sys
from functools import partial

import peft
import torch
import torchvision
import transformers
from beside_eager import print_row
from torch.nn import functional as F

import spillway.torch

STEPS = 15
CHUNK_BYTES = 1 << 20
BUDGETS = "100%", "50%", "35%", "25%"


def language(make, config):
    return make(config).train(), torch.randint(config.vocab_size, (2, 128))


def llama():
    """A small Llama with adapters of rank 8 at all matrices of its layers."""
    config = transformers.LlamaConfig(
        vocab_size=32000,
        hidden_size=768,
        intermediate_size=2048,
        num_hidden_layers=12,
        num_attention_heads=12,
        num_key_value_heads=4,
        use_cache=False,
    )
    model, batch = language(transformers.LlamaForCausalLM, config)
    return peft.get_peft_model(model, peft.LoraConfig(r=8, target_modules="all-linear")), batch


def vision(name):
    model = getattr(torchvision.models, name)(num_classes=10).train()
    return model, (torch.randn(8, 3, 64, 64), torch.randint(10, (8,)))


MODELS = {
    "gpt2": lambda: language(transformers.GPT2LMHeadModel, transformers.GPT2Config(use_cache=False)),
    "bert": lambda: language(transformers.BertForMaskedLM, transformers.BertConfig()),
    "llama with lora": llama,
} | {
    name: partial(vision, name)
    for name in (
        "resnet50",
        "convnext_tiny",
        "swin_t",
        "densenet121",
        "efficientnet_b0",
        "mobilenet_v3_large",
        "regnet_y_800mf",
    )
}


def loss_of(model, batch):
    if isinstance(batch, tuple):
        return F.cross_entropy(model(batch[0]), batch[1])
    return F.cross_entropy(model(batch).logits[:, :-1].flatten(0, 1), batch[:, 1:].flatten())


def step(model, optimizer, batch):
    """Trains one step."""
    loss_of(model, batch).backward()
    optimizer.step()
    optimizer.zero_grad()


def last_plans():
    """Returns the dict that gets the last plan for each budget from now on."""
    plans, plan = {}, spillway.torch.Step.plan

    def planned(step, **options):
        plans[options["budget"]] = made = plan(step, **options)
        return made

    spillway.torch.Step.plan = planned
    return plans


def main():
    torch.set_num_threads(1)
    plans = last_plans()
    if len(sys.argv) == 1:  # each in a process, which may have so many mappings
        for name in MODELS:
            subprocess.run([sys.executable, __file__, name], check=True)
    for name in sys.argv[1:]:
        torch.manual_seed(0)
        eager, batch = MODELS[name]()
        models = {"eager": eager} | {budget: copy.deepcopy(eager) for budget in BUDGETS}
        optimizers = {
            k: torch.optim.AdamW(m.parameters(), lr=1e-4, fused=True) for k, m in models.items()
        }
        called = dict(models)
        for budget in BUDGETS:
            spillway.torch.optimizer(optimizers[budget])
            options = {"budget": budget, "chunk_bytes": CHUNK_BYTES}
            called[budget] = torch.compile(models[budget], backend="spillway", options=options)
        print_row(name, STEPS, {k: partial(step, called[k], optimizers[k], batch) for k in models}, plans)


if __name__ == "__main__":
    main()
