"""Public calls: the same names in both clients, all documented in the client reference."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest

import tickertape as tt
from tickertape.client.api.command import BUILT

PAGE = Path(__file__).parents[4] / "docs" / "reference" / "client.md"


def names(kind: type) -> set[str]:
    """Return the public names of a class."""
    return {name for name in dir(kind) if not name.startswith("_")}


def parameters(kind: type, name: str) -> list[tuple[str, object]]:
    return [(p.name, p.default) for p in inspect.signature(getattr(kind, name)).parameters.values()]


@pytest.mark.parametrize(
    ("blocking", "awaited"),
    [
        (tt.Client, tt.AsyncClient),
        (tt.HAClient, tt.AsyncHAClient),
        (tt.MessageStream, tt.AsyncMessageStream),
        (tt.ClientTransaction, tt.AsyncClientTransaction),
    ],
)
def test_blocking_and_asyncio_clients_have_the_same_names_and_parameters(
    blocking: type, awaited: type
) -> None:
    assert names(blocking) == names(awaited)
    for name in names(blocking):
        if callable(getattr(blocking, name)):
            assert parameters(blocking, name) == parameters(awaited, name), name


def test_client_reference_lists_every_public_name() -> None:
    text = PAGE.read_text(encoding="utf-8")
    calls, streams = re.split(r"^## (?:Streams|Commands)$", text, flags=re.MULTILINE)[:2]
    for kind, text in ((tt.Client, calls), (tt.HAClient, calls), (tt.MessageStream, streams)):
        listed = set(re.findall(r"`(\w+)`", "\n".join(re.findall(r"^\| (.*?) \|", text, re.MULTILINE))))
        assert names(kind) <= listed, names(kind) - listed


def test_client_reference_lists_every_name_of_a_table() -> None:
    text = PAGE.read_text(encoding="utf-8").split("\n## Tables\n")[1].split("\n## ")[0]
    listed = set(re.findall(r"`(\w+)`", "\n".join(re.findall(r"^\| (.*?) \|", text, re.MULTILINE))))
    assert names(tt.Table) <= listed, names(tt.Table) - listed


def test_client_reference_lists_exactly_the_existing_commands() -> None:
    text = PAGE.read_text(encoding="utf-8").split("\n## Commands\n")[1]
    rows = re.findall(r"^\| `(\w+)` \| (.*) \|$", text, re.MULTILINE)
    assert {name: tuple(re.findall(r"`(\w+)`", fields)) for name, fields in rows} == BUILT


@pytest.mark.parametrize(
    "make",
    [
        partial(tt.Client, "desk", "tcp://127.0.0.1:1", connect=False),
        partial(tt.AsyncClient, "desk", "tcp://127.0.0.1:1"),
        partial(tt.HAClient, "desk", servers="tcp://127.0.0.1:1"),
        partial(tt.AsyncHAClient, "desk", servers="tcp://127.0.0.1:1"),
    ],
)
def test_stores_of_another_type_are_rejected(make: Callable[..., Any]) -> None:
    with pytest.raises(tt.UsageError, match=r"Invalid bookmark store of type int\. Use a BookmarkStore"):
        make(bookmark_store=5)
    with pytest.raises(tt.UsageError, match=r"Invalid publish store of type int\. Use a PublishStore"):
        make(publish_store=5)
