"""Sequences: which number is next, and whether another process published under this client's name."""

from __future__ import annotations

from collections.abc import Sequence

from tickertape.base.errors import BadCommand, PublisherTakenOver
from tickertape.base.interfaces import Now
from tickertape.base.limits import last_persisted_max
from tickertape.client.limits import foreign_sequences_max
from tickertape.client.publish_store.protocol import PublishStore, Stored


def taken_over(name: str, held: Sequence[Stored], sent: int, last: int) -> PublisherTakenOver | None:
    """The error when what is held may have been passed by another process; None when it may be sent.

    `sent` is the highest sequence this client sent, `last` the last persisted one of this name. What the
    server holds is ours only as far as we sent. When it is more, somebody else published, and of what we hold
    at or below that nobody can say whether it is stored: sent again it would be dropped as a duplicate, and
    acknowledged.
    """
    if last <= sent or not held or held[0].first > last:
        return None
    count = sum(stored.batch.count for stored in held)
    return PublisherTakenOver(
        f"another process published under the client name {name!r}: the server holds its sequence {last}, "
        f"and this client sent none above {sent}. {count} message(s) of this client, sequences "
        f"{held[0].first} to {held[-1].last}, may be stored or not; they stay in the publish store and are "
        "not sent. Give each process a name of its own; then publish again, with a fresh store "
        "(set_publish_store), what held() of this one has"
    )


def first_sequence(last: int, now: Now) -> int:
    """Where numbers begin above those of another process, which was persisted up to `last`.

    It may have given more that nobody stored yet, and come back with them: they lie below the clock, or,
    where the clock is behind what is stored, not far above that.
    """
    clock = now.wall * 1000
    return (clock if clock > last else last + foreign_sequences_max) + 1


def check_sequences_left(name: str, last: int) -> None:
    """Raise `BadCommand` when the server stores too few sequences above `last` for a publish store."""
    if last <= last_persisted_max - 2 * foreign_sequences_max - 1:
        return
    raise BadCommand(
        f"Cannot use a publish store under the client name {name!r}: the server holds its sequence {last}, "
        f"and sequences end at {last_persisted_max}. Use another client name with a fresh publish store, and "
        "publish there what held() of this one has. Without a publish store this name can still be used"
    )


def next_sequence(store: PublishStore, last: int, now: Now) -> int:
    """Where numbers go on with `store`. A fresh one cannot know what an earlier process of this name
    published."""
    if store.last_sequence:
        return store.last_sequence + 1
    fresh = now.wall * 1000 + 1
    return fresh if last < fresh else first_sequence(last, now)
