"""Recorded topics and limits of a server, applied to messages in a publish store."""

from __future__ import annotations

import pytest

from tickertape.base.errors import BadCommand
from tickertape.base.limits import message_bytes_max
from tickertape.batch import batch_from_bodies
from tickertape.client.publish_store.protocol import Stored
from tickertape.client.publishing.server_topics import ServerTopics


def _held(*sizes: int) -> list[Stored]:
    return [
        Stored(number, number, batch_from_bodies("t", [b"x" * size], publisher=1, first_sequence=number))
        for number, size in enumerate(sizes, 1)
    ]


def test_messages_above_the_server_limit_are_not_settled_by_later_sequences() -> None:
    recording = ServerTopics()
    held = _held(10, 200, 10)
    assert recording.last_certain(held, 3) == 3
    recording.update(None, (), 100)
    assert recording.last_certain(held, 3) == 1
    assert recording.last_certain(held, 1) == 1
    assert recording.last_certain(_held(100, 100), 2) == 2


def test_client_message_limit_applies_below_a_larger_server_limit() -> None:
    recording = ServerTopics()
    recording.update(None, (), 1 << 40)
    assert recording.message_bytes_max == message_bytes_max


@pytest.mark.parametrize("validated", ["t", "^t"])
def test_messages_of_topics_that_refuse_some_are_not_settled_by_later_sequences(validated: str) -> None:
    recording = ServerTopics()
    recording.update(None, ("other", validated))
    assert recording.last_certain(_held(10, 10), 2) == 0
    recording.update(None, ("other",))
    assert recording.last_certain(_held(10, 10), 2) == 2


def test_invalid_pattern_of_validated_topics_is_refused_without_effect() -> None:
    recording = ServerTopics()
    with pytest.raises(
        BadCommand, match=r"the validated topics that the server reported are invalid\. Inv.* Update"
    ):
        recording.update(None, ("^(",), 100)
    assert recording.message_bytes_max == message_bytes_max
