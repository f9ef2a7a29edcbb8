"""Topic patterns: a combined search equals single searches, in bounded work and memory."""

from __future__ import annotations

import gc
import re
from random import Random

import pytest

from tests.simulation.engine_world import EngineWorld
from tickertape.base.errors import BadTopic
from tickertape.batch import BatchBuilder, MessageBatch
from tickertape.engine.limits import (
    pattern_answers_bytes_max,
    pattern_set_max,
    pattern_set_size_max,
)
from tickertape.engine.matching import topic_patterns as pattern_topics
from tickertape.engine.matching.filter_context import FilterContext
from tickertape.engine.matching.topic_patterns import PatternMap, TopicPattern, TopicPatternIndex
from tickertape.filter import compile_topic_pattern
from tickertape.filter.compiler import regex as pattern_set
from tickertape.filter.compiler.regex import PatternSet
from tickertape.filter.limits import filter_piece_bytes_max, pattern_set_memory_bytes
from tickertape.wire.commands import Publish


def _fits(patterns: PatternMap[str], topics: list[str]) -> dict[str, list[str]]:
    """The topics that each pattern fits, by its value."""
    found = [one for one in patterns.found(topics) if not isinstance(one, int)]
    return {value: [topics[at] for at in own.nonzero()[0]] for value, own in found}


def _alone(texts: list[str], topics: list[str]) -> dict[str, list[str]]:
    search = {text: compile_topic_pattern(text).search for text in texts}
    found = {text: [topic for topic in topics if search[text](topic)] for text in texts}
    return {text: fitting for text, fitting in found.items() if fitting}


def _random_pattern(random: Random) -> str:
    if random.random() < 0.3:
        return "^" + "".join(random.choices("abc1", k=random.randint(1, 3)))
    parts = ["a", "b", "(a|b)", "[ab]c", ".*", "c+", "a{2}", "^a", "b$", r"\d", "é", "(?i:A)", "^", r"\w{3}"]
    return "".join(random.choices(parts, k=random.randint(1, 4))) + "c*"


@pytest.mark.parametrize("remembered", [2_000, pattern_answers_bytes_max])
@pytest.mark.parametrize("seed", range(3))
def test_added_and_removed_patterns_match_like_single_patterns(
    seed: int, remembered: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pattern_topics, "pattern_set_max", 12)
    random = Random(seed)
    kept = TopicPatternIndex()
    kept.remembered_bytes_max = remembered
    ends: list[PatternMap[str]] = [PatternMap(), PatternMap()]
    held: list[dict[str, TopicPattern]] = [{}, {}]
    topics = ["".join(random.choices("aAbcé1/", k=random.randint(1, 7))) for _ in range(60)]
    for _ in range(120):
        end = random.randrange(2)
        if held[end] and random.random() < 0.4:
            del ends[end][held[end].pop(random.choice([*held[end]]))]
        else:
            text = _random_pattern(random)
            pattern = held[end].setdefault(text, kept.pattern(text))
            assert ends[end].setdefault(pattern, lambda text=text: text) == text  # type: ignore[misc]
            del pattern
        some = list(dict.fromkeys(random.choices(topics, k=random.choice([1, 20]))))
        fitting = _alone([*held[end]], some)
        assert ends[end].may_fit(some) or not fitting
        assert _fits(ends[end], some) == fitting
        assert not fitting or ends[end].may_fit(some)
        assert kept.remembered_bytes <= remembered
        assert len(kept) == len({*held[0], *held[1]})


def test_pattern_changes_during_a_search_do_not_affect_the_results() -> None:
    kept, patterns = TopicPatternIndex(), PatternMap[str]()
    topics = [f"{'x' * 100}{number}" for number in range(200)]
    held = {text: kept.pattern(text) for text in ("x0$", "x1$", "x2$")}
    for text, pattern in held.items():
        patterns.setdefault(pattern, lambda text=text: text)  # type: ignore[misc]
    found: dict[str, list[str]] = {}
    looks = 0
    for one in patterns.found(topics):
        if not isinstance(one, int):
            found[one[0]] = [topics[at] for at in one[1].nonzero()[0]]
        elif (looks := looks + 1) == 1:
            del patterns[held.pop("x0$")]
            for number in range(20):
                held[f"x{number}7$"] = new = kept.pattern(f"x{number}7$")
                patterns.setdefault(new, lambda: "new")
    assert looks > 1
    assert found == {f"x{digit}$": [topics[digit]] for digit in range(3)}
    assert _fits(patterns, topics)["x1$"] == [topics[1]]


