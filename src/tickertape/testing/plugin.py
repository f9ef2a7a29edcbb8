"""pytest fixture `tickertape_server`: a real server process for one test.

pytest loads this module through the entry point `tickertape`. Nothing starts until a test uses the fixture.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from tickertape.testing.server import RunningServer


@pytest.fixture
def tickertape_server(tmp_path: Path) -> Iterator[RunningServer]:
    """Yield a running server on an empty directory: `.uri`, `.data`, `.kill()`, `.restart()`, `.stop()`."""
    from tickertape.testing.server import running_server

    with running_server(tmp_path / "data") as server:
        yield server
