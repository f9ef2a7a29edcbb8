"""The default server chooser, and the checks for user choosers."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

import tickertape as tt
from tickertape.client.ha.server_chooser import ConnectionInfo
from tickertape.testing import check_server_chooser

A, B, C = (f"tcp://127.0.0.1:{port}" for port in (1, 2, 3))
LOST = tt.Disconnected("no answer")


def info(uri: str) -> ConnectionInfo:
    return ConnectionInfo("c", uri)


@pytest.mark.behaviour(23)
def test_default_chooser_stays_after_success_and_cycles_after_failures() -> None:
    chooser = tt.DefaultServerChooser([A, B, C])
    assert chooser.current_uri() == A
    chooser.report_success(info(A))
    assert chooser.current_uri() == A
    found = []
    for _ in range(4):
        uri = chooser.current_uri()
        assert uri is not None
        chooser.report_failure(LOST, info(uri))
        found.append(chooser.current_uri())
    assert found == [B, C, A, B]
    chooser.report_success(info(B))
    assert chooser.current_uri() == B


def test_default_chooser_ignores_failure_of_another_server() -> None:
    chooser = tt.DefaultServerChooser([A, B, C])
    chooser.report_failure(LOST, info(A))
    chooser.report_failure(LOST, info(A))
    assert chooser.current_uri() == B


def test_default_chooser_repeats_one_server_and_accepts_more() -> None:
    chooser = tt.DefaultServerChooser(A)
    assert chooser.error() == ""
    chooser.report_failure(LOST, info(A))
    assert chooser.current_uri() == A
    chooser.add(B)
    chooser.report_failure(LOST, info(A))
    assert chooser.current_uri() == B
    assert chooser.error() == "no answer"
    chooser.report_success(info(B))
    assert chooser.error() == ""


def test_default_chooser_without_servers_returns_an_error() -> None:
    chooser = tt.DefaultServerChooser()
    assert chooser.current_uri() is None
    assert chooser.error() == "The list of servers is empty."


def test_default_chooser_with_invalid_server_or_authenticator_raises() -> None:
    with pytest.raises(tt.BadOption, match="Invalid server address"):
        tt.DefaultServerChooser("http://a:1")
    with pytest.raises(tt.BadOption, match="all methods of Authenticator"):
        tt.DefaultServerChooser(A, authenticator="secret")  # type: ignore[arg-type]


def test_default_chooser_uses_one_authenticator_for_all_servers() -> None:
    authenticator = tt.DefaultAuthenticator()
    chooser = tt.DefaultServerChooser([A, B], authenticator=authenticator)
    assert chooser.current_authenticator() is authenticator
    assert authenticator.authenticate("ann", "secret") == "secret"
    assert authenticator.retry("ann", "secret") == "secret"


def test_default_chooser_passes_check_server_chooser() -> None:
    check_server_chooser(lambda: tt.DefaultServerChooser([A, B]))
    check_server_chooser(lambda: tt.DefaultServerChooser(A))


class Restless(tt.DefaultServerChooser):
    """Changes the server without a failure."""

    def current_uri(self) -> str | None:
        self._current = 1 - self._current
        return super().current_uri()


class Stubborn(tt.DefaultServerChooser):
    """Stays on one address, which may belong to several servers."""

    def report_failure(self, error: tt.TickertapeError, info: ConnectionInfo) -> None:
        """Do nothing."""


class Exhausted(tt.DefaultServerChooser):
    """Has no server after the first failure."""

    def report_failure(self, error: tt.TickertapeError, info: ConnectionInfo) -> None:
        self._uris.clear()


def test_chooser_of_the_how_to_passes_the_checks_and_returns_to_the_first_server() -> None:
    page = (Path(__file__).parents[4] / "docs" / "howto" / "ha.md").read_text(encoding="utf-8")
    (code,) = [
        part
        for part in re.findall(r"```python\n(.*?)```", page, re.DOTALL)
        if "class PreferredServerChooser" in part
    ]
    clock = Clock()
    names: dict[str, Any] = {"tt": tt, "time": clock}
    exec(code, names)
    make = names["PreferredServerChooser"]
    check_server_chooser(lambda: make([A, B]))
    chooser: tt.DefaultServerChooser = make([A, B])
    chooser.report_failure(LOST, info(A))
    chooser.report_success(info(B))
    assert chooser.current_uri() == B
    clock.now += 3601
    assert chooser.current_uri() == A
    chooser.report_failure(LOST, info(A))
    assert chooser.current_uri() == B
    chooser.report_success(info(B))
    clock.now += 3601
    assert chooser.current_uri() == A
    chooser.report_success(info(A))
    clock.now += 1
    assert chooser.current_uri() == A, "the chooser stays on a server that worked"


class Clock:
    """A replacement for the module `time`."""

    now = 0.0

    def monotonic(self) -> float:
        return self.now


def test_check_server_chooser_rejects_broken_and_accepts_valid_choosers() -> None:
    with pytest.raises(AssertionError, match="it moved"):
        check_server_chooser(lambda: Restless([A, B]))
    with pytest.raises(AssertionError, match="no server"):
        check_server_chooser(tt.DefaultServerChooser)
    with pytest.raises(AssertionError, match="lacks methods"):
        check_server_chooser(object)  # type: ignore[arg-type]
    check_server_chooser(lambda: Exhausted(A))
    check_server_chooser(lambda: Stubborn([A, B]))
