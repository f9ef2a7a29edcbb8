"""Owns the language of filters: its text, its meaning, and functions that apply it to many bodies at once.

Must never know a topic's configuration, a subscription or a peer: it is given texts, types and bodies.
"""

from __future__ import annotations

from tickertape.filter.compile import Context, Filter, compile_filter, prepare
from tickertape.filter.patterns import Pattern, compile_topic_pattern
from tickertape.filter.topic_set import TopicSet
from tickertape.filter.tree import Node
from tickertape.filter.values_of import Values, compile_value

__all__ = [
    "Context",
    "Filter",
    "Node",
    "Pattern",
    "TopicSet",
    "Values",
    "compile_filter",
    "compile_topic_pattern",
    "compile_value",
    "prepare",
]
