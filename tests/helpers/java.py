"""Owns with what options tests start Java for Spark: a machine that lives for a minute.

Must never change what Spark computes.
"""

from __future__ import annotations

import sys
from typing import Final

JAVA_OPTIONS: Final = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC -XX:MetaspaceSize=256m"
"""Compiling thoroughly and collecting garbage side by side cost more than they give back in that time; so do
collections whenever some more classes have been loaded.
"""


def short_lived_java() -> dict[str, str]:
    """What to add to the environment of whoever starts Java."""
    return {"JAVA_TOOL_OPTIONS": JAVA_OPTIONS}


def java_that_runs() -> dict[str, str]:
    """What to add to the environment of a process that is to use the Java machine of this process, with a
    session of its own; nothing when there is none. The session of this process is stopped: a machine has one.
    """
    if "pyspark" not in sys.modules:
        return {}
    from pyspark import SparkContext
    from pyspark.sql import SparkSession

    gateway = SparkContext._gateway
    if gateway is None:
        return {}
    session = SparkSession.getActiveSession()
    if session is not None:
        session.stop()
    given = gateway.gateway_parameters
    return {"PYSPARK_GATEWAY_PORT": str(given.port), "PYSPARK_GATEWAY_SECRET": given.auth_token}
