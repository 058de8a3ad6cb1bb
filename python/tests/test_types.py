"""The types in `_core.pyi` are those of the module, and everything has a docstring."""

import ast
import inspect
from pathlib import Path

import spillway
from spillway import _core

STUB = ast.parse((Path(_core.__file__).parent / "_core.pyi").read_text())
CLASSES = {
    node.name: node
    for node in STUB.body
    if isinstance(node, ast.ClassDef) and not node.name.startswith("_")
}


def arguments(function):
    args = function.args
    names = args.posonlyargs + args.args + args.kwonlyargs
    return [a.arg for a in names if a.arg not in ("self", "cls")]


def test_all_classes_are_exported_and_have_types():
    assert sorted(CLASSES) == sorted(spillway.__all__)
    assert all(getattr(spillway, name).__doc__ for name in CLASSES)


def test_methods_have_the_arguments_of_their_types():
    for name, node in CLASSES.items():
        cls = getattr(spillway, name)
        typed = {n.name: n for n in node.body if isinstance(n, ast.FunctionDef)}
        own = {n for n in vars(cls) if not n.startswith("__")} if typed else set()
        assert own == {n for n in typed if not n.startswith("__")}, name
        for method in own:
            attribute = inspect.getattr_static(cls, method)
            assert getattr(cls, method).__doc__, (name, method)
            if not inspect.isgetsetdescriptor(attribute):
                found = inspect.signature(getattr(cls, method)).parameters
                assert [p for p in found if p != "self"] == arguments(typed[method]), (name, method)
        if "__new__" in typed:
            assert list(inspect.signature(cls).parameters) == arguments(typed["__new__"]), name
