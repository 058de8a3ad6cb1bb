"""Signals that come while an iteration runs: their handlers are called when it has ended."""

import signal
import threading

_SIGNALS = [
    getattr(signal, name)
    for name in ("SIGINT", "SIGTERM", "SIGHUP", "SIGALRM", "SIGUSR1", "SIGUSR2")
    if hasattr(signal, name)
]


class Deferred:
    """Within it, handlers of signals that are written in Python wait for the end. `give_up` is
    called at the second SIGINT."""

    def __init__(self, give_up):
        self._give_up = give_up
        self._came = []

    def __enter__(self):
        self._handlers = {}
        if threading.current_thread() is threading.main_thread():
            for number in _SIGNALS:
                handler = signal.getsignal(number)
                if callable(handler):
                    self._handlers[number] = handler
                    signal.signal(number, self._note)
        return self

    def _note(self, number, frame):
        self._came.append((number, frame))
        if [n for n, _ in self._came].count(signal.SIGINT) == 2:
            self._give_up()

    def __exit__(self, kind, error, traceback):
        for number, handler in self._handlers.items():
            signal.signal(number, handler)
        for number, frame in dict(self._came).items():
            self._handlers[number](number, frame)
