"""Names of constants: the same in all captures of a step, so that its plans share them."""

import torch

from .memory import bytes_of


class Constants:
    """The constants of all captures of a step. Those of one name have one value."""

    def __init__(self):
        self._known = []

    def name(self, storages):
        """Names the constants of one capture, given as storages of the graph."""
        free = list(range(len(self._known)))
        for storage in storages:
            number = next((n for n in free if _is_same(self._known[n], storage)), None)
            if number is None:
                number = len(self._known)
                self._known.append(storage)
            else:
                free.remove(number)
            storage.name = f"constant {number}"


def _is_same(one, other):
    """Returns whether two constants are one tensor, or always have the same bytes."""
    first, second = (torch.frombuffer(bytes_of(s.value), dtype=torch.uint8) for s in (one, other))
    if first.data_ptr() == second.data_ptr():
        return True
    return not one.writes and not other.writes and torch.equal(first, second)
