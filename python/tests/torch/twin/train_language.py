"""Language: transformers, recurrent networks, embeddings."""

import math

import pytest
import torch
from parts import adamw, next_token, sgd, tokens
from sides import refused, same
from torch import nn
from torch.nn import functional as F


class Decoder(nn.Module):
    def __init__(self, words=20, width=16):
        super().__init__()
        self.embedding = nn.Embedding(words, width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.head = nn.Linear(width, words, bias=False)
        self.head.weight = self.embedding.weight

    def forward(self, x):
        x = self.embedding(x)
        q, k, v = (t.unflatten(-1, (2, 8)).transpose(1, 2) for t in self.qkv(x).chunk(3, -1))
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.head(x + self.out(y.transpose(1, 2).flatten(2)))


@same(short=True)
def a_decoder_with_tied_weights(side):
    model = Decoder()
    side.train(model, next_token, adamw(model), tokens())


@same
def gradients_accumulated_in_the_loss(side):
    def loss_fn(m, x):
        return sum(next_token(m, part) for part in x.chunk(3)) / 3

    model = Decoder()
    side.train(model, loss_fn, adamw(model), tokens())


@same
def gradients_accumulated_by_backward_in_the_loss(side):
    def loss_fn(m, x):
        first, second = x[:1], x[1:]
        (next_token(m, first) / 2).backward()
        return next_token(m, second) / 2

    model = Decoder()
    side.train(model, loss_fn, adamw(model), tokens())


@same
def rotary_positions_cached_in_a_buffer(side):
    class Rotary(nn.Module):
        def __init__(self):
            super().__init__()
            angles = torch.outer(torch.arange(10), 1e4 ** (-torch.arange(0, 16, 2) / 16))
            self.register_buffer("cos", angles.cos(), persistent=False)
            self.register_buffer("sin", angles.sin(), persistent=False)
            self.embedding, self.head = nn.Embedding(20, 16), nn.Linear(16, 20)

        def forward(self, x):
            a, b = self.embedding(x).chunk(2, -1)
            cos, sin = self.cos[: x.shape[1]], self.sin[: x.shape[1]]
            return self.head(torch.cat([a * cos - b * sin, a * sin + b * cos], -1))

    model = Rotary()
    side.train(model, next_token, adamw(model), tokens())


@same
def labels_that_are_ignored_and_padding(side):
    class Padded(nn.Module):
        def __init__(self):
            super().__init__()
            self.embedding, self.head = nn.Embedding(20, 16, padding_idx=0), nn.Linear(16, 20)

        def forward(self, x):
            return self.head(self.embedding(x))

    def loss_fn(m, x):
        labels = x[:, 1:].masked_fill(x[:, 1:] < 4, -100)
        return F.cross_entropy(m(x[:, :-1]).flatten(0, 1), labels.flatten(), ignore_index=-100)

    model = Padded()
    side.train(model, loss_fn, adamw(model), tokens())


@same
def embeddings_with_a_largest_norm(side):
    model = nn.Sequential(nn.Embedding(20, 8, max_norm=1.0), nn.Linear(8, 20))
    side.train(model, next_token, sgd(model), tokens())


@same
def bags_of_words(side):
    class Bag(nn.Module):
        def __init__(self):
            super().__init__()
            self.bag, self.head = nn.EmbeddingBag(20, 8, mode="mean"), nn.Linear(8, 4)

        def forward(self, x):
            return self.head(self.bag(x))

    model = Bag()
    side.train(model, lambda m, x: F.cross_entropy(m(x), x[:, 0] % 4), adamw(model), tokens())


@refused("sparse")
def sparse_embeddings(side):
    model = nn.Sequential(nn.Embedding(20, 8, sparse=True), nn.Linear(8, 20))
    side.train(model, next_token, sgd(model), tokens())


@same
def a_gru_and_an_rnn(side):
    class Recurrent(nn.Module):
        def __init__(self):
            super().__init__()
            self.embedding, self.head = nn.Embedding(20, 8), nn.Linear(12, 20)
            self.gru, self.rnn = nn.GRU(8, 12, 2, batch_first=True, dropout=0.1), nn.RNN(12, 12, batch_first=True)

        def forward(self, x):
            return self.head(self.rnn(self.gru(self.embedding(x))[0])[0])

    model = Recurrent()
    side.train(model, next_token, adamw(model), tokens())


@same
def a_recurrent_cell_unrolled(side):
    class Unrolled(nn.Module):
        def __init__(self):
            super().__init__()
            self.embedding, self.cell, self.head = nn.Embedding(20, 8), nn.LSTMCell(8, 12), nn.Linear(12, 20)

        def forward(self, x):
            h = c = torch.zeros(len(x), 12)
            out = []
            for word in self.embedding(x).unbind(1):
                h, c = self.cell(word, (h, c))
                out.append(h)
            return self.head(torch.stack(out, 1))

    model = Unrolled()
    side.train(model, next_token, adamw(model), tokens())


@refused("depends on data")
def packed_sequences(side):
    class Packed(nn.Module):
        def __init__(self):
            super().__init__()
            self.embedding, self.lstm, self.head = nn.Embedding(20, 8), nn.LSTM(8, 12), nn.Linear(12, 20)

        def forward(self, x, lengths):
            packed = nn.utils.rnn.pack_padded_sequence(
                self.embedding(x), lengths, batch_first=True, enforce_sorted=False
            )
            return self.head(nn.utils.rnn.pad_packed_sequence(self.lstm(packed)[0])[0])

    model = Packed()
    data = [(x, torch.tensor([10, 7, 4])) for x in tokens()]
    side.train(model, lambda m, b: m(*b).square().mean(), adamw(model), data)


@same
def state_carried_from_batch_to_batch_in_a_buffer(side):
    class Stateful(nn.Module):
        def __init__(self):
            super().__init__()
            self.embedding = nn.Embedding(20, 8)
            self.gru, self.head = nn.GRU(8, 12, batch_first=True), nn.Linear(12, 20)
            self.register_buffer("hidden", torch.zeros(1, 3, 12))

        def forward(self, x):
            out, hidden = self.gru(self.embedding(x), self.hidden.clone())
            self.hidden.copy_(hidden.detach())
            return self.head(out)

    model = Stateful()
    side.train(model, next_token, adamw(model), tokens())


@refused("depends on data")
def an_adaptive_softmax(side):
    class Adaptive(nn.Module):
        def __init__(self):
            super().__init__()
            self.embedding, self.loss = nn.Embedding(20, 8), nn.AdaptiveLogSoftmaxWithLoss(8, 20, [5, 10])

    def loss_fn(m, x):
        return m.loss(m.embedding(x[:, :-1]).flatten(0, 1), x[:, 1:].flatten()).loss

    model = Adaptive()
    side.train(model, loss_fn, adamw(model), tokens())


@same
def a_transformers_model_with_an_attention_mask(side):
    t = pytest.importorskip("transformers")
    size = dict(n_layer=1, n_embd=16, n_head=2, n_positions=16, bos_token_id=0, eos_token_id=0)
    model = t.GPT2LMHeadModel(t.GPT2Config(vocab_size=20, **size)).train()

    def loss_fn(m, batch):
        return m(input_ids=batch["x"], attention_mask=batch["mask"], labels=batch["x"]).loss

    data = [dict(x=x, mask=torch.arange(10).expand(3, 10) < 8) for x in tokens()]
    side.train(model, loss_fn, adamw(model), [{k: v.long() for k, v in d.items()} for d in data])


@same
def preferences_against_a_frozen_reference(side):
    model, reference = Decoder(), Decoder().requires_grad_(False)

    def score(m, x):
        return -F.cross_entropy(m(x[:, :-1]).transpose(1, 2), x[:, 1:], reduction="none").sum(1)

    def loss_fn(m, batch):
        good, bad = batch
        with torch.no_grad():
            base = score(reference, good) - score(reference, bad)
        return -F.logsigmoid(0.1 * (score(m, good) - score(m, bad) - base)).mean()

    side.train(model, loss_fn, adamw(model), list(zip(tokens(), tokens())))


@refused("Python needs the value of a tensor")
def a_loss_that_is_skipped_where_it_is_not_finite(side):
    def loss_fn(m, x):
        loss = next_token(m, x)
        if not torch.isfinite(loss):
            return loss * 0
        return loss

    model = Decoder()
    side.train(model, loss_fn, adamw(model), tokens())


@same
def masked_words_drawn_at_random(side):
    def loss_fn(m, x):
        mask = torch.rand(x.shape) < 0.3
        out = m(torch.where(mask, torch.zeros_like(x), x))
        losses = F.cross_entropy(out.flatten(0, 1), x.flatten(), reduction="none")
        return (losses * mask.flatten()).sum() / mask.sum().clamp(min=1)

    model = Decoder()
    side.train(model, loss_fn, adamw(model), tokens())


@same
def positions_by_math_functions_of_shapes(side):
    def loss_fn(m, x):
        scale = math.sqrt(x.shape[1]) / math.log(len(x) + 1)
        return next_token(m, x) * scale

    model = Decoder()
    side.train(model, loss_fn, adamw(model), tokens())


@same
def batches_of_several_lengths(side):
    model = Decoder()
    side.train(model, next_token, adamw(model), [*tokens(2), *tokens(2, length=7), *tokens(1)])
