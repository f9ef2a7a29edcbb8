"""Publish stores (public names)."""

from __future__ import annotations

from tickertape.client.publish_store.file import FilePublishStore
from tickertape.client.publish_store.hybrid import HybridPublishStore
from tickertape.client.publish_store.memory import MemoryPublishStore
from tickertape.client.publish_store.protocol import (
    AppendingPublishStore,
    ClaimingPublishStore,
    LogonNotingPublishStore,
    PublishStore,
    Stored,
)

__all__ = [
    "AppendingPublishStore",
    "ClaimingPublishStore",
    "FilePublishStore",
    "HybridPublishStore",
    "LogonNotingPublishStore",
    "MemoryPublishStore",
    "PublishStore",
    "Stored",
]
