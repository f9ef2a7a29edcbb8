"""Limits of the filter package: sizes, counts and seconds. Names end with the unit."""

from __future__ import annotations

from typing import Final

from tickertape.base.limits import KIB, MIB

# filters
filter_depth_max: Final = 40
"""Maximum nesting depth of the expressions of a filter."""
filter_operations_max: Final = 300
"""Operators, functions and fields of one filter. Members of lists are counted separately."""
filter_members_max: Final = 1_000
"""Members of all lists (IN, BEGINS WITH, ENDS WITH) of one filter."""
filter_text_scans_max: Final = 6
"""Operators and functions of one filter that scan a whole string (LIKE, INSTR, UPPER)."""
filter_shapes_max: Final = 256
"""Cached syntax trees of filters, each for all texts that differ in their constants only."""
filter_shape_characters_max: Final = 1_024
"""Longest text of such a filter without its constants. Longer ones are parsed each time."""
number_characters_max: Final = 64
"""Longest string that is converted to a number."""
text_result_characters_max: Final = 64 * KIB
"""Longest string that a function returns. Above it the result is NULL."""
pattern_program_bytes_max: Final = 512 * KIB
"""Memory of the program of one regular expression. Classes such as `\\pL` need much of it."""
pattern_depth_max: Final = 50
"""Nested groups in one regular expression. Parentheses in character classes count too."""
pattern_positions_max: Final = 2_000
"""Characters and classes of one regular expression after expanding repetitions."""
pattern_states_max: Final = 600
"""States that all regular expressions of one filter may need. Above it the filter is rejected."""
pattern_steps_max: Final = 40_000
"""Steps to compute these states, for all regular expressions of a filter. Above it the filter is rejected.
About 10 ms."""
array_work_max: Final = 8_000
"""Cost of the arrays of one message for one filter beyond sets and extremes, in elements that are sorted or
converted to strings. A message above it counts as unreadable for this filter."""
array_search_work: Final = 4
"""Cost per element of a regular expression search."""
array_text_work: Final = 6
"""Cost of converting a number to a string."""
index_piece_messages_max: Final = 1_024
"""Messages that a filter index processes at a time."""
index_values_max: Final = 1 << 18
"""Field values that a search in an index holds at a time: messages times distinct fields."""
index_paths_max: Final = 2_048
"""Distinct fields that an index reads. A filter that would add more is evaluated separately."""
index_terms_max: Final = 8
"""Terms joined by AND that an index splits. A filter with more terms is evaluated as a whole."""
index_cells_max: Final = 1 << 22
"""Results that an index caches for the conditions on one field, one byte each. For more than
`index_cells_max / index_piece_messages_max` conditions, `index_piece_messages_max` results per condition."""
index_memory_bytes_max: Final = 64 * MIB
"""Strings and results that all indexes of a process may cache. Above it the caches are cleared."""
index_prefix_characters_max: Final = 64
"""Longest prefix that is looked up in a dictionary, with the first characters of a value. Longer prefixes are
tested one by one."""
index_value_characters_max: Final = 256
"""Longest string whose results are cached between pieces."""

# topic sets
recorded_patterns_max: Final = 64
"""Patterns of persistent topics. A new topic may be matched against each of them."""
recorded_topics_kept_max: Final = 4096
"""Topics with cached results of these patterns."""

# pieces
filter_piece_bytes_max: Final = 256 * KIB
"""Bytes of bodies that filters process before other work runs. At least one message is processed."""
filter_piece_steps_max: Final = 1 << 15
"""Filter steps before other work runs."""
pattern_set_memory_bytes: Final = 1 * MIB
"""Memory of a combined pattern search, in addition to its program."""
