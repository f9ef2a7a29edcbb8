"""Migration pages: runs the Tickertape blocks of each page in order and compares the output.

Blocks with a title show another system and are not run.
"""

from __future__ import annotations

import contextlib
import io
import re
from pathlib import Path
from typing import Any

import pytest

from tickertape.testing import running_server

MIGRATION = Path(__file__).parents[2] / "docs/migration"
ADDRESS = "tcp://127.0.0.1:9007"
BLOCK = re.compile(r"^```python\n(.*?)^```\n\n```text\n(.*?)^```$", re.MULTILINE | re.DOTALL)
CONFIGURATION = re.compile(r"^```toml\n(.*?)^```$", re.MULTILINE | re.DOTALL)
FOREIGN = re.compile(r'^```python title="\w+"\n(.*?)^```$', re.MULTILINE | re.DOTALL)
PAGES = ["amps", "kafka", "nats", "rabbitmq", "redis-streams"]


def test_every_migration_page_is_in_the_list_and_has_its_sections() -> None:
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
    monkeypatch.chdir(tmp_path)
    text = (MIGRATION / f"{page}.md").read_text(encoding="utf-8")
    found = BLOCK.findall(text)
    assert len(found) == text.count("```python\n") > 0
    names: dict[str, Any] = {}
    with running_server(tmp_path / "data", "\n".join(CONFIGURATION.findall(text)) or None) as server:
        for source, printed in found:
            output = io.StringIO()
            with contextlib.redirect_stdout(output):
                exec(source.replace(ADDRESS, server.uri), names)
            assert output.getvalue() == printed, source
