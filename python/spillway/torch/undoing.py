"""Puts the states back that a failed iteration has written.

Copied are the states that are written before the last op that may fail because of the values that
it reads: mostly running statistics. What comes after it, such as the optimizer's updates, fails only
where memory or a library does.
"""

from .memory import bytes_of


class Undo:
    """Copies of states, by name. Those that ops overwrite without reading them are always kept:
    their last values are nowhere else while an iteration runs."""

    def __init__(self):
        self._last = {}  # of states that are overwritten
        self._made = {}  # in this iteration
        self._copies = {}
        self._written = set()

    def begin(self):
        """Begins an iteration."""
        self._made, self._copies, self._written = {}, {}, set()

    def before(self, storage, memory):
        """Notes that an op writes a state. `memory` returns its bytes, to be copied; it is None where
        nothing can fail any more because of values."""
        name = storage.name
        if memory is not None and name not in self._written:
            self._copies[name] = memory().clone()
        self._written.add(name)

    def overwritten(self, storage, memory):
        """Copies the value of a state that an op has overwritten."""
        self._made[storage.name] = memory.clone()

    def commit(self):
        """Ends an iteration that is complete."""
        if self._made:
            self._last.update(self._made)
        self._copies = {}

    def forget(self, storage):
        """Notes that a state was given another value."""
        self._last.pop(storage.name, None)

    def values(self, states, overwritten):
        """Returns pairs of a state's number and its bytes before the iteration, for all that differ
        from them; None where one is not known. `states` has numbers, storages and who holds them."""
        found = []
        for number, storage, is_held in states:
            name = storage.name
            if number in overwritten:
                value = self._last.get(name)
                if value is None and is_held:
                    return None
                found.append((number, bytes_of(storage.value if value is None else value)))
            elif name in self._written:
                if name not in self._copies:
                    return None
                found.append((number, bytes_of(self._copies[name])))
        return found
