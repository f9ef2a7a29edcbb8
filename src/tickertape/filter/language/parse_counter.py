"""Counter of the filter texts that the grammar parsed.

A compilation without a parsed text was short."""

from __future__ import annotations

from typing import Final


class ParseCounter:
    """The number of parsed texts. A filter whose shape is cached is not parsed."""

    def __init__(self) -> None:
        self.count: int = 0


PARSES: Final = ParseCounter()
"""Parsed texts of the process."""
