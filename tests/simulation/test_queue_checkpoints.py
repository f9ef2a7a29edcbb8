"""Queue starts with a checkpoint reach the state of starts without, for any history and file."""

from __future__ import annotations

from collections.abc import Callable
from copy import deepcopy
from random import Random
from typing import Any

import msgspec
import pytest

from tests.helpers.queue_engine import QueueEngine
from tests.helpers.tiers import parts
from tests.simulation.engine_peer import Peer
from tickertape.engine.queues import checkpoints
from tickertape.engine.queues.queue_feed import FeedQueue
from tickertape.engine.queues.state.checkpoint import (
    CheckpointSnapshot,
    decode_covered,
    encode_covered,
    encode_snapshots,
)
from tickertape.engine.runtime.queue_definition import QueueDefinition
from tickertape.journal.format.queue_checkpoint import QUEUES_FILE, read_queues, write_queues
from tickertape.wire.settlement import QUEUE_TOPIC, Settlement, encode_settlement, runs_of

SEEDS = 30
SEEDS_EVERY_RUN = 3
KINDS: dict[str, dict[str, Any]] = {
    "plain": {},
    "tries": {"max_deliveries": 4, "max_cancels": 3, "dead_letter": "dead"},
    "expiring": {"expiration": 40.0, "dead_letter": "dead"},
    "priority": {"priority": "/p"},
    "barrier": {"barrier_expression": "/n IN (5, 20, 40)"},
    "depth": {"target_queue_depth": 4, "priority": "/p"},
    "once": {"semantics": "at-most-once", "barrier_expression": "/n = 12"},
    "filter": {"filter": "/p > 1"},
    "leased": {"lease_period": 5.0, "max_deliveries": 5},
}


def definitions(*, file_backed: bool) -> list[QueueDefinition]:
    return [
        QueueDefinition(name, "t", file_backed_metadata=file_backed, **more) for name, more in KINDS.items()
    ]


def shown(world: QueueEngine, queue: FeedQueue) -> dict[str, object]:
    """Return the part of a state that must not depend on the kind of recovery. Counters restart at zero."""
    state, inside = queue.state, queue.state.has(queue.state.ready | queue.state.inactive)
    assert not state.leased
    expiry = deepcopy(queue.expiry)  # the checks advance its time
    return {
        "ready": list(state.ready),
        "inactive": list(state.inactive),
        "doomed": {at: state.doom_of(at) for at in state.doomed},
        "tries": {at: state.tries_of(at) for at in state.deliveries.positions()},
        "barriers": list(queue.order.barriers & inside),
        "order": in_order(queue),
        "too old": [list(expiry.overdue(inside, world.wall + n * 1_000_000)) for n in range(0, 60, 3)],
    }


def in_order(queue: FeedQueue) -> list[int]:
    """Return the ready messages in delivery order, up to a barrier."""
    found: list[int] = []
    left = queue.state.ready.copy()
    while left and len(part := queue.order.next(1, left)):
        found += part.tolist()
        left.discard(found[-1])
    return found


def states(world: QueueEngine) -> dict[str, dict[str, object]]:
    return {work.queue.name: shown(world, work.queue) for work in world.broker.queues.workers}


def live(world: QueueEngine, rng: Random, steps: int) -> None:
    """Messages, consumers, settlements of all kinds, and time."""
    peers: list[Peer] = [world.connect(f"c{n}") for n in range(3)]
    n = 0
    for _ in range(steps):
        peer = rng.choice(peers)
        name = rng.choice(list(KINDS))
        kind = rng.randrange(8)
        if kind < 2:
            for _ in range(rng.randrange(1, 4)):
                peer.publish("t", [b'{"n":%d,"p":%d}' % (n, n * 7 % 5)])
                n += 1
        elif kind == 2:
            options = f"replace,max_backlog={rng.randrange(1, 6)}"
            peer.subscribe(f"s{peers.index(peer)} {name}", name, options=options)
        elif kind < 7:
            bodies = [heard.body for heard in peer.heard.get(f"s{peers.index(peer)} {name}", [])]
            action = rng.choice(("ack", "ack", "cancel", "cancel", "expire"))
            if bodies:
                world.settlement(peer, name, *rng.sample(bodies, min(len(bodies), 3)), action=action)
        else:
            world.wake(rng.choice((0.5, 6.0, 20.0)))
        if rng.random() < 0.7:
            world.settle()
    world.settle()


