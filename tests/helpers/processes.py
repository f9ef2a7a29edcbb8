"""Owns how tests start other Python processes that import this source tree."""

from __future__ import annotations

import os
from pathlib import Path

SOURCE = Path(__file__).parents[2] / "src"


def source_environment() -> dict[str, str]:
    """The environment, with this source tree importable whether or not the package is installed."""
    path = os.pathsep.join(filter(None, (str(SOURCE), os.environ.get("PYTHONPATH"))))
    return {**os.environ, "PYTHONPATH": path}
