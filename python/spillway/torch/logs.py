"""The package's log, `logging.getLogger("spillway")`, which is silent by default."""

import logging
import time
from contextlib import contextmanager

LOG = logging.getLogger("spillway")


@contextmanager
def timed(what):
    """Logs that something begins, and how long it took. Yields a list: texts that are appended to it are
    logged behind the time."""
    LOG.info("%s ...", what)
    start, found = time.perf_counter(), []
    yield found
    LOG.info("%s: %.1f s%s", what, time.perf_counter() - start, "".join(f", {x}" for x in found))
