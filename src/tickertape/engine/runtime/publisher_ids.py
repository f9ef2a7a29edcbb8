"""Publisher directory: client names by publisher id, a fold of control records in the log.

Invariants:
- No id belongs to two names: a logon whose name collides is refused.
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
from tickertape.journal.format.retired_state import RETIRED_FILE
from tickertape.journal.format.segment import segment_path
from tickertape.journal.journal import Journal
from tickertape.journal.reading.log_reader import fold_topic
from tickertape.journal.reading.log_view import LogPart, LogView, ReadRequest

CONTROL_TOPIC: Final = formats.CONTROL_TOPIC
CONTROL_PUBLISHER: Final = publisher_id("$control")
_PUBLISHER: Final = "publisher"


class PublisherNamed(msgspec.Struct, frozen=True, kw_only=True, tag=_PUBLISHER):
    """Control record: `publisher` is the id of client `name` (derived: of its unsequenced space)."""

    publisher: int
    name: str
    derived: bool = False


class _PublisherRecordKind(msgspec.Struct):
    """The kind, which every control record has."""

    type: str
    latest_of: str = ""
    """Only the last record with this value counts."""


_DECODE_ERRORS: Final = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)


class PublisherDirectory:
    """Client names of all publisher ids."""

    def __init__(self) -> None:
        self._owners: dict[int, tuple[str, bool]] = {}
        self.others: list[bytes] = []
        """Control records of other kinds, in the order of the log."""
        self.latest: dict[str, bytes] = {}
        """Those of them of which only the last on a matter counts, by the matter."""
        self.damage: list[JournalCorrupt] = []
        """Damage found while reading: bindings may be missing."""

    def collides(self, publisher: int, name: str, *, derived: bool = False) -> bool:
        """Return whether `publisher` is bound to another name."""
        owner = self._owners.get(publisher)
        return publisher == CONTROL_PUBLISHER or (owner is not None and owner != (name, derived))

    def is_bound(self, publisher: int) -> bool:
        """Return whether the log has the binding of this id, or will have it."""
        return publisher in self._owners

    def bind(self, publisher: int, name: str, *, derived: bool) -> MessageBatch:
        """Bind an id; return the control record to append before the publisher's first message."""
        self._owners[publisher] = (name, derived)
        record = PublisherNamed(publisher=publisher, name=name, derived=derived)
        builder = BatchBuilder()
        builder.add(CONTROL_TOPIC, msgspec.msgpack.encode(record), kind=1)
        return builder.build()

    def apply(self, body: bytes) -> None:
        """Fold one control record in. Other kinds are for other folds.

        Raises `JournalCorrupt`, without the position, for an invalid record."""
        try:
            kind = msgspec.msgpack.decode(body, type=_PublisherRecordKind)
            if kind.latest_of:
                self.latest.pop(kind.latest_of, None)
                self.latest[kind.latest_of] = bytes(body)
                return
            if kind.type != _PUBLISHER:
                self.others.append(bytes(body))
                return
            record = msgspec.msgpack.decode(body, type=PublisherNamed)
        except _DECODE_ERRORS as error:
            raise JournalCorrupt(f"a control record that cannot be read: {shown(str(error))}") from None
        self._owners[record.publisher] = (record.name, record.derived)


def load_publishers(journal: Journal) -> Generator[ReadRequest, Buffer, PublisherDirectory]:
    """Fold the control records of the whole log, those of removed segments first; only blocks that hold some
    are read.

    What is damaged, or no control record, is passed over and named in `damage`: a lost binding is written
    again before the publisher's next message."""
    registry = PublisherDirectory()
    if journal.view.retired is not None:
        for body in journal.view.retired.records:
            try:
                registry.apply(body)
            except JournalCorrupt as error:
                registry.damage.append(JournalCorrupt(f"{RETIRED_FILE}: {error}", file=RETIRED_FILE))

    def take(part: LogPart) -> None:
        kinds = part.batch.kinds
        if kinds is not None and CONTROL_TOPIC in part.batch.topics:
            for index in kinds.nonzero()[0].tolist():
                if part.batch.topic(index) != CONTROL_TOPIC:
                    continue  # of a queue
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
    return JournalCorrupt(f"{path}, position {position}: {error}", file=path)
