"""A CUDA device on the emulated driver, for steps on the processor."""

from contextlib import contextmanager

import emulated

from spillway.torch.processor import Processor


class Emulated(Processor):
    """A device whose memory is this process's, where ops run once the stream has come so far."""

    def __init__(self):
        self.session_device = emulated.device()
        self.launches = 0
        self.on_network = []  # the names of the ops that have run on the stream for collectives

    @contextmanager
    def stepping(self, stream):
        self.stream = self.compute = stream
        with super().stepping(stream):
            yield
        self.stream = None

    @contextmanager
    def exchanging(self, stream, threads):
        assert stream and stream != self.compute
        self.stream = stream
        try:
            with super().exchanging(stream, threads):
                yield
        finally:
            self.stream = self.compute

    def bound(self, run, operation, workspace, strict, memory):
        assert (workspace.bytes if workspace else 0) == operation.measured.workspace_bytes

        def launch(outside):
            emulated.synchronize(self.stream)
            if self.stream != self.compute:
                self.on_network.append(operation.name)
            self.launches += 1
            run(outside)

        return launch
