"""Topic sets: topics selected by names and patterns.

The server and its clients use this class to decide which topics are persistent, so its result for a topic
never changes. The cache of results is bounded.
"""

from __future__ import annotations

from collections.abc import Iterable

from tickertape.base.errors import BadTopic
from tickertape.base.names import is_pattern
from tickertape.filter.compiler.regex import BadPattern, Pattern, compile_pattern, compile_topic_pattern
from tickertape.filter.limits import recorded_patterns_max, recorded_topics_kept_max


class TopicSet:
    """Topics selected by `names`, which are topic names and patterns.

    A name with one of `* + ? [ ] ( ) { } ^ $ |` or a backslash is an unanchored RE2 pattern. `topic in
    topic_set` is the test. Raises `BadTopic` for an invalid pattern, and for more than 64 patterns
    (`recorded_patterns_max`)."""

    def __init__(self, names: Iterable[str]) -> None:
        names = sorted(set(names))
        self.literals = frozenset(name for name in names if not is_pattern(name))
        self._patterns = _joined([name for name in names if is_pattern(name)])
        self._known: dict[str, bool] = {}

    def __contains__(self, topic: object) -> bool:
        if topic in self.literals:
            return True
        if not self._patterns or not isinstance(topic, str):
            return False
        known = self._known.get(topic)
        if known is None:
            known = any(pattern.search(topic) for pattern in self._patterns)
            if len(self._known) >= recorded_topics_kept_max:
                self._known.clear()
            self._known[topic] = known
        return known


def _joined(texts: list[str]) -> list[Pattern]:
    """Return the patterns `texts`, combined into one if that is not too expensive.

    A combined pattern needs one search per topic."""
    if len(texts) > recorded_patterns_max:
        raise BadTopic(f"Too many topic patterns: {len(texts):,}. Use at most {recorded_patterns_max}.")
    patterns = [compile_topic_pattern(text) for text in texts]
    if len(patterns) > 1:
        try:
            return [compile_pattern("|".join(f"(?:{text})" for text in texts))]
        except BadPattern:
            pass  # keep separate patterns
    return patterns
