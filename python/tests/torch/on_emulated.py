"""CUDA devices on the emulated driver, for steps on the processor."""

import threading
from contextlib import contextmanager

import emulated
import torch

from spillway.torch.hosting import on_host
from spillway.torch.processor import Processor


class _Streams(threading.local):
    """The stream of the ops that a thread launches, and that of its session."""

    now = session = None


class Emulated(Processor):
    """A device whose memory is this process's, where ops run once the stream has come so far. `errors` has what ops
    raise after their launches."""

    errors = ()

    def __init__(self):
        self.session_device = emulated.device()
        self.streams = _Streams()
        self.launches = 0
        self.on_network = []  # the names of the ops that have run on the stream for collectives

    @contextmanager
    def stepping(self, stream):
        self.streams.now = self.streams.session = stream
        with super().stepping(stream):
            yield
        self.streams.now = None

    @contextmanager
    def exchanging(self, stream, threads):
        assert stream and stream != self.streams.session
        self.streams.now = stream
        try:
            with super().exchanging(stream, threads):
                yield
        finally:
            self.streams.now = self.streams.session

    def bound(self, run, operation, workspace, strict, memory):
        assert (workspace.bytes if workspace else 0) == operation.measured.workspace_bytes

        def launch(outside):
            emulated.synchronize(self.streams.now)
            if self.streams.now != self.streams.session:
                self.on_network.append(operation.name)
            self.launches += 1
            run(outside)

        return launch


class Late(Emulated):
    """A device whose ops run in a thread of the session's stream, after their launches. The caller has to wait for
    them."""

    runs_at_once = False

    def __init__(self):
        super().__init__()
        self.errors = []
        self._bodies = []  # that the driver may still call

    @contextmanager
    def stepping(self, stream):
        with super().stepping(stream):
            yield
            emulated.synchronize(stream)

    def lead(self, stream):
        if self.streams.now:
            emulated.synchronize(self.streams.now)

    def bound(self, run, operation, workspace, strict, memory):
        def launch(outside):
            self.launches += 1
            if operation.name in ("backward", "step"):  # which wait for the caller
                run(outside)
            else:
                self._enqueue(lambda: run(outside))

        return launch

    def _enqueue(self, run):
        threads = torch.get_num_threads()

        def body(_):
            try:
                with on_host(threads):
                    run()
            except BaseException as error:
                self.errors.append(error)

        self._bodies.append(emulated.enqueue(self.streams.now, body))
