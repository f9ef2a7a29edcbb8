"""`stats` and `--server`: invalid options, and the summaries of queues and transactions."""

from __future__ import annotations

import msgspec
import pytest
from click.testing import CliRunner

from tests.unit.server.admin.test_metrics import IDLE, WORK, stats_of
from tickertape.cli.commands import stats
from tickertape.cli.support.command_group import cli
from tickertape.engine.queues.snapshot import QueueSnapshot


@pytest.mark.parametrize("seconds", ["0", "0ms", "99ms"])
def test_stats_watch_with_an_invalid_interval_exits_2(seconds: str) -> None:
    result = CliRunner().invoke(cli, ["stats", "--watch", seconds])
    assert (result.exit_code, result.stdout) == (2, "")
    assert f"Invalid interval '{seconds}'" in result.stderr


@pytest.mark.parametrize(
    "arguments",
    [
        ["publish", "orders", "--server", "http://127.0.0.1:9008"],
        ["subscribe", "orders", "--server", "http://127.0.0.1:9008"],
        ["stats", "--admin", "tcp://127.0.0.1:9007"],
        ["topics", "--admin", "tcp://127.0.0.1:9007"],
    ],
)
def test_admin_address_as_server_address_and_vice_versa_exit_2(arguments: list[str]) -> None:
    result = CliRunner().invoke(cli, arguments)
    assert (result.exit_code, result.stdout) == (2, "")
    assert arguments[-1] in result.stderr


@pytest.mark.parametrize(
    ("snapshots", "lines"), [((WORK, IDLE), ["queues       2 with 18 messages, 2 leased"]), ((), [])]
)
def test_stats_summarises_queues_when_present(
    monkeypatch: pytest.MonkeyPatch, snapshots: tuple[QueueSnapshot, ...], lines: list[str]
) -> None:
    monkeypatch.setattr(stats, "stats_of", lambda _: (b"", stats_of(*snapshots)))
    lines_shown = CliRunner().invoke(cli, ["stats"]).stdout.splitlines()
    assert [line for line in lines_shown if line.startswith("queues")] == lines
    (log,) = (line for line in lines_shown if line.startswith("log "))
    assert " (exclusive)" in log


def test_stats_positions_have_the_form_that_journal_find_takes(monkeypatch: pytest.MonkeyPatch) -> None:
    idle = stats_of()
    journal = msgspec.structs.replace(idle.journal, first_position=1_198_220, persisted_end=1_250_019)
    report = msgspec.structs.replace(idle, journal=journal)
    monkeypatch.setattr(stats, "stats_of", lambda _: (b"", report))
    assert "positions 1198220 to 1250019 (exclusive), " in CliRunner().invoke(cli, ["stats"]).stdout


def test_stats_separates_the_longest_label_from_the_text(monkeypatch: pytest.MonkeyPatch) -> None:
    idle = stats_of()
    transactions = msgspec.structs.replace(idle.transactions, committed=4)
    report = msgspec.structs.replace(idle, transactions=transactions)
    monkeypatch.setattr(stats, "stats_of", lambda _: (b"", report))
    lines = CliRunner().invoke(cli, ["stats"]).stdout.splitlines()
    assert [line[:24] for line in lines if line.startswith("trans")] == ["transactions 4 committed"]


def test_stats_prints_the_whole_reason_and_the_whole_holder(monkeypatch: pytest.MonkeyPatch) -> None:
    idle = stats_of()
    reason = (
        "journal_failed: Cannot write the log in '/var/lib/tickertape': input/output error. Check the disk."
    )
    holder = "subscription 'end-of-day-report-2026-11-20' of client 'end-of-day-report-2026-11-20-london'"
    retention = msgspec.structs.replace(idle.journal.retention, held_segments=9, held_bytes=1, held_by=holder)
    journal = msgspec.structs.replace(idle.journal, retention=retention)
    report = msgspec.structs.replace(idle, state="failed", reason=reason, journal=journal)
    monkeypatch.setattr(stats, "stats_of", lambda _: (b"", report))
    printed = CliRunner().invoke(cli, ["stats"]).stdout
    assert f"failed ({reason})" in printed
    assert f"9 old segments, 1 byte, needed by {holder}\n" in printed
