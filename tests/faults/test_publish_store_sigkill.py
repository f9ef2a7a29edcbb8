"""SIGKILL of a publisher at random times: messages of returned `publish` calls are in the store on disk."""

from __future__ import annotations

import os
import signal
import struct
import time
from functools import partial
from pathlib import Path
from random import Random

import pytest

from tests.helpers.publish_batches import held_messages
from tickertape.base.interfaces import Now
from tickertape.batch.encode import batch_from_bodies
from tickertape.client.protocol.core import ClientProtocol
from tickertape.client.publish_store import FilePublishStore

CYCLES = 20
CYCLES_FULL = 200
FIRST = 1000
"""Last sequence before the first message."""
RETURNED, SETTLED = 0, 1


def body_of(sequence: int) -> bytes:
    return b"%d." % sequence + b"x" * (sequence * 7919 % 3000)


def publish_until_killed(path: Path, seed: int, tell: int) -> None:
    """Publish until killed: report each sequence only after the call that returned it."""
    rng = Random(seed)
    store = FilePublishStore(path)
    core = ClientProtocol("killed")
    core.set_store(store, Now(1.0, 1))
    say = struct.Struct("<BQ").pack
    os.write(tell, say(RETURNED, 0))
    last = store.last_sequence or FIRST
    while True:
        if rng.random() < 0.02:
            count = rng.randrange(1, 50)
            bodies = [body_of(last + i) for i in range(1, count + 1)]
            sequence = core.publishing.publish_whole(
                "orders", count, sum(map(len, bodies)), partial(batch_from_bodies, "orders", bodies)
            )
        else:
            sequence = core.publishing.publish("orders", body_of(last + 1))
        assert sequence is not None
        last = sequence
        os.write(tell, say(RETURNED, sequence))
        if rng.random() < 0.01:
            core.publishing.flush()
            settled = sequence - rng.randrange(500)
            if settled > FIRST:
                os.write(tell, say(SETTLED, settled))
                store.discard(settled)


def kill_once(path: Path, seed: int) -> list[tuple[int, int]]:
    """Run one process until it is killed, and return its reports."""
    hear, tell = os.pipe()
    child = os.fork()
    if not child:
        try:
            os.close(hear)
            publish_until_killed(path, seed, tell)
        finally:
            os._exit(1)
    os.close(tell)
    said = os.read(hear, 9)
    end = time.monotonic() + Random(seed).random() * 0.1
    while time.monotonic() < end:
        said += os.read(hear, 9 << 10)
    os.kill(child, signal.SIGKILL)
    while more := os.read(hear, 9 << 10):
        said += more
    os.close(hear)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == -signal.SIGKILL
    return list(struct.iter_unpack("<BQ", said))


@pytest.mark.behaviour(29)
def test_publish_store_after_sigkill_has_every_returned_publish(tmp_path: Path, full: bool) -> None:
    path = tmp_path / "store"
    settled = published = FIRST
    for cycle in range(CYCLES_FULL if full else CYCLES):
        said = kill_once(path, cycle)
        settled = max([settled, *[number for kind, number in said if kind == SETTLED]])
        published = max([published, *[number for kind, number in said if kind == RETURNED]])
        with FilePublishStore(path) as store:
            held = held_messages(store)
            assert max(store.last_sequence, FIRST) >= published
        assert list(held) == sorted(held)
        assert set(range(settled + 1, published + 1)) <= held.keys(), f"cycle {cycle}"
        assert all(body == body_of(number) for number, body in held.items()), f"cycle {cycle}"
    assert settled > FIRST
    assert published - FIRST > CYCLES
