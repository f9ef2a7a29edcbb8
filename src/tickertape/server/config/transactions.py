"""Transaction configuration: the table `[transactions]`, its defaults and bounds.

The staging directory is not touched.
"""

from __future__ import annotations

from typing import Any

import msgspec

from tickertape.base.errors import ConfigurationError
from tickertape.base.limits import MIB
from tickertape.base.units import parse_interval, parse_size
from tickertape.engine.limits import (
    staged_age_seconds_default,
    staged_bytes_max_default,
    transaction_bytes_max_default,
)
from tickertape.engine.transactions.staging_area import StagingLimits
from tickertape.server.config.section import Section, kind_of
from tickertape.server.limits import staged_age_seconds_min, transaction_bytes_min


class TransactionsConfig(msgspec.Struct, frozen=True, kw_only=True):
    """Bounds of staged transactions, in bytes and time."""

    disk_limit: int = staged_bytes_max_default
    """Bytes, all transactions together."""
    bytes_max: int = transaction_bytes_max_default
    """Bytes of one transaction."""
    expire_after: float = staged_age_seconds_default
    """Seconds after which an unused staged transaction is dropped."""

    @property
    def limits(self) -> StagingLimits:
        """The bounds, for the engine."""
        return StagingLimits(self.disk_limit, self.bytes_max, self.expire_after)


def read_transactions(section: Section) -> TransactionsConfig:
    """The table."""
    chosen_disk = section.value("disk_limit", _size, None)
    disk = staged_bytes_max_default if chosen_disk is None else chosen_disk
    chosen = section.value("bytes_max", _size, None)
    one = min(transaction_bytes_max_default, disk) if chosen is None else chosen
    age = section.value("expire_after", _age, staged_age_seconds_default)
    known = chosen_disk is not None or not section.has("disk_limit")
    if known and one > disk:
        section.problem("bytes_max", f"{one:,} bytes, is above disk_limit, {disk:,} bytes")
    section.finish()
    return TransactionsConfig(disk_limit=disk, bytes_max=one, expire_after=age)


def _size(value: Any) -> int:
    if isinstance(value, dict | list):
        raise ConfigurationError(f'is a size such as "4GB", not {kind_of(value)}')
    size = parse_size(value)
    if size < transaction_bytes_min:
        raise ConfigurationError(f"is at least {transaction_bytes_min // MIB}MB, not {kind_of(value)}")
    return size


def _age(value: Any) -> float:
    if isinstance(value, dict | list):
        raise ConfigurationError(f'is a time such as "1h", not {kind_of(value)}')
    seconds = parse_interval(value)
    if seconds < staged_age_seconds_min:
        raise ConfigurationError(f"is at least {staged_age_seconds_min:g} second, not {kind_of(value)}")
    return seconds
