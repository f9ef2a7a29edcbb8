"""Two engines with links, step by step, for tests of single cases."""

from __future__ import annotations

from collections import Counter

from tests.simulation.engine_peer import Peer
from tests.simulation.linked_engine import LinkedEngine, PipeEnd, body_of
from tests.simulation.linked_engines import FailoverStore, link_to
from tickertape.engine.replication.links.link_row import LinkRow
from tickertape.engine.replication.links.registry import LinkRegistry
from tickertape.journal.retention import RetentionPolicy
from tickertape.wire.commands import Persisted

PIECE = 20
"""Messages of one publish frame, few enough for several segments."""

__all__ = ["FailoverStore", "LinkedEngine", "PipeEnd", "link_to"]


def make_pair(
    *, both: bool = True, retention: RetentionPolicy | None = None
) -> tuple[LinkedEngine, LinkedEngine]:
    """Return two engines: a link from the first to the second, and with `both` one back."""
    counts: Counter[str] = Counter()
    excluded = () if both else ("replicate",)
    first = LinkedEngine(1, 0, (link_to(1, *excluded),), counts, retention)
    second = LinkedEngine(2, 1, (link_to(0),) if both else (), counts, retention)
    return first, second


def run(*engines: LinkedEngine) -> None:
    """Deliver all bytes, and do all work, until nothing is left."""
    for engine in engines:
        engine.settle()
    moved = True
    while moved:
        moved = False
        for engine in engines:
            for end in [*engine.ends.values()]:
                while end.deliver():
                    moved = True
            engine.settle()


def join(source: LinkedEngine, destination: LinkedEngine) -> PipeEnd:
    """Open a link, and run both engines."""
    end = source.link_to(destination)
    run(source, destination)
    return end


def links_of(engine: LinkedEngine) -> LinkRegistry:
    """Return the links of an engine."""
    assert engine.broker.links is not None
    return engine.broker.links


def row_of(engine: LinkedEngine, direction: str = "out") -> LinkRow:
    """Return the state of the only link in a direction."""
    (row,) = [row for row in links_of(engine).rows() if row.direction == direction]
    return row


def publish(engine: LinkedEngine, count: int, name: str = "p") -> FailoverStore:
    """Publish messages, and return their publisher."""
    store = FailoverStore(name, engine.rng, engine.counts)
    store.connect(engine)
    engine.settle()
    store.hear()
    for begin in range(0, count, PIECE):
        store.publish(min(PIECE, count - begin))
        engine.settle()
    store.hear()
    assert store.kept == []
    return store


def events(engine: LinkedEngine, name: str) -> list[dict[str, str | int]]:
    """Return the fields of the events with a name."""
    return [one.fields for one in engine.told if one.name == name]


def client_of(engine: LinkedEngine, name: str = "p") -> Peer:
    """Return a client after its logon."""
    peer = engine.connect(name)
    engine.settle()
    return peer


def publish_next(peer: Peer, topic: str = "orders", count: int = 1) -> None:
    """Publish the next messages of a client in one frame, and let its engine do all its work."""
    assert peer.logged_on is not None
    assert isinstance(peer.world, LinkedEngine)
    first = peer.next_sequence
    peer.publish(topic, [body_of(peer.logged_on.publisher, first + at) for at in range(count)])
    peer.world.settle()


def levels_of(peer: Peer) -> list[str]:
    """Return the levels of the acknowledgements of a client."""
    return [command.level for command, _ in peer.received if isinstance(command, Persisted)]
