"""Examples in the docstrings of the public API: they run as written, and every public method has one."""

from __future__ import annotations

import ast
import asyncio
import contextlib
import doctest
import inspect
import io
import re
import traceback
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final, NamedTuple

import pytest

import tickertape as tt
from tickertape.testing import RunningServer, running_server

COMPLETE: Final = (
    tt.AsyncClient,
    tt.AsyncClientTransaction,
    tt.AsyncHAClient,
    tt.AsyncMessageStream,
    tt.AsyncSowResult,
    tt.Client,
    tt.ClientTransaction,
    tt.Command,
    tt.HAClient,
    tt.MessageStream,
    tt.SowResult,
    tt.Table,
    tt.TLS,
)
"""Classes with an example in the class docstring and in each public method of these folders."""
COMPLETE_IN: Final = (
    "tickertape.client.api.",
    "tickertape.client.blocking.",
    "tickertape.client.aio.",
)
LINES_MAX: Final = 8
"""Lines of one example, without its output."""
SECONDS: Final = 20.0
NAMES: Final = re.compile(r"\b(orders|payments|positions|prices|jobs|desk|risk)\b")
"""Topics, queues and clients of the examples. Each docstring gets its own, so that its data is fresh."""
QUEUE: Final = "jobs"
SOW: Final = "positions"


class Documented(NamedTuple):
    """A docstring with examples."""

    name: str
    owner: type | None
    """The public class that the example runs with."""
    parts: list[doctest.Example]


def members(owner: type) -> Iterator[tuple[str, Any]]:
    """Yield the public functions and properties of a class, with the function that has the docstring."""
    for name, _ in inspect.getmembers(owner):
        if name.startswith("_"):
            continue
        attribute = inspect.getattr_static(owner, name)
        if isinstance(attribute, property):
            yield name, attribute.fget
        elif isinstance(attribute, staticmethod | classmethod):
            yield name, attribute.__func__
        elif inspect.isfunction(attribute):
            yield name, attribute


def documented() -> list[Documented]:
    """Return the docstrings of the public API that have examples, each of them once."""
    parser = doctest.DocTestParser()
    found: dict[str, Documented] = {}

    def add(name: str, owner: type | None, text: str | None) -> None:
        examples = parser.get_examples(text or "", name)
        if examples:
            found.setdefault(name, Documented(name, owner, examples))

    add("tickertape", None, tt.__doc__)
    for public in sorted(
        tt.__all__, key=lambda name: name.startswith("Async")
    ):  # shared methods run blocking
        value = getattr(tt, public)
        if not inspect.isclass(value):
            continue
        add(f"{value.__module__}.{value.__qualname__}", value, value.__doc__)
        for _, function in members(value):
            add(f"{function.__module__}.{function.__qualname__}", value, function.__doc__)
    return list(found.values())


DOCUMENTED: Final = documented()


@pytest.fixture(scope="module")
def server() -> Iterator[RunningServer]:
    queues = [
        f'[[queue]]\nname = "{QUEUE}{number}"\n'
        for number, one in enumerate(DOCUMENTED)
        if any(QUEUE in part.source for part in one.parts)
    ]
    states = [
        f'[[sow]]\nname = "{SOW}{number}"\nkey = ["/id"]\n'
        f'[[topic]]\nname = "{SOW}{number}"\nmessage_type = "json"\n'
        for number, one in enumerate(DOCUMENTED)
        if any(SOW in part.source for part in one.parts)
    ]
    states.append('[[sow]]\nname = "tickertape/bookmark_store"\nkey = ["/clientName", "/subId"]\n')
    with running_server(config="\n".join(queues + states)) as running:
        yield running


def run(one: Documented, number: int, names: dict[str, Any], runner: asyncio.Runner) -> Iterator[str]:
    """Run the examples of a docstring, and yield each with another output."""
    checker = doctest.OutputChecker()
    for part in one.parts:
        source, want = (NAMES.sub(rf"\g<1>{number}", text) for text in (part.source, part.want))
        printed = io.StringIO()
        with contextlib.redirect_stdout(printed):
            try:
                code = compile(source, one.name, "single", ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
                running = eval(code, names)
                if inspect.iscoroutine(running):
                    runner.run(asyncio.wait_for(running, SECONDS))
            except Exception:  # noqa: BLE001 - the output of the example, compared below
                printed.write(traceback.format_exc())
        got = printed.getvalue()
        if not checker.check_output(want, got, doctest.ELLIPSIS):
            yield f"{one.name}:\n{source}expected:\n{want}got:\n{got}"


def client_of(one: Documented, number: int, uri: str) -> tt.Client | tt.AsyncClient:
    """Return the client that an example has by the name `client`: one of the class that it documents."""
    name = f"example-{number}"
    if one.owner is tt.HAClient:
        return tt.HAClient(name, servers=[uri])
    if one.owner is tt.AsyncHAClient:
        return tt.AsyncHAClient(name, servers=[uri])
    if any("await " in part.source for part in one.parts) or (one.owner or object).__name__.startswith(
        "Async"
    ):
        return tt.AsyncClient(name, uri)
    return tt.Client(name, uri, connect=False)


@pytest.mark.parametrize("number", range(len(DOCUMENTED)), ids=[one.name for one in DOCUMENTED])
def test_docstring_example_runs_and_prints_the_documented_output(
    number: int, server: RunningServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    one = DOCUMENTED[number]
    with asyncio.Runner() as runner:
        client = client_of(one, number, server.uri)
        names: dict[str, Any] = {"tt": tt, "uri": server.uri, "client": client}
        try:
            if isinstance(client, tt.AsyncClient):
                runner.run(client.connect())
            else:
                client.connect()
            wrong = list(run(one, number, names, runner))
        finally:
            for left in {id(value): value for value in [client, *names.values()]}.values():
                if isinstance(left, tt.AsyncClient):
                    runner.run(left.close())
                elif isinstance(left, tt.Client):
                    left.close()
    assert not wrong, "\n".join(wrong)


def public_functions(owner: type) -> Iterator[Any]:
    """Yield the public functions of a class that are defined in the folders of the clients."""
    for name, function in members(owner):
        is_property = isinstance(inspect.getattr_static(owner, name), property)
        internal = (function.__doc__ or "").startswith("Internal")
        if function.__module__.startswith(COMPLETE_IN) and not internal and not is_property:
            yield function


@pytest.mark.parametrize("owner", COMPLETE, ids=lambda owner: owner.__name__)
def test_public_class_has_short_example_in_each_docstring(owner: type) -> None:
    parser = doctest.DocTestParser()
    wrong = []
    for one in (owner, *public_functions(owner)):
        text = one.__doc__ or ""
        lines = sum(len(part.source.splitlines()) for part in parser.get_examples(text))
        if not 0 < lines <= LINES_MAX or "Example:" not in text:
            wrong.append(f"{one.__qualname__} has an example of {lines} lines")
    assert not wrong, "\n".join(wrong)


@pytest.mark.parametrize("owner", COMPLETE, ids=lambda owner: owner.__name__)
def test_public_class_documents_each_method_argument(owner: type) -> None:
    wrong = [
        f"{function.__qualname__}({name})"
        for function in public_functions(owner)
        for name in list(inspect.signature(function).parameters)[1:]
        if not re.search(rf"^ +{name}: \S", function.__doc__ or "", re.MULTILINE)
    ]
    assert not wrong, "\n".join(wrong)
