"""Limits configuration: the tables `[limits]`, `[slow_clients]` and `[transactions]`.

Invariant: no limit exceeds the capacity of another component. Directories are not accessed.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, Final

import msgspec

from tickertape.base.client_limits import DEFAULT, LEAST, MOST, ClientLimits
from tickertape.base.errors import ConfigurationError
from tickertape.base.limits import MIB
from tickertape.base.units import parse_interval, parse_size
from tickertape.engine.limits import (
    slow_connection_bytes_default,
    slow_disk_bytes_default,
    slow_memory_bytes_default,
    sow_bytes_min,
    staged_age_seconds_default,
    staged_bytes_max_default,
    transaction_bytes_max_default,
)
from tickertape.engine.transactions.staging_area import StagingLimits
from tickertape.engine.transient.slow_consumers import SlowConsumerLimits
from tickertape.journal.format.segment import SPILL_DIRECTORY
from tickertape.server.config.document import Section, kind_of, size_of
from tickertape.server.limits import (
    slow_disk_bytes_min,
    slow_memory_bytes_min,
    staged_age_seconds_min,
    transaction_bytes_min,
)

_WHY: Final = {
    "message_bytes_max": "frames, segments and client stores hold no larger message",
    "filter_bytes_max": "parsing a longer filter would delay all other clients",
    "subscriptions_per_connection_max": "a bookmark store holds no more subscriptions",
}
DIRECTORY_DEFAULT: Final = SPILL_DIRECTORY
"""Name of the directory in the data directory."""
NO_AGE: Final = "none"
_sow_size = partial(size_of, example="8GB", least=sow_bytes_min)
_staged_size = partial(size_of, example="4GB", least=transaction_bytes_min)


def read_limits(section: Section) -> tuple[ClientLimits, int | None]:
    """Read the table `[limits]`. Return the limits of clients, and `sow_bytes_max` (None: the default)."""
    found = {name: section.value(name, _bounded(name), getattr(DEFAULT, name)) for name in DEFAULT._fields}
    sow_bytes_max = section.value("sow_bytes_max", _sow_size, None)
    section.finish()
    return ClientLimits(**found), sow_bytes_max


def _bounded(name: str) -> Callable[[Any], int]:
    low, high = getattr(LEAST, name), getattr(MOST, name)

    def read(value: Any) -> int:
        if isinstance(value, bool | dict | list | float):
            raise ConfigurationError(f"must be an integer from {low:,} to {high:,}, not {kind_of(value)}")
        number = parse_size(value)
        if number < low:
            raise ConfigurationError(f"must be at least {low:,}, not {number:,}")
        if number > high:
            raise ConfigurationError(f"must be at most {high:,}, not {number:,}: {_WHY[name]}")
        return number

    return read


# -- slow clients -------------------------------------------------------------------------------------


class SlowClientsConfig(msgspec.Struct, frozen=True, kw_only=True):
    """Limits of the backlogs of slow clients. The age limit also applies to `live` subscriptions."""

    memory_limit: int = slow_memory_bytes_default
    """Bytes in memory, over all connections."""
    connection_limit: int = slow_connection_bytes_default
    """Bytes in memory for one connection. A larger backlog spills to disk."""
    disk_limit: int = slow_disk_bytes_default
    """Bytes on disk, over all connections. 0: no spilling."""
    directory: str | None = None
    """Directory of spill files. None: `spill` in the data directory."""
    age_limit: float | None = None
    """Seconds that a message may wait, or a `live` subscription may lag. None: no limit."""

    @property
    def limits(self) -> SlowConsumerLimits:
        """The limits in the form of the engine."""
        return SlowConsumerLimits(self.memory_limit, self.connection_limit, self.disk_limit, self.age_limit)

    def path(self, data: str) -> str:
        """Return the configured directory, or the default directory in the data directory `data`."""
        return str(Path(data) / DIRECTORY_DEFAULT) if self.directory is None else self.directory


def read_slow_clients(section: Section, home: str) -> SlowClientsConfig:
    """Read the table. `home`: file that a relative path is relative to, if the path is not from a file."""
    memory = section.value("memory_limit", _memory, slow_memory_bytes_default)
    connection = section.value("connection_limit", _size, min(slow_connection_bytes_default, memory))
    disk = section.value("disk_limit", _disk, slow_disk_bytes_default)
    directory = section.value("directory", _directory, None)
    age = section.value("age_limit", _age, None)
    if connection > memory:
        section.problem(
            "connection_limit", f"must be at most memory_limit ({memory} bytes), not {connection} bytes"
        )
    if directory is not None:
        if disk == 0:
            section.problem("directory", "has no effect with disk_limit = 0. Remove one of the two keys.")
        home = section.location("directory").file if section.location("directory").line else home
        directory = str(Path(home).parent / directory) if home else directory
    section.finish()
    return SlowClientsConfig(
        memory_limit=memory,
        connection_limit=connection,
        disk_limit=disk,
        directory=directory,
        age_limit=age,
    )


def _size(value: Any) -> int:
    if isinstance(value, dict | list):
        raise ConfigurationError(f'must be a size such as "64MB", not {kind_of(value)}')
    return parse_size(value)


def _memory(value: Any) -> int:
    size = _size(value)
    if size < slow_memory_bytes_min:
        raise ConfigurationError(f"must be at least {slow_memory_bytes_min // MIB}MB, not {kind_of(value)}")
    return size


def _disk(value: Any) -> int:
    size = _size(value)
    if 0 < size < slow_disk_bytes_min:
        least = slow_disk_bytes_min // MIB
        raise ConfigurationError(f"must be 0 (no spilling) or at least {least}MB, not {kind_of(value)}")
    return size


def _directory(value: Any) -> str:
    if not isinstance(value, str) or not value or "\0" in value:
        raise ConfigurationError(f"must be the path of a directory, not {kind_of(value)}")
    return value


def _age(value: Any) -> float | None:
    if value == NO_AGE:
        return None
    if isinstance(value, dict | list):
        raise ConfigurationError(f'must be a time such as "30s", or "{NO_AGE}", not {kind_of(value)}')
    seconds = parse_interval(value)
    if seconds <= 0:
        raise ConfigurationError(f'must be more than 0, or "{NO_AGE}", not {kind_of(value)}')
    return seconds


# -- transactions -------------------------------------------------------------------------------------


class TransactionsConfig(msgspec.Struct, frozen=True, kw_only=True):
    """Limits of staged transactions, in bytes and time."""

    disk_limit: int = staged_bytes_max_default
    """Bytes on disk, over all transactions."""
    bytes_max: int = transaction_bytes_max_default
    """Bytes of one transaction."""
    expire_after: float = staged_age_seconds_default
    """Seconds after which an unused staged transaction is dropped."""

    @property
    def limits(self) -> StagingLimits:
        """The limits in the form of the engine."""
        return StagingLimits(self.disk_limit, self.bytes_max, self.expire_after)


def read_transactions(section: Section) -> TransactionsConfig:
    """Read the table `[transactions]`."""
    chosen_disk = section.value("disk_limit", _staged_size, None)
    disk = staged_bytes_max_default if chosen_disk is None else chosen_disk
    chosen = section.value("bytes_max", _staged_size, None)
    one = min(transaction_bytes_max_default, disk) if chosen is None else chosen
    age = section.value("expire_after", _staged_age, staged_age_seconds_default)
    known = chosen_disk is not None or not section.has("disk_limit")
    if known and one > disk:
        section.problem("bytes_max", f"must be at most disk_limit ({disk:,} bytes), not {one:,} bytes")
    section.finish()
    return TransactionsConfig(disk_limit=disk, bytes_max=one, expire_after=age)


def _staged_age(value: Any) -> float:
    if isinstance(value, dict | list):
        raise ConfigurationError(f'must be a time such as "1h", not {kind_of(value)}')
    seconds = parse_interval(value)
    if seconds < staged_age_seconds_min:
        raise ConfigurationError(f"must be at least {staged_age_seconds_min:g} s, not {kind_of(value)}")
    return seconds
