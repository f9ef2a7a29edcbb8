"""The how-to about HA clients: its blocks run in order."""

from __future__ import annotations

import logging
import re
from pathlib import Path
from typing import Any

import pytest

from tickertape.testing import FaultProxy, running_server
from tickertape.testing.ports import ReservedPort

PAGE = Path(__file__).parents[2] / "docs/howto/ha.md"
BLOCK = re.compile(r"^```(\w+)\n(.*?)^```", re.MULTILINE | re.DOTALL)

pytestmark = pytest.mark.slow


def test_howto_ha_blocks_run_in_order_and_log_the_states_of_the_page(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    text = PAGE.read_text(encoding="utf-8")
    names: dict[str, Any] = {}
    (expected,) = [source for language, source in BLOCK.findall(text) if language == "text"]
    port = ReservedPort()
    try:
        with (
            running_server() as server,
            FaultProxy(server.uri) as proxy,
            caplog.at_level(logging.INFO, "risk"),
        ):
            proxy.to_client.delay = 0.05  # deliveries arrive after the call that started them
            text = text.replace("tcp://127.0.0.1:9007", proxy.uri).replace(":9017", f":{port.number}")
            for language, source in BLOCK.findall(text):
                if language == "python" and "while True" not in source:
                    exec(source, names)
    finally:
        port.release()
    states = [record.getMessage() for record in caplog.records if record.name == "risk"]
    assert states[:4] == expected.splitlines()
    (printed,) = re.findall(r"^The callback prints `(.+)`\.$", text, re.MULTILINE)
    assert capsys.readouterr().out == f"{printed}\n"
