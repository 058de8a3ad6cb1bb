"""Training of PyTorch models within a budget of device memory.

    step = spillway.torch.capture(model, loss_fn, optimizer, example_batch)
    plan = step.plan(budget="8GiB")
    train = step.compile(plan)
    for batch in data:
        loss = train(batch)
    train.sync()
"""

from .errors import AllocationError, CaptureError
from .step import Step, Training, capture

__all__ = ["AllocationError", "CaptureError", "Step", "Training", "capture"]
