"""Which session has the last value of each state.

Steps that share tensors, such as the two of a GAN, each have a session. The last that has written a
state holds it, until it hands its value over to the tensor.
"""

import ctypes
import weakref

import numpy as np

from .memory import bytes_of
from .pausing import version

# By identity of storages.
_HELD: weakref.WeakValueDictionary[int, "Held"] = weakref.WeakValueDictionary()
_SAMPLES = 8  # words of a state that each call looks at


class Held:
    """A state's tensor, and who has its last value: a session's owner, or the tensor itself."""

    def __init__(self, tensor):
        self.tensor = tensor
        self._storage = tensor.untyped_storage()  # which keeps its identity
        self._holder = None
        self.version = version(tensor)
        self.changes = 0  # how often it has had another value than the sessions know
        self.words = _words(tensor)
        self.look()

    @property
    def holder(self):
        """The owner of the session that has the last value; None where the tensor has it."""
        return self._holder and self._holder()

    @holder.setter
    def holder(self, owner):
        self._holder = owner and weakref.ref(owner)

    def look(self):
        """Takes the tensor's value as it is."""
        self.seen = self.words.copy()
        Changes.looks += 1

    def is_edited(self):
        """Returns whether others have written into the tensor since it was looked at. What is
        written through `.data` has no version, but mostly changes some words."""
        now = version(self.tensor)
        is_other = self.holder is None if now is None else now != self.version
        return is_other or not np.array_equal(self.words, self.seen)


def held(tensor):
    """Returns what is known of a tensor: the same for all that share its storage."""
    key = tensor.untyped_storage()._cdata
    known = _HELD.get(key)
    if known is None:
        known = _HELD[key] = Held(tensor)
    return known


def _words(tensor):
    """Returns some words of a tensor on the processor, as a part of its memory."""
    whole = bytes_of(tensor) if tensor.device.type == "cpu" else np.empty(0, np.uint8)
    words = whole[: len(whole) // 4 * 4].view(np.uint32) if len(whole) >= 4 else whole
    # An odd step does not stay within one column of a matrix.
    return words[:: max(1, len(words) // _SAMPLES) | 1][:_SAMPLES]


def overlook(tensor, seen):
    """Has it that a tensor was not written since it had a version: its value is as it was."""
    known = _HELD.get(tensor.untyped_storage()._cdata)
    if known is not None and known.version == seen:
        known.version = version(tensor)
        known.look()


class Changes:
    """Counts all changes of who holds what, and all looks at values, so that one comparison shows
    that there is none."""

    count = looks = 0


class States:
    """The states of one step, as its owner's session knows them."""

    def __init__(self, step, known):
        self.all = [
            (number, storage, held(storage.value))
            for number, storage in enumerate(step.storages)
            if storage.kind == "state"
        ]
        self._known = known  # by name: what is held, and its changes, as the session has them
        self._tensors = [h.tensor for _, _, h in self.all]
        self._words = _Words([h for _, _, h in self.all])
        self._versions = self._looks = None
        self._seen = self._claimed = None

    def edited(self):
        """Returns the names of states whose tensors were written since the last look."""
        try:
            versions = [t._version for t in self._tensors]
        except RuntimeError:  # a tensor of inference mode tells nothing
            versions = object()
        if self._looks != Changes.looks:
            self._last_words = self._words.seen()
            self._looks = Changes.looks
        if versions == self._versions and np.array_equal(self._words.now(), self._last_words):
            return []
        names = [storage.name for _, storage, h in self.all if h.is_edited()]
        if not names:
            self._versions = versions
        return names

    def are_held(self):
        """Returns whether any session has newer values than the tensors."""
        return any(h.holder is not None for _, _, h in self.all)

    def accept_edited(self):
        """Takes the tensors' values as the last ones, where others have written them."""
        for _, _, h in self.all if self.edited() else ():
            if h.is_edited():
                h.version, h.holder = version(h.tensor), None
                h.look()
                h.changes += 1
                Changes.count += 1

    def forget(self):
        """Has all be taken over again."""
        self._known.clear()
        self._seen = self._claimed = None

    def reread(self):
        """Has all sessions take the values over from the tensors, as others may write them without
        a trace."""
        for _, _, h in self.all:
            h.changes += 1
        Changes.count += 1

    def new(self):
        """Yields the states that the session does not have, whose tensors then have their values."""
        if self._seen == Changes.count:
            return
        for number, storage, h in self.all:
            if not self._has(storage, h):
                if h.holder is not None:
                    h.holder.hand_over(h)
                yield number, storage
                self._known[storage.name] = h, h.changes
        self._seen = Changes.count

    def _has(self, storage, h):
        known, changes = self._known.get(storage.name, (None, None))
        if known is h:
            return changes == h.changes
        # Constants of one name have one value, until someone writes them.
        return known is not None and storage.name.startswith("constant ") and not changes + h.changes

    def claim(self, owner):
        """Has the owner hold all that the step has written."""
        if self._claimed == Changes.count:
            return
        for _, storage, h in self.all:
            if storage.writes and h.holder is not owner:
                h.holder = owner
                h.changes += 1
                Changes.count += 1
                self._known[storage.name] = h, h.changes
        self._seen = self._claimed = Changes.count

    def held_by(self, owner):
        """Yields the states whose last values an owner's session has."""
        for number, storage, h in self.all:
            if h.holder is owner:
                yield number, storage, h

    def have_all_held_by(self, owner, before):
        """Returns whether the states are the same tensors as others, as far as an owner's session has the last values
        of those."""
        own = {id(h) for _, _, h in self.all}
        return all(id(h) in own for _, _, h in before.held_by(owner))

    def release(self, owner):
        """Has the tensors hold what the owner does."""
        for _, _, h in self.held_by(owner):
            h.holder = None
            Changes.count += 1


class _Words:
    """The words of many tensors, read at once: for each array alone, NumPy takes as long as for
    hundreds of words. Those on the processor are places in one array that spans them all."""

    def __init__(self, helds):
        is_in_memory = lambda h: h.words.dtype == np.uint32 and h.words.size and h.words.flags.aligned
        self._spanned = [h for h in helds if is_in_memory(h)]
        self._others = [h for h in helds if not is_in_memory(h)]
        addresses = _joined([_addresses(h.words) for h in self._spanned]).astype(np.intp)
        first, end = (int(addresses.min()), int(addresses.max()) + 4) if self._spanned else (0, 0)
        # The words of each keep its memory there. What lies between is never read.
        span = (ctypes.c_uint8 * (end - first)).from_address(first) if self._spanned else b""
        self._span, self._places = np.frombuffer(span, np.uint32), (addresses - first) // 4

    def now(self):
        """Returns the words as they are."""
        others = [h.words for h in self._others]
        return _joined([self._span.take(self._places), *others])

    def seen(self):
        """Returns the words as they were looked at last, in the same order."""
        return _joined([h.seen for h in (*self._spanned, *self._others)])


def _addresses(words):
    """Returns where each of some words is."""
    (first, _), (stride,) = words.__array_interface__["data"], words.strides
    return first + stride * np.arange(len(words))


def _joined(arrays):
    return np.concatenate(arrays) if arrays else np.empty(0, np.uint8)
