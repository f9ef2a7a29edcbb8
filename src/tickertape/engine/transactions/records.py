"""Transaction records: control records of committed transactions, and the state built from them.

Numbers of a space are remembered permanently, names up to the limits of `TransactionIdCache`.
"""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from tickertape.base.errors import LimitReached
from tickertape.batch import BatchBuilder, MessageBatch
from tickertape.engine.limits import (
    transaction_names_each_max,
    transaction_names_max,
    transaction_publishers_max,
    transaction_spaces_max,
)
from tickertape.engine.runtime.publisher_ids import CONTROL_TOPIC
from tickertape.wire.commands import Transaction


class TransactionIdCache:
    """Committed transaction names of each publisher, oldest first."""

    def __init__(self) -> None:
        self._names: dict[str, dict[str, int]] = {}
        """Names of each publisher, each with its slot."""
        self._holders: dict[int, tuple[str, str]] = {}
        """Publisher and name by slot."""
        self._free = 0
        """Lower bound of the free slots."""
        self._sizes: dict[int, dict[str, None]] = {}
        """Publishers by their number of names."""

    def knows(self, publisher: str, name: str) -> bool:
        """Return whether a name is known to be committed."""
        return name in self._names.get(publisher, ())

    def take(self, place: int, publisher: str, name: str) -> None:
        """Store a committed name in the slot `place`, and forget the previous name of the slot."""
        before = self._holders.get(place)
        if before is not None and self._names.get(before[0], {}).get(before[1]) == place:
            self._forget(*before)
        self._holders[place] = publisher, name
        own = self._names.setdefault(publisher, {})
        self._resize(publisher, len(own), -1)
        own.pop(name, None)
        own[name] = place
        self._resize(publisher, len(own), 1)

    def check(self, publisher: str) -> None:
        """Raise `LimitReached` if the publisher would exceed the maximum number of publishers."""
        if publisher not in self._names and len(self._names) >= transaction_publishers_max:
            raise LimitReached(
                f"Cannot commit: the server stores transaction names of at most {transaction_publishers_max} "
                "publishers, and this publisher is new. Commit under a client name that has committed "
                "before."
            )

    def place(self, publisher: str) -> int:
        """Return the slot for the next record of a publisher.

        This is a free slot or the slot of its oldest name. While another publisher has more names, it is the
        slot of the oldest name of a publisher with the most names."""
        own = self._names.get(publisher, {})
        if len(own) >= transaction_names_each_max:
            return next(iter(own.values()))
        if len(self._holders) < transaction_names_max:
            while self._free in self._holders:
                self._free += 1
            return self._free
        most = max(self._sizes)
        giving = publisher if len(own) == most else next(iter(self._sizes[most]))
        return next(iter(self._names[giving].values()))

    def _forget(self, publisher: str, name: str) -> None:
        own = self._names[publisher]
        self._resize(publisher, len(own), -1)
        del own[name]
        if own:
            self._resize(publisher, len(own), 1)
        else:
            del self._names[publisher]

    def _resize(self, publisher: str, size: int, by: int) -> None:
        """Add a publisher to the publishers with `size` names, or remove it."""
        if by > 0:
            self._sizes.setdefault(size, {})[publisher] = None
        elif size:
            del self._sizes[size][publisher]
            if not self._sizes[size]:
                del self._sizes[size]


class TransactionRecord(msgspec.Struct, frozen=True, kw_only=True, tag="transaction"):
    """Control record of a committed transaction. It follows the messages."""

    latest_of: str
    """Key of the record: only the last record with this value is kept."""
    publisher: str
    space: str = ""
    name: str
    messages: int


class _TransactionRecordKind(msgspec.Struct):
    type: str


class CommittedTransactions:
    """Committed transactions, read from control records (`bodies`) in log order."""

    def __init__(self, bodies: Iterable[bytes] = ()) -> None:
        self._numbers: dict[tuple[str, str], int] = {}
        """Highest committed number by publisher and space."""
        self._names = TransactionIdCache()
        for body in bodies:
            if msgspec.msgpack.decode(body, type=_TransactionRecordKind).type == "transaction":
                self.take(msgspec.msgpack.decode(body, type=TransactionRecord))

    def take(self, record: TransactionRecord) -> None:
        """Apply a record."""
        if record.space:
            key = record.publisher, record.space
            self._numbers[key] = max(self._numbers.get(key, -1), int(record.name))
            return
        self._names.take(int(record.latest_of.partition(" ")[2]), record.publisher, record.name)

    def __contains__(self, transaction: Transaction) -> bool:
        """Return whether a transaction was committed."""
        if transaction.space:
            return int(transaction.name) <= self._numbers.get((transaction.publisher, transaction.space), -1)
        return self._names.knows(transaction.publisher, transaction.name)

    def check_room(self, transaction: Transaction) -> None:
        """Raise `LimitReached` if the transaction would exceed the maximum number of spaces or publishers."""
        key = transaction.publisher, transaction.space
        if not transaction.space:
            self._names.check(transaction.publisher)
        elif key not in self._numbers and len(self._numbers) >= transaction_spaces_max:
            raise LimitReached(
                "Cannot commit: the `space` of this transaction is new, and the server stores at most "
                f"{transaction_spaces_max} values of `space`. Use one value for all transactions of a "
                "series, such as one Spark query."
            )

    def highest(self, transaction: Transaction) -> int:
        """Return the highest committed number of its space. 0 if none, or without a space."""
        return self._numbers.get((transaction.publisher, transaction.space), 0)

    def record(self, transaction: Transaction, messages: int) -> TransactionRecord:
        """Return the record of a transaction to be committed. Call `check_room` first."""
        if transaction.space:
            # The length keeps the key unique, because both names may contain blanks.
            matter = f"space {len(transaction.publisher)} {transaction.publisher} {transaction.space}"
        else:
            matter = f"name {self._names.place(transaction.publisher)}"
        return TransactionRecord(
            latest_of=matter,
            publisher=transaction.publisher,
            space=transaction.space,
            name=transaction.name,
            messages=messages,
        )


def record_batch(record: TransactionRecord) -> MessageBatch:
    """Return a batch with the record, as stored in the log."""
    builder = BatchBuilder()
    builder.add(CONTROL_TOPIC, msgspec.msgpack.encode(record), kind=1)
    return builder.build()
