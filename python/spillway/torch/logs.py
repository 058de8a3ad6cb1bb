"""What the package tells a log, which is silent unless its user asks: `logging.getLogger("spillway")`."""

import logging
import time
from contextlib import contextmanager

LOG = logging.getLogger("spillway")


@contextmanager
def timed(what):
    """Logs that something begins, and how long it took. Within it, what is appended to the list that it
    gives stands behind that."""
    LOG.info("%s ...", what)
    start, found = time.perf_counter(), []
    yield found
    LOG.info("%s: %.1f s%s", what, time.perf_counter() - start, "".join(f", {x}" for x in found))
