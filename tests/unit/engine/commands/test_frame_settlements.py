"""Limits on settlements in one publish frame."""

from __future__ import annotations

import numpy as np
import pytest

from tests.simulation.queue_world import QueueWorld
from tickertape.base.errors import BadBatch
from tickertape.base.limits import settlement_runs_max
from tickertape.batch import BatchBuilder, MessageBatch
from tickertape.engine.commands.frame_settlements import Settlements
from tickertape.engine.limits import settlements_per_frame_max
from tickertape.engine.runtime.queue_definition import QueueDefinition
from tickertape.wire.settlement import QUEUE_TOPIC, Settlement, encode_settlement, runs_of


def frame(count: int, runs: int = 1) -> MessageBatch:
    builder = BatchBuilder()
    for number in range(count):
        sequences = np.arange(1 + number, 1 + number + 2 * runs, 2)
        named = runs_of([7] * runs, sequences)
        builder.add(QUEUE_TOPIC, encode_settlement(Settlement(queue="q", action="ack", runs=named)))
    return MessageBatch.parse(builder.build(5, first_sequence=1).encode())


@pytest.mark.parametrize(
    ("allowed", "refused"),
    [
        (frame(settlements_per_frame_max), frame(settlements_per_frame_max + 1)),
        (frame(2, settlement_runs_max), frame(3, settlement_runs_max)),
    ],
    ids=["settlements", "runs"],
)
def test_frame_with_too_many_settlements_or_runs_is_rejected(
    allowed: MessageBatch, refused: MessageBatch
) -> None:
    world = QueueWorld(1, [QueueDefinition("q")])
    peer = world.connect("worker")
    world.settle()
    session = world.broker.sessions[peer.conn]
    Settlements(world.broker.queues, session, allowed, np.zeros(allowed.count, np.bool_))
    with pytest.raises(BadBatch, match="Send at most"):
        Settlements(world.broker.queues, session, refused, np.zeros(refused.count, np.bool_))
