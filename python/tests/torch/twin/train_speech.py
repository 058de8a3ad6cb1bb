"""Speech, signals, and complex numbers."""

import torch
from parts import adamw
from sides import refused, same
from torch import nn
from torch.nn import functional as F


def waves(steps=5):
    return [torch.randn(2, 256) for _ in range(steps)]


@same
def spectrograms(side):
    window = torch.hann_window(32)

    def loss_fn(m, x):
        spectrum = torch.stft(x, 32, 8, window=window, return_complex=True).abs()
        return F.mse_loss(m(spectrum.transpose(1, 2)), spectrum.transpose(1, 2))

    model = nn.Sequential(nn.Linear(17, 12), nn.Tanh(), nn.Linear(12, 17))
    side.train(model, loss_fn, adamw(model), waves())


@refused("plain strided tensors")
def filters_on_complex_spectra(side):
    class Filter(nn.Module):
        def __init__(self):
            super().__init__()
            self.gain = nn.Parameter(torch.randn(129, 2))

        def forward(self, x):
            return torch.fft.irfft(torch.fft.rfft(x) * torch.view_as_complex(self.gain), 256)

    model = Filter()
    side.train(model, lambda m, x: F.l1_loss(m(x), x.roll(1, 1)), adamw(model), waves())


@refused("plain strided tensors")
def complex_parameters(side):
    class Complex(nn.Module):
        def __init__(self):
            super().__init__()
            self.weight = nn.Parameter(torch.randn(8, 8, dtype=torch.complex64))

        def forward(self, x):
            return (x.to(torch.complex64) @ self.weight).abs()

    model = Complex()
    data = [torch.randn(4, 8) for _ in range(5)]
    side.train(model, lambda m, x: m(x).mean(), adamw(model), data)


@refused("plain strided tensors")
def conjugated_views(side):
    class Complex(nn.Module):
        def __init__(self):
            super().__init__()
            self.weight = nn.Parameter(torch.randn(8, 8, dtype=torch.complex64))

        def forward(self, x):
            return (x.to(torch.complex64) @ self.weight.conj().T.contiguous()).real

    model = Complex()
    data = [torch.randn(4, 8) for _ in range(5)]
    side.train(model, lambda m, x: m(x).square().mean(), adamw(model), data)


@same
def weight_norm_and_dilated_convolutions(side):
    norm = nn.utils.parametrizations.weight_norm
    model = nn.Sequential(
        norm(nn.Conv1d(1, 8, 3, dilation=2, padding=2)), nn.GLU(1), norm(nn.Conv1d(4, 1, 3, padding=1))
    )
    side.train(model, lambda m, x: F.mse_loss(m(x[:, None])[:, 0], x), adamw(model), waves())


@same
def mel_filters_by_einsum(side):
    bank = torch.rand(17, 6)

    def loss_fn(m, x):
        power = torch.stft(x, 32, 16, return_complex=True, window=torch.ones(32)).abs().square()
        mel = torch.einsum("bft,fm->btm", power, bank).add(1e-5).log()
        return m(mel).square().mean()

    model = nn.Sequential(nn.Linear(6, 8), nn.SiLU(), nn.Linear(8, 3))
    side.train(model, loss_fn, adamw(model), waves())


@refused("depends on data")
def connectionist_temporal_classification(side):
    def loss_fn(m, batch):
        x, y = batch
        logits = m(x).log_softmax(-1).transpose(0, 1)
        return F.ctc_loss(logits, y, torch.tensor([12, 12]), torch.tensor([4, 3]))

    model = nn.Linear(8, 10)
    data = [(torch.randn(2, 12, 8), torch.randint(1, 10, (2, 4))) for _ in range(5)]
    side.train(model, loss_fn, adamw(model), data)


@same
def spec_augment_by_tensors(side):
    def loss_fn(m, x):
        start = torch.randint(0, 200, (len(x), 1))
        where = torch.arange(256)
        x = x.masked_fill((where >= start) & (where < start + 40), 0.0)
        return m(x).square().mean()

    model = nn.Linear(256, 4)
    side.train(model, loss_fn, adamw(model), waves())


@same
def bidirectional_lstm(side):
    class Encoder(nn.Module):
        def __init__(self):
            super().__init__()
            self.lstm, self.head = nn.LSTM(8, 6, bidirectional=True, batch_first=True), nn.Linear(12, 4)

        def forward(self, x):
            out, (h, c) = self.lstm(x)
            return self.head(out.mean(1)) + h.sum() + c.mean()

    model = Encoder()
    data = [torch.randn(2, 12, 8) for _ in range(5)]
    side.train(model, lambda m, x: m(x).square().mean(), adamw(model), data)
