"""Owns the binding of publisher ids to client names, a fold of control records in the log.

Must never bind one id to two names: a logon whose name collides is refused. A binding is written before, and
in the same commit as, the publisher's first message.
"""

from __future__ import annotations

from collections.abc import Generator
from typing import Final

import msgspec

from tickertape.base.errors import JournalCorrupt
from tickertape.base.names import publisher_id
from tickertape.base.ports import Buffer
from tickertape.batch import BatchBuilder, MessageBatch
from tickertape.journal.journal import Journal
from tickertape.journal.lookup import fold_topic
from tickertape.journal.reading import Part, ReadRequest

CONTROL_TOPIC: Final = "$control"
"""Topic of control records; `$` keeps it out of reach of publishers."""
CONTROL_PUBLISHER: Final = publisher_id("$control")


class PublisherNamed(msgspec.Struct, frozen=True, kw_only=True, tag="publisher"):
    """Control record: `publisher` is the id of client `name` (derived: of its unsequenced space)."""

    publisher: int
    name: str
    derived: bool = False


class Registry:
    """Which name each publisher id belongs to."""

    def __init__(self) -> None:
        self._owners: dict[int, tuple[str, bool]] = {}
        self.damage: list[JournalCorrupt] = []
        """Damage met while it was read: bindings may be missing."""

    def collides(self, publisher: int, name: str, *, derived: bool = False) -> bool:
        """Whether `publisher` is bound to something else than this name."""
        owner = self._owners.get(publisher)
        return publisher == CONTROL_PUBLISHER or (owner is not None and owner != (name, derived))

    def is_bound(self, publisher: int) -> bool:
        """Whether the log holds (or is about to hold) the binding of this id."""
        return publisher in self._owners

    def bind(self, publisher: int, name: str, *, derived: bool) -> MessageBatch:
        """Bind an id and give the control record to append before the publisher's first message."""
        self._owners[publisher] = (name, derived)
        record = PublisherNamed(publisher=publisher, name=name, derived=derived)
        builder = BatchBuilder()
        builder.add(CONTROL_TOPIC, msgspec.msgpack.encode(record), kind=1)
        return builder.build()

    def apply(self, body: bytes) -> None:
        """Fold one control record in. Records of kinds unknown here are for other folds."""
        try:
            record = msgspec.msgpack.decode(body, type=PublisherNamed)
        except msgspec.ValidationError:
            return
        self._owners[record.publisher] = (record.name, record.derived)


def load_registry(journal: Journal) -> Generator[ReadRequest, Buffer, Registry]:
    """Fold the control records of the whole log; only blocks that hold some are read.

    Damaged ones are passed over and named in `damage`: a lost binding is written again at the next logon."""
    registry = Registry()

    def take(part: Part) -> None:
        kinds = part.batch.kinds
        if kinds is not None:
            for index in kinds.nonzero()[0].tolist():
                registry.apply(part.batch.body(index))

    registry.damage = yield from fold_topic(journal.view, CONTROL_TOPIC, take)
    return registry
