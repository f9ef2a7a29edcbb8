"""Logged bookmark store: appends each change to a file.

Memory is authoritative. A file that an interrupted step left incomplete is rewritten from memory. A change
that is missing in the file only causes redelivery.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Final

from tickertape.base.bookmarks import Bookmark
from tickertape.base.checksum import crc32c
from tickertape.base.errors import BadOption, StoreCorrupt
from tickertape.base.units import parse_size
from tickertape.client.bookmark_store import log_format as records
from tickertape.client.bookmark_store.log_format import BODY, RECORD, RECORD_BYTES, BadRecord, RecordKind
from tickertape.client.bookmark_store.progress import Progress, Publishers, Ranges, UInt64s
from tickertape.client.bookmark_store.protocol import RecoveryPointAdapter
from tickertape.client.bookmark_store.store_file import FileBackedStore, Sync, boot_id, owner_of, random_salt
from tickertape.client.limits import (
    bookmark_log_bytes_first,
    bookmark_log_step_bytes_max,
    bookmark_prune_bytes_default,
)

if TYPE_CHECKING:
    from tickertape.wire.link_rows import OpenHoles

ResizeHandler = Callable[["LoggedBookmarkStore", int], None]
_MASK: Final = 0xFFFFFFFF
_DISCARD: Final = int(RecordKind.DISCARD)
_body: Final = BODY.pack
_pack_into: Final = RECORD.pack_into
_REMEDY: Final = (
    "Restore the file from a copy, pass an adapter, or move the file away. Without the file, messages are "
    "redelivered from the start point of each subscription."
)


class LoggedBookmarkStore(FileBackedStore):
    """Bookmark store that logs delivered and discarded messages to a file (see `BookmarkStore`).

    Args:
        path: The file. It and its directory are created if missing. One store at a time can use it: the lock
            file has the same path with `.lock` appended. A file of another kind, or in a newer format, is
            never overwritten.
        adapter: Recovery point adapter, which also keeps the recovery points elsewhere. If the file is
            missing or damaged, the store starts with the recovery points of the adapter. Default None.
        sync: `"never"` (default): recorded changes survive the end of the process, but power loss may cause
            redelivery. `"always"`: each call syncs its changes before it returns.
        prune_size: Int (bytes) or text such as `"16MB"` (default). The store prunes the file before it
            grows above its limit: this size, or four times the size after the last prune, whichever
            is higher.

    Raises:
        BadOption: For an invalid option.
        StoreLocked: If another process or store uses the file.
        StoreCorrupt: If the file is not a logged store, or has a newer format. Or if it is damaged, and no
            `adapter` is given.
        StoreFailed: If the operating system reports an error.

    Example:
        >>> store = tt.LoggedBookmarkStore("orders.bookmarks")
        >>> with store, tt.Client("desk", uri, bookmark_store=store) as client:
        ...     client.publish("orders", {"id": 1})
        ...     for message in client.bookmark_subscribe("orders", tt.MOST_RECENT, sub_id="orders"):
        ...         print(message.json(), message.discard())
        ...         break
        {'id': 1} True
    """

    _kind = "a bookmark store"
    _again = "Messages are then redelivered from the start point of each subscription."

    def __init__(
        self,
        path: str | os.PathLike[str],
        adapter: RecoveryPointAdapter | None = None,
        *,
        sync: Sync = "never",
        prune_size: int | str = bookmark_prune_bytes_default,
    ) -> None:
        super().__init__(adapter, sync)
        self._prune_bytes = parse_size(prune_size) if isinstance(prune_size, str) else prune_size
        if self._prune_bytes <= 0:
            raise BadOption(f"Invalid prune_size {prune_size!r}. Use a size above 0 bytes.")
        self._on_resize: ResizeHandler | None = None
        self._in_handler = False
        self._behind = False
        """A step is in progress, or was interrupted: the file lacks changes that are in memory."""
        self._numbers = 0
        self._version = 0
        """Version of the format of the file."""
        self._at = self._size = self._pruned = 0
        self._take(path)

    @property
    def size_bytes(self) -> int:
        """Used bytes of the file."""
        return self._at

    def on_resize(self, handler: ResizeHandler | None) -> None:
        """Set a handler that is called before the file grows. None removes it.

        The handler runs in the thread whose call needs the space, and may call `prune`. An exception of
        the handler propagates from that call, and the store stays usable.

        Args:
            handler: Called as `handler(store, size)` with the new size in bytes.

        Example:
            >>> with tt.LoggedBookmarkStore("orders.bookmarks") as store:
            ...     store.on_resize(lambda store, size: store.prune())
        """
        with self._lock:
            self._on_resize = handler

    def prune(self) -> None:
        """Rewrite the file without obsolete records, durably. Recovery points do not change.

        Raises `StoreFailed`, `Closed`.

        Example:
            >>> with tt.LoggedBookmarkStore("orders.bookmarks") as store:
            ...     store.prune()
        """
        with self._lock:
            self._check()
            salt = random_salt()
            content = self._marked(records.snapshot(self._progress, salt, boot_id()), salt)
            size = _room_for(len(content))
            before = self._file.replaced
            try:
                self._file.replace(content, size)
            except BaseException:
                if self._file.replaced > before:
                    self._behind = True  # the new file may vanish at power loss: write nothing to it
                raise
            self._salt, self._at, self._size, self._pruned = salt, len(content), size, len(content)
            self._version = records.version_of(self._progress)
            self._behind = False

    def discard(self, sub_id: str, publisher: int, sequence: int) -> bool:
        """Discard a processed message. Return False if it was already discarded or never delivered."""
        with self._lock:
            progress = self._progress.get(sub_id)
            if progress is None:
                self._check()
                return False
            if self._at + RECORD_BYTES > self._size or self._behind:
                self._make_room(RECORD_BYTES)
            ordinal = progress.discard(publisher, sequence)
            if ordinal < 0:
                return False
            at, what = self._at, _DISCARD | progress.number << 8
            crc = crc32c(_body(what, ordinal), (self._salt + at) & _MASK)
            _pack_into(self._file.map, at, crc, what, ordinal)
            self._at = at + RECORD_BYTES
            if self._always:
                self._file.sync(at, self._at)
            if self.adapter is not None:
                self._has_moved(sub_id)
            return True

    def close(self) -> None:
        """See `BookmarkStore.close`. The file is truncated to its used bytes."""
        if self._closed:
            return
        with self._lock:
            if self._behind and not self._closed:
                self.prune()
        super().close()

    def _release(self) -> None:
        self._file.close(self._at)

    # -- opening ----------------------------------------------------------------------------------------

    def _open(self) -> None:
        content = self._content(records.MAGIC, records.VERSION, "the log of a bookmark store")
        if not content:
            self._load_adapter()
            self.prune()
            return
        try:
            end = self._read(content)
        except StoreCorrupt:
            if self.adapter is None:
                raise
            self._progress.clear()
            self._load_adapter()
            self.prune()
            return
        self._numbers = max((p.number for p in self._progress.values()), default=-1) + 1
        if end < len(content.rstrip(b"\0")):
            self.prune()  # replaces a file with a torn record, which is never overwritten in place
            return
        self._at, self._size = end, _room_for(end)
        self._pruned = records.HEADER_BYTES
        self._file.reserve(end, self._size)

    def _read(self, content: bytes) -> int:
        path = self.path
        head = records.read_header(content)
        if isinstance(head, str):
            raise self._unusable(head, "pass an adapter, ")
        self._salt, boot = head
        self._version = records.HEADER.unpack_from(content)[1]
        self._owner = owner_of(content, self._salt)
        try:
            log = records.read_log(content, self._salt)
        except BadRecord as error:
            raise StoreCorrupt(f"Cannot read the bookmark store {path!r}: {error}. {_REMEDY}") from error
        if log.beyond is not None and boot == boot_id():
            raise StoreCorrupt(
                f"Cannot read the bookmark store {path!r}: bytes {log.end} "
                f"to {log.beyond} are damaged. {_REMEDY}"
            )
        self._progress = log.subscriptions
        return log.end

    # -- the steps --------------------------------------------------------------------------------------

    def _keep_new(self, sub_id: str, progress: Progress) -> None:
        progress.number = self._numbers
        self._numbers += 1
        if self._size:
            self._write(RecordKind.NAME, progress, sub_id.encode())

    def _keep_point(self, progress: Progress) -> None:
        point = progress.point
        self._upgrade(point.places.values())
        self._write(RecordKind.START, progress, records.pairs([*point.base, *point.places.values()]))

    def _keep_delivery(
        self, progress: Progress, base: int, publishers: Publishers, sequences: UInt64s
    ) -> None:
        self._write(RecordKind.DELIVERY, progress, records.delivery(base, publishers, sequences))

    def _keep_late(self, progress: Progress, base: int, publishers: UInt64s, sequences: UInt64s) -> None:
        payload = records.delivery(base, publishers, sequences, late=True)
        self._write(RecordKind.DELIVERY, progress, payload)

    def _keep_discards(self, progress: Progress, done: Ranges) -> None:
        self._write(RecordKind.DISCARDS, progress, records.pairs(done))

    def _keep_notice(
        self,
        progress: Progress,
        bookmark: Bookmark | None,
        places: Sequence[Bookmark],
        holes: Sequence[OpenHoles] | None,
    ) -> None:
        if places or holes is not None:
            self._upgrade(places)
            self._write(RecordKind.PLACED, progress, records.placed(bookmark, places, holes))
        elif bookmark is not None:
            self._write(RecordKind.NOTICE, progress, records.pairs([bookmark]))

    def _upgrade(self, places: Iterable[Bookmark]) -> None:
        """Let the next record rewrite a file of a version without places."""
        if any(places) and self._version < records.PLACES_VERSION:
            self._behind = True

    def _keep_forgetting(self, progress: Progress) -> None:
        self._write(RecordKind.FORGET, progress, b"")

    def _keep_purge(self, gone: Mapping[str, Progress]) -> None:
        if self._has_room(RECORD_BYTES * len(gone)):
            for progress in gone.values():
                self._put(RecordKind.PURGE, progress, b"")
            self._file.sync(0, self._at)  # for any `sync`: the id may be reused for another subscription
            self._behind = False

    # -- inside -----------------------------------------------------------------------------------------

    def _write(self, kind: RecordKind, progress: Progress, payload: bytes) -> None:
        """Write a record of a change that is already in memory."""
        if self._has_room(RECORD_BYTES + len(payload) + -len(payload) % 8):
            at = self._put(kind, progress, payload)
            if self._always:
                self._file.sync(at, self._at)
            self._behind = False

    def _has_room(self, need: int) -> bool:
        """Make space for records of changes that are already in memory.

        Return False if the file was pruned instead: it then contains these changes durably.
        """
        if self._behind:
            self.prune()
            return False
        self._behind = True
        if self._at + need > self._size:
            self._grow(need)
        return self._behind

    def _put(self, kind: RecordKind, progress: Progress, payload: bytes) -> int:
        """Write a record that fits, and return its offset."""
        at = self._at
        record = records.record(kind, progress.number, payload, at, self._salt)
        self._at = at + len(record)
        self._file.map[at : self._at] = record
        return at

    def _make_room(self, need: int) -> None:
        """Make space for a record of a change that is not yet in memory."""
        if self._behind:
            self.prune()
        if self._at + need > self._size:
            self._grow(need)

    def _grow(self, need: int) -> None:
        handler, size = self._on_resize, _room_for(self._at + need)
        if handler is not None and not self._in_handler:
            self._in_handler = True
            try:
                handler(self, size)
            finally:
                self._in_handler = False
            self._check()  # it may have closed the store, or forked
        if self._at + need <= self._size:
            return
        if size > max(self._prune_bytes, 4 * self._pruned):
            self.prune()
        if self._at + need > self._size:
            size = _room_for(self._at + need)
            self._file.grow(size)
            self._size = size


def _room_for(used: int) -> int:
    """Return the file size for `used` bytes of records."""
    spare = max(bookmark_log_bytes_first, min(used, bookmark_log_step_bytes_max))
    return -(-(used + spare) // bookmark_log_bytes_first) * bookmark_log_bytes_first
