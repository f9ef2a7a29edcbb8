"""Owns what the server said at logon about topics: which ones it records, and whose bodies it validates.

Must never be asked about a name that was not checked: here it is only compared.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

from tickertape.base.names import is_pattern


class Recording:
    """Before the first logon every topic counts as recorded."""

    def __init__(self) -> None:
        self._names: frozenset[str] | None = None
        self._patterns: tuple[re.Pattern[str], ...] = ()
        self._validated: frozenset[str] = frozenset()

    def told(self, recorded: Iterable[str] | None, validated: Iterable[str]) -> None:
        """What the server said: names and patterns that it records, None = all; names that it validates."""
        names = None if recorded is None else frozenset(recorded)
        self._names = names
        self._patterns = tuple(re.compile(name) for name in sorted(names or ()) if is_pattern(name))
        self._validated = frozenset(validated)

    def __contains__(self, topic: str) -> bool:
        names = self._names
        return names is None or topic in names or any(p.search(topic) for p in self._patterns)

    def validates(self, topics: Iterable[str]) -> bool:
        """Whether bodies of one of `topics` may be refused."""
        return not self._validated.isdisjoint(topics)
