"""Journal commands beside a server that renames files, and beside corruption outside their range."""

from __future__ import annotations

import socket
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tickertape.base.errors import JournalCorrupt
from tickertape.cli.journal import log_range
from tickertape.cli.journal.verify import sockets_in


class _Renaming:
    """A listing with a file that a server renames before its status is read."""

    def __init__(self, entries: list[Any]) -> None:
        self._entries = entries

    def __enter__(self) -> list[Any]:
        return self._entries

    def __exit__(self, *_: object) -> None:
        return None


def test_sockets_are_found_beside_a_renamed_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def gone(*, follow_symlinks: bool) -> Any:
        raise FileNotFoundError

    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(tmp_path / "s"))
        status = (tmp_path / "s").lstat()
    entries = [
        SimpleNamespace(name="state.tmp", stat=gone),
        SimpleNamespace(name="s", stat=lambda *, follow_symlinks: status),  # noqa: ARG005
    ]
    monkeypatch.setattr("tickertape.cli.journal.verify.os.scandir", lambda _: _Renaming(entries))
    assert sockets_in(str(tmp_path)) == {"s"}


def test_hint_about_a_topic_ignores_corruption_outside_the_range(capsys: pytest.CaptureFixture[str]) -> None:
    def parts(start: int, stop: int) -> Any:
        yield SimpleNamespace(batch=SimpleNamespace(topics=["orders"]))
        raise JournalCorrupt("Cannot read the log: damaged.")

    reader: Any = SimpleNamespace(view=SimpleNamespace(first_position=0, end_position=9), parts=parts)
    log_range._hint_topic(reader, "order")
    assert "Did you mean 'orders'?" in capsys.readouterr().err
