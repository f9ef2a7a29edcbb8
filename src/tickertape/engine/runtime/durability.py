"""Durability: which messages synchronous links have made durable at their destinations.

An acknowledgement waits for the synchronous links of its topics (its link set), and for no other link. A
downgraded link counts as asynchronous until its upgrade.

Invariants:
- An acknowledgement covers only links that report the message as durable, or are downgraded.
- A position that a link reported as durable never becomes lower within a connection.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NewType

LinkSet = NewType("LinkSet", int)
"""Set of synchronous links: bit N is link N of the configuration."""
NO_LINKS = LinkSet(0)


class DurableHorizon:
    """The horizon of the topics of a subscription: messages below it are on the disks of their
    destinations."""

    def __init__(self, sync: SyncLinks, links: LinkSet, *, alike: bool) -> None:
        """`alike`: all topics have all of these links, or none of them. Otherwise all links must have a
        message: with `any N`, the links that must have it depend on its topic."""
        self._sync = sync
        self._links = links
        self._alike = alike

    def position(self, end: int) -> int:
        """Return the position, at most the persisted end of this log."""
        if self._alike:
            return self._sync.horizon(self._links, end)
        return self._sync.horizon_of_all(self._links, end)


class SyncLinks:
    """The synchronous links, in the order of the configuration. `required` is the N of `any N`, or None for
    all links."""

    def __init__(self, names: Sequence[str], required: int | None = None) -> None:
        self.names = tuple(names)
        self._required = required
        self._durable = [0] * len(names)
        self._level = ["local"] * len(names)
        self._counted = (1 << len(names)) - 1

    def link_set(self, links: Sequence[int]) -> LinkSet:
        """Return the set of links with these numbers."""
        bits = 0
        for link in links:
            bits |= 1 << link
        return LinkSet(bits)

    def durable(self, link: int, position: int, level: str) -> bool:
        """Note that a destination has all rows below `position` on its disk. Return whether that is news."""
        self._level[link] = level
        if position <= self._durable[link]:
            return False
        self._durable[link] = position
        return True

    def position(self, link: int) -> int:
        """Return the position below which a destination has all rows on its disk."""
        return self._durable[link]

    def reset(self, link: int, position: int) -> None:
        """Set the position at which a link starts: a destination can have lost the end of its log.

        Its rows count as `written` until the destination reports a level."""
        self._durable[link], self._level[link] = position, "written"

    def downgrade(self, link: int) -> None:
        """Let acknowledgements no longer wait for a link."""
        self._counted &= ~(1 << link)

    def upgrade(self, link: int) -> None:
        """Let acknowledgements wait for a link again."""
        self._counted |= 1 << link

    def is_downgraded(self, link: int) -> bool:
        """Return whether acknowledgements do not wait for a link."""
        return not self._counted >> link & 1

    def horizon(self, links: LinkSet, end: int) -> int:
        """Return the position below which enough links of a set have all rows, at most `end`.

        `end` is the persisted end of this log."""
        positions = sorted((self._durable[link] for link in self._of(links)), reverse=True)
        required = self._required_of(len(positions))
        return min(end, positions[required - 1]) if required else end

    def horizon_of_all(self, links: LinkSet, end: int) -> int:
        """Return the position below which all links of a set have all rows, at most `end`."""
        return min([end, *(self._durable[link] for link in self._of(links))])

    def lacks(self, count: int, connected: int) -> bool:
        """Return whether acknowledgements wait with a number of connected links, of `count`."""
        return connected < self._required_of(count)

    def _required_of(self, count: int) -> int:
        """Return the number of links that must have a row, of a number of links."""
        return count if self._required is None else min(self._required, count)

    def level(self, links: LinkSet, end: int, local: str) -> str:
        """Return the level of an acknowledgement for rows below `end`. `local` is the level of this log.

        `written` if the sync policy of this log, or of a counted destination, is not `always`. Otherwise
        `replicated(N)` for N destinations, or `local` for none."""
        having = [link for link in self._of(links) if self._durable[link] >= end]
        if local == "written" or any(self._level[link] == "written" for link in having):
            return "written"
        return f"replicated({len(having)})" if having else local

    def _of(self, links: LinkSet) -> Iterator[int]:
        """Yield the links of a set for which acknowledgements wait."""
        counted = links & self._counted
        while counted:
            link = (counted & -counted).bit_length() - 1
            yield link
            counted &= counted - 1
