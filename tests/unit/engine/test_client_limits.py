"""Configured client limits: refusals name the configured number."""

from __future__ import annotations

import numpy as np
import pytest

from tests.helpers.engine_parts import make_compiler, make_validation
from tickertape.base.client_limits import ClientLimits
from tickertape.base.errors import BadFilter, MessageTooLarge
from tickertape.base.limits import filter_bytes_max
from tickertape.batch import BatchBuilder, MessageBatch
from tickertape.engine.queues.state.admission import QueueAdmission
from tickertape.engine.runtime.queue_definition import QueueDefinition
from tickertape.engine.sessions.session import Subscriber
from tickertape.wire.commands import Publish
from tickertape.wire.settlement import QUEUE_TOPIC

SUBSCRIBER = Subscriber(None, "c")


def _batch(*messages: tuple[str, bytes], first: int = 100) -> MessageBatch:
    builder = BatchBuilder()
    for topic, body in messages:
        builder.add(topic, body)
    return builder.build(publisher=7, first_sequence=first)


def test_messages_above_the_limit_are_refused_and_the_others_stored() -> None:
    validation = make_validation({}, 10)
    batch = _batch(("t", b"1" * 10), ("t", b"2" * 11), ("u", b"3" * 12), ("t", b"4"))
    found = validation.split(Publish(frame=1, sequenced=True), batch)
    assert found is not None
    assert isinstance(found.error, MessageTooLarge)
    assert "message: 11 bytes is too large. Use at most 10 bytes (message_bytes_max)" in str(found.error)
    assert [number for one in found.rejections for number in one.refused] == [101, 102]
    assert {one.code for one in found.rejections} == {"message_too_large"}
    assert found.rest is not None
    assert found.rest.bodies_list() == [b"1" * 10, b"4"]


def test_a_frame_of_messages_above_the_limit_is_refused_whole() -> None:
    found = make_validation({}, 10).split(Publish(frame=1, sequenced=True), _batch(("t", b"2" * 11)))
    assert found is not None
    assert found.rest is None
    assert [one.code for one in found.rejections] == ["message_too_large"]


def test_messages_within_the_limit_and_settlements_pass() -> None:
    validation = make_validation({}, 10)
    assert validation.split(Publish(frame=1, sequenced=True), _batch(*[("t", b"1" * 10)] * 5)) is None
    assert validation.split(Publish(frame=1, sequenced=True), _batch((QUEUE_TOPIC, b"1" * 11))) is None


def test_a_frame_with_long_and_with_invalid_messages_refuses_both() -> None:
    batch = _batch(("t", b"1" * 11), ("t", b"{"), ("t", b"{}"))
    found = make_validation({"t": "json"}, 10).split(Publish(frame=1, sequenced=True), batch)
    assert found is not None
    assert [(one.code, one.refused) for one in found.rejections] == [
        ("message_too_large", (100,)),
        ("bad_body", (101,)),
    ]
    assert found.rest is not None
    assert found.rest.bodies_list() == [b"{}"]


def test_a_filter_is_read_up_to_the_configured_length() -> None:
    short, long = (
        make_compiler(ClientLimits(filter_bytes_max=100)),
        make_compiler(ClientLimits(filter_bytes_max=9_000)),
    )
    text = "/a = 1 OR /b IN (" + ", ".join(f"'{number:08}'" for number in range(600)) + ")"
    assert filter_bytes_max < len(text) < 9_000
    assert long.compile("t", text, None, SUBSCRIBER).content is not None
    for contents, most in ((short, "100"), (make_compiler(), "4,096")):
        with pytest.raises(BadFilter, match=rf"at most {most} bytes .filter_bytes_max"):
            contents.compile("t", text, None, SUBSCRIBER)
    assert short.compile("t", "/a = 1", None, SUBSCRIBER).content is not None


@pytest.mark.parametrize("most", [64, 16_384])
def test_filters_of_queues_are_not_bounded_by_the_limit_of_clients(most: int) -> None:
    contents = make_compiler(ClientLimits(filter_bytes_max=most))
    long = "/a = 1 OR " * 20 + "/b = 2"
    definition = QueueDefinition("q", "t", filter=long, barrier_expression=f"{long} OR /c = 3")
    content = QueueAdmission(definition, contents, None).interest.content
    assert content is not None
    batch = _batch(("t", b'{"b": 2}'), ("t", b'{"b": 3}'))
    assert content.matching_rows(batch, np.arange(2)).tolist() == [0]
    if most < len(long):
        with pytest.raises(BadFilter, match="at most 64 bytes"):
            contents.compile("u", long, None, SUBSCRIBER)