def lived(rng: Random, *, file_backed: bool) -> QueueEngine:
    """Return an engine with a long history and without clients."""
    world = QueueEngine(*definitions(file_backed=file_backed))
    live(world, rng, 80)
    for peer in [*world.peers.values()]:
        world.disconnect(peer)
    return world


@pytest.mark.parametrize("seed", parts(SEEDS, SEEDS_EVERY_RUN))
@pytest.mark.parametrize("file_backed", [False, True])
def test_queue_start_with_and_without_a_checkpoint_reaches_the_same_state(
    seed: int, file_backed: bool
) -> None:
    rng = Random(seed)
    world = QueueEngine(*definitions(file_backed=file_backed))
    begins: list[int] = []
    for life in range(3):
        live(world, rng, 60)
        if rng.random() < 0.5:
            world.checkpoint()
            live(world, rng, rng.randrange(30))
        for peer in [*world.peers.values()]:
            world.disconnect(peer)
        before = states(world)
        world.reopen(clean=life == 1)
        begins.append(world.read_from)
        assert world.report == []
        assert states(world) == before, "as it was when it was killed"
        body = read_queues(world.disk, world.broker.journal.journal_id)
        if body is not None:
            world.disk.remove(QUEUES_FILE)
        world.reopen()
        assert states(world) == before, "as the log says"
        assert world.read_from <= begins[-1]
        if body is not None:
            write_queues(world.disk, world.broker.journal.journal_id, body)
            world.reopen()
            assert states(world) == before, "as an older checkpoint and the log behind it say"
        world.reopen(*definitions(file_backed=not file_backed))
        assert states(world) == before, "file_backed_metadata does not change the state"
        world.reopen(clean=True)
        world.reopen(*definitions(file_backed=file_backed))
        assert states(world) == before
    assert begins[1] > 0, "a clean stop spares the next start reading all"


