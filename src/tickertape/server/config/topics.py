"""Topic configuration: topics by name, and persistent topics by name or pattern.

Invariants: a pattern is never used as a name. Patterns match in linear time.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial
from typing import Any, Final

from tickertape.base.errors import BadTopic, ConfigurationError
from tickertape.base.names import PATTERN_CHARACTERS, is_pattern
from tickertape.base.text_format import shown
from tickertape.filter.limits import recorded_patterns_max
from tickertape.server.config.document import Section, text_of, topic_of

RECORDED_LATER: Final = ("filter", "key", "expiration")
TOPIC_LATER: Final = (*RECORDED_LATER, "pattern")
"""Keys of planned features."""
_recorded_topic = partial(topic_of, remedy="Write pattern = ... for a pattern.")


def read_name(section: Section, taken: set[str]) -> str:
    """Return the `name` of a topic's table, after all its other keys were read. Reports duplicates."""
    section.not_built(*TOPIC_LATER)
    name = section.required("name", topic_of, "")
    section.finish()
    _take(section, "name", name, taken)
    return name


def read_recorded(sections: Iterable[Section]) -> list[str]:
    """Return the names and patterns of persistent topics."""
    taken: set[str] = set()
    names = []
    patterns = 0
    for section in sections:
        section.not_built(*RECORDED_LATER)
        name, key = "", "name"
        if section.has("pattern"):
            key = "pattern"
            patterns += 1
            name = section.value("pattern", pattern_of, "")
            if section.has("name"):
                section.problem("pattern", "excludes name. Remove one of the two keys.")
            section.value("name", topic_of, "")
        else:
            name = section.required("name", _recorded_topic, "")
            section.value("pattern", pattern_of, "")  # absent, but listed among the allowed keys
        section.finish()
        _take(section, key, name, taken)
        if patterns == recorded_patterns_max + 1 and key == "pattern":
            section.problem("pattern", f"too many patterns (limit {recorded_patterns_max}). Merge some.")
        names.append(name)
    return names


def _take(section: Section, key: str, name: str, taken: set[str]) -> None:
    if name in taken:
        section.problem(key, f"duplicate {key} {shown(name)}. Remove one of them.")
    elif name:
        taken.add(name)


def pattern_of(value: Any) -> str:
    """Return `value` as a topic pattern. Raises `ConfigurationError`."""
    pattern = text_of(value)
    if not is_pattern(pattern):
        raise ConfigurationError(
            f"must be a pattern, but {shown(pattern)} has none of {PATTERN_CHARACTERS}. Write name = ... "
            f"for a topic name, or a pattern such as ^{shown(pattern)[1:-1]} for topics with this prefix."
        )
    from tickertape.filter import compile_topic_pattern  # late import: most configurations have no pattern

    try:
        compile_topic_pattern(pattern)
    except BadTopic as error:
        raise ConfigurationError(str(error)) from None
    return pattern
