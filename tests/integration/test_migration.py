"""Migration pages: runs the Tickertape blocks of each page in order and compares the output.

Blocks with a title show another system and are not run.
"""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.helpers.page_blocks import check_blocks

MIGRATION = Path(__file__).parents[2] / "docs/migration"
FOREIGN = re.compile(r'^```python title="\w+"\n(.*?)^```$', re.MULTILINE | re.DOTALL)
PAGES = ["amps", "kafka", "nats", "rabbitmq", "redis-streams"]


def test_migration_pages_are_listed_and_have_both_sections() -> None:
    assert sorted(page.stem for page in MIGRATION.glob("*.md")) == PAGES
    for page in MIGRATION.glob("*.md"):
        text = page.read_text(encoding="utf-8")
        assert "## Words side by side\n" in text, page
        assert "## Differences\n" in text, page


@pytest.mark.parametrize("page", PAGES)
def test_code_of_the_other_system_is_valid_python(page: str) -> None:
    for source in FOREIGN.findall((MIGRATION / f"{page}.md").read_text(encoding="utf-8")):
        body = "".join(f"    {line}\n" for line in source.splitlines())
        compile(f"async def example():\n{body}", page, "exec")


@pytest.mark.slow
@pytest.mark.parametrize("page", PAGES)
def test_migration_page_blocks_print_the_output_of_the_page(
    page: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    check_blocks(MIGRATION / f"{page}.md", tmp_path, monkeypatch)
