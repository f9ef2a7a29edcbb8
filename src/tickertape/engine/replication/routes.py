"""Routes of a link: rules of its destination, and the part of the log that it sends or names.

Invariants:
- The first rule that matches a topic decides. A content filter that does not match falls through to no other
  rule.
- Of one rule set and batch the result is always equal: a filter reads no time and no subscriber.
- A delete of records goes to each destination with messages of its topic. Content filters do not apply to
  it, because it has no message body.
- Expiries of records, `restated` rows and settlements of queues belong to one server and are never sent.
- Control records are sent by their type alone, also those of other origins: holes must be known everywhere.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from enum import Enum
from hashlib import blake2b
from typing import Final, NamedTuple

import msgspec
import numpy as np

from tickertape.base.errors import BadOption, JournalCorrupt
from tickertape.base.names import is_pattern
from tickertape.base.text_format import shown
from tickertape.batch import KIND_CONTROL, KIND_MESSAGE, MessageBatch
from tickertape.batch.format import I8, Int64s
from tickertape.engine.limits import routed_topics_kept_max
from tickertape.engine.runtime.topic_catalog import DEFAULT_TYPE, TopicCatalog
from tickertape.filter import Pattern, compile_topic_pattern
from tickertape.filter.batch_filter import BatchFilter, piece_end
from tickertape.filter.compiler.regex import BadPattern, PatternSet, compile_pattern
from tickertape.filter.limits import filter_piece_steps_max
from tickertape.filter.pattern_overlap import EVERY_TOPIC, covers, may_overlap
from tickertape.journal.format.control_record import RECORD_ERRORS, decode_head
from tickertape.journal.format.segment import CONTROL_TOPIC
from tickertape.wire.sow_command import SOW_TOPIC

EVERY_GROUP: Final = ".*"
"""Default of `pass_through`."""
SERVER_TOPICS: Final = "/tickertape/"
"""Start of topics to which each server publishes its own messages."""
TRAVELLING_RECORDS: Final = frozenset({"after", "copy", "covered", "downgraded", "publisher", "upgraded"})
"""Types of control records that links send. All others concern one server only, or are unknown."""

_INTERNAL: Final = "$"
"""First character of internal topics."""
_DIGEST_BYTES: Final = 16
_DIGEST_FORM: Final = 1
"""Changes with the meaning of the digest."""
_DELETED: Final = 1
"""Kind of a delete on the topic `$sow`."""


class ReplicationRule(msgspec.Struct, frozen=True, kw_only=True):
    """Rule of a destination: topics that the link replicates."""

    topic: str
    """Name or pattern."""
    filter: str | None = None
    """Content filter. None: all messages of the topics."""
    sync: bool
    """Whether acknowledgements wait for the destination."""

    @property
    def has_pattern(self) -> bool:
        """Whether the rule is for the topics of a pattern."""
        return is_pattern(self.topic)


class RuleSet:
    """The rules of one destination, in order. `derived`: topics that the server itself computes from others
    (recorded views), which no rule matches."""

    def __init__(self, rules: Iterable[ReplicationRule], derived: Iterable[str] = ()) -> None:
        self.rules = tuple(rules)
        self._derived = frozenset(derived)
        self._by_name: dict[str, int] = {}
        self._with_patterns: list[int] = []
        """Numbers of the rules with patterns."""
        for number, rule in enumerate(self.rules):
            if rule.has_pattern:
                self._with_patterns.append(number)
            else:
                self._by_name.setdefault(rule.topic, number)
        texts = [self.rules[number].topic for number in self._with_patterns]
        self._pattern_set = PatternSet([*map(compile_topic_pattern, texts)]) if texts else None
        self._rule_of: dict[str, ReplicationRule | None] = {}
        self._names: list[ReplicationRule] | None = None
        self.patterns: list[ReplicationRule] = []
        """Rules of patterns, without those that an earlier pattern covers."""
        for number in self._with_patterns:
            rule = self.rules[number]
            if not self.covers(rule.topic):
                self.patterns.append(rule)

    def rule_of(self, topic: str) -> ReplicationRule | None:
        """Return the first rule that matches a topic, or None. Results are cached."""
        try:
            return self._rule_of[topic]
        except KeyError:
            rule = self._search(topic)
        if len(self._rule_of) >= routed_topics_kept_max:
            self._rule_of.clear()
        self._rule_of[topic] = rule
        return rule

    def is_sync(self, topic: str) -> bool:
        """Return whether acknowledgements of messages of a topic wait for the destination."""
        rule = self.rule_of(topic)
        return rule is not None and rule.sync

    def covers(self, *patterns: str) -> bool:
        """Return whether rules are known to match each topic that matches all of `patterns`."""
        return any(covers(rule.topic, pattern) for rule in self.patterns for pattern in patterns)

    def overlapping(self, *patterns: str) -> Iterator[ReplicationRule]:
        """Yield the rules of patterns that may be the first one of a topic that matches all of `patterns`."""
        for rule in self.patterns:
            if all(may_overlap(rule.topic, pattern) for pattern in patterns):
                yield rule
            if any(covers(rule.topic, pattern) for pattern in patterns):
                return

    @property
    def names(self) -> list[ReplicationRule]:
        """Rules of names that no earlier rule matches."""
        if self._names is None:
            found = [self.rules[number] for number in self._by_name.values()]
            self._names = [rule for rule in found if self._search(rule.topic) is rule]
        return self._names

    @property
    def has_sync(self) -> bool:
        """Whether a rule with an effect is synchronous."""
        return any(rule.sync for rule in (*self.names, *self.patterns))

    def digests(self) -> frozenset[bytes]:
        """Return the digest of the rules as a set, empty if they match all messages.

        Messages that pass several links have passed the rules of the union of their digests. Rules have equal
        digests if the same messages pass: the order of names, repeated rules, and `sync` do not count."""
        patterns = [(rule.topic, rule.filter) for rule in self.patterns]
        of_names = [(rule.topic, rule.filter) for rule in self.names]
        # The pattern behind a name may give the same result.
        names = sorted(one for one in of_names if one[1] != self._filter_behind(one[0]))
        if not names and patterns[:1] == [(EVERY_TOPIC, None)]:
            return frozenset()
        return frozenset({_digest([_DIGEST_FORM, names, patterns])})

    def _search(self, topic: str) -> ReplicationRule | None:
        if topic.startswith((_INTERNAL, SERVER_TOPICS)) or topic in self._derived:
            return None
        behind = self._first_pattern(topic)
        first = min(self._by_name.get(topic, behind), behind)
        return self.rules[first] if first < len(self.rules) else None

    def _first_pattern(self, topic: str) -> int:
        """Return the number of the first rule whose pattern matches a topic, or the number of rules."""
        found = [] if self._pattern_set is None else self._pattern_set.found(topic)
        return self._with_patterns[min(found)] if found else len(self.rules)

    def _filter_behind(self, name: str) -> str | bool | None:
        """Return the filter of the first pattern that matches a name. False without one."""
        number = self._first_pattern(name)
        return self.rules[number].filter if number < len(self.rules) else False


class PassThrough:
    """Groups whose messages a link passes on. An empty pattern: messages of the own clients only."""

    def __init__(self, pattern: str) -> None:
        """Raises `BadOption` for an invalid pattern."""
        self._pattern: Pattern | None = None
        if not pattern:
            return
        try:
            self._pattern = compile_pattern(pattern)
        except BadPattern as error:
            raise BadOption(f"Invalid pattern {shown(pattern)} at position {error.at}: {error}.") from None
        except UnicodeEncodeError:
            raise BadOption(
                f"Invalid pattern {shown(pattern)}: it is not valid Unicode. Use valid Unicode text."
            ) from None

    def passes(self, group: str) -> bool:
        """Return whether messages whose origin is in a group are passed on."""
        return self._pattern is not None and self._pattern.search(group)


class RunHandling(Enum):
    """Treatment of a run that the rules select."""

    SENT = "sent"
    """The destination gets the messages."""
    NAMED = "named"
    """The destination has the messages, and gets their publisher and sequences. It asks for lost ones."""
    LEFT_OUT = "left out"
    """The link passes on nothing of this origin."""


class RunOrigin(NamedTuple):
    """Origin of a run: the log in which a client stored it first, and its path to this log."""

    group: str
    """Group of the instance of the first log."""
    path: Sequence[bytes]
    """Ids of the logs that the run passed, the first one included."""


class RoutedRows(NamedTuple):
    """Ascending rows of a batch that a link sends, and those that it names."""

    sent: Int64s
    named: Int64s


class DestinationRoutes:
    """Routes of the link to one destination."""

    def __init__(self, rules: RuleSet, pass_through: PassThrough, log: bytes, catalog: TopicCatalog) -> None:
        """`log`: id of the log of the destination. Raises `BadFilter` for an invalid filter."""
        self.rules = rules
        self._pass_through = pass_through
        self._log = log
        self._filters: dict[str, BatchFilter] = {}
        for rule in rules.rules:
            if rule.filter is not None:
                made = self._filters.get(rule.filter) or BatchFilter(rule.filter, catalog.message_type)
                self._filters[rule.filter] = made
                for kind in _types_of(rule, rules, catalog):
                    made.prepare(kind)

    @property
    def unreadable(self) -> int:
        """Bodies that filters could not read. The link does not send them."""
        return sum(one.unreadable for one in self._filters.values())

    def piece_end(self, batch: MessageBatch, low: int) -> int:
        """Return the end of the piece that starts at row `low`, so that filters work for a bounded time."""
        work = max((one.work for one in self._filters.values()), default=0)
        return piece_end(batch, low, filter_piece_steps_max // work) if work else batch.count

    def handling(self, origin: RunOrigin | None) -> RunHandling:
        """Return the treatment of runs of an origin. None: clients of this server stored them."""
        if origin is None:
            return RunHandling.SENT
        if not self._pass_through.passes(origin.group):
            return RunHandling.LEFT_OUT
        return RunHandling.NAMED if self._log in origin.path else RunHandling.SENT

    def split(self, batch: MessageBatch, low: int, high: int, origins: Mapping[int, RunOrigin]) -> RoutedRows:
        """Return the rows of one piece that the link sends, and those that it names.

        `origins`: origins by number, for the runs of other servers. Raises `JournalCorrupt` for an invalid
        record."""
        messages, records = self._messages(batch, low, high), self._records(batch, low, high)
        deletes = [row for row in records if batch.topic(row) == SOW_TOPIC]
        controls = np.array([row for row in records if batch.topic(row) != SOW_TOPIC], I8)
        rows = np.sort(np.concatenate([*messages, np.array(deletes, I8)]))
        numbers = batch.runs["origin"][batch.run_starts.searchsorted(rows, "right") - 1]
        handlings = {n: self.handling(origins[n] if n else None) for n in np.unique(numbers).tolist()}
        sent, named = (
            rows[np.isin(numbers, [n for n, handling in handlings.items() if handling is wanted])]
            for wanted in (RunHandling.SENT, RunHandling.NAMED)
        )
        return RoutedRows(np.sort(np.concatenate([sent, controls])) if len(controls) else sent, named)

    def _messages(self, batch: MessageBatch, low: int, high: int) -> list[Int64s]:
        """Return the messages that the rules select, for each filter."""
        rows = np.arange(low, high, dtype=I8)
        if batch.kinds is not None:
            rows = rows[batch.kinds[low:high] == KIND_MESSAGE]
        index = batch.topic_index
        numbers = np.zeros(len(rows), I8) if index is None else index[rows]
        by_filter: dict[str | None, list[int]] = {}
        for number in np.unique(numbers).tolist():
            rule = self.rules.rule_of(batch.topics[number])
            if rule is not None:
                by_filter.setdefault(rule.filter, []).append(number)
        found = []
        for text, topics in by_filter.items():
            own = rows[np.isin(numbers, topics)]
            found.append(own if text is None else self._filters[text].matching_rows(batch, own))
        return found

    def _records(self, batch: MessageBatch, low: int, high: int) -> list[int]:
        """Return the control records that travel, and the deletes of topics that the rules select."""
        kinds = batch.kinds
        if kinds is None:
            return []
        rows = (np.flatnonzero(kinds[low:high] == KIND_CONTROL) + low).tolist()
        return [row for row in rows if self._travels(batch.topic(row), batch.body(row))]

    def _travels(self, topic: str, body: bytes) -> bool:
        if topic == CONTROL_TOPIC:
            return decode_head(body).type in TRAVELLING_RECORDS
        return topic == SOW_TOPIC and any(self.rules.rule_of(one) for one in topics_of_delete(body))


def topics_of_delete(body: bytes) -> Sequence[str]:
    """Return the topics of a record on the topic `$sow`, none for an expiry. Raises `JournalCorrupt`."""
    try:
        head = msgspec.msgpack.decode(body, type=_SowRecordHead)
    except RECORD_ERRORS as error:
        raise JournalCorrupt(f"invalid record of deleted keys: {shown(str(error))}") from None
    return (head.topics or (head.topic,)) if head.kind == _DELETED else ()


class _SowRecordHead(msgspec.Struct, array_like=True, frozen=True):
    """The first fields of a record on the topic `$sow` (docs/formats/sow-records.md)."""

    topic: str
    kind: int
    counts: tuple[int, int, int]
    more: bool
    logs: list[bytes]
    topics: list[str]


def _types_of(rule: ReplicationRule, rules: RuleSet, catalog: TopicCatalog) -> set[str]:
    """Return the known message types of the topics of a rule."""
    if not rule.has_pattern:
        return {catalog.message_type(rule.topic)}
    named = {kind for topic, kind in catalog.message_types.items() if rules.rule_of(topic) is rule}
    return {DEFAULT_TYPE, *named}


def _digest(rules: list[object]) -> bytes:
    return blake2b(msgspec.msgpack.encode(rules), digest_size=_DIGEST_BYTES).digest()
