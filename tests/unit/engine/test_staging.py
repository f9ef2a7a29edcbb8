"""What is staged for transactions, at the engine: what counts against its bounds, and when files go."""

from __future__ import annotations

import pytest

from tests.simulation.engine_world import EngineWorld
from tests.unit.engine.test_transactions import Sink, bodies_of, sink, world
from tickertape.engine import staging as staging_module
from tickertape.wire.commands import Committed

__all__ = ["sink", "world"]


@pytest.mark.parametrize(
    ("bound", "code"), [("transaction_bytes", "transaction_too_large"), ("disk_bytes", "staging_full")]
)
def test_stage_replacing_a_part_does_not_count_the_replaced_bytes(
    world: EngineWorld, sink: Sink, bound: str, code: str
) -> None:
    sink.prepared(bytes(4_000))
    setattr(world.broker.transactions.staging.limits, bound, 6_000)
    other = Sink(world, "other")
    assert other.stage(bytes(3_000), part="1") == code, "another part counts beside it"
    other.prepared(b"1" * 3_000)
    assert other.stage(bytes(4_000), part="1") == code, "so does what replaced it"
    assert isinstance(other.commit("0"), Committed)
    assert bodies_of(world) == [b"1" * 3_000]


def test_stage_replacing_a_part_does_not_count_the_replaced_batches(
    world: EngineWorld, sink: Sink, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(staging_module, "transaction_batches_max", 3)
    assert [sink.stage(b"1"), sink.stage(b"1")] == ["", ""]
    sink.prepared(b"1", part="1")
    other = Sink(world, "other")
    assert other.stage(b"2", part="2") == "transaction_too_large"
    assert [other.stage(b"2"), other.stage(b"2")] == ["", ""]
    assert other.stage(b"2") == "transaction_too_large"


def test_stage_refused_for_room_leaves_the_part_it_would_replace(world: EngineWorld, sink: Sink) -> None:
    sink.prepared(b"1")
    world.broker.transactions.staging.limits.transaction_bytes = 1_000
    other = Sink(world, "other")
    assert other.stage(bytes(2_000)) == "transaction_too_large"
    assert isinstance(other.commit("0"), Committed)
    assert bodies_of(world) == [b"1"]
