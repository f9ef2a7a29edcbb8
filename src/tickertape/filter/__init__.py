"""Filter language: parse filters and topic patterns and apply them to many message bodies at once.

The package knows filter text, message types and bodies. It does not know topic configuration, subscriptions
or connections.
"""

from __future__ import annotations

from tickertape.filter.compiler.compile import (
    Filter,
    FilterInputs,
    NumericExpression,
    compile_filter,
    compile_value,
    prepare,
)
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
