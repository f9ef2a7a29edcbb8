"""Topic patterns: the patterns of a server, and the patterns that match a topic.

Patterns are searched together in columns. Results are cached for all patterns within one memory limit. At
most a bounded piece of many topics is searched between two yields.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import reduce
from itertools import islice
from operator import or_
from typing import Final, Generic, TypeVar
from weakref import WeakValueDictionary, ref

import numpy as np

from tickertape.batch.format import Bools
from tickertape.engine.limits import (
    pattern_answer_bytes,
    pattern_answers_bytes_max,
    pattern_set_max,
    pattern_set_size_max,
    pattern_set_young_max,
)
from tickertape.filter import Pattern, compile_topic_pattern
from tickertape.filter.compiler.regex import PatternSet, literal_prefix
from tickertape.filter.limits import filter_piece_bytes_max, index_prefix_characters_max

_ASK_BYTES: Final = 1024
"""Cost of one lookup of a topic in a column, in examined bytes. Each character adds `_CHARACTER_BYTES`."""
_CHARACTER_BYTES: Final = 64
_GATHER_BYTES: Final = filter_piece_bytes_max
"""Cost of compiling a pattern set."""
_PIECE_BYTES: Final = filter_piece_bytes_max // 4
_PIECE_TOPICS: Final = 1024
_UNKNOWN: Final = -1
_COLUMNS_TRIED: Final = 8
_KNOWN_AT_ONCE: Final = 64
"""Maximum number of cache lookups to decide whether a batch may match any pattern."""
_TOPIC_BYTES: Final = 8
"""Cost of a cached result."""


class TopicPattern:
    """A pattern. It is in its column as long as it is referenced."""

    __slots__ = ("__weakref__", "bit", "column")

    def __init__(self, pattern: Pattern, column: _Column) -> None:
        self.column = column
        self.bit = column.add(self, pattern)
        """The bit of this pattern in a result."""

    def fits(self, topic: str) -> bool:
        """Return whether the pattern matches a topic."""
        return bool(self.column.answer(topic) >> self.bit & 1)


class TopicPatternIndex:
    """All topic patterns of a server."""

    def __init__(self) -> None:
        self.remembered_bytes_max = pattern_answers_bytes_max
        self.remembered_bytes = 0
        """Memory of cached results."""
        self.searches = 0
        """Number of searches: each topic counts once for each pattern or pattern set."""
        self.work = 0
        """Total cost of these searches, in examined bytes."""
        self.gone: list[tuple[_Column, int]] = []
        """Columns and bits of patterns that are no longer referenced."""
        self._patterns: WeakValueDictionary[str, TopicPattern] = WeakValueDictionary()
        self._columns: dict[_Column, None] = {}
        self._roomy: dict[_Column, None] = {}
        """Columns that may have free capacity."""

    def __len__(self) -> int:
        self.take_out()
        return sum(map(len, self._columns))

    def pattern(self, text: str) -> TopicPattern:
        """Return the compiled pattern `text`. Raises `BadTopic`."""
        found = self._patterns.get(text)
        if found is None:
            compiled = compile_topic_pattern(text)
            self.take_out()
            found = self._patterns[text] = TopicPattern(compiled, self._column_for(compiled))
        return found

    def _column_for(self, pattern: Pattern) -> _Column:
        for column in [*islice(reversed(self._roomy), _COLUMNS_TRIED)]:
            if column.has_room_for(pattern):
                return column
            if column.is_full:
                del self._roomy[column]
        column = _Column(self)
        self._columns[column] = self._roomy[column] = None
        return column

    def take_out(self) -> None:
        """Remove patterns that are no longer referenced. The garbage collector may release a pattern at any
        time, so this runs only while no column is searched."""
        while self.gone:
            column, bit = self.gone.pop()
            column.remove(bit)
            if len(column):
                self._roomy[column] = None
            else:
                del self._columns[column]
                self._roomy.pop(column, None)

    def forget(self, nbytes: int) -> None:
        """Count the bytes of evicted results."""
        self.remembered_bytes -= nbytes

    def count(self, searches: int, work: int) -> None:
        """Count searches and their cost in examined bytes."""
        self.searches += searches
        self.work += work

    def remember(self, topic: str) -> int:
        """Reserve memory for the cached result of a topic. Return its size.

        If the memory limit is exceeded, all cached results are evicted first."""
        wanted = pattern_answer_bytes + topic.__sizeof__()
        if self.remembered_bytes + wanted > self.remembered_bytes_max:
            for column in self._columns:
                column.forget()
        self.remembered_bytes += wanted
        return wanted


class _Column:
    """Patterns that are searched together. A result has one bit for each pattern."""

    def __init__(self, all: TopicPatternIndex) -> None:
        self._all = all
        self._patterns: dict[int, Pattern] = {}
        """Patterns by bit."""
        self._held: dict[int, ref[TopicPattern]] = {}
        self._size = 0
        self._prefixes: dict[int, dict[str, int]] = {}
        """Result bits of patterns that only demand a prefix: by length, then by prefix."""
        self._young: dict[int, Pattern] = {}
        """New patterns, searched one by one until they are compiled into the set."""
        self._set: PatternSet | None = None
        self._set_bits: list[int] = []
        """Result bit of each pattern of the set, 0 for removed patterns."""
        self._answers: dict[str, int] = {}
        self._answers_bytes = 0

    # -- patterns -------------------------------------------------------------------------------------

    def __len__(self) -> int:
        return len(self._patterns)

    def has_room_for(self, pattern: Pattern) -> bool:
        """Return whether the column has capacity for another pattern."""
        return len(self._patterns) < pattern_set_max and self._size + pattern.size <= pattern_set_size_max

    @property
    def is_full(self) -> bool:
        """Whether the column has little or no capacity left."""
        return len(self._patterns) == pattern_set_max or 4 * self._size > 3 * pattern_set_size_max

    def add(self, handle: TopicPattern, pattern: Pattern) -> int:
        """Add a pattern. Return its bit."""
        self.forget()
        bit = next(bit for bit in range(pattern_set_max) if bit not in self._patterns)
        self._patterns[bit] = pattern
        prefix = _prefix(pattern)
        if prefix is None:
            self._young[bit] = pattern
        else:
            same = self._prefixes.setdefault(len(prefix), {})
            same[prefix] = same.get(prefix, 0) | 1 << bit
        self._size += pattern.size
        gone = self._all.gone
        self._held[bit] = ref(handle, lambda _: gone.append((self, bit)))
        return bit

    def remove(self, bit: int) -> None:
        """Remove a pattern. Cached results keep its bit until another pattern uses the bit."""
        pattern = self._patterns.pop(bit)
        self._size -= pattern.size
        del self._held[bit]
        prefix = _prefix(pattern)
        if prefix is not None:
            same = self._prefixes[len(prefix)]
            same[prefix] &= ~(1 << bit)
            if not same[prefix]:
                del same[prefix]
            if not same:
                del self._prefixes[len(prefix)]
        elif self._young.pop(bit, None) is None:
            self._set_bits = [0 if own == 1 << bit else own for own in self._set_bits]
            if 2 * self._set_bits.count(0) > len(self._set_bits):
                self._young = self._others()
                self._set, self._set_bits = None, []
        if not self._patterns:
            self.forget()

    def _others(self) -> dict[int, Pattern]:
        """Return the patterns that demand more than a prefix."""
        return {bit: pattern for bit, pattern in self._patterns.items() if _prefix(pattern) is None}

    # -- results --------------------------------------------------------------------------------------

    def forget(self) -> None:
        """Evict all cached results."""
        self._all.forget(self._answers_bytes)
        self._answers_bytes = 0
        self._answers = {}

    def answer(self, topic: str) -> int:
        """Return the patterns that match a topic, as bits."""
        found = self._answers.get(topic)
        if found is None:
            found = self._search(topic)
            if not self._patterns:
                return found  # the last pattern was removed meanwhile, so nothing would evict this result
            taken = self._all.remember(topic)  # may evict the results of this column
            self._answers_bytes += taken
            self._answers[topic] = found
        return found

    def known(self, topic: str) -> int | None:
        """Return the cached result, or None."""
        return self._answers.get(topic)

    def answers(self, topics: Sequence[str]) -> Iterator[int | list[int]]:
        """Match several topics. Yield the cost in examined bytes, and finally the result bits of each
        topic."""
        found = [self._answers.get(topic, _UNKNOWN) for topic in topics]
        done = self._all.work - _TOPIC_BYTES * len(topics)
        if _UNKNOWN in found:
            for at, topic in enumerate(topics):
                if found[at] == _UNKNOWN:
                    found[at] = self.answer(topic)
                    if self._all.work - done >= _PIECE_BYTES:
                        yield self._all.work - done
                        done = self._all.work
        yield self._all.work - done
        yield found

    def _search(self, topic: str) -> int:
        self._all.take_out()
        if len(self._young) >= pattern_set_young_max:
            others = self._others()
            self._set = PatternSet([*others.values()])
            self._set_bits = [1 << bit for bit in others]
            self._young = {}
            self._all.count(0, _GATHER_BYTES)
        found = 0
        if self._set is not None:
            bits = self._set_bits
            found = reduce(or_, [bits[number] for number in self._set.found(topic)], 0)
        for length, by_prefix in self._prefixes.items():
            found |= by_prefix.get(topic[:length], 0)
        young = len(self._young)
        work = (1 + young + len(self._prefixes)) * (_ASK_BYTES + _CHARACTER_BYTES * len(topic))
        self._all.count(young + (self._set is not None), work)
        for bit, pattern in self._young.items():
            if pattern.search(topic):
                found |= 1 << bit
        return found


def _prefix(pattern: Pattern) -> str | None:
    """Return the prefix that a pattern demands, if that is all and short enough for a dictionary."""
    prefix = literal_prefix(pattern.text)
    return None if prefix is None or len(prefix) > index_prefix_characters_max else prefix


V = TypeVar("V")


class _Own(Generic[V]):
    """Patterns of a column that have a value."""

    def __init__(self) -> None:
        self.values: dict[TopicPattern, V] = {}
        self.bits = 0


class PatternMap(Generic[V]):
    """Values by topic pattern. All patterns belong to one `TopicPatternIndex`."""

    def __init__(self) -> None:
        self._columns: dict[_Column, _Own[V]] = {}

    def __bool__(self) -> bool:
        return bool(self._columns)

    def __getitem__(self, pattern: TopicPattern) -> V:
        return self._columns[pattern.column].values[pattern]

    def __delitem__(self, pattern: TopicPattern) -> None:
        own = self._columns[pattern.column]
        del own.values[pattern]
        own.bits ^= 1 << pattern.bit
        if not own.values:
            del self._columns[pattern.column]

    def values(self) -> Iterator[V]:
        """Yield all values."""
        for own in self._columns.values():
            yield from own.values.values()

    def setdefault(self, pattern: TopicPattern, make: Callable[[], V]) -> V:
        """Return the value of a pattern. Create it with `make` if it is missing."""
        own = self._columns.setdefault(pattern.column, _Own())
        if pattern not in own.values:
            own.values[pattern] = make()
            own.bits |= 1 << pattern.bit
        return own.values[pattern]

    def may_fit(self, topics: Sequence[str]) -> bool:
        """Return whether a pattern may match one of `topics`, from cached results only."""
        if len(topics) * len(self._columns) > _KNOWN_AT_ONCE:
            return True
        for column, own in self._columns.items():
            for topic in topics:
                answer = column.known(topic)
                if answer is None or answer & own.bits:
                    return True
        return False

    def found(self, topics: Sequence[str]) -> Iterator[int | tuple[V, Bools]]:
        """Yield the value of each pattern that matches one of `topics`, with the mask of matching topics.
        Between them, yield the cost in examined bytes."""
        done = 0
        for column, own in [*self._columns.items()]:
            before: list[tuple[TopicPattern, V]] | None = None
            answers: list[int] = []
            fitting = 0
            for begin in range(0, len(topics), _PIECE_TOPICS):
                for work in column.answers(topics[begin : begin + _PIECE_TOPICS]):
                    if isinstance(work, list):
                        answers += work
                        fitting |= reduce(or_, set(work), 0)
                    elif (done := done + work) >= _PIECE_BYTES:
                        before = before or [*own.values.items()]  # later patterns reuse bits of others
                        yield done
                        done = 0
            if not fitting & (own.bits if before is None else -1):
                continue
            array = np.array(answers, np.uint64)
            for pattern, value in before or [*own.values.items()]:
                if fitting >> pattern.bit & 1:
                    yield value, (array >> np.uint64(pattern.bit) & np.uint64(1)).astype(np.bool_)
                    done += _TOPIC_BYTES * len(topics)
        if done:
            yield done
