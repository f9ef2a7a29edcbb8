"""Every error code is provoked, and the shape of its text compared.

`PROVOKED` has a function for each code of `error_codes.tsv` that makes the product raise the error: with a
real client and server, with the object that raises it, or in an engine without sockets. `UNREACHED` has the
codes that cannot be provoked, with the reason. A new code fails the first test until it has a row.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.helpers.certificates import Authority, transport
from tests.helpers.error_values import VALUES, WITHOUT_VALUE
from tests.helpers.peer import Peer
from tests.helpers.provoked_errors import CONFIG, FURTHER, PROVOKED, Place
from tests.language import PATTERNS
from tickertape.base.errors import all_codes, error_from_code
from tickertape.cli.commands.error import explanations
from tickertape.testing import RunningServer, running_server
from tickertape.testing.ports import ReservedPort

CHARACTERS_MAX = 700
SHAPE = re.compile(
    r"(?:Cannot|Invalid|Unknown|Unsupported|Unexpected|Duplicate|Corrupt) \w|Invalid message: "
    r"|Authentication failed: |The server rejected \d|\S+\.toml:\d+: "
)
"""First words of an error text. A mistake in a file starts with its place and has no full stop."""
CURE = re.compile(
    r"[.?!] (?:Use|Pass|Check|Remove|Set|Connect|Start|Give|Create|Run|Send|Subscribe|Stop|Wait|Choose|"
    r"Publish|Read|Restore|Correct|Raise|Update|Commit|Stage|Free|Log on|Report|Handle|Discard|Unsubscribe|"
    r"Ask|Add|Repeat|Install|Purge|Split|Then|Is the server running|Did you mean)\b|: expected "
)
"""A sentence with the cure, after the first one."""


@pytest.fixture(scope="module")
def server_and_tls(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[RunningServer, str, Peer]]:
    port, plain = ReservedPort(), ReservedPort()
    identity = Authority(tmp_path_factory.mktemp("certificates")).issue("127.0.0.1")
    listen = f'[[transport]]\nlisten = "tcp://127.0.0.1:{plain.number}"\n'
    config = CONFIG + listen + transport(identity, port=port.number)
    with running_server(config=config, listen=None) as server, Peer(server.uri) as silent:
        yield server, f"127.0.0.1:{port.number}", silent
    port.release()
    plain.release()


@pytest.fixture
def place(server_and_tls: tuple[RunningServer, str, Peer], tmp_path: Path) -> Place:
    return Place(*server_and_tls, tmp_path)


UNREACHED: dict[str, str] = {
    "query_too_slow": "needs a filter slower than its limit (tests/unit/engine/sow/query/test_query.py)",
    "bad_sow_key": "provoked in its own tests (tests/unit/engine/sow/test_registry.py)",
    "sow_incomplete": "provoked in its own tests (tests/unit/engine/sow/test_recovery.py)",
    "sow_full": "provoked in its own tests (tests/unit/engine/sow/test_memory.py)",
    "not_built": "provoked in its own tests (tests/unit/engine/sow/test_feed.py)",
    "error": "a code of a newer peer, whose text comes from that peer",
    "refused": "base class: this version raises its subclasses only",
    "peer": "base class: this version raises its subclasses only",
    "journal": "raised by the Spark source only, for a log that lost its end (tests/spark)",
    "store": "base class: this version raises its subclasses only",
}
"""Codes without a provocation, with the reason."""

SUBSTITUTES: dict[str, str] = {
    "bookmark_expired": "needs a log of several segments (tests/integration/test_retention.py)",
    "publisher_taken_over": "needs two processes (tests/faults)",
    "bad_order_by": "no server answers queries yet",
    "bad_path": "the wire reports a path in a filter or option as an error of these",
    "forked": "needs a fork (tests/conformance/test_client_forks.py)",
    "heartbeat": "needs a silent server for seconds (tests/conformance/test_client_heartbeats.py)",
    "bad_link": "a hostile server sees it (tests/integration/test_link_rights.py)",
    "link_refused": "needs two servers with links (tests/integration/test_links.py)",
    "frame_stalled": "needs minutes of stalled frames (test_inbound_budget_connections.py)",
}
"""Codes whose row calls the function that makes the error, with the reason."""


def test_every_code_has_a_row() -> None:
    assert set(PROVOKED) | set(UNREACHED) == set(explanations()) == set(all_codes())
    assert not set(PROVOKED) & set(UNREACHED)
    assert set(SUBSTITUTES) <= set(PROVOKED)


def test_every_row_has_a_value_or_a_reason_for_none() -> None:
    assert set(VALUES) | set(WITHOUT_VALUE) == set(PROVOKED)
    assert not set(VALUES) & set(WITHOUT_VALUE)


@pytest.mark.parametrize("code", UNREACHED)
def test_code_without_a_provocation_keeps_class_and_text(code: str) -> None:
    error = error_from_code(code, "Cannot do it: a cause. Do that.")
    assert (type(error), str(error)) == (all_codes()[code], "Cannot do it: a cause. Do that.")


@pytest.mark.parametrize("code", PROVOKED)
def test_error_has_the_code_and_the_shape_of_an_error(place: Place, code: str) -> None:
    error = PROVOKED[code](place)
    text = str(error)
    assert error.code == code, text
    value = VALUES.get(code)
    assert problems(text, value(place) if callable(value) else value) == [], text


@pytest.mark.parametrize("name", FURTHER)
def test_further_error_has_the_code_and_the_shape_of_an_error(place: Place, name: str) -> None:
    code, provoke, value = FURTHER[name]
    error = provoke(place)
    assert error.code == code
    assert problems(str(error), value) == [], str(error)


def problems(text: str, value: str | None = None) -> list[str]:
    """Return the rules that an error text breaks. It has `value`, if any, in single quotes."""
    message = text.partition("\n")[0]  # an excerpt with a caret may follow
    found = [f"forbidden: {name}" for name, pattern in PATTERNS.items() if pattern.search(message)]
    if not SHAPE.match(message):
        found.append("first words")
    if not CURE.search(message):
        found.append("no cure")
    if not message.endswith((".", "?", "(tickertape serve)")) and ".toml:" not in message:
        found.append("no full stop")
    if ".." in message.replace("...", "") or len(text) > CHARACTERS_MAX:
        found.append("two full stops, or too long")
    if value is not None and f"'{value}'" not in message:
        found.append("value not in quotes")
    if value and re.search(rf"(?<![\w'/]){re.escape(value)}(?![\w'/])", message):
        found.append("value also without quotes")
    return found


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("Cannot read 'x': it is gone.", "no cure"),
        ("the file 'x' is gone. Use another.", "first words"),
        ("Cannot read 'x': it is gone. Use another", "no full stop"),
        ("Cannot read 'x': it is gone; really. Use another.", "forbidden: semicolon"),
        ("Cannot read 'x': it is gone.. Use another.", "two full stops, or too long"),
        ("Cannot read 'y': it is gone. Use another.", "value not in quotes"),
        ("Cannot read x: 'x' is gone. Use another.", "value also without quotes"),
    ],
)
def test_error_shape_check_finds_the_problem_of_a_text(text: str, problem: str) -> None:
    assert problems(text, "x") == [problem]
