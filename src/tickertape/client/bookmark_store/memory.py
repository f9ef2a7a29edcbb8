"""Memory bookmark store: survives a lost connection, not the end of the process."""

from __future__ import annotations

from tickertape.client.bookmark_store.base import ProgressStore
from tickertape.client.bookmark_store.protocol import RecoveryPointAdapter


class MemoryBookmarkStore(ProgressStore):
    """Remembers in memory what was delivered and discarded; see `BookmarkStore`.

    With an `adapter` it begins with the recovery points kept there, and keeps them up to date. Undiscarded
    messages take 1 to 17 bytes each, at most `bookmark_window_messages_max` a subscription.
    """

    def __init__(self, adapter: RecoveryPointAdapter | None = None) -> None:
        super().__init__(adapter)
        self._load_adapter()
