"""Blocks of documentation pages: runs them in order against a server and compares the output."""

from __future__ import annotations

import contextlib
import io
import re
from pathlib import Path
from typing import Any

import pytest

from tickertape.testing import running_server

ADDRESS = "tcp://127.0.0.1:9007"
BLOCK = re.compile(r"^```python\n(.*?)^```\n\n```text\n(.*?)^```$", re.MULTILINE | re.DOTALL)
CONFIGURATION = re.compile(r"^```toml\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def check_blocks(page: Path, directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Run the Python blocks of `page` in `directory`. Each must print the text block behind it."""
    monkeypatch.chdir(directory)
    text = page.read_text(encoding="utf-8")
    found = BLOCK.findall(text)
    assert len(found) == text.count("```python\n") > 0
    names: dict[str, Any] = {}
    with running_server(directory / "data", "\n".join(CONFIGURATION.findall(text)) or None) as server:
        for source, printed in found:
            output = io.StringIO()
            with contextlib.redirect_stdout(output):
                exec(source.replace(ADDRESS, server.uri), names)
            assert output.getvalue() == printed, source
