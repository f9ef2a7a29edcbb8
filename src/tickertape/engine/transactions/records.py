"""Owns which transactions are in the log: the control records that say so, and the fold of them.

Must never forget that a number of a space was committed while a higher one is known: numbers of spaces are
known for good, names as long as `TransactionIdCache` has room.
"""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from tickertape.base.errors import LimitReached
from tickertape.base.transaction_limits import (
    transaction_spaces_max,
)
from tickertape.batch import BatchBuilder, MessageBatch
from tickertape.engine.runtime.publisher_ids import CONTROL_TOPIC
from tickertape.engine.transactions.transaction_names import TransactionIdCache
from tickertape.wire.commands import Transaction


class TransactionRecord(msgspec.Struct, frozen=True, kw_only=True, tag="transaction"):
    """Control record: a transaction is in the log, this record the last of it."""

    latest_of: str
    """Of records with the same text only the last counts."""
    publisher: str
    space: str = ""
    name: str
    messages: int


class _TransactionRecordKind(msgspec.Struct):
    type: str


class CommittedTransactions:
    """The fold. `bodies` are control records, in the order of the log."""

    def __init__(self, bodies: Iterable[bytes] = ()) -> None:
        self._numbers: dict[tuple[str, str], int] = {}
        """Publisher and space to the highest number."""
        self._names = TransactionIdCache()
        for body in bodies:
            if msgspec.msgpack.decode(body, type=_TransactionRecordKind).type == "transaction":
                self.take(msgspec.msgpack.decode(body, type=TransactionRecord))

    def take(self, record: TransactionRecord) -> None:
        """A record more."""
        if record.space:
            key = record.publisher, record.space
            self._numbers[key] = max(self._numbers.get(key, -1), int(record.name))
            return
        self._names.take(int(record.latest_of.partition(" ")[2]), record.publisher, record.name)

    def __contains__(self, transaction: Transaction) -> bool:
        """Whether it was committed."""
        if transaction.space:
            return int(transaction.name) <= self._numbers.get((transaction.publisher, transaction.space), -1)
        return self._names.knows(transaction.publisher, transaction.name)

    def check_room(self, transaction: Transaction) -> None:
        """Raise `LimitReached` for a space too many, or a publisher too many."""
        key = transaction.publisher, transaction.space
        if not transaction.space:
            self._names.check(transaction.publisher)
        elif key not in self._numbers and len(self._numbers) >= transaction_spaces_max:
            raise LimitReached(
                f"{transaction_spaces_max} spaces of transactions are known, and this is one more: use "
                "one space for all batches of a query"
            )

    def highest(self, transaction: Transaction) -> int:
        """The highest number that was committed in its space; 0 where there is none, or no space."""
        return self._numbers.get((transaction.publisher, transaction.space), 0)

    def record(self, transaction: Transaction, messages: int) -> TransactionRecord:
        """The record of one that is committed now; `check_room` came before."""
        if transaction.space:
            # With the length: both may have spaces in them, and no two pairs may share a text.
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
    """A record as it stands in the log."""
    builder = BatchBuilder()
    builder.add(CONTROL_TOPIC, msgspec.msgpack.encode(record), kind=1)
    return builder.build()
