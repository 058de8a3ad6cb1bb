"""The C functions by which PyTorch allocates in the workspace of an op."""

import ctypes
import threading

from spillway import _core

library = ctypes.CDLL(_core.__file__)
library.spillway_workspace.argtypes = ctypes.c_size_t, ctypes.c_size_t
library.spillway_workspace_allocate.restype = ctypes.c_void_p


def allocate(nbytes):
    return library.spillway_workspace_allocate(ctypes.c_size_t(nbytes), 0, None)


def test_a_workspace_is_handed_out_once_and_no_more_than_it():
    library.spillway_workspace(4096, 1000)
    assert [allocate(600), allocate(500), allocate(400), allocate(1)] == [4096, None, 4696, None]
    library.spillway_workspace(4096, 1000)
    assert allocate(1000) == 4096
    library.spillway_workspace(0, 0)
    assert allocate(1) is None


def test_a_workspace_is_for_one_thread():
    library.spillway_workspace(4096, 1000)
    found = []
    thread = threading.Thread(target=lambda: found.append(allocate(1)))
    thread.start()
    thread.join()
    assert found == [None]
    library.spillway_workspace(0, 0)
