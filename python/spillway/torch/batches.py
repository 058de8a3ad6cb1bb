"""What a step may not do with its batch, which is the caller's."""

import torch
from torch.utils._pytree import tree_leaves

from .errors import CaptureError, quoted


def refuse_gradients(example_batch):
    """Refuses a batch that wants gradients, which no iteration hands back."""
    for k, value in enumerate(tree_leaves(example_batch)):
        if isinstance(value, torch.Tensor) and value.requires_grad:
            raise CaptureError(
                f"batch.{k} requires a gradient, but a step returns none for its batch: pass it by"
                f" `.detach()`. Where the loss needs the gradient, have loss_fn take"
                " `x.clone().requires_grad_()`"
            )


def refuse_writes(recorder):
    """Refuses ops that write into the batch, of which an iteration has a copy."""
    for call in recorder.calls:
        for tensor in call.writes:
            storage = recorder.storages[tensor]
            if storage.kind == "given" and storage.name.startswith("batch"):
                raise CaptureError(
                    f"{quoted(call.line)}: writes into {storage.name}, but the caller's tensor would"
                    " keep its values: write into a copy (`x = x.clone()`)"
                )
