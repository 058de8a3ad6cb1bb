"""Training and inference of PyTorch models within a budget of device memory.

    model = torch.compile(model, backend="spillway", options={"budget": "8GiB"})
    optimizer = spillway.torch.optimizer(torch.optim.AdamW(model.parameters(), fused=True))

keeps the training loop: forward pass, backward pass and the optimizer's step are one plan.

    step = spillway.torch.capture(model, loss_fn, optimizer, example_batch)
    plan = step.plan(budget="8GiB")
    with step.compile(plan) as train:
        for batch in data:
            loss = train(batch)

captures a whole step. `estimate(model, loss_fn, optimizer, example_batch, machine="rtx4090")` tells what it takes on
a device that is not there. `capture_inference(model, example_batch)` returns such a step of a model without
gradients.
"""

from .versions import refuse_older

refuse_older()  # before a module that needs what older ones lack

from .capturing import capture, capture_inference
from .errors import (
    AllocationError,
    BatchError,
    CaptureError,
    ChangedError,
    LostError,
    ProcessError,
)
from .estimating import Estimate, estimate
from .optimizing import optimizer
from .roofline import Speeds
from .running import Compiled
from .sharding import full_state_dict
from .step import Step

__all__ = [
    "AllocationError",
    "BatchError",
    "CaptureError",
    "ChangedError",
    "Compiled",
    "Estimate",
    "LostError",
    "ProcessError",
    "Speeds",
    "Step",
    "capture",
    "capture_inference",
    "estimate",
    "full_state_dict",
    "optimizer",
]
