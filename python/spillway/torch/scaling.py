"""Scales the loss of a step by a `GradScaler`, whose scale is a state of the step."""

import copy
from collections import defaultdict
from contextlib import contextmanager

from torch.amp.grad_scaler import GradScaler

from .errors import CaptureError

SETTINGS = "_growth_factor", "_backoff_factor", "_growth_interval"


class Scaling:
    """The argument `scaler` of `capture`: a scaler, or None."""

    def __init__(self, scaler):
        if not isinstance(scaler, GradScaler | None):
            raise CaptureError(f"scaler is of type {type(scaler).__name__}: give a torch.amp.GradScaler")
        is_enabled = scaler is not None and scaler.is_enabled()
        self.scaler = scaler if is_enabled else GradScaler("cpu", enabled=False)
        self.is_enabled = is_enabled

    def begin(self, device):
        """Gives the scaler its tensors, on a device, if it has none yet."""
        if self.is_enabled and self.scaler._scale is None:
            self.scaler._lazy_init_scale_growth_tracker(device)

    @contextmanager
    def swapped(self, fakes):
        """Within it, the scaler has fake tensors, and records an optimizer's step as ops that do nothing if a
        gradient is not finite."""
        if not self.is_enabled:
            yield
            return

        def step(optimizer, state):
            (found_inf,) = state["found_inf_per_device"].values()
            with fakes.recorder.unless(found_inf):
                optimizer.step()

        scaler = self.scaler
        with self.kept():
            scaler._scale = fakes.of(scaler._scale, "scaler.scale")
            scaler._growth_tracker = fakes.of(scaler._growth_tracker, "scaler.growth_tracker")
            scaler._per_optimizer_states = defaultdict(scaler._per_optimizer_states.default_factory)
            scaler._maybe_opt_step = step
            yield

    @contextmanager
    def kept(self):
        """Puts back what the scaler holds now."""
        own = vars(self.scaler)
        before = dict(own)
        try:
            yield
        finally:
            own.clear()
            own.update(before)

    def is_used(self, recorder):
        """Returns whether a recorded op uses the scale, within `swapped`."""
        scale = recorder.view(self.scaler._scale).tensor if self.is_enabled else None
        return any(scale in call.reads for call in recorder.calls)

    def beside(self):
        """Returns a copy of the scaler that shares its tensors."""
        if not self.is_enabled:
            return self.scaler
        scaler = copy.deepcopy(self.scaler)
        scaler._scale, scaler._growth_tracker = self.scaler._scale, self.scaler._growth_tracker
        return scaler

    def constants(self):
        """Returns the settings that may not change between iterations, by name."""
        names = SETTINGS if self.is_enabled else ()
        return {name.removeprefix("_"): getattr(self.scaler, name) for name in names}
