"""Owns the language of filters: its text, its meaning, and functions that apply it to many bodies at once.

Must never know a topic's configuration, a subscription or a peer: it is given texts, types and bodies.
"""

from __future__ import annotations

from tickertape.filter.compiler.compile import Filter, FilterInputs, compile_filter, prepare
from tickertape.filter.compiler.numeric import NumericExpression, compile_value
from tickertape.filter.compiler.regex import Pattern, compile_topic_pattern
from tickertape.filter.language.ast import Node
from tickertape.filter.topic_set import TopicSet

__all__ = [
    "Filter",
    "FilterInputs",
    "Node",
    "NumericExpression",
    "Pattern",
    "TopicSet",
    "compile_filter",
    "compile_topic_pattern",
    "compile_value",
    "prepare",
]
