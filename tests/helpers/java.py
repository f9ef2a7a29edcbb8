"""Owns with what options tests start Java for Spark: a machine that lives for a minute.

Must never change what Spark computes.
"""

from __future__ import annotations

from typing import Final

JAVA_OPTIONS: Final = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
"""Compiling thoroughly and collecting garbage side by side cost more than they give back in that time."""


def short_lived_java() -> dict[str, str]:
    """What to add to the environment of whoever starts Java."""
    return {"JAVA_TOOL_OPTIONS": JAVA_OPTIONS}
