"""Owns how a test with many parts is divided between every run and `script/test --full`."""

from __future__ import annotations

from typing import Any

import pytest


def parts(count: int, every_run: int = 1) -> list[Any]:
    """`range(count)` for `parametrize`; those from `every_run` on only in the full tier."""
    return [n if n < every_run else pytest.param(n, marks=pytest.mark.full) for n in range(count)]
