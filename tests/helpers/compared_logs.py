"""Logs for comparisons: messages in any order, starts of the server and places of other logs.

Must never compare anything: tests do.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Final, NamedTuple

from tests.unit.journal.written import Written
from tickertape.batch import BatchBuilder, MessageBatch, Stamp, as_late
from tickertape.engine.runtime.publisher_ids import CONTROL_PUBLISHER, CONTROL_TOPIC
from tickertape.journal.format.link_records import LinkRecord, encode_link
from tickertape.journal.format.replication_records import LogPlace, encode_record, started
from tickertape.wire.sow_command import SOW_TOPIC

SEGMENT_BYTES = 4_096


class Content(NamedTuple):
    """Content of a message."""

    body: bytes = b"body"
    topic: str = "orders"
    key: str = ""
    correlation_id: str = ""
    expiration_ms: int = 0
    headers: bytes = b""
    kind: int = 0


PLAIN: Final = Content()


class ComparedJournal(Written):
    """A journal to compare. Each call writes one commit."""

    def __init__(self, log: int, *, segment_bytes: int = SEGMENT_BYTES) -> None:
        super().__init__(log, segment_bytes=segment_bytes, new_id=bytes([log]) * 16)
        self.log = bytes([log]) * 16
        self._records = 0

    @property
    def end(self) -> int:
        """Position after the last row."""
        return self.journal.commits.accepted_end

    def put(self, publisher: int, sequence: int, content: Content = PLAIN) -> None:
        """Append one message. One below the highest sequence of its publisher is late."""
        builder = BatchBuilder()
        builder.add(
            content.topic,
            content.body,
            key=content.key,
            correlation_id=content.correlation_id,
            expiration_ms=content.expiration_ms,
            headers=content.headers,
            kind=content.kind,
        )
        self._append(builder.build(publisher, sequence), publisher, sequence)

    def put_all(self, messages: Iterable[tuple[int, int]]) -> None:
        """Append messages with equal contents."""
        for publisher, sequence in messages:
            self.put(publisher, sequence)

    def begin_run(self, start: int) -> None:
        """Append the record of a start of the server."""
        self._control(CONTROL_TOPIC, encode_record(started(start, self._records, self.end)))

    def note_place(self, log: bytes, start: int, position: int) -> None:
        """Append the record of a place: this log has all rows of another log before it."""
        place = LogPlace(log, start, position)
        self._control("$link", encode_link(LinkRecord(*place, places=[place])))

    def _control(self, topic: str, body: bytes) -> None:
        self._records += 1
        builder = BatchBuilder()
        builder.add(topic, body, kind=1)
        batch = builder.build(CONTROL_PUBLISHER, self._records)
        self._append(batch, CONTROL_PUBLISHER, self._records)

    def _append(self, batch: MessageBatch, publisher: int, sequence: int) -> None:
        now = self._now()
        if sequence <= self.journal.highest.get(publisher, 0):
            batch = as_late(batch)
        stamp = Stamp(publisher, sequence, self.journal.next_stamp(now))
        self.journal.append(batch, stamp, sequence, now)
        self.work()

    def save(self, directory: Path) -> Path:
        """Stop, and write the files to a real directory."""
        self.stop()
        for name, data in self.disk.contents().items():
            path = directory / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(data)
        return directory


class AllMessages:
    """Selects messages of all topics without `$`, and the records on the topic `$sow`."""

    def takes_topic(self, topic: str) -> bool:
        return not topic.startswith("$")

    def takes_record(self, topic: str, body: bytes) -> bool:
        return topic == SOW_TOPIC and body != b"local"
