"""The public attributes of public classes: listed for review, and each one documented."""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Iterator
from functools import cache
from importlib import import_module
from itertools import zip_longest
from pathlib import Path
from types import FunctionType, ModuleType

import pytest

import tickertape
import tickertape.testing
from tests.test_tidy import nodes_of
from tickertape.base import errors

LAZY: type = type(vars(tickertape.MessageBatch)["sequences"])
PAGE = Path(__file__).parents[2] / "docs" / "reference" / "messages.md"
LISTING = Path(__file__).with_name("public_attributes.txt")


def public_classes(module: ModuleType) -> Iterator[tuple[str, type]]:
    """The classes that a module exports, with their dotted names."""
    for name in sorted(module.__all__):
        value = getattr(module, name)
        if isinstance(value, type):
            yield f"{module.__name__}.{name}", value


def is_ours(kind: type) -> bool:
    return kind.__module__.split(".")[0] in ("tickertape", "tests")


def definition(kind: type) -> ast.ClassDef:
    """The syntax tree of a class. Errors name the package as their module."""
    module = errors if kind.__module__ == errors.PUBLIC_MODULE else sys.modules[kind.__module__]
    nodes = nodes_of(Path(str(module.__file__)))
    return next(node for node in nodes if isinstance(node, ast.ClassDef) and node.name == kind.__name__)


@cache
def assigned(kind: type) -> dict[str, str]:
    """Attributes that a class assigns in its body or to `self`, with the docstrings that follow them."""
    tree = definition(kind)
    found: dict[str, str] = {}
    for statements in blocks_of(tree):
        for statement, following in zip_longest(statements, statements[1:]):
            for name in names_set_by(statement, in_class=statements is tree.body):
                found[name] = found.get(name) or text_of(following)
    return found


def blocks_of(kind: ast.ClassDef) -> Iterator[list[ast.stmt]]:
    """The body of a class, and all sequences of statements in its methods."""
    yield kind.body
    for method in kind.body:
        if isinstance(method, ast.FunctionDef):
            for node in ast.walk(method):
                for block in ("body", "orelse", "finalbody"):
                    statements = getattr(node, block, None)
                    if isinstance(statements, list):
                        yield statements


def names_set_by(statement: ast.stmt, *, in_class: bool) -> Iterator[str]:
    """The attributes that a statement in the body of a class, or of its methods, assigns."""
    if not isinstance(statement, ast.Assign | ast.AnnAssign):
        return
    for target in statement.targets if isinstance(statement, ast.Assign) else [statement.target]:
        for one in target.elts if isinstance(target, ast.Tuple) else [target]:
            if in_class and isinstance(one, ast.Name):
                yield one.id
            elif isinstance(one, ast.Attribute) and ast.unparse(one.value) == "self":
                yield one.attr


def text_of(statement: ast.AST | None) -> str:
    """The text of a docstring statement."""
    if isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant):
        return str(statement.value.value)
    return ""


def attributes(kind: type) -> set[str]:
    """The public attributes of a class, except those that a class of another package declares."""
    foreign = {name for base in kind.__mro__ if not is_ours(base) for name in dir(base)}
    names = {
        name for base in kind.__mro__ if is_ours(base) for name in (*vars(base), *assigned(base))
    } - foreign
    return {name for name in names if not name.startswith("_")}


def documentation(kind: type, name: str) -> str:
    """The docstring of an attribute, its own, an inherited one, or its entry in `Args` of the class."""
    for base in kind.__mro__:
        if not is_ours(base):
            continue
        value = vars(base).get(name)
        if isinstance(value, FunctionType | property | classmethod | staticmethod | LAZY):
            text = value.__doc__ or ""
        else:
            text = assigned(base).get(name, "")
        if text:
            return text
    entry = re.search(rf"^ {{8}}{name}: (.*)", kind.__doc__ or "", re.MULTILINE)
    return entry[1] if entry else ""


def listed(prefix: str) -> dict[str, set[str]]:
    """The reviewed attributes of each class whose dotted name starts with `prefix` and a class name."""
    classes: dict[str, set[str]] = {}
    for line in LISTING.read_text(encoding="utf-8").splitlines():
        kind, _, name = line.rpartition(".")
        if kind.rpartition(".")[0] == prefix:
            classes.setdefault(kind, set()).add(name)
    return classes


def check(module: ModuleType) -> None:
    found = {name: attributes(kind) for name, kind in public_classes(module)}
    lines = {f"{kind}.{name}" for kind, names in found.items() for name in names}
    reviewed = {f"{kind}.{name}" for kind, names in listed(module.__name__).items() for name in names}
    assert sorted(lines - reviewed) == [], f"For users? Document them, and add them to {LISTING.name}."
    assert sorted(reviewed - lines) == [], f"They no longer exist. Remove them from {LISTING.name}."
    undocumented = [
        f"{dotted}.{name}"
        for dotted, kind in public_classes(module)
        for name in sorted(attributes(kind))
        if not documentation(kind, name)
    ]
    assert undocumented == [], "They need a docstring."


@pytest.mark.parametrize("module", [tickertape, tickertape.testing], ids=lambda module: module.__name__)
def test_public_attributes_are_reviewed_and_documented(module: ModuleType) -> None:
    check(module)


def test_public_attributes_of_spark_are_reviewed_and_documented() -> None:
    check(import_module("tickertape.spark"))


def test_attributes_of_messages_and_batches_are_on_the_page() -> None:
    text = PAGE.read_text(encoding="utf-8")
    message, batch = re.split(r"^## (?:A batch|Start points)$", text, flags=re.MULTILINE)[:2]
    for kind, part in ((tickertape.Message, message), (tickertape.MessageBatch, batch)):
        cells = re.findall(r"^\| (.*?) \|", part, re.MULTILINE)
        assert attributes(kind) == set(re.findall(r"`(\w+)(?:\(\w*\))?`", "\n".join(cells)))


def test_listing_is_sorted_and_has_each_attribute_once() -> None:
    lines = LISTING.read_text(encoding="utf-8").splitlines()
    assert lines == sorted(set(lines))


class Example:
    """A class with an attribute of each kind."""

    declared: int
    """Documented."""
    plain = 5

    def __init__(self) -> None:
        self.set_here = self._hidden = 1
        """Documented too."""
        self.bare = 2

    def method(self) -> None:
        """Documented as well."""

    @property
    def silent(self) -> int:
        return 1


def test_attributes_of_all_kinds_are_found() -> None:
    names = {"declared", "plain", "set_here", "bare", "method", "silent"}
    assert attributes(Example) == names
    assert {name for name in names if documentation(Example, name)} == {"declared", "set_here", "method"}
