"""Query result: the progress of one query, from the start of its first group to its end.

Invariant: a result that ends without an error is complete. It has as many records as the server sent.
"""

from __future__ import annotations

from typing import NamedTuple

import msgspec

from tickertape.base.bookmarks import Bookmark
from tickertape.base.errors import BadCommand
from tickertape.base.names import is_pattern
from tickertape.base.options import parse_options
from tickertape.batch.message_batch import MessageBatch
from tickertape.batch.queue_lease import Lease
from tickertape.client.common.request import SubscribeRequest, SubscriptionContext
from tickertape.client.sow.record_batch import RecordBatch, marker
from tickertape.client.sow.record_keys import RecordKeys, keys_of
from tickertape.wire.commands import GroupBegin, GroupEnd, Records


class ResultTotals(NamedTuple):
    """Numbers of records of a complete result."""

    matches: int
    """Records that match the query."""
    topic_matches: int
    """All records of the queried topics."""
    records: int
    """Records of the result."""


class QueryResult:
    """Progress of the result of one query. Raises `BadCommand` for frames in an invalid order."""

    def __init__(self, request: SubscribeRequest) -> None:
        self._request = request
        self._whole = "select" not in parse_options(request.options)
        self._groups: list[GroupBegin] = []
        self._received = 0
        self._journal = ""
        self._context: SubscriptionContext | None = None
        self.as_of: Bookmark | None = None
        """Last message before the position of the result. None: no message."""
        self.begun = False
        """Whether the server has started the result."""
        self.complete = False
        """Whether all records were received."""
        self.keys = RecordKeys()
        """Keys of the records, and of the messages after them."""

    def can_continue(self, journal: str) -> bool:
        """Return whether a bookmark subscription to the same topic continues after this result.

        It must be complete, and from the log `journal`. The messages after it must be those of exactly the
        requested topic: a SOW topic can have a pattern, and a pattern can match topics without a SOW.
        """
        if not self.complete or journal != self._journal or len(self._groups) != 1:
            return False
        (group,) = self._groups
        topic = self._request.topic
        return group.topic == topic if not group.pattern else group.topic != topic and not is_pattern(topic)

    def begin(self, group: GroupBegin, as_of: Bookmark | None, journal: str) -> bool:
        """Start the result of one SOW topic, from the log `journal`. Return whether it is the first."""
        if self.complete or self._received:
            raise self._invalid("a group starts after records")
        first = not self._groups
        if first:
            self.as_of, self._journal = as_of, journal
        self.begun = True
        self._groups.append(group)
        self.keys = keys_of(self._groups, whole=self._whole)
        return first

    def records(self, command: Records, batch: MessageBatch, lease: Lease | None = None) -> MessageBatch:
        """Return the records of a frame. `lease` is given for messages of a queue."""
        if self.complete or not self._groups:
            raise self._invalid("records are outside of a group")
        records = RecordBatch(batch, command.marks)
        self._received += batch.count
        if self._context is None:
            self._context = self._marked("sow")
        records.context = self._context
        if lease is not None:
            records.context = msgspec.structs.replace(self._context, lease=lease, sow_keys=None)
        return records

    def end(self, command: GroupEnd) -> ResultTotals:
        """Complete the result."""
        if self.complete or command.records != self._received:
            raise self._invalid(f"{command.records:,} records end, but {self._received:,} were received")
        self.begun = self.complete = True
        return ResultTotals(command.matches, command.topic_matches, command.records)

    def check_complete(self) -> None:
        """Raise `BadCommand` if the query ended without its whole result."""
        if not self.complete:
            raise self._invalid("it ends before its last record")

    def marker(self, command: str, topic: str) -> MessageBatch:
        """Return the message that marks the start or the end of a group."""
        made = marker(topic, self.as_of)
        made.context = self._marked(command)
        return made

    def _marked(self, command: str) -> SubscriptionContext:
        context = self._request.context
        return msgspec.structs.replace(
            context,
            command=command,
            with_bookmark=command == "sow" or self.as_of is not None,
            sow_keys=self.keys if command == "sow" else None,
        )

    def _invalid(self, cause: str) -> BadCommand:
        return BadCommand(
            f"Invalid result of query {self._request.context.sub_id!r}: {cause}. Update the server."
        )
