"""What an op allocates while it runs."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Place:
    """A result that an op makes where it is planned: which of its results it is, and the number and the bytes of the
    segment that PyTorch takes for it."""

    result: int
    segment: int
    nbytes: int

    def at(self, address):
        """Returns the segment with its address."""
        return self.segment, self.nbytes, address


@dataclass(frozen=True)
class Workspace:
    """What an op allocates while it runs, besides results in their places."""

    nbytes: int
    places: tuple[Place, ...] = ()