def test_pattern_searches_are_shared_by_pattern_sets_and_cached() -> None:
    kept, patterns = TopicPatternIndex(), PatternMap[int]()
    held = [kept.pattern(f"^zz(a|b){number}q+$") for number in range(256)]
    for number, pattern in enumerate(held):
        patterns.setdefault(pattern, lambda number=number: number)  # type: ignore[misc]
    topics = [f"topic/{number}" for number in range(500)]
    pieces = [one for one in patterns.found(topics) if isinstance(one, int)]
    assert kept.searches <= 500 * 256 // 32  # not 500 * 256
    assert sum(pieces) >= 1_024 * kept.searches
    assert max(pieces) <= 2 * filter_piece_bytes_max
    before = kept.searches
    assert kept.remembered_bytes < pattern_answers_bytes_max
    assert not patterns.may_fit(topics[:4])
    assert not [one for one in patterns.found(topics) if not isinstance(one, int)]
    assert kept.searches == before


def test_patterns_of_a_prefix_need_no_pattern_set() -> None:
    kept, patterns = TopicPatternIndex(), PatternMap[int]()
    held = [kept.pattern(f"^desk{number}/") for number in range(1_000)]
    for number, pattern in enumerate(held):
        patterns.setdefault(pattern, lambda number=number: number)  # type: ignore[misc]
    topics = [f"desk{number}/fx" for number in range(0, 2_000, 3)]
    found = {one[0]: one[1].nonzero()[0].tolist() for one in patterns.found(topics) if isinstance(one, tuple)}
    assert found == {number: [number // 3] for number in range(0, 1_000, 3)}
    assert kept.searches == 0
    del patterns, held[1:], pattern
    assert [kept.pattern("^desk0/").fits(topic) for topic in ("desk0/a", "desk1/a", "xdesk0/")] == [
        True, False, False
    ]  # fmt: skip
    assert len(kept) == 1


def test_large_patterns_are_kept_out_of_shared_pattern_sets() -> None:
    kept = TopicPatternIndex()
    large = [kept.pattern(f"^{number}(a.{{9}}|b){{30}}") for number in range(6)]
    small = [kept.pattern(f"^{number}a") for number in range(60)]
    columns = {id(pattern.column): pattern.column for pattern in [*large, *small]}
    for column in columns.values():
        assert len(column) == 1 or column._size <= pattern_set_size_max
    assert len(columns) < 6 + 3
    assert kept.pattern("^0a") is small[0]


def test_pattern_set_is_released_with_the_last_pattern() -> None:
    kept = TopicPatternIndex()
    held = [kept.pattern(f"a{number}+") for number in range(200)]
    assert [pattern.fits("xa7") for pattern in held].count(True) == 1
    del held[50:]
    assert len(kept) == 50
    held += [kept.pattern(f"b{number}+") for number in range(14)]
    assert len(kept._columns) == 1
    assert [pattern.fits("xa7b11") for pattern in held].count(True) == 3
    held.clear()
    assert (len(kept), kept.remembered_bytes, len(kept._columns)) == (0, 0, 0)
    with pytest.raises(BadTopic):
        kept.pattern("a(")


@pytest.mark.parametrize("memory", [100, 1 << 14, pattern_set_memory_bytes])
def test_pattern_set_falls_back_to_sequential_matching_when_over_memory_limit(
    memory: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pattern_set, "pattern_set_memory_bytes", memory)
    texts = [f"a.{{1,8}}{number}" for number in range(24)]
    together = PatternSet([compile_topic_pattern(text) for text in texts])
    for topic in ("a/7", "b/7", "aaaaaaaaa12", "", "é" * 30 + "a" * 300 + "23"):
        expected = [at for at, text in enumerate(texts) if re.search(text, topic)]
        assert sorted(together.found(topic)) == expected


def test_publish_of_many_topics_is_matched_in_several_steps() -> None:
    world = EngineWorld(1, recorded=frozenset({"rec"}))
    publisher, reader = world.connect("publisher"), world.connect("reader")
    for number in range(100):
        reader.subscribe(f"s{number}", f"^t/(x|y)*{number}$")
    reader.subscribe("f", "^t/.*", filter="/n = 1", credit=1 << 20)
    world.settle()
    everything = world.broker.compiler._patterns
    builder = BatchBuilder()
    for number in range(1_000):
        builder.add(f"t/{number}", b'{"n":%d}' % (number % 2))
    batch = MessageBatch.parse(builder.build(0, first_sequence=0).encode())
    publisher.send(Publish(frame=1, sequenced=False), batch)
    assert 0 < everything.searches < 1_000
    assert world.broker.has_work
    world.settle()
    heard = [[message.topic for message in reader.heard[f"s{number}"]] for number in range(100)]
    assert heard == [[f"t/{number}"] for number in range(100)]
    assert len(reader.heard["f"]) == 500


def test_subscriptions_of_one_pattern_share_cached_results() -> None:
    world = EngineWorld(2)
    publisher, reader = world.connect("publisher"), world.connect("reader")
    reader.subscribe("a", "^t[0-9]+$")
    reader.subscribe("b", "^t[0-9]+$", filter="/n > 0")
    reader.subscribe("c", "^t[0-9]+$", bookmark="0", options="select=[+/n]")
    for number in range(5):
        publisher.publish("t1", [b'{"n":%d}' % number])
        world.settle()
    everything = world.broker.compiler._patterns
    assert (len(everything), everything.searches) == (1, 2)  # for t1 and for the server's own topic
    assert [len(reader.heard[name]) for name in "abc"] == [5, 4, 5]


def test_filters_on_many_topics_are_searched_in_several_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    world = EngineWorld(3, recorded=frozenset({"rec"}))
    publisher, reader = world.connect("publisher"), world.connect("reader")
    for number in range(150):
        reader.subscribe(f"s{number}", f"t{number}", filter="/n = 1")
    asked: list[str] = []
    type_of = FilterContext.type_of

    def noting(self: FilterContext, topic: str) -> str:
        asked.append(topic)
        return type_of(self, topic)

    monkeypatch.setattr(FilterContext, "type_of", noting)
    for turn in range(1, 3):
        builder = BatchBuilder()
        for number in range(300):
            builder.add(f"t{number}", b'{"n":1}')
        batch = MessageBatch.parse(builder.build(0, first_sequence=0).encode())
        asked.clear()
        publisher.send(Publish(frame=turn, sequenced=False), batch)
        assert world.broker.has_work
        assert len(asked) < 50
        world.settle()
        assert len(asked) < 1_000  # not 150 * 300
    assert [len(reader.heard[f"s{number}"]) for number in range(150)] == [2] * 150


def test_cached_results_of_removed_patterns_are_not_counted() -> None:
    patterns = TopicPatternIndex()
    by: PatternMap[object] = PatternMap()
    held = [patterns.pattern(f"^x{number}$") for number in range(2 * pattern_set_max)]
    for pattern in held:
        by.setdefault(pattern, object)
    found = by.found([f"topic/{number}" for number in range(4000)])
    next(found)  # it is in the middle of the first column
    first = held[0].column
    for pattern in held:
        if pattern.column is not first:
            del by[pattern]
    held = [pattern for pattern in held if pattern.column is first]
    del pattern
    gc.collect()
    for _ in found:
        pass
    for pattern in held:
        del by[pattern]
    del held, pattern, found, first
    gc.collect()
    assert len(patterns) == 0
    assert patterns.remembered_bytes == 0
