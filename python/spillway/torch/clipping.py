"""Clips gradients between a backward pass and the optimizer's step."""

import math

from torch.nn.utils import clip_grad_norm_

from .errors import CaptureError


class Clipping:
    """What `clip_grad` of `capture` asks for: a norm, a function of the parameters, or nothing."""

    def __init__(self, clip_grad):
        self._function = clip_grad if callable(clip_grad) else None
        self.max_norm = None if callable(clip_grad) else clip_grad
        if self.max_norm is not None:
            _refuse_others(self.max_norm)

    @property
    def is_wanted(self):
        """Whether gradients are clipped at all."""
        return self._function is not None or self.max_norm is not None

    def functions(self):
        """Returns the user's function, by name, if there is one."""
        return {} if self._function is None else dict(clip_grad=self._function)

    def clip(self, parameters):
        """Clips the gradients of parameters."""
        if self._function is not None:
            self._function(parameters)
        elif self.max_norm is not None:
            # PyTorch chooses so for real tensors, but not for fake ones.
            on_cuda = all(p.device.type == "cuda" for p in parameters)
            clip_grad_norm_(parameters, self.max_norm, foreach=on_cuda or None)


def _refuse_others(max_norm):
    way = 'give the largest norm of all gradients together, such as 1.0, or a function of the parameters'
    if isinstance(max_norm, bool) or not isinstance(max_norm, (int, float)):
        raise CaptureError(f"clip_grad is of type {type(max_norm).__name__}: {way}")
    if not (math.isfinite(max_norm) and max_norm > 0):
        raise CaptureError(f"clip_grad={max_norm}: {way}")
