"""Which PyTorch the package works with."""

from importlib.util import find_spec

OLDEST = "2.11"


def _numbers(version: str) -> list[int]:
    return [int(n) for n in version.split(".")[:2]]


def refuse_older() -> None:
    """Raises `ImportError` unless there is a PyTorch that is new enough."""
    needed, way = f"spillway.torch needs PyTorch {OLDEST} or later", f"pip install 'torch>={OLDEST}'"
    if find_spec("torch") is None:
        raise ImportError(f"{needed}, and there is none: {way}")
    from torch import __version__ as found

    if _numbers(found) < _numbers(OLDEST):
        raise ImportError(f"{needed}, and this is PyTorch {found}: {way}")