@pytest.mark.parametrize("seed", parts(SEEDS, SEEDS_EVERY_RUN))
def test_checkpoint_copied_between_other_inputs_restores_the_state(
    seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(checkpoints, "checkpoint_step_queues_max", 1)
    rng = Random(seed)
    world = QueueEngine(*definitions(file_backed=True))
    live(world, rng, 60)
    writer = world.broker._checkpoints
    peer = world.connect("busy")
    peer.subscribe("all", ".*", options="max_backlog=20")
    peer.publish("t", [b'{"n":999,"p":0}'])  # a checkpoint is due only after new messages
    world.settle()
    written = writer.written
    world.wake(61.0)
    copied = settled = 0
    while any(writer.pending):
        copied += 1
        peer.publish("t", [b'{"n":%d,"p":%d}' % (1000 + copied, copied % 5)])
        for name in rng.sample(list(KINDS), 3):
            heard = peer.heard["all"]
            if heard:
                message = rng.choice(heard)
                settlement = Settlement(queue=name, action="ack", runs=runs_of([message[0]], [message[1]]))
                peer.publish(QUEUE_TOPIC, [encode_settlement(settlement)])
                settled += 1
        for _ in range(rng.randrange(3)):
            world.step()
        world.work()
    assert copied >= 3
    assert settled
    world.settle()
    assert writer.written == written + 1
    for each in [*world.peers.values()]:
        world.disconnect(each)
    before = states(world)
    world.reopen()
    assert world.report == []
    assert states(world) == before


@pytest.mark.parametrize("seed", parts(SEEDS, SEEDS_EVERY_RUN))
def test_checkpoint_snapshot_encoded_after_later_work_is_unchanged(seed: int) -> None:
    rng = Random(seed)
    world = QueueEngine(*definitions(file_backed=True))
    taken: list[tuple[list[CheckpointSnapshot], bytes]] = []
    for _ in range(5):
        live(world, rng, 25)
        snapshot = [world.broker.queues.snapshot(worker) for worker in world.broker.queues.workers]
        taken.append((snapshot, encode_snapshots(snapshot)))
    live(world, rng, 25)
    assert len({body for _, body in taken}) == len(taken)
    for snapshot, body in taken:
        assert encode_snapshots(snapshot) == body


def cut(body: bytes) -> bytes:
    return body[: len(body) // 2]


def flipped(body: bytes) -> bytes:
    return body[:-3] + bytes([body[-3] ^ 4]) + body[-2:]


@pytest.mark.parametrize("damage", [cut, flipped, lambda _: b"", lambda body: body + b"x"])
@pytest.mark.parametrize("file_backed", [False, True])
def test_damaged_checkpoint_file_is_reported_and_the_state_recovered_from_the_log(
    file_backed: bool, damage: Callable[[bytes], bytes]
) -> None:
    world = lived(Random(3), file_backed=file_backed)
    before = states(world)
    world.reopen(clean=True)
    handle = world.disk.open(QUEUES_FILE)
    whole = bytes(world.disk.read(handle, 0, world.disk.size(handle)))
    bad = damage(whole)
    world.disk.truncate(handle, len(bad))
    world.disk.write(handle, 0, [bad])
    world.disk.sync(handle)
    world.disk.close(handle)
    world.reopen()
    assert len(world.report) == 1
    assert QUEUES_FILE in world.report[0]
    assert states(world) == before


@pytest.mark.parametrize("file_backed", [False, True])
def test_checkpoint_of_another_journal_or_without_queues_is_ignored(file_backed: bool) -> None:
    world = lived(Random(4), file_backed=file_backed)
    before = states(world)
    journal_id = world.broker.journal.journal_id
    write_queues(world.disk, bytes(reversed(journal_id)), world.broker.queues.checkpoint_body())
    world.reopen()
    assert ["another journal" in line for line in world.report] == [True]
    assert states(world) == before
    write_queues(world.disk, journal_id, encode_covered([]))
    world.reopen()
    assert (world.report, states(world)) == ([], before)


@pytest.mark.parametrize("field", ["ready", "inactive", "order", "expiry"])
@pytest.mark.parametrize("kind", ["priority", "depth", "expiring", "barrier"])
def test_checkpoint_with_an_invalid_state_is_reported_and_ignored_as_a_whole(kind: str, field: str) -> None:
    """Its checksum is valid, and one field is not: no part of the state may stay."""
    world = lived(Random(5), file_backed=True)
    before = states(world)
    journal_id = world.broker.journal.journal_id
    covered = decode_covered(world.broker.queues.checkpoint_body())
    for one in covered:
        if one.queue == kind:
            assert one.state is not None
            wrong: object = (b"\xff" * 9, [(1, b"\xff")]) if field == "order" else b"\xff" * 9
            one.state = msgspec.structs.replace(one.state, **{field: wrong})
    write_queues(world.disk, journal_id, encode_covered(covered))
    world.reopen()
    assert [line.split(":")[0] for line in world.report] == [f"Cannot use the checkpoint of queue '{kind}'"]
    assert states(world) == before


@pytest.mark.parametrize("file_backed", [False, True])
def test_barrier_returned_after_delivery_no_longer_holds_messages_back(file_backed: bool) -> None:
    definition = QueueDefinition("q", "t", barrier_expression="/n = 1", file_backed_metadata=file_backed)
    world = QueueEngine(definition)
    peer = world.connect("p")
    peer.publish("t", [b'{"n":%d}' % n for n in range(3)])
    world.settle()
    world.consumed("q", 1)
    world.consumed("q", 1, "cancel")
    before = states(world)
    assert before["q"]["order"] == before["q"]["ready"]
    for clean in (False, True):
        world.reopen(clean=clean)
        assert states(world) == before
