"""The usual training loop of whole models, its optimizer included, within 35 %: the bits of eager mode."""

import pytest
import torch
from models import classify
from test_compiled_training import compiled_anew, next_word, plans  # noqa: F401
from test_optimizer import Pair, fused, updates  # noqa: F401

pytestmark = pytest.mark.short


def with_labels(model, x):
    return model(input_ids=x, labels=x).loss


def tokens():
    return torch.randint(256, (4, 32))


def gpt2():
    t = pytest.importorskip("transformers")
    ends = dict(bos_token_id=0, eos_token_id=0)
    size = dict(vocab_size=256, n_layer=4, n_embd=64, n_head=2, n_positions=32)
    return t.GPT2LMHeadModel(t.GPT2Config(use_cache=False, **size, **ends)).train()


def llama_with_lora():
    t, peft = pytest.importorskip("transformers"), pytest.importorskip("peft")
    size = dict(hidden_size=64, num_hidden_layers=4, intermediate_size=128)
    heads = dict(num_attention_heads=2, num_key_value_heads=1)
    config = t.LlamaConfig(vocab_size=256, use_cache=False, **size, **heads)
    lora = peft.LoraConfig(r=8, lora_alpha=16, lora_dropout=0.1, target_modules=["q_proj", "v_proj"])
    return peft.get_peft_model(t.LlamaForCausalLM(config), lora).train()


def resnet50():
    return pytest.importorskip("torchvision").models.resnet50(num_classes=10).train()


def pictures():
    return torch.randn(2, 3, 32, 32), torch.randint(10, (2,))


MODELS = {
    "gpt2": (gpt2, next_word, tokens),
    "llama with lora": (llama_with_lora, with_labels, tokens),
    "resnet50": (resnet50, classify, pictures),
}


@pytest.mark.parametrize("name", MODELS)
def test_within_35_percent(name, plans, updates):  # noqa: F811
    make, loss_fn, batch = MODELS[name]
    trained = lambda model: fused(model, (p for p in model.parameters() if p.requires_grad))
    pair = Pair(make, trained, budget="35%", machine=None, fullgraph=True)
    data = [batch() for _ in range(3)]

    pair.loop(loss_fn, data)
    pair.check()
    (plan,) = plans
    assert plan.figures.peak_bytes <= plan.budget_bytes
    assert updates == dict(all=len(data), joined=len(data))
