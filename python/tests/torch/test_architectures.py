"""Small models of many architectures of transformers, in a captured step and in the usual loop: the bits of eager mode.
`SPILLWAY_MODELS=1` trains all of them, and not only one in 25; `SPILLWAY_MODELS=5` one in five."""

import os

import pytest
import torch
from eager import compare, losses_of, same, same_dicts
from models import adamw
from test_compiled_training import compiled_anew, twins  # noqa: F401

import spillway.torch

transformers = pytest.importorskip("transformers")

pytestmark = pytest.mark.short

WIDTHS = dict(hidden_size=32, num_hidden_layers=2, num_attention_heads=4, intermediate_size=64)
WORDS = dict(vocab_size=60, pad_token_id=0, bos_token_id=1, eos_token_id=2)
ENCODER = WIDTHS | WORDS | dict(max_position_embeddings=70)
DECODER = ENCODER | dict(use_cache=False)
GROUPED = DECODER | dict(num_key_value_heads=2)
HEADS = GROUPED | dict(head_dim=8)
EXPERTS = HEADS | dict(num_experts=4, num_local_experts=4, num_experts_per_tok=2, moe_intermediate_size=32)
OF_GPT = WORDS | dict(n_embd=32, n_layer=2, n_head=4, n_positions=64, use_cache=False)
BOTH = dict(encoder_layers=2, decoder_layers=2, encoder_attention_heads=4, decoder_attention_heads=4)
SEQUENCES = WORDS | BOTH | dict(d_model=32, encoder_ffn_dim=64, decoder_ffn_dim=64, use_cache=False)
SPEECH = dict(num_mel_bins=8, max_source_positions=20, decoder_start_token_id=1, begin_suppress_tokens=None)
PICTURES = WIDTHS | dict(image_size=32, patch_size=8)
PYRAMID = dict(image_size=32, patch_size=4, embed_dim=16, depths=[2, 2], num_heads=[2, 4], window_size=4)
STAGES = dict(hidden_sizes=[8, 16, 32, 32], depths=[1, 1, 2, 1])
SERIES = dict(num_input_channels=2, context_length=16, patch_length=4, prediction_length=4)
DECODED = {f"decoder_{name}": size for name, size in WIDTHS.items()}


def words(k):
    x = torch.randint(3, 60, (2, 12))
    return dict(input_ids=x, labels=x)


def padded(k):
    mask = torch.ones(2, 12, dtype=torch.long)
    mask[1, 8:] = 0
    return words(k) | dict(attention_mask=mask)


def classes(k):
    return dict(input_ids=words(k)["input_ids"], labels=torch.randint(2, (2,)))


def pictures(k):
    return dict(pixel_values=torch.randn(2, 3, 32, 32), labels=torch.randint(2, (2,)))


def masked(k):
    return dict(pixel_values=torch.randn(2, 3, 32, 32))


def segments(k):
    return dict(pixel_values=torch.randn(2, 3, 64, 64), labels=torch.randint(4, (2, 64, 64)))


def captions(k):
    return masked(k) | dict(input_ids=words(k)["input_ids"], return_loss=True)


def spoken(k):
    return dict(input_features=torch.randn(2, 8, 40), labels=words(k)["labels"])


def series(k):
    return dict(past_values=torch.randn(2, 16, 2), future_values=torch.randn(2, 4, 2))


