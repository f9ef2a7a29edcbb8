"""Messages of the SOW benches, the same in each process. Imports the standard library only."""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Final

KEYS: Final = 1_000_000
HITS: Final = 50
"""Records of each symbol."""
PRICE_ABOVE: Final = 990
QTY_BELOW: Final = 10
"""A filter on both passes one record in 1,000, or two if all quantities are small."""
HEAD: Final = '{"id":"%s","symbol":"S%05d","price":%d.5,"qty":%d,"x":"'
BODY_BYTES: Final = 200


def key_of(number: int) -> str:
    """Return the value of the key field of a record."""
    return f"K{number:07}"


def body_of(number: int, keys: int, version: int = 0) -> bytes:
    """Return 200 bytes of JSON for one of `keys` records. Versions differ in the price."""
    price = (number * 7919 + version * 13) % 1_000
    head = HEAD % (key_of(number), number % symbols_of(keys), price, number // 1_000 % 100)
    return (head + "x" * (BODY_BYTES - len(head) - 2) + '"}').encode()


def symbols_of(keys: int) -> int:
    """Return the number of symbols, each of `HITS` records."""
    return max(1, keys // HITS)


def matches_of(keys: int) -> int:
    """Return the number of records, all of one version, that the filter on two fields passes."""
    prices = (number * 7919 % 1_000 for number in range(keys) if number // 1_000 % 100 < QTY_BELOW)
    return sum(price >= PRICE_ABOVE for price in prices)


def numbers_of(turn: int, count: int, keys: int) -> list[int]:
    """Return the records that a turn updates: `count` different ones in random order."""
    return random.Random(turn).sample(range(keys), min(count, keys))


def chunks(values: list[bytes], size: int) -> Iterator[list[bytes]]:
    """Return parts of at most `size` values."""
    return (values[at : at + size] for at in range(0, len(values), size))
