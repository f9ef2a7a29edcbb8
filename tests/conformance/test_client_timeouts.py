"""Timeouts beyond the limits of system calls, which users write for "for ever"."""

from __future__ import annotations

import pytest

import tickertape as tt
from tests.conformance.fronts import Front

LONG = [3e6, "500w", 1e10, 1e300]
"""35 days and 9.6 years are beyond the limit of poll(), the others beyond that for a lock."""


@pytest.mark.parametrize("timeout", LONG)
def test_long_timeout_of_each_call_is_a_long_wait(
    front: Front, uri: str, name: str, topic: str, timeout: float | str
) -> None:
    client = front.make(name, uri)
    client.connect(timeout=timeout)
    client.publish(topic, b"1", timeout=timeout)
    client.publish_flush(timeout=timeout)
    stream = client.bookmark_subscribe(topic, tt.EPOCH, timeout=timeout)
    stream.wait_caught_up(timeout)
    assert stream.get(timeout).data == b"1"
    client.unsubscribe(stream.sub_id, timeout=timeout)
    client.close(timeout=timeout)


@pytest.mark.parametrize("timeout", LONG)
def test_long_timeout_of_a_client_applies_to_all_calls(
    front: Front, uri: str, name: str, topic: str, timeout: float | str
) -> None:
    client = front.make(name, uri, timeout=timeout)
    client.connect()
    stream = client.subscribe(topic)
    stream.timeout = timeout
    client.publish(topic, b"1")
    client.publish_flush()
    assert stream.get().data == b"1"
    client.close()
