"""Memory that an op allocates while it runs."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Place:
    """A result that an op makes in its planned memory: the number of the result among the op's results, and the number
    and the bytes of the segment that PyTorch takes for it."""

    result: int
    segment: int
    nbytes: int

    def at(self, address):
        """Returns the segment with its address."""
        return self.segment, self.nbytes, address


@dataclass(frozen=True)
class Workspace:
    """The bytes that an op allocates while it runs, and the places of its results, whose bytes do not count."""

    nbytes: int
    places: tuple[Place, ...] = ()
