"""Limits of the spark package: sizes, counts and seconds. Names end with the unit."""

from __future__ import annotations

from typing import Final

from tickertape.base.limits import MIB

# queue
source_rows_default: Final = 1_000
"""Default number of messages in a micro-batch of a queue source. The driver holds twice as many: the ones of
the current batch and of the next one."""
source_bytes_max: Final = 256 * MIB
"""Body bytes that the driver prefetches. Further messages are leased, but their leases are not extended."""
source_part_bytes_max: Final = 16 * MIB
"""Body bytes that one Spark task gets, or one message."""
source_lease_seconds: Final = 60.0
"""Minimum lease extension. Leases are extended three times in this period."""
source_lease_seconds_default: Final = 3_600.0
"""Default maximum time for which the leases of a message are extended."""
