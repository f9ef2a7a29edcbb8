"""How-to about Spark: its code blocks run on a log with the data of the page."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from tickertape.client.blocking.client import Client
from tickertape.testing.server import running_server

pytestmark = pytest.mark.spark

PAGE = Path(__file__).parents[2] / "docs/howto/spark.md"
CONFIG = '[[queue]]\nname = "work"\nunderlying = "orders"\n'
BLOCKS = re.findall(r"^```python\n(.*?)^```", PAGE.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)


def test_spark_howto_blocks_run_with_the_documented_results(
    spark: SparkSession, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert len(BLOCKS) == 6
    with running_server(tmp_path / "data", CONFIG) as server:
        rows: list[dict[str, Any]] = [
            {"carrier": "UA" if n % 2 else "EV", "dep_delay": n, "origin": {"airport": "JFK"}}
            for n in range(8)
        ]
        with Client("howto", server.uri) as client:
            client.publish_batch("flights", rows)
            client.publish_batch("orders", [{"id": n, "quantity": 10 * n} for n in range(20)])
            client.publish_flush()
        replacements = {
            "tcp://127.0.0.1:9007": server.uri,
            "/srv/tickertape": str(server.data),
            "/tmp/flights": str(tmp_path / "flights"),
            "/tmp/orders": str(tmp_path / "orders"),
        }
        names: dict[str, Any] = {"spark": spark}
        for block in BLOCKS:
            for documented, actual in replacements.items():
                block = block.replace(documented, actual)
            exec(compile(block, str(PAGE), "exec"), names)
        assert names["delays"].where("`origin.airport` = 'JFK'").count() == 8
        assert spark.read.parquet(str(tmp_path / "flights")).count() == 8
        assert sorted(row["id"] for row in spark.read.parquet(str(tmp_path / "orders")).collect()) == [
            *range(20)
        ]
        with Client("judge", server.uri) as client:
            assert list(client.subscribe("work", browse=True)) == [], "everything was acknowledged"
            counts = {message.sow_key: message.json()["count"] for message in client.replay("counts")}
        assert counts == {"UA": 4, "EV": 4}
    printed = capsys.readouterr().out
    assert re.search(r"UA\|\s*4\|", printed)
    assert re.search(r"EV\|\s*3\.0\|", printed)
