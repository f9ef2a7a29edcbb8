"""Java options for Spark in tests: a virtual machine that runs for a minute.

Must never change the results of Spark.
"""

from __future__ import annotations

import sys
from typing import Final

JAVA_OPTIONS: Final = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC -XX:MetaspaceSize=256m"
"""In that time, thorough compilation and concurrent garbage collection cost more than they save. The same
holds for collections whenever more classes have been loaded.
"""


def short_lived_java() -> dict[str, str]:
    """Return the environment variables of a process that starts Java."""
    return {"JAVA_TOOL_OPTIONS": JAVA_OPTIONS}


def java_that_runs() -> dict[str, str]:
    """Return the environment variables of a process that uses this process's Java machine with a session of
    its own.

    Empty without a running one. Stops the session of this process: a machine has only one.
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
