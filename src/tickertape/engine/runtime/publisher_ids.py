"""Publisher directory: client names by publisher id, and the other control records of the log.

Invariants:
- A publisher id belongs to one name: a logon with a colliding name is rejected.
- A name is recorded before the first message of its publisher, in the same commit.
"""

from __future__ import annotations

from collections.abc import Generator
from typing import Final

import msgspec

from tickertape.base.errors import JournalCorrupt
from tickertape.base.interfaces import Buffer
from tickertape.base.names import publisher_id
from tickertape.base.text_format import shown
from tickertape.batch import BatchBuilder, MessageBatch
from tickertape.journal.format import segment as formats
from tickertape.journal.format.control_record import RECORD_ERRORS, decode_head
from tickertape.journal.format.retired_state import RETIRED_FILE, ForeignRecord
from tickertape.journal.format.segment import segment_path
from tickertape.journal.journal import Journal
from tickertape.journal.reading.log_reader import fold_topic
from tickertape.journal.reading.log_view import LogPart, LogView, ReadRequest

CONTROL_TOPIC: Final = formats.CONTROL_TOPIC
CONTROL_PUBLISHER: Final = publisher_id("$control")
_PUBLISHER: Final = "publisher"


class PublisherNamed(msgspec.Struct, frozen=True, kw_only=True, tag=_PUBLISHER):
    """Control record that binds `publisher` to client `name`. `derived` marks ids for unsequenced
    messages."""

    publisher: int
    name: str
    derived: bool = False


class PublisherDirectory:
    """Client names of all publisher ids."""

    def __init__(self) -> None:
        self._owners: dict[int, tuple[str, bool]] = {}
        self.others: list[bytes] = []
        """Control records of other kinds, in log order."""
        self.latest: dict[str, bytes] = {}
        """Records with `latest_of`, by its value."""
        self.foreign: dict[tuple[bytes, str | bytes], bytes] = {}
        """The last records of other logs, by log id and `latest_of` (or the record). They change nothing."""
        self.damage: list[JournalCorrupt] = []
        """Corruption found while reading. Bindings may be missing."""

    def collides(self, publisher: int, name: str, *, derived: bool = False) -> bool:
        """Return whether `publisher` is bound to another name."""
        owner = self._owners.get(publisher)
        return publisher == CONTROL_PUBLISHER or (owner is not None and owner != (name, derived))

    def is_bound(self, publisher: int) -> bool:
        """Return whether the log has the binding of this id, or will have it."""
        return publisher in self._owners

    def name_of(self, publisher: int) -> str:
        """Return the name that an id is bound to, empty without one."""
        return self._owners.get(publisher, ("", False))[0]

    def bind(self, publisher: int, name: str, *, derived: bool) -> MessageBatch:
        """Bind an id. Return the control record to append before the publisher's first message."""
        self._owners[publisher] = (name, derived)
        record = PublisherNamed(publisher=publisher, name=name, derived=derived)
        builder = BatchBuilder()
        builder.add(CONTROL_TOPIC, msgspec.msgpack.encode(record), kind=1)
        return builder.build()

    def apply(self, body: bytes) -> None:
        """Apply one control record, or keep it for its own reader if it has another kind.

        Raises `JournalCorrupt`, without the position, for an invalid record."""
        head = decode_head(body)
        if head.log:  # before everything else: its names, positions and keys belong to another log
            self.apply_foreign(head.log, body)
            return
        if head.latest_of:
            self.latest.pop(head.latest_of, None)
            self.latest[head.latest_of] = bytes(body)
            return
        if head.type != _PUBLISHER:
            self.others.append(bytes(body))
            return
        try:
            record = msgspec.msgpack.decode(body, type=PublisherNamed)
        except RECORD_ERRORS as error:
            raise JournalCorrupt(f"invalid control record: {shown(str(error))}") from None
        self._owners[record.publisher] = (record.name, record.derived)

    def apply_foreign(self, log: bytes, body: bytes) -> None:
        """Keep a control record of another log. Raises `JournalCorrupt`, without the position, if it is
        invalid."""
        key = log, decode_head(body).latest_of or bytes(body)
        self.foreign.pop(key, None)
        self.foreign[key] = bytes(body)


def load_publishers(journal: Journal) -> Generator[ReadRequest, Buffer, PublisherDirectory]:
    """Read the control records of the whole log, starting with those of removed segments. Only blocks with
    such records are read.

    Corrupt records and blocks are skipped and listed in `damage`. A lost binding is written again before the
    publisher's next message."""
    registry = PublisherDirectory()
    if journal.view.retired is not None:
        for record in journal.view.retired.records:
            try:
                if isinstance(record, ForeignRecord):
                    registry.apply_foreign(*record)
                else:
                    registry.apply(record)
            except JournalCorrupt as error:
                registry.damage.append(
                    JournalCorrupt(f"Cannot read {RETIRED_FILE!r}: {error}", file=RETIRED_FILE)
                )

    def take(part: LogPart) -> None:
        kinds = part.batch.kinds
        if kinds is not None and CONTROL_TOPIC in part.batch.topics:
            for index in kinds.nonzero()[0].tolist():
                if part.batch.topic(index) != CONTROL_TOPIC:
                    continue  # a record of a queue
                try:
                    registry.apply(part.batch.body(index))
                except JournalCorrupt as error:
                    at = part.first_position + index if part.positions is None else int(part.positions[index])
                    registry.damage.append(_placed(error, journal.view, at))

    damage = yield from fold_topic(journal.view, CONTROL_TOPIC, take)
    registry.damage += damage
    return registry


def _placed(error: JournalCorrupt, view: LogView, position: int) -> JournalCorrupt:
    segment = view.segment_of(position)
    path = "" if segment is None else segment_path(segment.number)
    return JournalCorrupt(f"Cannot read position {position} of {path!r}: {error}", file=path)
