"""Compile an expression into one function that returns a number for each of many bodies.

Invariants:
* A compiled expression raises for no body.
* The value of a message depends neither on the subscriber nor on the time, so it never changes.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final, TypeAlias

from tickertape.base.errors import BadPath
from tickertape.filter.compiler.codegen import CodeGenerator
from tickertape.filter.compiler.compile import GUARDS, bad_path, over_bodies, refusing_defects, trees
from tickertape.filter.functions.arrays import Arrays
from tickertape.filter.functions.registry import MESSAGE_FUNCTIONS, SUBSCRIBER_FUNCTIONS
from tickertape.filter.functions.values import Scalar, number
from tickertape.filter.language.ast import Call, Node, fields, walk
from tickertape.filter.language.diagnostics import bad_filter
from tickertape.payload.paths import Path
from tickertape.payload.types import MessageType

VALUE_MAX: Final = (1 << 64) - 1
"""The largest number that is given; a larger one counts as this."""

_Values: TypeAlias = Callable[[Sequence[bytes], Arrays], tuple[list[int | None], int]]


class NumericExpression:
    """An expression over messages of one type; made by `compile_value`."""

    def __init__(self, text: str, tree: Node, type: MessageType) -> None:
        self.text: str = text
        self.paths: tuple[Path, ...] = fields(tree)
        """The fields that it reads."""
        self.type: MessageType = type
        self.unreadable: int = 0
        """Number of unreadable bodies: not of the type, with too long arrays, or such that the expression
        raised."""
        self._arrays = Arrays()
        self._values = _function(tree, self.paths, type)

    def __call__(self, bodies: Sequence[bytes]) -> list[int | None]:
        """Return an unsigned 64-bit integer for each body: fractions are truncated, and too large values are
        `VALUE_MAX`. None where the result is not a number, negative or NaN, and for unreadable bodies, which
        are counted in `unreadable`."""
        found, unreadable = self._values(bodies, self._arrays)
        self.unreadable += unreadable
        return found

    def __repr__(self) -> str:
        return f"Values({self.text!r}, {self.type.name})"


def compile_value(text: str, type: MessageType) -> NumericExpression:
    """Compile the expression `text`, in the filter language, to a number for each message of `type`.

    Raises `BadFilter`, with the position, for what is no expression, is above a limit, reads fields that the
    type does not have, or asks for more than the body: `BOOKMARK()`, `USER()`, `UNIX_TIMESTAMP()`.
    """
    with refusing_defects():
        return _compiled(text, type)


def _compiled(text: str, type: MessageType) -> NumericExpression:
    tree = trees(text)[1]
    for node in walk(tree):
        if isinstance(node, Call) and (node.name in MESSAGE_FUNCTIONS or node.name in SUBSCRIBER_FUNCTIONS):
            raise bad_filter(
                text, node.at, f"{node.name} is no part of the message's body, which counts here"
            )
    try:
        return NumericExpression(text, tree, type)
    except BadPath as error:
        raise bad_path(text, tree, type, error) from None


def unsigned(value: Scalar) -> int | None:
    """Convert a scalar to an unsigned 64-bit integer, truncated and bounded; None for a negative or
    non-numeric one."""
    found = number(value)
    if found is None or not found >= 0:  # NaN is not
        return None
    return int(found) if found < VALUE_MAX else VALUE_MAX


def _function(tree: Node, paths: tuple[Path, ...], type: MessageType) -> _Values:
    reader = type.reader(paths) if paths else None
    generator = CodeGenerator(dict(zip(paths, reader.access, strict=True)) if reader else {})
    value = generator.value(tree)
    lines = ["def values(bodies, arrays):", "    found = [None] * len(bodies)", "    unreadable = 0"]
    names: dict[str, Any] = {**generator.names, "unsigned": unsigned, **GUARDS}
    lines += over_bodies(f"            found[i] = unsigned({value})", decoded=reader is not None)
    if reader is not None:
        names |= {"quick": reader.quick, "decode": reader.decode, "doubts": reader.doubts}
    exec(compile("\n".join(lines), "<value>", "exec"), names)
    made: _Values = names["values"]
    return made
