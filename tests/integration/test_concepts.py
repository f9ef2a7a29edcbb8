"""Concepts: runs the blocks of each page in order against a server and compares the output."""

from __future__ import annotations

import contextlib
import io
import re
from pathlib import Path
from typing import Any

import pytest

from tickertape.testing import running_server

CONCEPTS = Path(__file__).parents[2] / "docs/concepts"
ADDRESS = "tcp://127.0.0.1:9007"
BLOCK = re.compile(r"^```python\n(.*?)^```\n\n```text\n(.*?)^```$", re.MULTILINE | re.DOTALL)
CONFIGURATION = re.compile(r"^```toml\n(.*?)^```$", re.MULTILINE | re.DOTALL)
PAGES = ["durability", "high-availability", "log-and-bookmarks", "queues"]


def test_every_concept_page_has_a_picture_and_is_in_the_list() -> None:
    assert sorted(page.stem for page in CONCEPTS.glob("*.md")) == PAGES
    for page in CONCEPTS.glob("*.md"):
        assert "```mermaid\n" in page.read_text(encoding="utf-8"), page


@pytest.mark.slow
@pytest.mark.parametrize("page", PAGES)
def test_concept_page_blocks_print_the_output_of_the_page(
    page: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    text = (CONCEPTS / f"{page}.md").read_text(encoding="utf-8")
    found = BLOCK.findall(text)
    assert len(found) == text.count("```python\n") > 0
    names: dict[str, Any] = {}
    with running_server(tmp_path / "data", "\n".join(CONFIGURATION.findall(text)) or None) as server:
        for source, printed in found:
            output = io.StringIO()
            with contextlib.redirect_stdout(output):
                exec(source.replace(ADDRESS, server.uri), names)
            assert output.getvalue() == printed, source
