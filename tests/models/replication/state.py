"""State of the world of one instance: the candidates of each key, from messages and copies in any order."""

from __future__ import annotations

from typing import Final, NamedTuple

from tests.helpers.sow_model import Deleted, Expired, Published, RankTuple, keys_of

Content = Published | Deleted
KEYS: Final = tuple(b"%d" % key for key in range(12))
LIFE: Final = 60
"""Age at which each third message expires."""


def key_of(sequence: int) -> bytes:
    """Return the key that a message publishes or deletes. All publishers write it, and then the next one."""
    return KEYS[sequence // 4 % len(KEYS)]


def is_delete(publisher: int, sequence: int) -> bool:
    return (sequence + publisher) % 5 == 0


def log_name(log: int) -> bytes:
    """Return the log id of a rank."""
    return b"%08d" % log


class Candidate(NamedTuple):
    """The newest message of one publisher on a key."""

    content: Content
    rank: RankTuple
    position: int

    @property
    def age(self) -> tuple[int, int, bytes]:
        """Order of the messages and copies of one publisher: the least counts."""
        return -self.content.sequence, self.content.stamp, self.content.log


class State:
    """Candidates by key and publisher."""

    def __init__(self) -> None:
        self.candidates: dict[bytes, dict[int, Candidate]] = {key: {} for key in KEYS}
        self.ended: dict[tuple[bytes, int], Deleted] = {}
        """The newest delete of a publisher on a key that named no message."""
        self.expired: set[Expired] = set()
        self.stable_stamp = 0
        """Copies at or below it arrive late from a log that was replaced, and change nothing."""
        self.stamp = 0
        """The highest order stamp."""

    def enter(self, content: Content, position: int) -> None:
        """Enter a message, or a copy of one."""
        self.stamp = max(self.stamp, content.stamp)
        for key in keys_of(content):
            rank = content.rank if isinstance(content, Published) else content.named[key]
            if rank is None:
                assert isinstance(content, Deleted)
                ended = self.ended.get((key, content.publisher))
                if ended is None or content.sequence > ended.sequence:
                    self.ended[key, content.publisher] = content
                continue
            found = Candidate(content, rank, position)
            known = self.candidates[key].get(content.publisher)
            if known is None or found.age < known.age:
                self.candidates[key][content.publisher] = found

    def counts(self, content: Content, unnamed: bool = False) -> bool:
        """Return whether a copy of a stored message counts: the first copy, or a delete that names more.

        With `unnamed`, deletes are compared also on keys for which they name no message.
        """
        if content.stamp <= self.stable_stamp:
            return False
        if isinstance(content, Deleted) and self.names_more(content):
            return True
        for key in keys_of(content):
            if isinstance(content, Deleted) and content.named[key] is None and not unnamed:
                continue  # it does not replace the candidate
            known = self.candidates[key].get(content.publisher)
            same = known is not None and known.content.sequence == content.sequence
            if (
                same
                and known is not None
                and (content.stamp, content.log) < (known.content.stamp, known.content.log)
            ):
                return True
        return False

    def names_more(self, content: Deleted) -> bool:
        """Return whether a copy of a delete names a message of a key for which no stored copy names one."""
        for key, rank in content.named.items():
            known = self.candidates[key].get(content.publisher)
            if rank is not None and (known is None or known.content.sequence < content.sequence):
                return True
        return False

    def highest(self, key: bytes) -> RankTuple | None:
        """Return the rank of the candidate with the highest rank, dead or alive."""
        return max((candidate.rank for candidate in self.candidates[key].values()), default=None)

    def record(self, key: bytes) -> Published | None:
        """Return the record of a key."""
        found = max(self.candidates[key].values(), key=lambda c: (c.rank, self._dead(key, c)), default=None)
        if found is None or self._dead(key, found):
            return None
        assert isinstance(found.content, Published)
        return found.content

    def records(self) -> dict[bytes, Published]:
        return {key: record for key in KEYS if (record := self.record(key)) is not None}

    def _dead(self, key: bytes, candidate: Candidate) -> bool:
        content = candidate.content
        ended = self.ended.get((key, content.publisher))
        return (
            isinstance(content, Deleted)
            or Expired(key, content.publisher, content.sequence) in self.expired
            or (ended is not None and content.sequence < ended.sequence)
        )

    def due(self, now: int) -> list[Expired]:
        """Return the records that expire."""
        return [
            Expired(key, record.publisher, record.sequence)
            for key, record in self.records().items()
            if record.sequence % 3 == 0 and record.stamp + LIFE <= now
        ]

    def forget(self, stable: int, stamp: int) -> None:
        """Forget the candidates of each key that lost or are dead, if all of the key are below `stable`."""
        self.stable_stamp = max(stamp, self.stable_stamp)
        for key, candidates in self.candidates.items():
            if all(c.position < stable and c.content.stamp <= stamp for c in candidates.values()):
                record = self.record(key)
                kept = {p: c for p, c in candidates.items() if c.content == record}
                self.candidates[key] = kept

    def contents(self) -> list[Content]:
        """Return the messages of all candidates, the oldest first."""
        found = {c.content.stamp: c.content for of_key in self.candidates.values() for c in of_key.values()}
        found.update({ended.stamp: ended for ended in self.ended.values()})
        return [content for _, content in sorted(found.items())]
