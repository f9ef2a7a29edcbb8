"""How-to about bookmark stores: its loop continues after a lost connection."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

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
