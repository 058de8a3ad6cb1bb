#!/usr/bin/env python3
"""The training of this example by PyTorch, with the same first weights and the same data: in
core, with activations in pinned host memory (save_on_cpu), and with expandable segments. Takes
the example's settings (width=, layers=, heads=, context=, batch=, iterations=, rate=; others do
not matter), and device=cpu for a look at the losses. Ends with status 77 and a sentence where
there is no PyTorch or no device for it."""

import os
import pathlib
import subprocess
import sys
import time

SETTINGS = dict(width=1024, layers=24, heads=16, context=512, batch=8, iterations=32, rate=3e-4)
WAYS = {
    "in-core": {},
    "save_on_cpu": {},
    "in-core, expandable segments": {"PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True"},
}
MASK = (1 << 64) - 1


def scramble(word):
    word = (word + 0x9E3779B97F4A7C15) & MASK
    word = ((word ^ (word >> 30)) * 0xBF58476D1CE4E5B9) & MASK
    word = ((word ^ (word >> 27)) * 0x94D049BB133111EB) & MASK
    return word ^ (word >> 31)


class Text:
    def __init__(self):
        licence = pathlib.Path(__file__).resolve().parents[3] / "LICENSE-APACHE"
        text = licence.read_bytes()
        known = sorted(set(text))
        self.numbers, self.characters = [known.index(byte) for byte in text], len(known)

    def batch(self, iteration, sequences, context):
        drawn = (scramble(iteration << 16 | sequence) for sequence in range(sequences))
        starts = [number % (len(self.numbers) - context) for number in drawn]
        return [[self.numbers[start + on :][:context] for start in starts] for on in (0, 1)]


class Transformer:
    """Parameters are made in the order of the example, by whose number they are drawn."""

    def __init__(self, settings, characters, device):
        self.device, self.made, self.parameters = device, 0, []
        self.heads, width = settings["heads"], settings["width"]
        self.table = self.drawn(characters + settings["context"], width, width)
        self.characters = characters
        self.blocks = []
        for _ in range(settings["layers"]):
            shapes = [(width, 3 * width), (width, width), (width, 4 * width), (4 * width, width)]
            linears = [self.linear(*shape) for shape in shapes]
            self.blocks.append((*linears, self.norm(width), self.norm(width)))
        self.last, self.head = self.norm(width), self.linear(width, characters)

    def keep(self, tensor):
        tensor = tensor.to(self.device).requires_grad_()
        self.parameters.append(tensor)
        return tensor

    def drawn(self, rows, columns, inputs):
        """What `scramble` gives for each element, in numbers with a sign."""

        def signed(word):
            return word - (word >> 63 << 64)

        def shifted(words, bits):
            return (words >> bits) & ((1 << (64 - bits)) - 1)

        words = torch.arange(rows * columns, device=self.device) | self.made << 32
        self.made += 1
        words = words + signed(0x9E3779B97F4A7C15)
        words = (words ^ shifted(words, 30)) * signed(0xBF58476D1CE4E5B9)
        words = (words ^ shifted(words, 27)) * signed(0x94D049BB133111EB)
        numbers = shifted(words ^ shifted(words, 31), 40).to(torch.float32)
        scale = (torch.tensor(3.0) / inputs).sqrt().to(self.device)
        return self.keep((scale * (numbers / (1 << 23) - 1)).reshape(rows, columns))

    def linear(self, inputs, outputs):
        return self.drawn(inputs, outputs, inputs), self.keep(torch.zeros(outputs))

    def norm(self, width):
        self.made += 1
        return self.keep(torch.ones(width)), self.keep(torch.zeros(width))

    def loss(self, text, targets):
        batch, context = text.shape
        width = self.table.shape[1]
        places = torch.arange(context, device=text.device)
        value = functional.embedding(text, self.table) + self.table[self.characters + places]
        value = value.reshape(-1, width)
        future = torch.ones(context, context, dtype=torch.bool, device=text.device).triu(1)

        def linear(value, layer):
            return torch.addmm(layer[1], value, layer[0])

        def normal(value, layer):
            return functional.layer_norm(value, (width,), *layer)

        for split, merge, widen, narrow, first, second in self.blocks:
            parts = linear(normal(value, first), split).reshape(batch, context, 3, self.heads, -1)
            queries, keys, values = parts.permute(2, 0, 3, 1, 4)
            scores = queries @ keys.transpose(2, 3) / queries.shape[-1] ** 0.5
            weights = scores.masked_fill(future, float("-inf")).softmax(-1)
            mixed = (weights @ values).transpose(1, 2).reshape(-1, width)
            value = value + linear(mixed, merge)
            wide = linear(normal(value, second), widen)
            value = value + linear(functional.gelu(wide, approximate="tanh"), narrow)
        logits = linear(normal(value, self.last), self.head)
        return functional.cross_entropy(logits, targets.reshape(-1))


