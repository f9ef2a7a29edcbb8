"""Limits of the cli package: sizes, counts and seconds. Names end with the unit."""

from __future__ import annotations

from typing import Final

# administration
watch_seconds_min: Final = 0.1
"""Shortest interval of `stats --watch`."""

# archive
keep_seconds_default: Final = 7 * 86_400.0
"""Time that unused files of an archive are kept, for readers of older versions."""
