"""Concepts: runs the blocks of each page in order against a server and compares the output."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.helpers.page_blocks import check_blocks

CONCEPTS = Path(__file__).parents[2] / "docs/concepts"
PAGES = ["durability", "high-availability", "log-and-bookmarks", "queues", "state-of-the-world"]


def test_concept_pages_have_a_diagram_and_are_listed() -> None:
    assert sorted(page.stem for page in CONCEPTS.glob("*.md")) == PAGES
    for page in CONCEPTS.glob("*.md"):
        assert "```mermaid\n" in page.read_text(encoding="utf-8"), page


@pytest.mark.slow
@pytest.mark.parametrize("page", PAGES)
def test_concept_page_blocks_print_the_output_of_the_page(
    page: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    check_blocks(CONCEPTS / f"{page}.md", tmp_path, monkeypatch)
