"""Owns the names of the publish stores.

Must never hold anything else.
"""

from __future__ import annotations

from tickertape.client.publish_store.memory import MemoryPublishStore
from tickertape.client.publish_store.protocol import PublishStore, Stored

__all__ = ["MemoryPublishStore", "PublishStore", "Stored"]
