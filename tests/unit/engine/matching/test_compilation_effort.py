"""Effort of compilations, which bounds the subscriptions of one step of the event loop."""

from __future__ import annotations

import pytest

from tickertape.base.errors import BadFilter
from tickertape.engine.limits import small_filter_effort, turn_effort_max
from tickertape.engine.matching.interest import Interest
from tickertape.engine.matching.interest_compiler import InterestCompiler
from tickertape.engine.runtime.clock import EngineClock
from tickertape.engine.runtime.topic_catalog import TopicCatalog
from tickertape.engine.sessions.session import Subscriber

SUBSCRIBER = Subscriber(user=None, name="c")
SLOW = 1 + turn_effort_max
SMALL = 1 + small_filter_effort


class Compilations:
    """A compiler that reports the effort of each compilation and keeps all interests."""

    def __init__(self) -> None:
        self.compiler = InterestCompiler(TopicCatalog(frozenset({"orders"})), EngineClock())
        self.kept: list[Interest] = []

    def effort(self, filter: str | None, select: str | None = None, topic: str = "orders") -> int:
        before = self.compiler.effort
        self.kept.append(self.compiler.compile(topic, filter, select, SUBSCRIBER))
        return self.compiler.effort - before


def test_first_filter_of_a_shape_is_slow_and_others_are_small() -> None:
    effort = Compilations().effort
    assert [effort(f"/effort_shape = {n} AND /b > 'x{n}'") for n in range(4)] == [SLOW, SMALL, SMALL, SMALL]


def test_kept_interests_and_plain_topics_have_the_least_effort() -> None:
    effort = Compilations().effort
    effort("/effort_kept = 1")
    assert [effort("/effort_kept = 1"), effort(None)] == [1, 1]


def test_scans_long_filters_select_lists_and_patterns_are_slow_in_each_shape() -> None:
    effort = Compilations().effort
    for number in range(3):
        assert effort(f"/effort_scan LIKE 'a{number}'") == SLOW
        members = ", ".join(str(number + each) for each in range(60))
        assert effort(f"/effort_members IN ({members})") == SLOW
        assert effort(f"/effort_select = {number}", select="+/a") == SLOW
        assert effort(f"/effort_pattern = {number}", topic="^ord") == SLOW


def test_refused_filters_are_slow_each_time() -> None:
    compilations = Compilations()
    for _ in range(3):
        before = compilations.compiler.effort
        with pytest.raises(BadFilter):
            compilations.effort("/effort_bad = = 1")
        assert compilations.compiler.effort - before == SLOW
