"""Limits of the filter package: sizes, counts and seconds. Names end with the unit."""

from __future__ import annotations

from typing import Final

from tickertape.base.limits import KIB, MIB

# filters
filter_depth_max: Final = 40
"""How deep the parts of a filter may be nested."""
filter_operations_max: Final = 300
"""Parts of one filter: operators, functions, fields; members of lists are counted apart."""
filter_members_max: Final = 1_000
"""Members of all lists of one filter (IN, BEGINS WITH, ENDS WITH) together."""
filter_text_scans_max: Final = 6
"""Operators and functions of one filter that read a text from its begin to its end (LIKE, INSTR, UPPER)."""
number_characters_max: Final = 64
"""Longest text that is a number."""
text_result_characters_max: Final = 64 * KIB
"""Longest text that a function of a filter may make; above it the result is NULL."""
pattern_program_bytes_max: Final = 512 * KIB
"""Memory that the program of one regular expression may take; classes such as `\\pL` take much of it."""
pattern_depth_max: Final = 50
"""Groups in groups of one regular expression, parentheses in classes counted too."""
pattern_positions_max: Final = 2_000
"""Characters and classes of one regular expression, its repetitions written out."""
pattern_states_max: Final = 600
"""States that the regular expressions of one filter may need together; above it they are refused."""
pattern_steps_max: Final = 40_000
"""Work that is spent on finding this out, for all expressions of a filter together, before it is refused:
about 10 ms."""
array_work_max: Final = 8_000
"""Cost that the arrays of one message may have for one filter beyond sets and extremes, in elements sorted or
converted to texts; a message above it counts as unreadable for this filter."""
array_search_work: Final = 4
"""Cost of a regular expression for each element."""
array_text_work: Final = 6
"""What turning a number into a text costs of it."""
index_piece_messages_max: Final = 1_024
"""Messages that an index of filters looks at in one go."""
index_values_max: Final = 1 << 18
"""Values of fields that a search in an index holds at a time: messages times different fields."""
index_paths_max: Final = 2_048
"""Different fields that an index reads; a filter with which there would be more is asked by itself."""
index_terms_max: Final = 8
"""Terms joined by AND up to which an index takes a filter apart; one with more is asked as a whole."""
index_cells_max: Final = 1 << 22
"""Answers that an index remembers for the conditions on one field, one byte each; for more than
`index_cells_max / index_piece_messages_max` conditions, `index_piece_messages_max` for each of them."""
index_memory_bytes_max: Final = 64 * MIB
"""Texts and results that the indexes of a process cache together; above it they are cleared."""
index_value_characters_max: Final = 256
"""Longest text for which answers are remembered from one look to the next."""

# topic sets
recorded_patterns_max: Final = 64
"""Patterns of recorded topics: a new topic may be searched for each of them."""
recorded_topics_kept_max: Final = 4096
"""Topics with cached results of such patterns."""

# pieces
filter_piece_bytes_max: Final = 256 * KIB
"""Bodies that filters look at before others have their turn: a message more when it is longer."""
filter_piece_steps_max: Final = 1 << 15
"""Steps of filters before others have their turn."""
pattern_set_memory_bytes: Final = 1 * MIB
"""Memory of their search, beside their program."""
