"""Owns the version of this software; the build reads it from here. Must never be written elsewhere."""

from __future__ import annotations

__version__ = "0.1.0.dev0"
