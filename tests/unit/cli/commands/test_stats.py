"""`stats` and `--server`: what is refused before anything is asked."""

from __future__ import annotations

import pytest
from click.testing import CliRunner

from tests.unit.server.admin.test_metrics import IDLE, WORK, stats_of
from tickertape.cli.commands import stats
from tickertape.cli.support.command_group import cli
from tickertape.engine.queues.snapshot import QueueSnapshot


@pytest.mark.parametrize("seconds", ["0", "0ms", "99ms"])
def test_statistics_are_not_shown_without_pause(seconds: str) -> None:
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
def test_an_address_of_the_other_kind_is_bad_usage(arguments: list[str]) -> None:
    result = CliRunner().invoke(cli, arguments)
    assert (result.exit_code, result.stdout) == (2, "")
    assert arguments[-1] in result.stderr


@pytest.mark.parametrize(
    ("looks", "lines"), [((WORK, IDLE), ["queues      2 with 18 messages, 2 leased"]), ((), [])]
)
def test_queues_are_summed_up_where_there_are_any(
    monkeypatch: pytest.MonkeyPatch, looks: tuple[QueueSnapshot, ...], lines: list[str]
) -> None:
    monkeypatch.setattr(stats, "stats_of", lambda _: (b"", stats_of(*looks)))
    told = CliRunner().invoke(cli, ["stats"]).stdout.splitlines()
    assert [line for line in told if line.startswith("queues")] == lines
