"""The C functions by which PyTorch allocates in the workspace of an op."""

import ctypes
import threading

from spillway import _core

library = ctypes.CDLL(_core.__file__)
library.spillway_workspace_allocate.restype = ctypes.c_void_p


def allocate(nbytes):
    return library.spillway_workspace_allocate(ctypes.c_size_t(nbytes), 0, None)


def free(address):
    library.spillway_workspace_free(ctypes.c_void_p(address), ctypes.c_size_t(0), 0, None)


def test_a_workspace_is_handed_out_once_and_no_more_than_it():
    _core.begin_workspace(4096, 1000, [])
    assert [allocate(600), allocate(500), allocate(400), allocate(1)] == [4096, None, 4696, None]
    _core.begin_workspace(4096, 1000, [])
    assert allocate(1000) == 4096
    _core.end_workspace()
    assert allocate(1) is None


def test_segments_lie_in_their_places():
    """A place is for a segment with its number and its bytes. It takes nothing of the workspace."""
    _core.begin_workspace(4096, 1000, [(1, 5000, 1 << 20), (2, 600, 1 << 21)])
    assert [allocate(300), allocate(5000), allocate(700)] == [4096, 1 << 20, 4396]
    assert _core.end_workspace() == ([(4096, 300), (1 << 20, 5000), (4396, 700)], 3, 0)


def test_what_is_held_and_what_was_refused_are_told():
    _core.begin_workspace(4096, 1000, [])
    assert [allocate(600), allocate(500), allocate(200), allocate(300)] == [4096, None, 4696, None]
    free(4096)
    free(1 << 20)  # of another launch
    assert _core.end_workspace() == ([(4096, 600), (4696, 200)], 1, 800)
    free(4696)
    _core.begin_workspace(4696, 1000, [])
    assert _core.end_workspace() == ([], 0, 0)


def test_a_workspace_is_for_one_thread():
    _core.begin_workspace(4096, 1000, [])
    found = []
    thread = threading.Thread(target=lambda: found.append(allocate(1)))
    thread.start()
    thread.join()
    assert found == [None]
    _core.end_workspace()
