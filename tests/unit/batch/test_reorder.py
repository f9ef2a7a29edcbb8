"""All messages of a batch in another order."""

from __future__ import annotations

from random import Random

import numpy as np
import pytest

from tests.helpers.tiers import parts
from tickertape.base.errors import UsageError
from tickertape.batch import BatchBuilder, MessageBatch, merge, reorder, select


@pytest.mark.parametrize("seed", parts(20, 6))
def test_reorder_gives_the_same_messages_in_the_order_asked_for(seed: int) -> None:
    random = Random(seed)
    builder = BatchBuilder()
    for number in range(random.randrange(1, 40)):
        builder.add(
            random.choice("ab"),
            b"%d" % number * random.randrange(3),
            correlation_id=random.choice(("", "c")),
            key=random.choice(("", "k")),
            expiration_ms=random.choice((0, 5)),
        )
    first = builder.build(7, first_sequence=5)
    batch = merge([first, builder.build(9, first_sequence=3), select(first, np.array([0]))])
    order = np.array(random.sample(range(batch.count), batch.count))
    found = MessageBatch.parse(reorder(batch, order).encode())
    found.verify()
    assert [rows(found, i) for i in range(found.count)] == [rows(batch, i) for i in order.tolist()]


def rows(batch: MessageBatch, i: int) -> tuple[object, ...]:
    labels = batch.correlation_id(i), batch.key(i), batch.expiration(i)
    return batch.topic(i), batch.body(i), batch.publisher(i), batch.sequence(i), batch.timestamp(i), *labels


@pytest.mark.parametrize("order", [[0], [0, 0], [0, 2], [1, 0, 2]])
def test_reorder_refuses_an_invalid_permutation(order: list[int]) -> None:
    builder = BatchBuilder()
    builder.add("t", b"1")
    builder.add("t", b"2")
    with pytest.raises(UsageError):
        reorder(builder.build(1, first_sequence=1), np.array(order))