def train(way, settings, device):
    from contextlib import nullcontext

    on_gpu, text = device != "cpu", Text()
    if on_gpu:
        torch.cuda.set_device(device)
    model = Transformer(settings, text.characters, device)
    adam = torch.optim.Adam(model.parameters, lr=settings["rate"], betas=(0.9, 0.999), eps=1e-8)
    saving = torch.autograd.graph.save_on_cpu(pin_memory=on_gpu) if way == "save_on_cpu" else None
    losses, start, iterations = [], None, settings["iterations"]
    for iteration in range(1, iterations + 1):
        batch = text.batch(iteration, settings["batch"], settings["context"])
        inputs, targets = (torch.tensor(part).to(device) for part in batch)
        with saving or nullcontext():
            loss = model.loss(inputs, targets)
        loss.backward()
        adam.step()
        adam.zero_grad(set_to_none=True)
        losses.append(loss.detach())
        # The first iterations set memory up.
        if iteration == min(3, iterations - 1):
            if on_gpu:
                torch.cuda.synchronize()
            start = time.perf_counter(), iteration
    losses = [loss.item() for loss in losses]
    speed = (iterations - start[1]) / (time.perf_counter() - start[0])
    used, held = 0, 0
    if on_gpu:
        used, held = torch.cuda.max_memory_allocated(), torch.cuda.max_memory_reserved()
    print(f"| {way} | {used / 2**20:.2f} | {held / 2**20:.2f} | {speed:.2f} |")
    print("losses " + " ".join(f"{loss:.6f}" for loss in losses[:8]))


def main(arguments):
    given = dict(argument.split("=", 1) for argument in arguments)
    settings = {name: type(value)(given.get(name, value)) for name, value in SETTINGS.items()}
    device = given.get("device", "0")
    device = device if device == "cpu" else f"cuda:{device}"
    if device != "cpu" and not torch.cuda.is_available():
        print("not run: PyTorch finds no CUDA device")
        return 77
    if "way" in given:
        train(given["way"], settings, device)
        return 0
    print(f"PyTorch {torch.__version__}, {device}\n")
    print("| way | MiB in use, at most | MiB held, at most | iterations/s |\n|---|--:|--:|--:|")
    found = {}
    # A process each: the allocator reads its settings once.
    for way, variables in WAYS.items():
        command = [sys.executable, __file__, *arguments, f"way={way}"]
        environment = {**os.environ, **variables}
        ran = subprocess.run(command, env=environment, check=False, stdout=subprocess.PIPE, text=True)
        if ran.returncode == 0:
            row, found[way] = ran.stdout.splitlines()
        else:
            row = f"| {way} | failed with status {ran.returncode} | | |"
        print(row, flush=True)
    print()
    for way, losses in found.items():
        print(f"{way}: {losses}")
    return int(len(found) < len(WAYS))


try:
    import torch
    from torch.nn import functional
except ImportError as error:
    print(f"not run: {error}")
    sys.exit(77)
sys.exit(main(sys.argv[1:]))
