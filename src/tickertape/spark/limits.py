"""Limits of the spark package: sizes, counts and seconds. Names end with the unit."""

from __future__ import annotations

from typing import Final

from tickertape.base.limits import MIB

# queue
source_rows_default: Final = 1_000
"""Messages in a micro-batch of a queue that Spark reads, when no option says it. The driver holds twice as
many: those of the batch under way, and the next ones."""
source_bytes_max: Final = 256 * MIB
"""Bodies that this driver takes ahead. Further messages are leased, and their leases are not extended."""
source_part_bytes_max: Final = 16 * MIB
"""Bodies that one Spark task is handed, or one message."""
source_lease_seconds: Final = 60.0
"""The least that a lease is extended by, three times in this time."""
source_lease_seconds_default: Final = 3_600.0
"""How long the leases of a message are extended at most, when no option says it."""
