"""`stats` and `topics --sow` of a server with SOW topics."""

from __future__ import annotations

import msgspec
import pytest
from click.testing import CliRunner

from tests.unit.server.admin.test_metrics import stats_of
from tickertape.cli.commands import stats, topics
from tickertape.cli.support.command_group import cli
from tickertape.engine.sow.snapshot import SowCheckpointSnapshot, SowSnapshot
from tickertape.server.admin.schema import SowState

ORDERS = SowSnapshot(
    name="orders",
    pattern=None,
    key=["/account", "/id"],
    records=1_200,
    position=40_321,
    memory_bytes=2_345_678,
    live_bytes=1_000_000,
    block_bytes=1_500_000,
    blocks=2,
    garbage_ratio=0.3333,
    held_bytes=0,
    index_bytes=40_000,
    column_bytes=0,
    changes_bytes=0,
    deleted=3,
    expired=4,
    refused=5,
    unkeyed=6,
    complete=True,
    incomplete_because=None,
    checkpoint=SowCheckpointSnapshot(
        position=40_000,
        log_position=39_000,
        files=2,
        bytes=1_100_000,
        seconds=12.5,
        interval_seconds=60.0,
        failures=0,
    ),
)
PART = "--rebuild-sow: the state has only messages from position 77 on"
SETTINGS = msgspec.structs.replace(
    ORDERS,
    name="settings",
    pattern="^set/",
    key=[],
    records=1,
    complete=False,
    incomplete_because=PART,
    checkpoint=msgspec.structs.replace(ORDERS.checkpoint, position=None, seconds=70.0, failures=2),
)
SOW = SowState(
    folded_position=40_321,
    lag_bytes=0,
    failure=None,
    memory_bytes=4_691_356,
    memory_limit_bytes=8_000_000,
    memory_refused_frames=0,
    queries=0,
    oldest_query_seconds=None,
    results_bytes=0,
    results_limit_bytes=1 << 30,
    topics=[SETTINGS, ORDERS],
)


def lines_of(monkeypatch: pytest.MonkeyPatch, sow: SowState | None) -> list[str]:
    report = msgspec.structs.replace(stats_of(), sow=sow)
    monkeypatch.setattr(stats, "stats_of", lambda _: (b"", report))
    printed = CliRunner().invoke(cli, ["stats"]).stdout.splitlines()
    return [line for line in printed if line.startswith(("sow", "checkpoints"))]


def test_stats_without_sow_topics_have_no_sow_line(monkeypatch: pytest.MonkeyPatch) -> None:
    assert lines_of(monkeypatch, None) == []


def test_stats_summarise_sow_topics(monkeypatch: pytest.MonkeyPatch) -> None:
    assert lines_of(monkeypatch, SOW) == [
        "sow          2 topics with 1,201 records, 4,691,356 of 8,000,000 bytes",
        f"sow part     settings: {PART}",
        "checkpoints  oldest 70 s, 2 failed",
    ]


def test_stats_show_queries_lag_and_the_cause_of_a_stop(monkeypatch: pytest.MonkeyPatch) -> None:
    sow = msgspec.structs.replace(
        SOW,
        lag_bytes=1_234,
        failure="Cannot read 'journal/1.segment'.",
        queries=3,
        oldest_query_seconds=4.5,
        results_bytes=9_000,
        topics=[ORDERS],
    )
    assert lines_of(monkeypatch, sow) == [
        "sow          1 topic with 1,200 records, 4,691,356 of 8,000,000 bytes, 1,234 bytes behind",
        "sow stopped  Cannot read 'journal/1.segment'.",
        "sow queries  3 running, oldest 4.5 s, 9,000 bytes of results",
        "checkpoints  oldest 12.5 s",
    ]


def listed(monkeypatch: pytest.MonkeyPatch, sow: SowState | None, *options: str) -> str:
    report = msgspec.structs.replace(stats_of(), sow=sow)
    monkeypatch.setattr(topics, "stats_of", lambda _: (b"", report))
    return CliRunner().invoke(cli, ["topics", "--sow", *options]).stdout


def test_topics_lists_sow_topics_by_name_with_key_records_and_position(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert listed(monkeypatch, SOW).splitlines() == [
        "topic     pattern  key            records      bytes  position  checkpoint  complete",
        "orders    -        /account, /id    1,200  2,345,678     40321       40000       yes",
        "settings  ^set/    explicit             1  2,345,678     40321           -        no",
    ]
    assert len(listed(monkeypatch, SOW, "--limit", "1").splitlines()) == 2


def test_topics_prints_sow_topics_as_json_with_all_fields(monkeypatch: pytest.MonkeyPatch) -> None:
    rows = listed(monkeypatch, SOW, "--output", "json").splitlines()
    assert [msgspec.json.decode(row, type=SowSnapshot) for row in rows] == [ORDERS, SETTINGS]


def test_topics_without_sow_topics_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    assert listed(monkeypatch, None) == "no SOW topic is configured\n"
