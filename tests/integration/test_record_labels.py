"""Correlation ids of records with a real server: queries, filters, tables, SQL, commands and restarts."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from random import Random
from typing import Final

import pytest
from click.testing import CliRunner

import tickertape as tt
from tickertape.cli.support.command_group import cli
from tickertape.testing import RunningServer, running_server

pytestmark = pytest.mark.slow

CONFIG: Final = """
[[sow]]
name = "orders"
key = ["/id"]
checkpoint_interval = "1h"
[[topic]]
name = "orders"
message_type = "json"
[admin]
listen = "off"
"""
SECONDS: Final = 30.0
Labels = dict[int, str | None]


def labels_of(messages: Iterable[tt.Message]) -> Labels:
    return {message.json()["id"]: message.correlation_id for message in messages}


def check(server: RunningServer, expected: Labels) -> None:
    """Compare all ways to read the records with the expected correlation ids."""
    with tt.Client("reader", server.uri, timeout=SECONDS) as client:
        assert labels_of(client.sow("orders")) == expected
        assert labels_of(client.sow("orders", order_by="/id DESC", batch_size=7)) == expected
        for label in {*expected.values()}:
            condition = "CORRELATION_ID() IS NULL" if label is None else f"CORRELATION_ID() = '{label}'"
            mine = {key: other for key, other in expected.items() if other == label}
            assert labels_of(client.sow("orders", condition)) == mine, "a naive evaluation"
        arrow = client.sow("orders").to_arrow(["data", "correlation_id"])
        rows = zip(arrow.column("data").to_pylist(), arrow.column("correlation_id").to_pylist(), strict=True)
        assert {json.loads(data)["id"]: label for data, label in rows} == expected
        found = client.query("SELECT id, _correlation_id AS label FROM orders")
        assert {row["id"]: row["label"] for row in found.to_pylist()} == expected
        with client.sow_and_subscribe("orders") as stream:
            stream.wait_snapshot(SECONDS)
            assert labels_of(next(stream) for _ in range(len(expected))) == expected
        with tt.Table(client, "orders") as table:
            assert labels_of(table.values()) == expected
    lines = CliRunner().invoke(cli, ["sow", "orders", "--server", server.uri, "--output", "json"]).output
    printed = [json.loads(line) for line in lines.splitlines()]
    assert {row["data"]["id"]: row.get("correlation_id") for row in printed} == expected


@pytest.mark.parametrize("clean", [pytest.param(True, marks=pytest.mark.full), False])
def test_records_keep_correlation_ids_of_messages_after_restarts(clean: bool, tmp_path: Path) -> None:
    rng = Random(clean)
    expected: Labels = {}
    for _ in range(3):
        with running_server(tmp_path / "data", CONFIG) as server:
            if expected:
                check(server, expected)
            with tt.Client("writer", server.uri, timeout=SECONDS) as client:
                for number in range(120):
                    key, label = rng.randrange(60), rng.choice([None, "a", "ü", f"c{number}"])
                    publish = rng.choice([client.publish, client.delta_publish])
                    publish("orders", {"id": key, "n": number}, correlation_id=label)
                    expected[key] = label
                client.publish_flush(timeout=SECONDS)
                check(server, expected)
                deleted = client.sow_delete("orders", filter="CORRELATION_ID() = 'a' OR /id < 5")
                gone = {key for key, label in expected.items() if label == "a" or key < 5}
                assert deleted.records == len(gone)
                expected = {key: label for key, label in expected.items() if key not in gone}
                check(server, expected)
            if clean:
                assert server.stop() == 0
            else:
                server.kill()
