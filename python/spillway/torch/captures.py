"""The captures of one function, and their plans."""

from .errors import ChangedError
from .supplying import fitting


class Captures:
    """The captures of what a source runs: one for each shape of its batches, in each state of what is
    around it. `plan_for` plans a capture."""

    def __init__(self, source, max_shapes, plan_for):
        self._source, self._max_shapes, self._plan_for = source, max_shapes, plan_for
        self.example = None  # the first capture
        self.variants = [_Variant(None)]
        self._variant = self.variants[0]

    @property
    def steps(self):
        """The captures by shape, in the present state of what is around them."""
        return self._variant.steps

    @property
    def plans(self):
        """Their plans, by shape."""
        return self._variant.plans

    @property
    def await_capture(self):
        """Whether a change has been followed that no capture has seen yet."""
        return self._variant.example is None

    def begin(self, step):
        """Takes a first capture."""
        self.example = self._variant.example = self._variant.steps[step.shapes] = step

    def shapes_of(self, batch):
        """Returns the shapes of a batch, which is captured if it is the first one. Where the optimizer has other
        settings, or its code branches otherwise, than in all captures for these shapes, they have another name."""
        if self.example is None:
            self.begin(self._source.capture(batch))
        shapes = self.example.shapes_of(batch)
        steps = {key: step for key, step in self.steps.items() if step.shapes == shapes}
        found = fitting(steps)
        if found:
            return found[0]
        return (*shapes, f"settings or branches of the optimizer, {len(steps)}") if steps else shapes

    def use(self, plan):
        """Has all planned again, but for the first capture, which has this plan if it is given."""
        for variant in self.variants:
            is_first = plan is not None and variant.example is self.example
            variant.plans = {self.example.shapes: plan} if is_first else {}

    def change(self):
        """Returns what has changed around the captures, or None."""
        return self._variant.change()

    def vary(self, change):
        """Goes on with the captures of other surroundings, in which the next call captures."""
        changes = [(variant, variant.change()) for variant in self.variants]
        same = [variant for variant, its in changes if its is None]
        self.variants = [v for v, its in changes if v.steps and (not its or its.kind != "replaced")]
        if not same:
            same = [_Variant(next((its for v, its in changes if v.steps), change))]
            self.variants += same
        self._variant = same[0]

    def planned(self, shapes, batch):
        """Returns the step and the plan for a batch's shapes. An error changes nothing."""
        variant = self._variant
        if shapes not in variant.steps:
            count = sum(len(v.steps) for v in self.variants)
            if count >= self._max_shapes:
                self._refuse_one_more(shapes)
        if shapes not in variant.plans:
            if variant.example is not None:
                variant.example.refuse_other_scaler()
            step = variant.steps.get(shapes) or self._source.capture(batch)
            variant.plans[shapes] = self._plan_for(step)
            variant.steps[shapes] = step
            variant.example = variant.example or step
        return variant.steps[shapes], variant.plans[shapes]

    def _refuse_one_more(self, shapes):
        if self._variant.example is None:
            raise ChangedError(
                f"{self._variant.because.sentence}: that would be one capture more than the"
                f" {self._max_shapes} that a step may have; put what changes into the batch as a"
                " tensor, or raise max_shapes"
            )
        raise ValueError(
            f"{shapes} would be one shape more than the {self._max_shapes} that a step may"
            " have: pad batches to fewer shapes, give numbers that change as tensors, or raise"
            " max_shapes"
        )


class _Variant:
    """The captures of one state of the model, the optimizer and the functions: one for each shape.
    There are none yet where a change, `because` of which it began, has not been captured."""

    def __init__(self, because):
        self.because, self.example = because, None
        self.steps, self.plans = {}, {}

    def change(self):
        """Returns what has changed since the captures, or None."""
        if self.example is None:
            return self.because
        surroundings = self.example.surroundings
        return surroundings and surroundings.change()
