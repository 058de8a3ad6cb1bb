"""A CUDA device on the emulated driver, for steps on the processor."""

import emulated

from spillway.torch.processor import Processor


class Emulated(Processor):
    """A device whose memory is this process's, where ops run once the stream has come so far."""

    def __init__(self):
        self.session_device = emulated.device()
        self.launches = 0

    def stepping(self, stream):
        self.stream = stream
        return super().stepping(stream)

    def bound(self, run, operation, workspace, strict):
        assert (workspace.bytes if workspace else 0) == operation.measured.workspace_bytes

        def launch(outside):
            emulated.synchronize(self.stream)
            self.launches += 1
            run(outside)

        return launch
