"""Bookmark stores (public names)."""

from __future__ import annotations

from tickertape.client.bookmark_store.base import MemoryBookmarkStore
from tickertape.client.bookmark_store.logged import LoggedBookmarkStore
from tickertape.client.bookmark_store.protocol import BookmarkStore, RecoveryPointAdapter
from tickertape.client.bookmark_store.recovery_point_adapter import ConflatingRecoveryPointAdapter
from tickertape.client.bookmark_store.ring import RingBookmarkStore
from tickertape.client.bookmark_store.sow_adapter import SowRecoveryPointAdapter

__all__ = [
    "BookmarkStore",
    "ConflatingRecoveryPointAdapter",
    "LoggedBookmarkStore",
    "MemoryBookmarkStore",
    "RecoveryPointAdapter",
    "RingBookmarkStore",
    "SowRecoveryPointAdapter",
]
