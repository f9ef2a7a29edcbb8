"""Internal topics: subscriptions to them are refused."""

from __future__ import annotations

import pytest

from tickertape.base.errors import BadTopic
from tickertape.engine.matching.interest_compiler import InterestCompiler
from tickertape.engine.runtime.clock import EngineClock
from tickertape.engine.runtime.topic_catalog import TopicCatalog
from tickertape.engine.sessions.session import Subscriber
from tickertape.journal.format.segment import CONTROL_TOPIC
from tickertape.wire.settlement import QUEUE_TOPIC
from tickertape.wire.sow_command import SOW_TOPIC


@pytest.mark.parametrize("topic", [CONTROL_TOPIC, QUEUE_TOPIC, SOW_TOPIC])
def test_subscription_to_an_internal_topic_is_refused(topic: str) -> None:
    compiler = InterestCompiler(TopicCatalog(), EngineClock())
    text = f"Cannot subscribe to '\\{topic}': it is an internal topic. Use another topic."
    with pytest.raises(BadTopic, match=text):
        compiler.compile(topic, None, None, Subscriber(user=None, name="c"))
