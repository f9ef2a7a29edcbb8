"""Field columns with small segments and steps, for tests in which records change during a search."""

from __future__ import annotations

import pytest

from tickertape.engine.sow.query import column_memory, field_columns


def make_columns_small(patches: pytest.MonkeyPatch) -> None:
    """Let small topics have columns, with segments of 16 slots and steps of a few records."""
    for module in (field_columns, column_memory):
        patches.setattr(module, "sow_column_segment_slots", 16)
    patches.setattr(field_columns, "sow_column_records_min", 1)
    patches.setattr(field_columns, "query_piece_rows_max", 3)
    patches.setattr(field_columns, "query_step_segments_max", 2)
    patches.setattr(field_columns, "query_step_keys_max", 4)
