"""Records the steps of optimizers, which `loss_fn` calls, or `capture` after it."""

from contextlib import contextmanager

import torch
from torch.optim.optimizer import register_optimizer_step_pre_hook
from torch.utils._python_dispatch import _disable_current_modes

from .counting import Entries, is_equal, places_of, settings
from .errors import CaptureError, quoted_line
from .storing import MISSING
from .substitutes import functions_of_numbers
from .supplying import Supplied
from .swapping import SwappedOptimizer, refuse_first_step, rows_in_module


class RecordedOptimizer:
    """Within it, an optimizer has fake parameters, and each call of its `step()` is recorded. `name` is its name in
    messages, `counts` are its numbers that earlier runs have found to change, and `without_states` are the optimizers
    that are known to make none."""

    def __init__(self, optimizer, counts, name, recorded, model, without_states):
        self.optimizer, self.counts, self.name = optimizer, counts, name
        self._recorder, self._fakes, self._model = recorded.recorder, recorded.fakes, model
        self.supplied = Supplied(self._recorder, optimizer, counts)
        self._swapped = SwappedOptimizer(optimizer, self._fakes, self.supplied)
        self._without_states = without_states
        self.steps = 0
        self._may_be_left_out = False  # by a scaler
        self.is_trial = False  # whether the run only found out something about the optimizer
        self._entries = self._changes = None  # what the optimizer had before its steps, and what they have changed

    def __enter__(self):
        self._swapped.__enter__()
        self._settings = self._present_settings()
        own = vars(self.optimizer)
        self._step, self._own_step = self.optimizer.step, own.get("step", MISSING)
        own["step"] = self._record
        return self

    def __exit__(self, *error):
        own = vars(self.optimizer)
        if self._own_step is MISSING:
            del own["step"]
        else:
            own["step"] = self._own_step
        self._swapped.__exit__()

    def parameters(self):
        """Returns the fake parameters."""
        return [p for group in self.optimizer.param_groups for p in group["params"]]

    def finish(self):
        """Ends a run. Refuses changes of settings outside of the optimizer's steps."""
        if self._entries is not None:
            self._fakes.replaced += self._entries.replaced()
            self.supplied.after = self.counts.take(self.optimizer, self._changes, self._entries.now())
            self.is_trial |= self.supplied.after is None
        if self.is_trial:
            return
        for count, _ in self.supplied.changed() if self._may_be_left_out else ():
            raise CaptureError(
                f"{count.places[0]} of {self.name} is a number that Python changes in each step, but a scaler may"
                " leave steps out: capture without a scaler, in bfloat16"
            )
        for place, value in self._present_settings().items():
            before = self._settings.get(place, MISSING)
            if not is_equal(before, value) or place.key == "lr" and self._is_written(before):
                raise CaptureError(
                    f"the step sets {place.key} of {self.name}'s group {place.owner}, but a captured step has the same"
                    " settings in all iterations: set learning rates between them (`scheduler.step()` after"
                    " `train(batch)`)"
                )

    def _is_written(self, rate):
        recorder = self._recorder
        return isinstance(rate, torch.Tensor) and recorder.storages[recorder.view(rate).tensor].writes > 0

    def _record(self, closure=None):
        """Records a step, in place of the optimizer's own."""
        _refuse_in_backward(self.optimizer)
        if closure is not None:
            raise CaptureError(
                f"{quoted_line()}: step() with a closure cannot be captured: compute the loss, call its backward(),"
                " and then step()"
            )
        with _as_outside():
            is_initialised = self._swapped.initialise()
            if self.counts.add_steps(self.optimizer, self._swapped.states):
                self.is_trial, self.steps = True, self.steps + 1
                return
        self._may_be_left_out |= self._recorder.may_leave_out
        self._entries = self._entries or Entries(self.optimizer, self._fakes.real)
        self._entries.add()
        in_module = rows_in_module(self._model, self._fakes)
        with in_module, functions_of_numbers(self.optimizer), self._recorder.updating():
            if is_initialised or self.optimizer in self._without_states:
                self._step()
            else:
                self._try_steps()
        self._changes = self._entries.changes()
        self.steps += 1

    def _try_steps(self):
        """Finds out whether an optimizer without known states makes any in its first step."""
        before = Entries(self.optimizer, self._fakes.real)
        try:
            self._step()
            self._step()
        except CaptureError:
            raise
        except Exception as error:
            refuse_first_step(self.optimizer, error)
        if any(self.optimizer.state.values()) or self.counts.other_change(before.changes()):
            refuse_first_step(self.optimizer)
        self._without_states.append(self.optimizer)
        self.is_trial = True

    def _present_settings(self):
        known = places_of(self.supplied.counts)
        return {place: value for place, value in settings(self.optimizer) if place not in known}


@contextmanager
def _as_outside():
    """Within it, code runs on real tensors, as it does outside of a capture."""
    with torch._C.DisableTorchFunction(), _disable_current_modes():
        yield


def _refuse_in_backward(optimizer):
    if torch._C._current_graph_task_id() != -1:
        raise CaptureError(
            f"{quoted_line()}: the step of {type(optimizer).__name__} in a hook of the backward pass: give one"
            " optimizer all parameters, and capture that"
        )


@contextmanager
def no_other_steps(recorder):
    """Within it, the step of an optimizer that `capture` does not know is refused."""

    def refuse(optimizer, args, kwargs):
        if not recorder.is_updating:
            _refuse_in_backward(optimizer)
            raise CaptureError(
                f"{quoted_line()}: the step of {type(optimizer).__name__}, which the capture does not know: give"
                " capture a list of all optimizers"
            )

    hook = register_optimizer_step_pre_hook(refuse)
    try:
        yield
    finally:
        hook.remove()
