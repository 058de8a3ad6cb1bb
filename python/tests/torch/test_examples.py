"""The examples, in a short form."""

import functools
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch

PYTHON = Path(__file__).parents[2]
TEXT = "abcdefgh" * 200

pytestmark = pytest.mark.short


def run(folder, name, *options, launcher=()):
    """Runs an example. Returns what it prints."""
    program = [sys.executable, *launcher, PYTHON / "examples" / name, *map(str, options)]
    environment = os.environ | {"PYTHONPATH": str(PYTHON), "OMP_NUM_THREADS": "1"}
    done = subprocess.run(program, cwd=folder, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout


def losses(printed):
    return [float(line.split("loss ")[1]) for line in printed.splitlines() if line.startswith("step")]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Holds a text, and a GPT-2 that train_gpt2.py has trained on it."""
    pytest.importorskip("transformers")
    folder = tmp_path_factory.mktemp("gpt2")
    (folder / "text").write_text(TEXT)
    options = "text --layers 2 --width 64 --length 32 --steps 24 --budget 50% --report r.html"
    (folder / "printed").write_text(run(folder, "train_gpt2.py", *options.split()))
    return folder


def gpt2(folder):
    import transformers

    return transformers.GPT2LMHeadModel.from_pretrained(folder).eval()


def test_train_gpt2(folder):
    trained = losses((folder / "printed").read_text())
    assert len(trained) == 24 and trained[-1] < trained[0]
    assert "<html" in (folder / "r.html").read_text()


@pytest.mark.parametrize("clip", [(), ("--clip", 0.5)], ids=["", "clipped"])
def test_train_gpt2_on_host(tmp_path, clip):
    pytest.importorskip("transformers")
    (tmp_path / "text").write_text(TEXT)
    options = "text --layers 2 --width 64 --length 32 --steps 3 --budget 35%"
    printed = run(tmp_path, "train_gpt2_on_host.py", *options.split(), *clip)
    assert len(losses(printed)) == 3 and "3 steps have the bits of eager mode" in printed
    pattern = r"device memory: (.*) MiB, where .* takes (.*) MiB: (.*) MiB saved \((.*)%\)"
    taken, whole, saved, percent = map(float, re.search(pattern, printed).groups())
    assert abs(whole - taken - saved) < 0.2 and percent > 60
    parameters = sum(p.nbytes for p in gpt2(tmp_path / "gpt2").parameters())
    on_host = float(re.search(r"states that stay on the host: (.*) MiB", printed)[1])
    assert on_host * 2**20 >= 1.9 * parameters
    least, without = re.search(r"least budget: (.*) MiB, and (.*) MiB", printed).groups()
    assert float(least) < float(without)


def test_train_sharded_llama(tmp_path):
    pytest.importorskip("transformers")
    (tmp_path / "text").write_text(TEXT)
    options = "text --layers 2 --width 128 --length 32 --steps 3 --budget 2MiB --clip 1 --out llama.pt"
    launcher = "-m torch.distributed.run --standalone --nproc-per-node 2".split()
    printed = run(tmp_path, "train_sharded_llama.py", *options.split(), launcher=launcher)
    assert len(losses(printed)) == 3
    whole, own = map(float, re.search(r"states: (.*) MiB, of .* keeps (.*) MiB", printed).groups())
    assert abs(own - whole / 2) < 0.1 and own > 2
    weights = torch.load(tmp_path / "llama.pt")
    assert weights["model.layers.1.mlp.up_proj.weight"].shape == (512, 128)


def test_fine_tune_gpt2(folder):
    options = "gpt2 text --layers 1 --length 32 --steps 2 --budget 50%"
    assert len(losses(run(folder, "fine_tune_gpt2.py", *options.split()))) == 2
    before, after = gpt2(folder / "gpt2").state_dict(), gpt2(folder / "fine-tuned").state_dict()
    changed = {name for name in before if not torch.equal(before[name], after[name])}
    assert changed and all(name.startswith("transformer.h.1.") for name in changed)


def test_complete_text(folder):
    printed = run(folder, "complete_text.py", "gpt2", "abcdefgh", "--length", 16)
    model, tokens = gpt2(folder / "gpt2"), list(b"abcdefgh")
    while len(tokens) < 16:
        padded = torch.tensor([tokens + [0] * (16 - len(tokens))])
        with torch.no_grad():
            tokens.append(model(padded).logits[0, len(tokens) - 1].argmax().item())
    assert printed.splitlines()[-1] == bytes(tokens).decode(errors="replace")


def test_train_resnet50(tmp_path):
    transforms = pytest.importorskip("torchvision.transforms.v2").functional
    for name in ("light", "dark"):
        (tmp_path / "pictures" / name).mkdir(parents=True)
        for k in range(4):
            picture = torch.rand(3, 32, 32) / 2 + (0.5 if name == "light" else 0.0)
            transforms.to_pil_image(picture).save(tmp_path / "pictures" / name / f"{k}.png")
    options = "pictures --batch 4 --pixels 32 --steps 2"
    assert len(losses(run(tmp_path, "train_resnet50.py", *options.split()))) == 2
    weights = torch.load(tmp_path / "resnet50.pt")
    assert weights["fc.weight"].shape == (2, 2048)
    assert weights["bn1.num_batches_tracked"] == 2


def test_the_lines_of_the_readme(tmp_path, monkeypatch, capsys):
    transformers = pytest.importorskip("transformers")
    (lines,) = re.findall(r"```python\n(.*?)```", (PYTHON.parent / "README.md").read_text(), re.S)
    size = dict(vocab_size=64, n_layer=2, n_embd=64, n_head=2)
    small = functools.partial(transformers.GPT2Config, **size)
    monkeypatch.setattr(transformers, "GPT2Config", small)
    monkeypatch.chdir(tmp_path)
    exec(lines.replace("50257", "64"), {})
    assert capsys.readouterr().out.count("tensor(") == 3


def same_losses(folder, name, *options):
    """Runs an example in eager mode and within a budget, which must print the same losses."""
    eager, planned = (run(folder, name, *options, "--budget", b) for b in ("none", "60%"))
    assert losses(planned) == losses(eager) and len(set(losses(eager))) > 2


@pytest.mark.parametrize("lora", [(), ("--lora",)], ids=["", "lora"])
def test_train_with_trainer(tmp_path, lora):
    for package in ("transformers", "accelerate", "peft"):
        pytest.importorskip(package)
    (tmp_path / "text").write_text(TEXT)
    options = "text --layers 2 --width 128 --length 32 --steps 4"
    same_losses(tmp_path, "train_with_trainer.py", *options.split(), *lora)
    assert any(tmp_path.glob("llama/*.safetensors"))


@pytest.mark.parametrize("package", ["accelerate", "lightning"])
def test_train_with(package, tmp_path):
    pytest.importorskip(package)
    same_losses(tmp_path, f"train_with_{package}.py", "--steps", 2, "--width", 128)