MODELS = [
    ("LlamaForCausalLM", HEADS, padded),
    ("Qwen2ForCausalLM", GROUPED, words),
    ("Qwen3ForCausalLM", HEADS, words),
    ("MistralForCausalLM", HEADS | dict(sliding_window=4), padded),
    ("GemmaForCausalLM", HEADS, words),
    ("Gemma2ForCausalLM", HEADS, words),
    ("Gemma3ForCausalLM", HEADS, words),
    ("PhiForCausalLM", GROUPED, words),
    ("Phi3ForCausalLM", GROUPED, words),
    ("GPTNeoXForCausalLM", DECODER, words),
    ("GPTJForCausalLM", OF_GPT | dict(rotary_dim=8), words),
    ("OPTForCausalLM", DECODER | dict(ffn_dim=64, word_embed_proj_dim=32), words),
    ("BloomForCausalLM", DECODER, words),
    ("FalconForCausalLM", DECODER, words),
    *(
        ("MixtralForCausalLM", EXPERTS | dict(experts_implementation=way), words)
        for way in ("grouped_mm", "batched_mm")
    ),
    ("Qwen3MoeForCausalLM", EXPERTS | dict(experts_implementation="batched_mm"), words),
    ("GptOssForCausalLM", EXPERTS | dict(experts_implementation="batched_mm"), words),
    ("Olmo2ForCausalLM", GROUPED, words),
    ("GraniteForCausalLM", GROUPED, words),
    ("CohereForCausalLM", GROUPED, words),
    ("StableLmForCausalLM", GROUPED, words),
    ("SmolLM3ForCausalLM", GROUPED, words),
    ("MambaForCausalLM", DECODER | dict(state_size=4), words),
    ("Mamba2ForCausalLM", DECODER | dict(state_size=8, num_heads=8, head_dim=8, n_groups=2, chunk_size=4), words),
    ("RwkvForCausalLM", DECODER | dict(context_length=64), words),
    ("BertForSequenceClassification", ENCODER, classes),
    ("BertForMaskedLM", ENCODER, padded),
    ("RobertaForSequenceClassification", ENCODER, classes),
    ("DistilBertForSequenceClassification", WORDS | dict(dim=32, n_layers=2, n_heads=4, hidden_dim=64), classes),
    ("ElectraForSequenceClassification", ENCODER | dict(embedding_size=32), classes),
    ("DebertaV2ForMaskedLM", ENCODER | dict(relative_attention=True, pos_att_type=["p2c", "c2p"]), padded),
    ("AlbertForSequenceClassification", ENCODER | dict(embedding_size=16), classes),
    ("ModernBertForMaskedLM", ENCODER, padded),
    ("XLNetForSequenceClassification", WORDS | dict(d_model=32, n_layer=2, n_head=4, d_inner=64), classes),
    ("T5ForConditionalGeneration", DECODER | dict(d_kv=8, d_ff=64, decoder_start_token_id=0), padded),
    ("BartForConditionalGeneration", SEQUENCES, padded),
    ("WhisperForConditionalGeneration", SEQUENCES | SPEECH, spoken),
    ("ViTForImageClassification", PICTURES, pictures),
    ("DeiTForImageClassification", PICTURES, pictures),
    ("BeitForImageClassification", PICTURES, pictures),
    ("Dinov2ForImageClassification", PICTURES, pictures),
    ("SwinForImageClassification", PYRAMID, pictures),
    ("Swinv2ForImageClassification", PYRAMID, pictures),
    ("ConvNextV2ForImageClassification", STAGES, pictures),
    ("SegformerForSemanticSegmentation", STAGES | dict(decoder_hidden_size=16, num_labels=4), segments),
    ("CLIPModel", dict(text_config=ENCODER, vision_config=PICTURES, projection_dim=16), captions),
    ("SiglipModel", dict(text_config=ENCODER, vision_config=PICTURES), captions),
    ("ViTMAEForPreTraining", PICTURES | DECODED, masked),
    ("PatchTSTForPrediction", SERIES, series),
]
# It computes otherwise if it is compiled, also by the backend "eager".
ASKS = {"MambaForCausalLM"}
SOME = MODELS[:: int(os.environ.get("SPILLWAY_MODELS", 25))]


def maker(name, options):
    kind = getattr(transformers, name)
    return lambda: kind(kind.config_class(**options)).train()


def loss(model, batch):
    return model(**batch).loss


@pytest.mark.parametrize("name, options, batches", SOME)
def test_a_captured_step(name, options, batches):
    compare(maker(name, options), loss, adamw, batches, budget="35%", steps=3)


@pytest.mark.parametrize("name, options, batches", [one for one in SOME if one[0] not in ASKS])
def test_the_usual_loop(name, options, batches):
    eager, model, planned = twins(maker(name, options))
    optimizers = adamw(eager), spillway.torch.optimizer(adamw(model))
    data, losses = [batches(k) for k in range(3)], []
    for called, optimizer in zip((eager, planned), optimizers):
        torch.manual_seed(1)
        losses.append(losses_of(called, loss, optimizer, data))
    for k, pair in enumerate(zip(*losses)):
        same(*pair, f"loss {k}")
    same_dicts(model.state_dict(), eager.state_dict(), "model")
