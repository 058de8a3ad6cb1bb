"""The types in `_core.pyi` are those of the module, `mypy --strict` takes a program that uses all public names
and refuses what it does wrong, and everything has a docstring."""

import inspect

from checked_types import are_used, errors_of

import spillway
import spillway.streaming

CLIENT = "tests/typed_client.py"
CLASSES = [getattr(spillway, name) for name in spillway.__all__]


def public(cls):
    """Returns the methods and properties of a class."""
    return {name: a for name, a in vars(cls).items() if not name.startswith("_")}


def test_the_types_are_those_of_the_module():
    assert not errors_of("mypy.stubtest", "spillway._core")


def test_strict_types():
    assert not errors_of("mypy", "spillway/__init__.py", "spillway/pickling.py", "spillway/streaming.py", CLIENT)


def test_the_typed_program_uses_all_names():
    assert are_used(spillway.__all__, CLIENT)
    assert are_used(spillway.streaming.__all__, CLIENT)
    for cls in CLASSES:
        assert are_used(public(cls), CLIENT), cls


def test_everything_has_a_docstring():
    assert sorted(spillway.__all__) == sorted(n for n, v in vars(spillway).items() if inspect.isclass(v))
    assert all(getattr(spillway.streaming, name).__doc__ for name in spillway.streaming.__all__)
    for cls in CLASSES:
        assert cls.__doc__, cls
        assert all(a.__doc__ for a in public(cls).values()), cls
