"""Rows that a source of a link owes to its destination, judged one by one.

Must never use the product's routes, splits or selections.
"""

from __future__ import annotations

import json
import re
from typing import Final, NamedTuple

import msgspec

from tests.helpers.reserved_batches import header_entries
from tickertape.batch import MessageBatch
from tickertape.engine.replication.origins import Origin
from tickertape.engine.replication.routes import ReplicationRule
from tickertape.engine.runtime.publisher_ids import CONTROL_PUBLISHER
from tickertape.wire.link_checks import control_publisher

TRAVELLING: Final = ("after", "copy", "covered", "downgraded", "publisher", "upgraded")
"""Types of control records that links send."""


class LoggedRow(NamedTuple):
    """A row of the log, or of a link. `publisher` is the one of all logs but its own."""

    publisher: int
    sequence: int
    topic: str
    kind: int
    body: bytes
    key: str | None
    correlation_id: str | None
    expiration: int | None
    headers: bytes
    origin: Origin | None
    """None: this log."""
    order_stamp: int


class Named(NamedTuple):
    """A named message."""

    publisher: int
    sequence: int
    origin: Origin | None
    order_stamp: int


def rows_of(batch: MessageBatch, origins: dict[int, Origin]) -> list[LoggedRow]:
    """Return the rows of a batch, one by one. `origins`: meaning of the numbers but 0."""
    found = []
    headers = header_entries(batch)
    at = 0
    for number in range(batch.run_count):
        run = batch.run(number)
        stamps = batch.order_stamps
        stamp = run.timestamp if stamps is None else int(stamps[number])
        origin = origins[run.origin] if run.origin else None
        for row in range(at, at + run.message_count):
            kind = 0 if batch.kinds is None else int(batch.kinds[row])
            publisher = run.publisher
            if publisher == CONTROL_PUBLISHER and origin is not None:
                publisher = control_publisher(origin.log)
            found.append(
                LoggedRow(
                    publisher, batch.sequence(row), batch.topic(row), kind, batch.body(row), batch.key(row),
                    batch.correlation_id(row), batch.expiration(row), headers[row], origin, stamp,
                )
            )  # fmt: skip
        at += run.message_count
    return found


class NaiveRules:
    """Judges one row at a time."""

    def __init__(self, rules: list[ReplicationRule], pass_through: str, destination: bytes) -> None:
        """`destination`: id of its log."""
        self._destination = destination
        self._rules = rules
        self._pass_through = pass_through

    def judge(self, row: LoggedRow) -> str:
        """Return `sent`, `named` or `out`."""
        if row.topic == "$control":
            return "sent" if msgspec.msgpack.decode(row.body)["type"] in TRAVELLING else "out"
        if row.topic == "$sow":
            record = msgspec.msgpack.decode(row.body)
            topics = record[5] or [record[0]]
            selected = record[1] == 1 and any(self._rule(topic) is not None for topic in topics)
        else:
            rule = self._rule(row.topic)
            selected = rule is not None and row.kind == 0
            if selected and rule is not None and rule.filter is not None:
                number = json.loads(row.body)["n"]
                selected = number > 2 if rule.filter == "/n > 2" else number < 4
        if not selected:
            return "out"
        if row.origin is None:
            return "sent"
        if not (self._pass_through and re.search(self._pass_through, row.origin.group)):
            return "out"
        return "named" if self._destination in row.origin.path else "sent"

    def _rule(self, topic: str) -> ReplicationRule | None:
        if topic[0] == "$" or topic.startswith("/tickertape/"):
            return None
        for rule in self._rules:
            pattern = rule.topic
            if re.search(pattern, topic) if re.search(r"[^\w/]", pattern) else pattern == topic:
                return rule
        return None
