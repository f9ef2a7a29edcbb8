"""A search for a near name counts as slow, so that the scheduler gives other connections a turn."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from tickertape.base.errors import TopicNotRecorded
from tickertape.engine.commands.subscribe_checks import check_subscribe
from tickertape.engine.limits import turn_effort_max
from tickertape.engine.matching.interest_compiler import InterestCompiler
from tickertape.engine.runtime.clock import EngineClock
from tickertape.engine.runtime.topic_catalog import TopicCatalog
from tickertape.wire.commands import Subscribe


def test_refused_replay_with_a_near_name_counts_as_slow() -> None:
    compiler = InterestCompiler(TopicCatalog(frozenset({"orders"})), EngineClock())
    session: Any = SimpleNamespace(subscriber=None)
    command = Subscribe(id=1, sub_id="1", topic="order", bookmark="0", credit=1 << 20)
    with pytest.raises(TopicNotRecorded, match="Did you mean 'orders'"):
        check_subscribe(session, (), command, None, compiler, False)  # type: ignore[arg-type]
    assert compiler.effort == 1 + turn_effort_max
