"""Limits of the payload package: sizes, counts and seconds. Names end with the unit."""

from __future__ import annotations

from typing import Final

from tickertape.base.limits import message_bytes_max

# fields of bodies
path_characters_max: Final = 1024
"""Longest text of one path to a field."""
path_steps_max: Final = 32
"""Names and subscripts of one path, which limits the depth of an access."""
path_subscript_max: Final = message_bytes_max
"""Largest subscript in a path. An array has at most as many elements as its body has bytes."""
paths_per_reader_max: Final = 256
"""Distinct fields that one filter, or one set of keys, reads from a message."""
path_forms_max: Final = 2
"""Ways to write subscripts between the same names (`/a/b`, `/a[0]/b`) in one set of paths. Each of them may
iterate over the same arrays again."""
select_entries_max: Final = 256
"""Entries of one select list."""
fix_searched_tags_max: Final = 8
"""Tags of a FIX message that are searched one by one. For more tags the whole message is split."""
readers_remembered_max: Final = 512
"""Sets of paths of one message type whose compiled readers are cached."""
merge_nested_bytes_max: Final = 4 * message_bytes_max
"""Nested objects that one merge reads. A merge reads an object again for each object around it."""
