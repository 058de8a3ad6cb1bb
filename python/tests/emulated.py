"""The emulated CUDA driver, and sessions on it whose kernels are Python's.

Its device memory is memory of this process, so kernels compute on it once their stream has come so
far. Streams are delayed at random, so that a missing wait shows.
"""

import ctypes
import functools
import json
import os
import shutil
import subprocess
from pathlib import Path

import pytest

import spillway

SETTINGS = {
    "EMULATED_CUDA_GRANULARITY": 4096,
    "EMULATED_CUDA_SEED": 1,
    "EMULATED_CUDA_H2D_BYTES_PER_S": 20 * 10**9,
    "EMULATED_CUDA_D2H_BYTES_PER_S": 20 * 10**9,
}
os.environ.update({name: str(value) for name, value in SETTINGS.items()})


@functools.cache
def library():
    """Returns the path of the driver: the one that is given, or one that is built."""
    given = os.environ.get("SPILLWAY_CUDA_DRIVER")
    if given:
        return given
    if not shutil.which("cargo"):
        pytest.skip("there is no cargo, which builds the emulated driver")
    command = "cargo build --locked --quiet --package emulated-cuda --message-format json"
    built = subprocess.run(
        command.split(), cwd=Path(__file__).parents[2], check=True, stdout=subprocess.PIPE
    )
    messages = map(json.loads, built.stdout.splitlines())
    (files,) = [
        m["filenames"] for m in messages if m.get("target", {}).get("name") == "emulated_cuda"
    ]
    (file,) = [file for file in files if file.endswith(".so")]
    return file


def device():
    return spillway.Cuda(driver=library())


def session(plan, kernels, others=()):
    """Opens a session whose kernels compute in the process."""
    waiting = _Waiting(kernels)
    opened = spillway.Session(plan, waiting, others, device=device())
    waiting.streams = opened.stream, opened.network_stream
    return opened


def synchronize(stream):
    """Waits for all that is enqueued on a stream."""
    assert ctypes.CDLL(library()).cuStreamSynchronize(ctypes.c_void_p(stream)) == 0


_BODY = ctypes.CFUNCTYPE(None, ctypes.c_void_p)


def enqueue(stream, body):
    """Has a stream run a function of one argument, and returns an object that must outlive that."""
    kept = _BODY(body)
    assert ctypes.CDLL(library()).cuLaunchHostFunc(ctypes.c_void_p(stream), kept, None) == 0
    return kept


class _Waiting:
    """Kernels that run once their stream has come so far."""

    def __init__(self, kernels):
        self._kernels = kernels
        for name in "fill_input", "launch_on_host":
            if hasattr(kernels, name):
                setattr(self, name, getattr(kernels, name))

    def launch(self, *arguments):
        is_collective = arguments[0] in getattr(self._kernels, "collectives", ())
        synchronize(self.streams[is_collective])
        self._kernels.launch(*arguments)
