"""Version of this software (the build reads it from this file)."""

from __future__ import annotations

__version__ = "0.1.0.dev0"
