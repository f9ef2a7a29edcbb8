"""How-to about bookmark stores: its loop continues after a lost connection, its SOW topic without files."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

import tickertape as tt
from tickertape.testing import FaultProxy, running_server

PAGE = Path(__file__).parents[2] / "docs/howto/bookmark-stores.md"


def test_loop_of_the_page_survives_lost_and_refused_connections() -> None:
    code = re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL)
    (loop,) = [part for part in code if "while running()" in part]
    processed: list[bytes] = []
    waits: list[float] = []
    with (
        running_server() as server,
        FaultProxy(server.uri) as proxy,
        tt.Client("maker", server.uri) as maker,
    ):
        maker.publish("orders", b"first")

        class Time:
            @staticmethod
            def sleep(seconds: float) -> None:
                if not waits:
                    maker.publish("orders", b"second")
                waits.append(seconds)
                proxy.accept()

        def process(message: tt.Message) -> None:
            processed.append(message.data)
            message.discard()
            if len(processed) == 1:
                proxy.refuse()
            proxy.cut()

        store = tt.MemoryBookmarkStore()
        with tt.Client("orders-1", proxy.uri, bookmark_store=store, timeout=10) as client:
            names: dict[str, Any] = {
                "tt": tt,
                "client": client,
                "time": Time,
                "process": process,
                "running": lambda: len(processed) < 2,
            }
            exec(loop, names)
            still_held = store.undiscarded_count("orders")
    assert waits
    assert processed == [b"first", b"second"]
    assert still_held == 0


def test_block_with_a_sow_topic_resumes_without_files(capsys: pytest.CaptureFixture[str]) -> None:
    page = PAGE.read_text(encoding="utf-8")
    (program,) = re.findall(r"```python\n([^`]*SowRecoveryPointAdapter.*?)```", page, re.DOTALL)
    (configuration,) = re.findall(r"```toml\n(.*?)```", page, re.DOTALL)
    with running_server(config=configuration) as server:
        with tt.Client("maker", server.uri) as maker:
            maker.publish_batch("orders", [{"id": 1}, {"id": 2}])
            maker.publish_flush()
        for _ in range(2):
            exec(program.replace("tcp://127.0.0.1:9007", server.uri), {})
    assert capsys.readouterr().out == "processing {'id': 1}\nprocessing {'id': 2}\n"
