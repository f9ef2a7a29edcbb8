"""Message batches: encode, decode, build, merge, select and convert them.

The package has no access to clocks, files and connections. The names below are its interface.
"""

from __future__ import annotations

from tickertape.batch.arrow import COLUMNS_DEFAULT, batch_from_arrow
from tickertape.batch.builders.builder import BatchBuilder
from tickertape.batch.delivery_context import DeliveryContext
from tickertape.batch.derive import (
    Stamp,
    as_late,
    as_linked,
    indices_of_topics,
    merge,
    message_costs,
    reorder,
    select,
    select_topic,
    slice_batch,
    split_topics,
    with_bodies,
    with_topics,
)
from tickertape.batch.encode import batch_from_bodies
from tickertape.batch.format import (
    KIND_CONTROL,
    KIND_MESSAGE,
    KIND_RESTATED,
    RUN_BY_SERVER,
    RUN_DTYPE,
    RUN_LATE,
    RUN_MERGED,
    Labels,
    Run,
)
from tickertape.batch.head import BatchHead
from tickertape.batch.message_batch import Message, MessageBatch, bodies_between, cost_between

__all__ = [
    "COLUMNS_DEFAULT",
    "KIND_CONTROL",
    "KIND_MESSAGE",
    "KIND_RESTATED",
    "RUN_BY_SERVER",
    "RUN_DTYPE",
    "RUN_LATE",
    "RUN_MERGED",
    "BatchBuilder",
    "BatchHead",
    "DeliveryContext",
    "Labels",
    "Message",
    "MessageBatch",
    "Run",
    "Stamp",
    "as_late",
    "as_linked",
    "batch_from_arrow",
    "batch_from_bodies",
    "bodies_between",
    "cost_between",
    "indices_of_topics",
    "merge",
    "message_costs",
    "reorder",
    "select",
    "select_topic",
    "slice_batch",
    "split_topics",
    "with_bodies",
    "with_topics",
]
