"""`mypy --strict` takes a program that uses all public names of spillway.torch, and refuses what it does
wrong. The annotations of what users call are complete."""

import dataclasses
import inspect

import pytest
from checked_types import are_used, errors_of

import spillway.torch
from spillway.torch.backend import compile_graph
from spillway.torch.knapsack import KnapsackSolver

pytestmark = pytest.mark.short
CLIENT = "tests/torch/typed_client.py"
PUBLIC = [getattr(spillway.torch, name) for name in spillway.torch.__all__]
CALLS = {"__call__", "__enter__", "__exit__", "__repr__"}


def test_strict_types():
    pytest.importorskip("mypy")
    assert not errors_of("mypy", "spillway", CLIENT)


def test_the_typed_program_uses_all_names():
    assert are_used(spillway.torch.__all__, CLIENT)


def functions(what):
    """Yields a function, or those that a class has for users."""
    members = vars(what).values() if inspect.isclass(what) else [what]
    calls = CALLS - {"__repr__"} if dataclasses.is_dataclass(what) else CALLS
    for member in members:
        function = member.fget if isinstance(member, property) else member
        if inspect.isfunction(function):
            if function.__name__ in calls or not function.__name__.startswith("_"):
                yield function


@pytest.mark.parametrize("what", [*PUBLIC, compile_graph, KnapsackSolver])
def test_annotations_are_complete(what):
    for function in functions(what):
        named = {"return", *inspect.signature(function).parameters} - {"self"}
        assert set(function.__annotations__) == named, function
