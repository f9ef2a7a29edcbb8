"""How-to about transactions: its blocks run in order and print the documented output."""

from __future__ import annotations

import contextlib
import io
import re
from pathlib import Path
from typing import Any

import pytest

from tickertape.testing import running_server

PAGE = Path(__file__).parents[2] / "docs/howto/transactions.md"
ADDRESS = "tcp://127.0.0.1:9007"

pytestmark = pytest.mark.slow


def test_transactions_howto_blocks_print_the_documented_output() -> None:
    text = PAGE.read_text(encoding="utf-8")
    found = re.findall(r"^```python\n(.*?)^```\n\n```text\n(.*?)^```", text, re.MULTILINE | re.DOTALL)
    assert len(found) == text.count("```python\n") == 6
    names: dict[str, Any] = {}
    with running_server() as server:
        for source, printed in found:
            output = io.StringIO()
            with contextlib.redirect_stdout(output):
                exec(source.replace(ADDRESS, server.uri), names)
            assert output.getvalue() == printed
