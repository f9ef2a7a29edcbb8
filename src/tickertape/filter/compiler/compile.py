"""Filter compiler: compiles filter text, or an expression, to one function for many bodies.

Invariants:
* A compiled filter or expression never raises for a body.
* A filter that reads no field decodes no body.
* The result of an expression depends neither on the subscriber nor on the time.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from dataclasses import fields as fields_of
from functools import cached_property, lru_cache
from types import CodeType
from typing import Any, Final, NamedTuple, TypeAlias

from tickertape.base.errors import BadFilter, BadPath
from tickertape.base.limits import filter_bytes_max
from tickertape.filter.compiler.analyse import analyse, is_scan
from tickertape.filter.compiler.codegen import CodeGenerator
from tickertape.filter.contained_errors import DEFECTS
from tickertape.filter.functions.arrays import Arrays, TooCostly
from tickertape.filter.functions.registry import MESSAGE_FUNCTIONS, SUBSCRIBER_FUNCTIONS
from tickertape.filter.functions.values import Scalar, number
from tickertape.filter.language.ast import Call, Field, Literal, Node, fields, paths_of, walk
from tickertape.filter.language.diagnostics import bad_filter
from tickertape.filter.language.parser import parse
from tickertape.payload import message_type
from tickertape.payload.paths import Path, path_reason
from tickertape.payload.types import FieldReader, MessageType, Unreadable

_TREES_KEPT: Final = 16
_SCAN_WORK: Final = 50
"""Cost of scanning a whole string, in nodes of a filter."""

_Select: TypeAlias = Callable[[Sequence[bytes], "FilterInputs", Arrays], tuple[list[int], int]]


@dataclass(slots=True)
class FilterInputs:
    """Inputs of a filter besides the bodies, for functions such as `TOPIC_NAME()`. Sequences have one value
    per body. All other fields have one value for all bodies. Only the fields in `Filter.needs` must be set.
    """

    topics: Sequence[str] = ()
    bookmarks: Sequence[str] = ()
    correlation_ids: Sequence[str | None] = ()
    sow_keys: Sequence[str | None] = ()
    user: str | None = None
    client_name: str | None = None
    client_version: str | None = None
    now: float | None = None
    """Seconds since 1970."""


_NO_CONTEXT: Final = FilterInputs()
_CONTEXT_FIELDS: Final = frozenset(field.name for field in fields_of(FilterInputs))
_INPUTS: Final = MESSAGE_FUNCTIONS | SUBSCRIBER_FUNCTIONS
"""Fields of `FilterInputs`, by the functions that read them."""
assert {*MESSAGE_FUNCTIONS.values(), *SUBSCRIBER_FUNCTIONS.values()} == _CONTEXT_FIELDS


class Filter:
    """A filter on messages of one type, created by `compile_filter`."""

    def __init__(self, text: str, trees: Trees, type: MessageType) -> None:
        self.text: str = text
        self.tree: Node = trees.tree
        """The tree with constants folded."""
        self.written: Node = trees.written
        """The tree as written."""
        self.paths: tuple[Path, ...] = trees.paths
        """The fields that the filter reads."""
        self.type: MessageType = type
        self.needs: frozenset[str] = trees.needs
        """The fields of `FilterInputs` that the filter reads."""
        self.work: int = trees.work
        """Upper bound of the steps per message, without decoding."""
        self.unreadable: int = 0
        """Number of unreadable bodies: invalid for the type, too expensive arrays, or an exception in the
        filter."""
        self._reader: FieldReader | None = type.reader(self.paths) if self.paths else None
        self._arrays = Arrays()

    def select(self, bodies: Sequence[bytes], context: FilterInputs | None = None) -> list[int]:
        """Return the indices of the matching bodies, ascending.

        An unreadable body does not match, and `unreadable` counts it: the body is invalid for the type, has
        too expensive arrays, or raises an exception in the filter. A filter that reads no fields does not
        decode bodies.

        Raises:
            ValueError: The filter needs inputs (see `needs`), and `context` is None.
        """
        if context is None and self.needs:
            raise ValueError(
                f"Cannot evaluate the filter: it needs the inputs {', '.join(sorted(self.needs))}. "
                "Pass them as `context` (`FilterInputs`)."
            )
        try:
            found, unreadable = self._select(bodies, context or _NO_CONTEXT, self._arrays)
        except Exception as error:  # noqa: BLE001 - code generation failed, or an input is missing
            DEFECTS.note(error)
            found, unreadable = [], len(bodies)
        self.unreadable += unreadable
        return found

    def matches(self, body: bytes, context: FilterInputs | None = None) -> bool:
        """Return whether one body matches. Each sequence of `context` has one value. Raises as `select`."""
        return bool(self.select((body,), context))

    @cached_property
    def source(self) -> str:
        """Python source of the function that `select` calls."""
        return self._generated[0]

    @cached_property
    def _generated(self) -> tuple[str, dict[str, Any]]:
        access = dict(zip(self.paths, self._reader.access, strict=True)) if self._reader else {}
        generator = CodeGenerator(access)
        return _function(self, generator.yes(self.tree)), generator.names

    @property
    def is_made(self) -> bool:
        """Whether the Python function of the filter exists. The first `select` generates it, and takes
        longer."""
        return "_select" in self.__dict__

    @cached_property
    def _select(self) -> _Select:
        # Generated at first use: most of thousands of filters in an index are never evaluated alone.
        source, names = self._generated
        if self._reader is not None:
            quick, decode, doubts = self._reader.quick, self._reader.decode, self._reader.doubts
            names |= {"quick": quick, "decode": decode, "doubts": doubts}
        names |= GUARDS
        exec(_code(source), names)
        made: _Select = names["select"]
        return made

    def __repr__(self) -> str:
        return f"Filter({self.text!r}, {self.type.name})"


def compile_filter(text: str, type: MessageType, *, bytes_max: int = filter_bytes_max) -> Filter:
    """Compile the filter `text`, of at most `bytes_max` bytes, for messages of `type`.

    Raises `BadFilter` with the position if the text is invalid, exceeds a limit, could take too long for a
    message, or reads fields that the type cannot have.
    """
    with refusing_defects():
        both = trees(text, bytes_max)
        try:
            return Filter(text, both, type)
        except BadPath as error:
            raise bad_path(text, both.tree, type, error) from None


@contextmanager
def refusing_defects() -> Iterator[None]:
    """Convert any other exception during compilation to `BadFilter`."""
    try:
        yield
    except BadFilter:
        raise
    except Exception as error:
        text = DEFECTS.note(error)
        raise BadFilter(f"Cannot compile the filter: {text}. Report the defect.") from error


@lru_cache(maxsize=_TREES_KEPT)
def _code(source: str) -> CodeType:
    """Compile source text. Cached, because a resubscription uses the same filter."""
    return compile(source, "<filter>", "exec")


class Trees(NamedTuple):
    """A filter as written, and with folded constants. The other fields describe the folded tree."""

    written: Node
    tree: Node
    paths: tuple[Path, ...]
    """The fields that it reads."""
    needs: frozenset[str]
    """The fields of `FilterInputs` that it reads."""
    work: int
    """Upper bound of the steps per message, without decoding."""


@lru_cache(maxsize=_TREES_KEPT)
def trees(text: str, bytes_max: int = filter_bytes_max) -> Trees:
    """Return the trees of a filter. They are the same for all types, and cached."""
    written = parse(text, bytes_max)
    tree = analyse(written, text)
    nodes = [*walk(tree)]
    work = len(nodes) + _SCAN_WORK * sum(map(is_scan, nodes))
    return Trees(written, tree, paths_of(nodes), needs_of(nodes), work)


def inputs_of(text: str, bytes_max: int = filter_bytes_max) -> frozenset[str]:
    """Return the fields of `FilterInputs` that a filter reads, for any message type. Raises `BadFilter`."""
    with refusing_defects():
        return trees(text, bytes_max).needs


def prepare() -> None:
    """Import the parser and the regular expressions, and read the grammar. The first filter then compiles
    faster."""
    compile_filter("/a LIKE '^b' AND /c > 1", message_type("json")).select([b"{}"])


def bad_path(text: str, tree: Node, type: MessageType, error: BadPath) -> BadFilter:
    """Return the error at the first field that the type cannot have, or else at the first field."""
    found = [node for node in walk(tree) if isinstance(node, Field)]
    for node in found:
        try:
            type.reader((node.path,))
        except BadPath as reason:
            return bad_filter(text, node.at, path_reason(reason))
    return bad_filter(text, found[0].at, path_reason(error))


def needs_of(nodes: Iterable[Node]) -> frozenset[str]:
    """Return the fields of `FilterInputs` that `nodes` read."""
    return frozenset([_INPUTS[n.name] for n in nodes if isinstance(n, Call) and n.name in _INPUTS])


def _function(filter: Filter, condition: str) -> str:
    lines = ["def select(bodies, context, arrays):"]
    if isinstance(filter.tree, Literal):
        return "\n".join([*lines, f"    return list(range(len(bodies))) if {condition} else [], 0", ""])
    lines += [f"    c_{name} = context.{name}" for name in sorted(filter.needs)]
    lines += ["    found = []", "    take = found.append", "    unreadable = 0"]
    lines += over_bodies(
        f"            if {condition}:", "                take(i)", decoded=bool(filter.paths)
    )
    return "\n".join(lines)


def over_bodies(*lines: str, decoded: bool) -> list[str]:
    """Return the end of a generated function: `lines` for each body, with its number `i` and, if `decoded`,
    its content `m`.

    A body is counted in `unreadable` if it is too expensive or an exception is raised. The lines use the
    names in `GUARDS`."""
    if decoded:
        head = ["    for i, body in enumerate(bodies):", *_DECODING]
    else:
        head = ["    for i in range(len(bodies)):"]
    return [
        *head,
        "        try:",
        *lines,
        "        except TooCostly:",
        "            unreadable += 1",
        "        except Exception as error:",
        "            defect(error)",
        "            unreadable += 1",
        "        if arrays:",
        "            arrays.forget()",
        "    return found, unreadable",
        "",
    ]


_DECODING: Final = (
    "        try:",
    "            try:",
    "                m = quick(body)",
    "            except Unreadable:",
    "                unreadable += 1",
    "                continue",
    "            except doubts:",
    "                try:",
    "                    m = decode(body)",
    "                except Unreadable:",
    "                    unreadable += 1",
    "                    continue",
    "        except Exception as error:",
    "            defect(error)",
    "            unreadable += 1",
    "            continue",
)
"""Lines of a loop over bodies that decode `body` into `m`, or count it in `unreadable` and continue."""

GUARDS: Final[dict[str, Any]] = {"Unreadable": Unreadable, "TooCostly": TooCostly, "defect": DEFECTS.note}
"""Names that the lines of `over_bodies` use, in addition to the ones of a reader."""


# -- numbers ------------------------------------------------------------------------------------------


VALUE_MAX: Final = (1 << 64) - 1
"""The largest result. Larger values are reduced to it."""

_Values: TypeAlias = Callable[[Sequence[bytes], Arrays], tuple[list[int | None], int]]


class NumericExpression:
    """An expression over messages of one type, created by `compile_value`. Call it with bodies."""

    def __init__(self, text: str, tree: Node, type: MessageType) -> None:
        self.text: str = text
        self.paths: tuple[Path, ...] = fields(tree)
        """The fields that the expression reads."""
        self.type: MessageType = type
        self.unreadable: int = 0
        """Number of unreadable bodies: invalid for the type, too expensive arrays, or an exception."""
        self._arrays = Arrays()
        self._values = _values_function(tree, self.paths, type)

    def __call__(self, bodies: Sequence[bytes]) -> list[int | None]:
        """Return an unsigned 64-bit integer for each body.

        Fractions are truncated, and larger values become `VALUE_MAX`. The result is None for NaN, negative
        and non-numeric values, and for unreadable bodies, which are counted in `unreadable`."""
        found, unreadable = self._values(bodies, self._arrays)
        self.unreadable += unreadable
        return found

    def __repr__(self) -> str:
        return f"Values({self.text!r}, {self.type.name})"


def compile_value(text: str, type: MessageType) -> NumericExpression:
    """Compile the expression `text`, in the filter language, to one number per message.

    Raises `BadFilter` with the position if the text is invalid, exceeds a limit, reads fields that the type
    cannot have, or uses more than the body: `BOOKMARK()`, `USER()`, `UNIX_TIMESTAMP()`."""
    with refusing_defects():
        return _compiled(text, type)


def _compiled(text: str, type: MessageType) -> NumericExpression:
    tree = trees(text).tree
    for node in walk(tree):
        if isinstance(node, Call) and (node.name in MESSAGE_FUNCTIONS or node.name in SUBSCRIBER_FUNCTIONS):
            raise bad_filter(
                text,
                node.at,
                f"{node.name} is not available here, because only the message body may be used. Use fields",
            )
    try:
        return NumericExpression(text, tree, type)
    except BadPath as error:
        raise bad_path(text, tree, type, error) from None


def unsigned(value: Scalar) -> int | None:
    """Convert a scalar to an unsigned 64-bit integer, truncated and bounded.

    None for negative and non-numeric values."""
    found = number(value)
    if found is None or not found >= 0:  # false for NaN
        return None
    return int(found) if found < VALUE_MAX else VALUE_MAX


def _values_function(tree: Node, paths: tuple[Path, ...], type: MessageType) -> _Values:
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
