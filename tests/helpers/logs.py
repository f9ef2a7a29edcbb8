"""Logs of random messages: batches as commits hold them, each with its positions."""

from __future__ import annotations

from random import Random
from typing import NamedTuple

import numpy as np

from tickertape.batch import BatchBuilder, MessageBatch, Stamp, merge
from tickertape.batch.format import Int64s

DAY = 86_400_000_000


class Commit(NamedTuple):
    """Messages that follow one another in a log."""

    positions: Int64s
    batch: MessageBatch


Told = tuple[int, int, int, int, str, bytes, int | None, str | None, str | None]
"""Position, publisher, sequence, timestamp, topic, body, expiration, correlation id, key of a message."""


def random_log(
    random: Random, commits: int, *, topics: tuple[str, ...] = ("a", "b", "c/d"), first: int = 0
) -> list[Commit]:
    """Return a log of `commits` commits over two days, from the position `first` on.

    Publishers take turns, leave out sequences, and use each column at times. Control records are among the
    messages.
    """
    log: list[Commit] = []
    sequences = dict.fromkeys((7, 8, (1 << 64) - 1), 1)
    sequences[8] = (1 << 63) - 3  # rises through the sign of a signed number
    stamp = 15_000 * DAY + DAY - 50_000
    at = first
    for _ in range(commits):
        batches, stamps = [], []
        for _ in range(random.randint(1, 3)):
            publisher = random.choice(list(sequences))
            builder = BatchBuilder()
            start = sequences[publisher] + random.choice((0, 0, 3))
            sequence = start
            for _ in range(random.randint(1, 6)):
                control = random.random() < 0.05
                builder.add(
                    "$control" if control else random.choice(topics),
                    b'{"n": %d, "text": "%s"}' % (sequence % 1000, b"x" * random.randint(0, 30)),
                    expiration_ms=random.choice((0, 0, 0, 5000)),
                    correlation_id=random.choice(("", "", "cö1")),
                    key=random.choice(("", "", "", "k")),
                    sequence=sequence,
                    kind=int(control),
                )
                sequence += random.choice((1, 1, 1, 2))
            sequences[publisher] = sequence
            stamp += random.choice((0, 1, 700, 20_000))
            batches.append(builder.build(publisher, start, stamp))
            stamps.append(Stamp(publisher, start, stamp))
        batch = merge(batches, stamps)
        log.append(Commit(np.arange(at, at + batch.count), batch))
        at += batch.count
    return log


def end_of(log: list[Commit]) -> int:
    """Return the position after the last message."""
    return int(log[-1].positions[-1]) + 1


def told(positions: Int64s, batch: MessageBatch) -> list[Told]:
    """Return all messages of a batch but control records, with all their columns."""
    kinds = batch.kinds
    return [
        (
            int(positions[i]),
            batch.publisher(i),
            batch.sequence(i),
            batch.timestamp(i),
            batch.topic(i),
            batch.body(i),
            batch.expiration(i),
            batch.correlation_id(i),
            batch.key(i),
        )
        for i in range(batch.count)
        if kinds is None or not kinds[i]
    ]


def messages_of(log: list[Commit]) -> list[Told]:
    """Return all messages of a log but control records, with all their columns."""
    return [message for commit in log for message in told(*commit)]
