"""Ring bookmark store: a file of fixed size, updated in place.

Each value has two slots, written alternately, so that a torn write never destroys the previous value. Only
the discarded prefix is stored: messages discarded behind it are redelivered after a restart.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Final

from tickertape.base.bookmarks import Bookmark
from tickertape.base.checksum import crc32c
from tickertape.base.errors import BadOption, BookmarkStoreFull
from tickertape.client.bookmark_store import ring_format as cells
from tickertape.client.bookmark_store.progress import Progress, Ranges, late_left
from tickertape.client.bookmark_store.protocol import RecoveryPointAdapter
from tickertape.client.bookmark_store.store_file import FileBackedStore, Sync, boot_id, owner_of, random_salt
from tickertape.client.limits import bookmark_ring_cells_max

if TYPE_CHECKING:
    from tickertape.wire.link_rows import OpenHoles

_body: Final = cells.BODY.pack
_pack_into: Final = cells.SLOT.pack_into


class RingBookmarkStore(FileBackedStore):
    """Bookmark store that keeps recovery points in a file of fixed size (see `BookmarkStore`).

    The store needs no pruning. After a reconnect it prevents the redelivery of discarded messages, as the
    other stores do. After a restart of the process, the server redelivers all messages after the recovery
    point, including discarded ones.

    `subscriptions` and `publishers` have an effect only when the store creates the file. A subscribe raises
    `BookmarkStoreFull` if the file has no space for another subscription, or if the subscription id is longer
    than 255 bytes. If a subscription has more than `publishers` publishers, the file keeps the publishers
    whose messages were discarded most recently.

    Args:
        path: The file, as in `LoggedBookmarkStore`.
        adapter: As in `LoggedBookmarkStore`.
        subscriptions: Capacity in subscriptions. Default 64.
        publishers: Capacity in publishers per subscription. Default 64.
        sync: As in `LoggedBookmarkStore`.

    Raises:
        BadOption: For an invalid option.
        StoreLocked: If another process or store uses the file.
        StoreCorrupt: If the file is not a ring store, or has a newer format. Or if it is damaged, and no
            `adapter` is given.
        StoreFailed: If the operating system reports an error.
        BookmarkStoreFull: If the recovery points of `adapter` exceed the capacity in subscriptions.

    Example:
        >>> store = tt.RingBookmarkStore("orders.ring", subscriptions=16)
        >>> with store, tt.Client("desk", uri, bookmark_store=store) as client:
        ...     client.publish("orders", {"id": 1})
        ...     for message in client.bookmark_subscribe("orders", tt.MOST_RECENT, sub_id="orders"):
        ...         print(message.json(), message.discard())
        ...         break
        {'id': 1} True
    """

    _kind = "a ring bookmark store"
    _again = "Messages are then redelivered."

    def __init__(
        self,
        path: str | os.PathLike[str],
        adapter: RecoveryPointAdapter | None = None,
        *,
        subscriptions: int = 64,
        publishers: int = 64,
        sync: Sync = "never",
    ) -> None:
        super().__init__(adapter, sync)
        if min(subscriptions, publishers) < 1 or subscriptions * (publishers + 1) > bookmark_ring_cells_max:
            raise BadOption(
                f"Invalid subscriptions={subscriptions} or publishers={publishers}. Use at least 1 each, and "
                f"at most {bookmark_ring_cells_max:,} for subscriptions * (publishers + 1)."
            )
        self._subscriptions, self._publishers = subscriptions, publishers
        self._version = 0
        self._places: dict[str, cells.RingSlot] = {}
        self._numbered: dict[int, cells.RingSlot] = {}
        self._free: list[int] = []
        self._take(path)

    @property
    def size_bytes(self) -> int:
        """Size of the file in bytes."""
        return cells.place_at(self._subscriptions, self._publishers)

    def discard(self, sub_id: str, publisher: int, sequence: int) -> bool:
        """Discard a processed message. Return False if it was already discarded or never delivered."""
        with self._lock:
            progress = self._progress.get(sub_id)
            if progress is None:
                self._check()
                return False
            head = progress.head
            ordinal = progress.discard(publisher, sequence)
            if ordinal != head:
                return ordinal >= 0
            if progress.has_places:  # written with the next notice: holes before it may be unknown
                if self.adapter is not None:
                    self._has_moved(sub_id)
                return True
            cell = self._places[sub_id].cells.get(publisher)
            if cell is None or progress.head != ordinal + 1:
                self._write_prefix(self._places[sub_id], progress)
            else:
                cell.moved = ordinal
                self._write(cell, publisher, sequence, ordinal, 0)
            if self.adapter is not None:
                self._has_moved(sub_id)
            return True

    # -- opening ----------------------------------------------------------------------------------------

    def _open(self) -> None:
        content = self._content(cells.MAGIC, cells.VERSION, self._kind)
        if content:
            found = cells.read_ring(content, boot_id())
            if not isinstance(found, str):
                self._salt, self._version = found.salt, found.version
                self._owner = owner_of(content, found.salt)
                self._subscriptions, self._publishers = found.subscriptions, found.publishers
                self._places = {sub_id: place for sub_id, (place, _) in found.held.items()}
                self._progress = {sub_id: progress for sub_id, (_, progress) in found.held.items()}
                self._numbered = {place.number: place for place in self._places.values()}
                self._free = [n for n in reversed(range(self._subscriptions)) if n not in self._numbered]
                self._begin(content, found)
                return
            if self.adapter is None:
                raise self._unusable(found, "pass an adapter, ")
        self._salt = random_salt()
        self._file.replace(self._header(self._salt), self.size_bytes)
        self._free = list(reversed(range(self._subscriptions)))
        self._load_adapter()

    def _header(self, salt: int) -> bytes:
        flags = cells.SYNCED if self._always else 0
        head = cells.header(salt, self._subscriptions, self._publishers, boot_id(), flags)
        return self._marked(head, salt)

    def _begin(self, content: bytes, found: cells.Ring) -> None:
        """Continue with the existing file. Durably replace it first if it needs repair or other flags."""
        if found.mended is None and found.flags == (cells.SYNCED if self._always else 0):
            self._file.reserve(len(content), len(content))
            return
        mended = content if found.mended is None else found.mended
        self._file.replace(self._header(found.salt) + mended[cells.HEADER_BYTES :], len(mended))

    # -- the steps --------------------------------------------------------------------------------------

    def _keep_new(self, sub_id: str, progress: Progress) -> None:
        raw = sub_id.encode()
        refusal = ""
        if len(raw) > cells.NAME_LENGTH_MAX:
            refusal = f"its id has {len(raw)} bytes. Use an id of at most {cells.NAME_LENGTH_MAX} bytes."
        elif not self._free:
            refusal = (
                f"the file's capacity is {self._subscriptions} subscription(s). Purge one with "
                "purge(sub_id), or create another file with more `subscriptions`."
            )
        if refusal:
            del self._progress[sub_id]
            raise BookmarkStoreFull(f"Cannot add subscription {sub_id!r} to {self.path!r}: {refusal}")
        number = self._free.pop()
        self._version += 1
        place = self._places[sub_id] = cells.RingSlot(number, self._publishers, self._version, self._salt)
        progress.number = number
        self._numbered[number] = place
        begin, size = place.start, cells.place_bytes(self._publishers)
        self._file.map[begin : begin + size] = bytes(size)
        named = cells.name(raw, self._version, begin, self._salt)
        self._file.map[begin : begin + len(named)] = named
        if self._always:
            self._file.sync(begin, begin + size)
        self._write_prefix(place, progress)

    def _keep_point(self, progress: Progress) -> None:
        place = self._place_of(progress)
        base = progress.point.base
        if len(base) == 1 or progress.point.places:
            return self._write_prefix(place, progress)
        if len(base) <= self._publishers:  # otherwise a restart replays from EPOCH: redelivery, no loss
            for publisher, sequence in base:
                cell = place.cell_for(publisher)
                cell.moved = 0
                self._write(cell, publisher, sequence, 0, 0)
        return None

    def _keep_discards(self, progress: Progress, done: Ranges) -> None:  # noqa: ARG002 - the prefix says all
        if not progress.has_places:
            self._write_prefix(self._place_of(progress), progress)

    def _keep_notice(
        self,
        progress: Progress,
        bookmark: Bookmark | None,  # noqa: ARG002 - as above
        places: Sequence[Bookmark],  # noqa: ARG002
        holes: Sequence[OpenHoles] | None,  # noqa: ARG002
    ) -> None:
        self._write_prefix(self._place_of(progress), progress)

    def _keep_purge(self, gone: Mapping[str, Progress]) -> None:
        places = [self._places[sub_id] for sub_id in gone]
        # Durable for any `sync`: the id may be reused for another subscription. The names are cleared first,
        # which invalidates the rest of each section.
        self._clear(places, 0, cells.NAME_BYTES)
        for sub_id, place in zip(gone, places, strict=True):
            del self._places[sub_id], self._numbered[place.number]
            self._free.append(place.number)
        self._file.sync(0, self.size_bytes)
        if places:
            self._clear(places, cells.NAME_BYTES, cells.place_bytes(self._publishers))
            self._file.sync(0, self.size_bytes)

    def _release(self) -> None:
        self._file.close()

    def _clear(self, places: Iterable[cells.RingSlot], low: int, high: int) -> None:
        for place in places:
            self._file.map[place.start + low : place.start + high] = bytes(high - low)

    # -- inside -----------------------------------------------------------------------------------------

    def _place_of(self, progress: Progress) -> cells.RingSlot:
        return self._numbered[progress.number]

    def _write_prefix(self, place: cells.RingSlot, progress: Progress) -> None:
        """Write the changed watermarks and the recovery point."""
        progress.settle()
        changed = sorted(progress.changed.items(), key=lambda entry: entry[1].moved)
        left = {}
        for publisher, known in changed[-self._publishers :]:
            sequence = known.watermark
            if progress.has_places:  # before its first hole, and not after the last notice
                certain = progress.missing.certain(publisher, sequence, late_left(publisher, known))
                if not certain or certain[-1].sequence < sequence:
                    left[publisher] = known
                if not certain:
                    continue
                sequence = certain[0].sequence
            cell = place.cell_for(publisher)
            cell.moved = known.moved
            self._write(cell, publisher, sequence, known.moved, 0)
        progress.changed.clear()
        progress.changed.update(left)
        point = progress.point
        point.reached(progress.head)
        for at in point.places.values():
            cell = place.cell_for(at.publisher)
            cell.moved = point.at
            self._write(cell, at.publisher, at.sequence, point.at, 0)
        state = (point.base, point.at, point.floor)
        if len(point.base) == 1 and state != place.base_written:
            place.base_written = state
            self._write(place.base, *point.base[0], point.at, point.floor)

    def _write(self, cell: cells.RingCell, publisher: int, sequence: int, third: int, fourth: int) -> None:
        self._version = version = self._version + 1
        at = cell.at
        crc = crc32c(_body(0, version, publisher, sequence, third, fourth), cell.seed)
        _pack_into(self._file.map, at, crc, 0, version, publisher, sequence, third, fourth)
        cell.at, cell.other, cell.seed, cell.other_seed = cell.other, at, cell.other_seed, cell.seed
        if self._always:
            self._file.sync(at, at + cells.SLOT_BYTES)
