"""Merge of deltas into records: the new body of a record, for each message type.

A message is merged once, at its origin, and the merged body is stored. The rules of a type are those of
`MessageType.merger`: objects are merged by name, arrays and other values are replaced, and no field can be
removed.
"""

from __future__ import annotations

from tickertape.payload import message_type


class Merger:
    """Merges deltas of one message type."""

    def __init__(self, type_name: str) -> None:
        self._merge = message_type(type_name).merger()

    @property
    def merges(self) -> bool:
        """Whether bodies of the type have fields. If not, each delta is published unchanged."""
        return self._merge is not None

    def merge(self, old: bytes | None, delta: bytes) -> bytes:
        """Return the body of the record after `delta`.

        The result is `delta` itself without a record, and if one of the two has no fields to merge, and
        `old` itself if the delta has none. Merging a result with the same delta returns an equal document.

        Args:
            old: Body of the record, accepted by this instance. None: the key has no record.
            delta: Body of the delta. Without a record, it is not examined.

        Raises:
            Unreadable: The delta is not a document of the type, or nested deeper than the parser permits.
            MessageTooLarge: Nested objects that need too much work. The limit for messages is not checked.
        """
        if old is None or self._merge is None:
            return delta
        return self._merge(old, delta)
